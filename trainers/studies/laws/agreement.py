"""How well predictions of a metric agree with measurements: rank correlation, decisions, calibration."""

from dataclasses import asdict, dataclass

import numpy as np

_LEVEL = 0.95


@dataclass(frozen=True)
class Agreement:
    """The agreement between the predicted and the measured values of `runs` mixtures.

    `spearman` is the rank correlation; `low` and `high` are the ends of its 95 % interval, from a bootstrap
    over mixtures. `decisions` is the decision accuracy (Magnusson et al., 2025, DataDecide, section 3).
    `slope` is the slope of the regression of measured on predicted values: below 1 if predicted differences
    are too large. `error` is the root mean square error in units of the metric.
    """

    runs: int
    spearman: float
    low: float
    high: float
    decisions: float
    slope: float
    error: float

    def fields(self) -> dict[str, float | None]:
        """Return the fields as JSON data, with None for NaN."""
        return {name: None if np.isnan(value) else value for name, value in asdict(self).items()}


def agreement(measured: np.ndarray, predicted: np.ndarray, repetitions: int = 500, seed: int = 0) -> Agreement:
    """Return how well `predicted` agrees with `measured`, both [mixtures], for at least two mixtures. The
    interval of the rank correlation comes from `repetitions` bootstrap draws; without draws, its ends are
    NaN.
    """
    low = high = float("nan")
    if repetitions:
        drawn = np.random.default_rng(seed).integers(0, len(measured), (repetitions, len(measured)))
        codes = [np.unique(values, return_inverse=True)[1] for values in (measured, predicted)]
        samples = np.array([_correlation(*(_ranks(code[rows]) for code in codes)) for rows in drawn])
        low, high = np.quantile(samples, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    centred = predicted - predicted.mean()
    variance = float(centred @ centred)
    return Agreement(
        len(measured),
        spearman(measured, predicted),
        float(low),
        float(high),
        decision_accuracy(measured, predicted),
        float(centred @ (measured - measured.mean()) / variance) if variance > 0 else 0.0,
        float(np.sqrt(((measured - predicted) ** 2).mean())),
    )


def spearman(measured: np.ndarray, predicted: np.ndarray) -> float:
    """Return Spearman's rank correlation of two arrays; 0 if either is constant."""
    return _correlation(*(_ranks(np.unique(values, return_inverse=True)[1]) for values in (measured, predicted)))


def _ranks(codes: np.ndarray) -> np.ndarray:
    """Return the rank of each value; equal values get the mean of their ranks. `codes` number the distinct
    values from 0 in ascending order.
    """
    counts = np.bincount(codes)
    return (np.cumsum(counts) - (counts - 1) / 2)[codes]


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    first, second = first - first.mean(), second - second.mean()
    norm = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / norm if norm > 0 else 0.0


def decision_accuracy(measured: np.ndarray, predicted: np.ndarray) -> float:
    """Return the share of pairs that the predictions put in the same order as the measurements, among the
    pairs whose measured values differ; NaN if there are none. Pairs with equal predictions count half.
    """
    agreeing = pairs = 0.0
    for row in range(len(measured) - 1):  # all pairs at once would take 800 MB for 10,000 runs
        true = np.sign(measured[row + 1 :] - measured[row])
        agreeing += float(true @ np.sign(predicted[row + 1 :] - predicted[row]))
        pairs += np.count_nonzero(true)
    return (1 + agreeing / pairs) / 2 if pairs else float("nan")
