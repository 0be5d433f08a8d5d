"""Sampling noise: a bootstrap interval for every metric, and a paired test between two runs on the same
examples.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainers.tasks.scores.metric import TaskMetric
from trainers.tasks.scores.outcomes import Outcomes

REPETITIONS = 1000
_CELLS = 4_000_000  # weights in memory at once: 32 MB
_LEVEL = 0.95


@dataclass(frozen=True)
class Score:
    """A metric's value and its sampling noise.

    `low` and `high` bound the 95 % percentile interval of the bootstrap (Efron, 1979; Efron and Tibshirani,
    1993, section 13.3) over the `n` units. A unit is an example, or a question for `question_accuracy`. The
    interval does not cover the noise of training.
    """

    metric: str
    value: float
    low: float
    high: float
    n: int
    repetitions: int
    seed: int
    higher_is_better: bool = True
    signature: str | None = None


@dataclass(frozen=True)
class Difference:
    """The difference in a metric between two runs, `b` minus `a`, on the same examples.

    `low` and `high` bound its 95 % interval by the paired bootstrap (Efron and Tibshirani, 1993, chapter 13;
    Koehn, 2004). `p` is the p-value of the two-sided paired permutation test (Fisher, 1935; Noreen, 1989;
    Yeh, 2000), in which the observed assignment counts as one of the random swaps.
    """

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    n: int
    repetitions: int
    seed: int


def score(metric: TaskMetric, outcomes: Outcomes, repetitions: int = REPETITIONS, seed: int = 0) -> Score:
    """Return a metric's value and its interval. With 0 repetitions, the ends of the interval are NaN."""
    statistics = metric.statistics(outcomes)
    n = len(statistics)
    value = metric.value(statistics, np.ones((1, n)))[0]
    resampled = [metric.value(statistics, weights) for weights in _samples(n, repetitions, seed)]
    low, high = _interval(np.concatenate([np.empty(0), *resampled]))
    signature = metric.signature(outcomes) if metric.signature else None
    return Score(metric.name, float(value), low, high, n, repetitions, seed, metric.higher_is_better, signature)


def compare(metric: TaskMetric, a: Outcomes, b: Outcomes, repetitions: int = REPETITIONS, seed: int = 0) -> Difference:
    """Return the difference in a metric, `b` minus `a`, between two runs on the same examples in the same
    order, with its interval and p-value. `repetitions` must be at least 1.
    """
    first, second = metric.statistics(a), metric.statistics(b)
    n = len(first)
    assert len(second) == n
    one = np.ones((1, n))
    values = float(metric.value(first, one)[0]), float(metric.value(second, one)[0])
    differences = np.concatenate(
        [metric.value(second, weights) - metric.value(first, weights) for weights in _samples(n, repetitions, seed)]
    )
    observed = values[1] - values[0]
    both = np.concatenate([first, second])
    swapped = np.concatenate(
        [
            metric.value(both, np.concatenate([swaps, 1 - swaps], axis=1))
            - metric.value(both, np.concatenate([1 - swaps, swaps], axis=1))
            for swaps in _swaps(n, repetitions, seed)
        ]
    )
    as_large = np.abs(swapped) >= abs(observed) - 1e-12
    p = (1 + int(as_large.sum())) / (1 + repetitions)
    return Difference(metric.name, *values, observed, *_interval(differences), p, n, repetitions, seed)


def _interval(values: np.ndarray) -> tuple[float, float]:
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def _samples(n: int, repetitions: int, seed: int) -> Iterator[np.ndarray]:
    """Yield bootstrap samples of n units in blocks, `repetitions` samples in all. A block, float64 [samples,
    n], counts how often each sample draws each unit.
    """
    generator = np.random.default_rng(seed)
    for size in _sizes(n, repetitions):
        draws = generator.integers(0, n, (size, n)) + np.arange(size)[:, None] * n
        yield np.bincount(draws.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)


def _swaps(n: int, repetitions: int, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(seed)
    for size in _sizes(n, repetitions):
        yield generator.integers(0, 2, (size, n)).astype(np.float64)


def _sizes(n: int, repetitions: int) -> Iterator[int]:
    most = max(1, _CELLS // max(1, n))
    for first in range(0, repetitions, most):
        yield min(most, repetitions - first)
