"""Adaptive data optimization (Jiang et al., 2024): weights from the slope of each domain's learning curve.

`trainers.config.loss_weighting` defines the method.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainers.config.loss_weighting import ADO
from trainers.engine.engine import Scale, Totals
from trainers.rows.batch import Batch
from trainers.training.weighting.weights_interface import OnlineWeights, WeightsState

_EXPONENTS = np.linspace(0.01, 0.8, 80)
_GROWTH = math.log(1.02)
_FEWEST_POINTS = 5
_THIRDS = 25  # (2/3)^25 of the distance of grid points: 4e-5 of it


@dataclass(frozen=True)
class ADOState(WeightsState):
    """The state of ADO. The last axis of every array is the domain.

    `weights` are the policy, `average` is the policy's mean since the warm-up, and `credit` the policy's
    moving average. `read` counts targets; `effective` counts them weighted by their factor in the loss.
    `curve` [points, 2, domains] holds the learning curves. Each point covers several steps: it holds
    `effective` midway between their start and end, and their nats per target, or 0 if they had no targets.
    `open` [3, domains] covers the steps since the last point: their nats, their targets, and `effective` at
    their start. `laws` [2, domains] holds the coefficient and exponent of each domain's power law, both 0 if
    none is fitted.
    """

    average: np.ndarray
    credit: np.ndarray
    read: np.ndarray
    effective: np.ndarray
    curve: np.ndarray
    open: np.ndarray
    laws: np.ndarray

    @classmethod
    def initial(cls, domains: int) -> "ADOState":
        """Return the state before the first step."""
        zeros = np.zeros(domains)
        curve, laws = np.zeros((0, 2, domains)), np.zeros((2, domains))
        return cls(zeros, zeros, zeros, zeros, zeros, zeros, curve, np.zeros((3, domains)), laws)

    def factors(self, targets: np.ndarray, warmup: int) -> np.ndarray:
        """Return the factors [domains] by which the loss multiplies each domain's nats in a step. `targets`
        [domains] counts the step's targets in each domain.

        A factor is the domain's weight divided by its share of all targets read so far, including those of
        this step. It is 1 during the first `warmup` steps and for domains without targets in the step.
        """
        if self.steps < warmup:
            return np.ones(len(targets))
        return np.divide(self.weights, _shares(self.read + targets), out=np.ones(len(targets)), where=targets > 0)

    def update(self, nats: np.ndarray, targets: np.ndarray, settings: ADO, warmup: int) -> "ADOState":
        """Return the state after a step. `nats` and `targets`, both [domains], are the sum of the nats and
        the number of targets of each domain in the step. `warmup` is the number of warm-up steps.
        """
        effective = self.effective + self.factors(targets, warmup) * targets
        read, step = self.read + targets, self.steps + 1
        now = replace(self, read=read, effective=effective, steps=step)
        if step > warmup // 2:
            now = now._observe(nats, targets, self.effective)
        if step < warmup:
            weights = _shares(read)
            return replace(now, weights=weights, average=weights, credit=weights, summed=self.summed + weights)
        return now._decide(settings, step - warmup + 1)

    def _observe(self, nats: np.ndarray, targets: np.ndarray, before: np.ndarray) -> "ADOState":
        began = self.open[2] if self.open[1].any() else before
        sums = np.stack((self.open[0] + nats, self.open[1] + targets, began))
        if not _ends_stretch(self.steps):
            return replace(self, open=sums)
        mean = np.divide(sums[0], sums[1], out=np.zeros(len(nats)), where=sums[1] > 0)
        curve = np.concatenate((self.curve, np.stack(((began + self.effective) / 2, mean))[None]))
        laws = np.stack([fit_power_law(*points.T) for points in np.moveaxis(curve, 2, 0)], axis=1)
        return replace(self, open=np.zeros_like(sums), curve=curve, laws=laws)

    def _decide(self, settings: ADO, number: int) -> "ADOState":
        """Return the state with the weights of the next step, which is step `number` since the warm-up."""
        prior = _shares(self.read)
        coefficients, exponents = self.laws
        known = exponents > 0
        speeds = coefficients * exponents * np.maximum(1.0, self.effective) ** (-exponents - 1)
        wanted = np.where(known, prior * self.credit**settings.credit_exponent * speeds, 0.0)
        preferred = prior.copy()
        if wanted.sum() > 0:
            preferred[known] = prior[known].sum() * wanted[known] / wanted.sum()
        weights = settings.policy_rate * preferred + (1 - settings.policy_rate) * self.average
        weights = (1 - settings.smoothing) * weights + settings.smoothing / len(weights)
        credit = settings.credit_rate * weights + (1 - settings.credit_rate) * self.credit
        average = self.average + (weights - self.average) / (number + 1)
        return replace(self, weights=weights, summed=self.summed + weights, average=average, credit=credit)


class ADOWeights(OnlineWeights[ADOState]):
    """Online weights by ADO, for a run of `steps` steps."""

    def __init__(self, settings: ADO, names: Sequence[str], steps: int) -> None:
        super().__init__(names, ADOState.initial(len(names)))
        self._settings = settings
        # The step after which the warm-up ends has no weights yet to average: the first step must come before it.
        self._warmup = max(2, math.ceil(settings.warmup_fraction * steps))

    def begin(self, batches: Sequence[Batch]) -> Scale:
        """Return the `Scale` of the step. For each loss, it computes the factors of `ADOState.factors`,
        divided by the number of targets of this loss in the step.
        """
        now, warmup = self.now, self._warmup
        return lambda counts: now.factors(counts[0], warmup) / np.maximum(1.0, counts.sum(axis=1, keepdims=True))

    def end(self, totals: Totals, norm: float) -> None:
        if math.isfinite(totals.loss) and math.isfinite(norm):
            nats, targets = totals.sums[0]
            self.now = self.now.update(nats, targets, self._settings, self._warmup)


def fit_power_law(amounts: np.ndarray, losses: np.ndarray) -> tuple[float, float]:
    """Fit loss = floor + coefficient x amount ^ -exponent to the points given by `amounts` (positive) and
    `losses`, both [points], and return (coefficient, exponent).

    The fit is by least squares, with floor and coefficient at least 0 and the exponent from 0.01 to 0.8, the
    paper's bound. Points of loss 0 are left out. If fewer than 5 points remain, both results are 0.
    """
    usable = losses > 0
    if usable.sum() < _FEWEST_POINTS:
        return 0.0, 0.0
    losses, unit = losses[usable], amounts[usable].max()
    logarithms = np.log(amounts[usable] / unit)
    errors = np.array([_solve(logarithms, losses, exponent)[1] for exponent in _EXPONENTS])
    best = int(errors.argmin())
    low, high = _EXPONENTS[max(0, best - 1)], _EXPONENTS[min(best + 1, len(errors) - 1)]
    for _ in range(_THIRDS):  # between grid points too, so that the last bits of losses do not make it jump
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if _solve(logarithms, losses, left)[1] < _solve(logarithms, losses, right)[1]:
            high = right
        else:
            low = left
    exponent = float(low + high) / 2
    return _solve(logarithms, losses, exponent)[0] * float(unit) ** exponent, exponent


def _solve(logarithms: np.ndarray, losses: np.ndarray, exponent: float) -> tuple[float, float]:
    powers = np.exp(-exponent * logarithms)
    centred = powers - powers.mean()
    coefficient = max(0.0, float(centred @ losses) / max(float(centred @ centred), 1e-300))
    floor = float(losses.mean() - coefficient * powers.mean())
    if floor < 0:
        floor, coefficient = 0.0, float(powers @ losses / (powers @ powers))
    residuals = losses - floor - coefficient * powers
    return coefficient, float(residuals @ residuals)


def _shares(read: np.ndarray) -> np.ndarray:
    return read / max(1.0, read.sum())


def _ends_stretch(step: int) -> bool:
    """Return whether `step` is the last step that a point of the learning curves covers: step 1, or a step at
    which the number of steps reaches or passes another power of 1.02.
    """
    return step == 1 or math.floor(math.log(step) / _GROWTH) > math.floor(math.log(step - 1) / _GROWTH)
