"""Nested cross-validation of laws, the learning curve over the number of runs, and the rule for when to stop
adding runs.

In the nested cross-validation, the runs on which a law is scored had no part in its fit or in the choice of
the law (Varma and Simon, 2006). Censored runs are used in fits but never scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainers.studies.laws.agreement import Agreement, agreement, spearman
from trainers.studies.laws.regression_law import FittedLaw, Law, fit_censored

_FOLDS = 10
_FRACTIONS = (0.25, 0.5, 0.75)
_DRAWS = 10  # random subsets for each fraction
_LEAST_HELD_OUT = 4
STOP_GAIN = 0.01
"""There are enough runs if the second half of them raised the rank correlation by less than this. Smaller
differences between laws on RegMix's runs do not reproduce with other seeds.
"""


@dataclass(frozen=True)
class CrossValidation:
    """The result of a cross-validation. `predicted` [runs] holds a prediction for each run, from a fit that
    did not use the run; it is NaN for censored runs. `agreement` compares the predictions with the measured
    values. `chosen` maps the name of each law to the number of folds in which it was chosen.
    """

    predicted: np.ndarray
    agreement: Agreement
    chosen: dict[str, int]


@dataclass(frozen=True)
class LearningCurve:
    """The rank correlation on held-out runs as a function of the number of runs in the fit. `points` are
    pairs (runs, correlation), by ascending number of runs.
    """

    points: tuple[tuple[int, float], ...]

    @property
    def last_gain(self) -> float | None:
        """The gain in correlation from about half the runs (the nearest earlier point) to the last point.
        None if the curve has fewer than two points.
        """
        if len(self.points) < 2:
            return None
        half = min(self.points[:-1], key=lambda point: abs(point[0] - self.points[-1][0] / 2))
        return self.points[-1][1] - half[1]

    @property
    def is_enough(self) -> bool:
        """Whether the last gain is known and below STOP_GAIN, so that more runs are unlikely to help."""
        return self.last_gain is not None and self.last_gain < STOP_GAIN


def cross_validate(
    laws: Sequence[Law], ratios: np.ndarray, values: np.ndarray, censored: np.ndarray, seed: int = 0
) -> CrossValidation:
    """Return the cross-validation of both the choice of a law and its fit, in ten folds, or one fold per
    measured run if there are fewer than ten.

    `ratios` is [runs, domains], followed by the size columns for laws with sizes (`SizedLaw`); `values` and
    `censored` (bool) are [runs].
    """
    predicted = np.full(len(values), np.nan)
    chosen = dict.fromkeys((law.name for law in laws), 0)
    for number, held_out in enumerate(_folds(censored, seed)):
        kept = np.setdiff1d(np.arange(len(values)), held_out)
        law, fitted = _choose(laws, ratios[kept], values[kept], censored[kept], seed + 1 + number)
        chosen[law.name] += 1
        predicted[held_out] = fitted.predict(ratios[held_out])
    scored = ~censored
    return CrossValidation(predicted, agreement(values[scored], predicted[scored], seed=seed), chosen)


def choose_law(laws: Sequence[Law], ratios: np.ndarray, values: np.ndarray, censored: np.ndarray, seed: int = 0) -> Law:
    """Return the law with the smallest cross-validated median absolute error. The arrays are as in
    `cross_validate`.
    """
    return laws[0] if len(laws) == 1 else _choose(laws, ratios, values, censored, seed)[0]


def _choose(
    laws: Sequence[Law], ratios: np.ndarray, values: np.ndarray, censored: np.ndarray, seed: int
) -> tuple[Law, FittedLaw]:
    """Return the law with the smallest cross-validated median absolute error, and its fit to all runs.

    To save time, each cross-validation fit starts from the fit to all runs. A Gaussian process even keeps the
    kernel of that fit, so its kernel has seen the runs that are predicted.
    """
    fits = [fit_censored(law, ratios, values, censored) for law in laws]
    if len(laws) == 1:
        return laws[0], fits[0]
    folds = _folds(censored, seed)
    errors = []
    for law, whole in zip(laws, fits, strict=True):
        residuals = []
        for held_out in folds:
            kept = np.setdiff1d(np.arange(len(values)), held_out)
            fitted = fit_censored(law, ratios[kept], values[kept], censored[kept], whole)
            residuals.append(np.abs(fitted.predict(ratios[held_out]) - values[held_out]))
        errors.append(float(np.median(np.concatenate(residuals))))
    best = int(np.argmin(errors))
    return laws[best], fits[best]


def learning_curve(
    law: Law,
    ratios: np.ndarray,
    values: np.ndarray,
    censored: np.ndarray,
    validation: CrossValidation,
    seed: int = 0,
) -> LearningCurve:
    """Return the learning curve of `law`, which is fitted to random subsets of 25, 50 and 75 % of the runs
    and scored on the other runs. Fractions that leave too few runs to fit or to score are skipped. The last
    point comes from `validation`, whose fits use about nine tenths of the runs.
    """
    generator, runs, points = np.random.default_rng(seed), len(values), []
    for fraction in _FRACTIONS:
        size = round(fraction * runs)
        if size < law.minimum_runs(ratios.shape[1]) or runs - size < _LEAST_HELD_OUT:
            continue
        scores = []
        for _ in range(_DRAWS):
            rows = generator.permutation(runs)
            kept, others = rows[:size], rows[size:]
            others = others[~censored[others]]
            if (~censored[kept]).sum() < law.minimum_runs(ratios.shape[1]) or len(others) < _LEAST_HELD_OUT:
                continue
            fitted = fit_censored(law, ratios[kept], values[kept], censored[kept])
            scores.append(spearman(values[others], fitted.predict(ratios[others])))
        if scores:
            points.append((size, float(np.mean(scores))))
    points.append((runs - round(runs / _FOLDS), validation.agreement.spearman))
    return LearningCurve(tuple(points))


def _folds(censored: np.ndarray, seed: int) -> list[np.ndarray]:
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(~censored))
    return [fold for fold in np.array_split(rows, min(_FOLDS, len(rows))) if len(fold)]
