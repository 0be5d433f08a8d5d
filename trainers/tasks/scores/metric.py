"""What a metric is: statistics of each unit, and a value of weighted statistics."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainers.tasks.scores.outcomes import Outcomes

Value = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class TaskMetric:
    """A metric.

    `statistics` turns outcomes into float64 [units, k]; a unit is an example, or a group of them. `value`
    turns statistics and weights, float64 [repetitions, units], into values [repetitions]: weight 2 counts
    a unit twice. So the bootstrap and the paired test compute the metric a thousand times without going
    back to texts.

    A value is from 0 to 1, in BLEU and chrF from 0 to 100 as usual, in perplexity from 1. `signature`
    states settings that a published number needs beside it.
    """

    name: str
    statistics: Callable[[Outcomes], np.ndarray]
    value: Value
    source: str
    higher_is_better: bool = True
    signature: Callable[[Outcomes], str] | None = None


def summed(finish: Callable[[np.ndarray], np.ndarray]) -> Value:
    """Make the value of metrics that are functions of sums: `finish` turns sums [repetitions, k] into
    values.
    """
    return lambda statistics, weights: finish(weights @ statistics)


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Divide: `above / below`, and 0 where `below` is 0, as scikit-learn and seqeval count it."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below != 0)


def mean_of(sums: np.ndarray) -> np.ndarray:
    """Return the mean from sums of (value, count)."""
    return ratio(sums[:, 0], sums[:, 1])
