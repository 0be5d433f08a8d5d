"""Group DRO against a reference model, as in DoReMi (Xie et al., 2023); `trainers.config.loss_weighting`
defines the method.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from trainers.config.loss_weighting import GroupDRO
from trainers.config.pretraining import Pretraining
from trainers.engine.engine import Engine, Scale, Totals
from trainers.engine.forward import Forward
from trainers.engine.losses import losses_of
from trainers.inference.model_export import load_trained
from trainers.rows.batch import Batch
from trainers.training.weighting.weights_interface import OnlineWeights, WeightsState


@dataclass(frozen=True)
class GroupDROState(WeightsState):
    """The state of group DRO: the weights, and the last `excess` loss of each domain in nats per target."""

    excess: np.ndarray

    def update(self, nats: np.ndarray, targets: np.ndarray, settings: GroupDRO) -> "GroupDROState":
        """Return the state after a step. `nats` is the excess loss of the step and `targets` its number of
        targets, both [domains].
        """
        excess = np.divide(nats, targets, out=self.excess.copy(), where=targets > 0)
        with np.errstate(divide="ignore"):  # without smoothing, a weight may have become 0
            logarithms = np.log(self.weights) + settings.step_size * excess
        grown = np.exp(logarithms - logarithms.max())  # the factor cancels out
        weights = (1 - settings.smoothing) * grown / grown.sum() + settings.smoothing / len(grown)
        return GroupDROState(weights, self.summed + weights, excess, steps=self.steps + 1)


class GroupDROWeights(OnlineWeights[GroupDROState]):
    """Online weights by group DRO against a reference model."""

    def __init__(self, settings: GroupDRO, names: Sequence[str], reference: Forward, engine: Engine) -> None:
        count = len(names)
        super().__init__(names, GroupDROState(np.full(count, 1 / count), np.zeros(count), np.zeros(count)))
        self._settings, self._reference, self._engine = settings, reference, engine
        self._next = self.now

    def begin(self, batches: Sequence[Batch]) -> Scale:
        """Compute the weights of the step from the excess losses of `batches` over the reference model; they
        do not change if an excess loss is not finite. Return the step's `Scale`, a function that maps the
        numbers of targets, float64 [losses, domains], to the factor of each domain in each loss: the domain's
        weight divided by its number of targets in that loss.
        """
        nats, targets = self._engine.excess(batches, self._reference, len(self._names))
        finite = bool(np.isfinite(nats).all())  # otherwise the step will be skipped
        self._next = self.now.update(nats, targets, self._settings) if finite else self.now
        weights = self._next.weights
        return lambda counts: weights / np.maximum(1.0, counts)

    def end(self, totals: Totals, norm: float) -> None:
        if math.isfinite(totals.loss) and math.isfinite(norm):
            self.now = self._next


def load_reference(config: Pretraining, settings: GroupDRO, length: int, engine: Engine) -> Forward:
    """Load the reference model as a forward pass that computes the first loss of this run's objective, on
    rows of up to `length` tokens. Raises ConfigError if the reference does not fit the run.
    """
    path = LocalPath(settings.reference)
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
    first, *_ = losses_of(config.objective.losses, config.objective.contrast)
    forward = Forward(trained.model, theirs.model.architecture, config.isolates_documents, (first,))
    forward.requires_grad_(False).eval()
    if config.precision == "bf16":
        forward.bfloat16()
    return forward.to(engine.device)
