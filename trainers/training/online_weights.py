"""Weights of domains in the loss that change from step to step (`config.loss_weighting`), the same on every worker.

Before a step, `begin` returns how its targets count. After it, `end` takes the new weights over, unless the step was
skipped. The state is part of a checkpoint.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import yaml

from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from trainers.config.job import Job
from trainers.config.loss_weighting import WEIGHTS_FILE, GroupDRO
from trainers.config.pretraining import Pretraining
from trainers.data.job_interface import JobSource
from trainers.engine.engine import Engine, Scale, Totals
from trainers.engine.forward import Forward
from trainers.engine.losses import losses_of
from trainers.inference.model_export import load_trained
from trainers.rows.batch import Batch


@dataclass(frozen=True)
class GroupDROState:
    """`weights` [domains], their sum over `steps` steps, and the last `excess` loss of each domain, in nats per target."""

    weights: np.ndarray
    summed: np.ndarray
    excess: np.ndarray
    steps: int = 0

    def update(self, nats: np.ndarray, targets: np.ndarray, settings: GroupDRO) -> "GroupDROState":
        """Return the state after a step whose excess `nats` and `targets` are summed by domain, each [domains]."""
        excess = np.divide(nats, targets, out=self.excess.copy(), where=targets > 0)
        with np.errstate(divide="ignore"):  # without smoothing, a weight may have become 0
            logarithms = np.log(self.weights) + settings.step_size * excess
        grown = np.exp(logarithms - logarithms.max())  # the factor cancels out
        weights = (1 - settings.smoothing) * grown / grown.sum() + settings.smoothing / len(grown)
        return GroupDROState(weights, self.summed + weights, excess, self.steps + 1)


class GroupDROWeights:
    """The weights of the domains of a run with group DRO against a reference model, one object per worker."""

    def __init__(self, settings: GroupDRO, names: Sequence[str], reference: Forward, engine: Engine) -> None:
        self._settings, self._names, self._reference, self._engine = settings, tuple(names), reference, engine
        count = len(self._names)
        self.now = GroupDROState(np.full(count, 1 / count), np.zeros(count), np.zeros(count))
        self._next = self.now

    def begin(self, batches: Sequence[Batch]) -> Scale:
        """Measure the excess losses and return weight / targets of each domain, for every loss."""
        nats, targets = self._engine.excess(batches, self._reference, len(self._names))
        finite = bool(np.isfinite(nats).all())  # otherwise the step will be skipped
        self._next = self.now.update(nats, targets, self._settings) if finite else self.now
        weights = self._next.weights
        return lambda counts: weights / np.maximum(1.0, counts)

    def end(self, totals: Totals, norm: float) -> None:
        """Take over the weights of the step, unless it was skipped."""
        if math.isfinite(totals.loss) and math.isfinite(norm):
            self.now = self._next

    def fields(self) -> dict[str, Any]:
        """Return the weights by domain and their mean."""
        mean = self.now.summed / max(1, self.now.steps)
        return {
            "domain_weights": dict(zip(self._names, self.now.weights.tolist(), strict=True)),
            "mean_domain_weights": dict(zip(self._names, mean.tolist(), strict=True)),
        }

    def state(self) -> dict[str, Any]:
        """Return the state as JSON; the numbers are exact."""
        arrays = {name: getattr(self.now, name).tolist() for name in ("weights", "summed", "excess")}
        return {"domains": list(self._names), "steps": self.now.steps, **arrays}

    def resume(self, state: Mapping[str, Any] | None) -> None:
        """Continue from a state. Raises UserError if it is of other domains."""
        if state is None or tuple(state["domains"]) != self._names:
            there = ", ".join(state["domains"]) if state else "none"
            raise UserError(
                f"online_weights: the checkpoint has weights of the domains {there}, the run reads "
                f"{', '.join(self._names)}; begin another run"
            )
        arrays = {name: np.array(state[name]) for name in ("weights", "summed", "excess")}
        self.now = replace(self.now, steps=state["steps"], **arrays)


def online_weights_of(
    config: Job, sources: Sequence[JobSource], lengths: Sequence[int], engine: Engine
) -> GroupDROWeights | None:
    """Return the online weights of a run that reads `sources` in rows of up to `lengths`; None if it has none. Raises
    ConfigError if the reference does not fit.
    """
    if not isinstance(config, Pretraining) or config.online_weights is None:
        return None
    names = [source.name for source in sources]
    return GroupDROWeights(config.online_weights, names, _reference(config, max(lengths), engine), engine)


def _reference(config: Pretraining, length: int, engine: Engine) -> Forward:
    """Load the reference model, which gives the losses of this run's objective on its rows."""
    assert config.online_weights is not None
    path = LocalPath(config.online_weights.reference)
    trained = load_trained(path)
    theirs = trained.config
    for name, here, there in (
        ("objective", config.objective, theirs.objective),
        ("model.family", config.model.family, theirs.model.family),
    ):
        if here != there:
            raise ConfigError(
                f"online_weights.reference: {path} has {name} {there}, this run {here}; give them the same"
            )
    if theirs.model.positions < length:
        raise ConfigError(
            f"online_weights.reference: {path} has {theirs.model.positions} positions, the rows of this run {length}; "
            f"give a reference with as many"
        )
    first, *_ = losses_of(config.objective.losses)
    forward = Forward(trained.model, theirs.model.architecture, config.isolates_documents, (first,))
    forward.requires_grad_(False).eval()
    if config.precision == "bf16":
        forward.bfloat16()
    return forward.to(engine.device)


def write_online_weights(run: LocalPath, weights: GroupDROWeights) -> None:
    """Write the mean weights to a file that other runs take as `data.weights`."""
    its = weights.fields()
    record = {"weights": its["mean_domain_weights"], "last": its["domain_weights"]}
    (run / WEIGHTS_FILE).write_atomic(yaml.safe_dump(record, sort_keys=False, allow_unicode=True).encode())
