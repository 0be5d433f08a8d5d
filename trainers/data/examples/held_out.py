"""Held-out splits of tasks: their batches, and the predictions and scores computed from a model's outputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from trainers.data.examples.read_outputs import read_outputs
from trainers.data.examples.task_data import TaskSource, batch_of, notice_of, sources_of
from trainers.data.examples.task_inputs import TaskInputs
from trainers.data.order import Samples
from trainers.rows.batch import Batch
from trainers.rows.task_outputs import TaskOutputs
from trainers.tasks.examples import Examples
from trainers.tasks.predictions import Predictions, predictions_of
from trainers.tasks.text_to_text import parse_outputs


@dataclass(frozen=True)
class HeldOut:
    """Held-out splits of tasks, one per task. `length` is the maximum number of positions in a segment, not
    counting virtual tokens. If `packed`, a row can have several segments.
    """

    tasks: tuple[TaskInputs, ...]
    examples: tuple[Examples, ...]
    length: int
    packed: bool = True
    weights: ClassVar[Mapping[str, float]] = {}

    @cached_property
    def sources(self) -> tuple[TaskSource, ...]:
        """The sources by which losses are reported, one for each task."""
        return sources_of(self.tasks)

    @cached_property
    def samples(self) -> Samples:
        """All inputs of all tasks, as samples."""
        counts = [len(task) for task in self.tasks]
        source = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
        sequence = np.concatenate([np.arange(count) for count in counts])
        tokens = np.concatenate([task.sizes for task in self.tasks])
        return Samples(np.arange(len(source)), source, sequence, tokens, np.zeros_like(sequence))

    def batches(self, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield the inputs for process `rank` of `world`, in batches of up to `size` inputs. Every process
        gets the same number of batches.
        """
        for part in self.samples.share(size, rank, world):
            yield batch_of(self.tasks, part, self.packed)

    def notices(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield a log event (kind, fields) for each task: its split, its numbers of examples and inputs, and
        how much was cut.
        """
        for task, examples in zip(self.tasks, self.examples, strict=True):
            yield "task", {**notice_of(task), "split": examples.split}

    def predictions(self, outputs: TaskOutputs, model: str = "") -> Predictions:
        """Return the predictions of the model named `model`, given the head's outputs for all inputs. There
        must be exactly one task.

        If the task has questions without an answer, the threshold of the predictions is 0:
        `Predictions.decided` empties an answer whose score is lower than the no-answer score.
        """
        (task,), (examples,) = self.tasks, self.examples
        predicted, scores = read_outputs(task, examples, outputs)
        predictions = predictions_of(examples, predicted, model, scores)
        return replace(predictions, threshold=0.0) if examples.task.no_answer else predictions

    def written_predictions(
        self, texts: Sequence[str], model: str, nats: np.ndarray | None = None, tokens: np.ndarray | None = None
    ) -> Predictions:
        """Return the predictions, given the texts that a model generated for the inputs. There must be
        exactly one task. `nats` and `tokens`, each [n], hold the loss and the number of tokens of each gold
        text.
        """
        (examples,) = self.examples
        return predictions_of(examples, parse_outputs(examples, texts), model, nats=nats, tokens=tokens)
