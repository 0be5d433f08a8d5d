"""Correlations of predicted and gold numbers, as scipy defines them, except that the result is 0 if either
side is constant.
"""

import numpy as np

from trainers.tasks.scores.metric import TaskMetric, ratio
from trainers.tasks.scores.outcomes import Outcomes


def _numbers(outcomes: Outcomes) -> np.ndarray:
    assert outcomes.gold is not None
    assert outcomes.predicted is not None
    return np.stack([outcomes.gold, outcomes.predicted], axis=1).astype(np.float64)


def _pearson(statistics: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return Pearson's r of the two columns of `statistics` for each row of `weights`."""
    centred = statistics - statistics.mean(axis=0)
    x, y = centred.T
    return _correlation(weights @ np.stack([x, y, x * x, y * y, x * y, np.ones(len(x))], axis=1))


def _correlation(sums: np.ndarray) -> np.ndarray:
    """Return Pearson's r from sums [repetitions, 6] of x, y, xx, yy, xy and 1."""
    x, y, xx, yy, xy, count = sums.T
    both, first, second = xy * count - x * y, xx * count - x * x, yy * count - y * y
    # The variance of a constant column is not exactly 0 because of rounding.
    constant = (first <= 1e-13 * xx * count) | (second <= 1e-13 * yy * count)
    return np.clip(ratio(both, np.where(constant, 0.0, np.sqrt(np.abs(first * second)))), -1.0, 1.0)


def _spearman(statistics: np.ndarray, weights: np.ndarray) -> np.ndarray:
    places = [np.unique(column, return_inverse=True)[1] for column in statistics.T]
    return np.array([_pearson(_ranks(places, row), row[None])[0] for row in weights])


def _ranks(places: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Return the ranks of the gold and of the predicted numbers, [units, 2], minus their means. Unit i counts
    `weights[i]` times, and equal numbers share the mean of their ranks. `places` holds two arrays, one for
    the gold and one for the predicted numbers: the index of each unit's number among the sorted distinct
    numbers.
    """
    columns = []
    for place in places:
        counts = np.bincount(place, weights)
        columns.append((np.cumsum(counts) - (counts - 1) / 2)[place])
    ranks = np.stack(columns, axis=1)
    return ranks - (weights @ ranks) / weights.sum()


METRICS = (
    TaskMetric("pearson", _numbers, _pearson, "Pearson, 1895"),
    TaskMetric("spearman", _numbers, _spearman, "Spearman, 1904"),
)
