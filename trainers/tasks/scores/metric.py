"""TaskMetric, a metric of predictions, and helpers for metrics that depend only on sums of statistics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.tasks.scores.outcomes import Outcomes

Value = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class TaskMetric:
    """A metric of predictions.

    `statistics` turns outcomes into float64 [units, k]; a unit is an example, or a group of examples. `value`
    turns statistics and weights, float64 [repetitions, units], into values [repetitions]; a unit of weight 2
    counts twice. The bootstrap and the paired test can therefore recompute the metric a thousand times
    without the texts.

    Values are between 0 and 1 for most metrics, between -1 and 1 for correlations (including Matthews'), and
    between 0 and 100 for BLEU and chrF, as usual. Perplexity is at least 1, and bits per byte are at least 0.
    `source` cites or states the definition. `signature` returns the settings that must accompany a
    published number.
    """

    name: str
    statistics: Callable[[Outcomes], np.ndarray]
    value: Value
    source: str
    higher_is_better: bool = True
    signature: Callable[[Outcomes], str] | None = None


def summed(finish: Callable[[np.ndarray], np.ndarray]) -> Value:
    """Return the `value` function of a metric that depends only on sums of statistics. `finish` turns sums
    [repetitions, k] into values [repetitions].
    """
    return lambda statistics, weights: finish(weights @ statistics)


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return `above / below`, or 0 where `below` is 0, as scikit-learn and seqeval do."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below != 0)


def bounded_exp(nats: Any) -> Any:
    """Return the perplexity exp(`nats`), where `nats` is a mean per token, but at most exp(300). The bound
    keeps squares and sums of perplexities finite.
    """
    return np.exp(np.minimum(nats, 300.0))


def mean_of(sums: np.ndarray) -> np.ndarray:
    """Return means [repetitions], given sums [repetitions, 2] of values and counts."""
    return ratio(sums[:, 0], sums[:, 1])
