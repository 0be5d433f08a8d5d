"""Decide which checkpoint of a fine-tuning run is the best, and when the run stops early."""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from trainers.config.finetuning import Finetuning
from trainers.data.examples.held_out import HeldOut
from trainers.engine.engine import Engine, Totals
from trainers.rows.batch import Batch
from trainers.runs.checkpoint import Best
from trainers.tasks.predictions import score_predictions


class Judge:
    """Compares the validations of a run by the first metric of its task, or by the loss if the model answers
    in text.

    `improved` says whether the last validation was the best so far, and `ended` whether `validation.patience`
    validations in a row brought no improvement.
    """

    def __init__(self, config: Finetuning, engine: Engine) -> None:
        self.metric = "loss" if config.writes_text else config.tasks[0].metrics[0]
        self.best: Best | None = None
        self.improved, self.ended = False, False
        self._patience, self._engine = config.validation.patience, engine

    def resume(self, best: Best | None) -> None:
        """Continue from the best validation that a checkpoint records."""
        self.best = best
        self.ended = self._is_over()

    def measure(self, held_out: HeldOut, batches: Iterable[Batch]) -> tuple[Totals, dict[str, float]]:
        """Return the losses on the held-out split, and the values of the task's metrics by name. There are no
        metrics if the model answers in text, nor on any worker but the first.
        """
        if self.metric == "loss":
            return self._engine.evaluate(batches, len(held_out.sources)), {}
        totals, outputs = self._engine.predict(batches, len(held_out.sources))
        if outputs is None:
            return totals, {}
        scores = score_predictions(held_out.predictions(outputs, ""), repetitions=0)
        return totals, {name: score.value for name, score in scores.items()}

    def compare(self, step: int, fields: Mapping[str, Any]) -> None:
        """Compare the validation after `step` steps with the best so far, and set `improved` and `ended`.
        Every worker must call this, but only the first worker's `fields` count.
        """
        if self._engine.rank == 0:
            value = -fields["loss"] if self.metric == "loss" else fields[self.metric]
            value = float(value) if math.isfinite(value) else -sys.float_info.max
            self.improved = self.best is None or value > self.best.value
            if self.best is None or self.improved:
                self.best = Best(step, value)
            else:
                self.best = replace(self.best, validations_since=self.best.validations_since + 1)
        decided = self._engine.broadcast(2 * self._is_over() + self.improved)
        self.improved, self.ended = bool(decided & 1), bool(decided & 2)

    def _is_over(self) -> bool:
        since = self.best.validations_since if self.best else 0
        return self._patience is not None and since >= self._patience
