"""How well predictions of a metric agree with measurements: rank correlation, decisions, calibration."""

from dataclasses import asdict, dataclass

import numpy as np

_LEVEL = 0.95


@dataclass(frozen=True)
class Agreement:
    """Agreement of predicted and measured values of `runs` mixtures.

    `spearman` is the rank correlation. `decisions` is the share of pairs of mixtures that predictions put in
    the same order as measurements (decision accuracy; Magnusson et al., 2025, DataDecide, section 3); equal
    predictions count half. `slope` is the slope of the regression of measured on predicted values: 1 if
    predicted differences have the right size, below 1 if they are exaggerated. `error` is the root mean
    square error in units of the metric. `low` and `high` bound the 95 % interval of `spearman` by the
    bootstrap over mixtures.
    """

    runs: int
    spearman: float
    low: float
    high: float
    decisions: float
    slope: float
    error: float

    def fields(self) -> dict[str, float | None]:
        """Return the fields as JSON, with None for NaN."""
        return {name: None if np.isnan(value) else value for name, value in asdict(self).items()}


def agreement(measured: np.ndarray, predicted: np.ndarray, repetitions: int = 500, seed: int = 0) -> Agreement:
    """Compare measured and predicted values, each [mixtures], of at least two mixtures. With 0 repetitions
    the interval is NaN.
    """
    low = high = float("nan")
    if repetitions:
        drawn = np.random.default_rng(seed).integers(0, len(measured), (repetitions, len(measured)))
        samples = np.array([spearman(measured[rows], predicted[rows]) for rows in drawn])
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
    """Return Spearman's rank correlation; 0 if either side is constant."""
    from scipy.stats import rankdata

    first, second = (rankdata(values) - (len(values) + 1) / 2 for values in (measured, predicted))
    norm = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / norm if norm > 0 else 0.0


def decision_accuracy(measured: np.ndarray, predicted: np.ndarray) -> float:
    """Return the share of pairs that are in the same order, among the pairs whose measured values differ; NaN
    if there are none.
    """
    first, second = np.triu_indices(len(measured), 1)
    true = np.sign(measured[first] - measured[second])
    same = true * np.sign(predicted[first] - predicted[second])
    return float((1 + same[true != 0]).mean() / 2) if true.any() else float("nan")
