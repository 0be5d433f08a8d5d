"""The probability and the reciprocal rank of the gold candidate, two metrics that respond to training earlier
than accuracy does.
"""

import numpy as np

from trainers.tasks.scores.metric import TaskMetric, mean_of, summed
from trainers.tasks.scores.outcomes import Outcomes


def _values(outcomes: Outcomes) -> np.ndarray:
    assert outcomes.predicted is not None
    return np.stack([outcomes.predicted, np.ones(len(outcomes.predicted))], axis=1)


_PROBABILITY = TaskMetric(
    "gold_probability", _values, summed(mean_of), "Magnusson et al., 2025, DataDecide (norm_correct_prob)"
)
_RANK = TaskMetric("reciprocal_rank", _values, summed(mean_of), "Voorhees, 1999, TREC-8 question answering track")


def gold_scores(
    likelihoods: np.ndarray, scores: np.ndarray, offsets: np.ndarray, gold: np.ndarray
) -> dict[str, tuple[TaskMetric, Outcomes]]:
    """Return the metrics `gold_probability` and `reciprocal_rank` for n items, keyed by name, each with the
    outcomes that it is computed from.

    `gold_probability` is the gold candidate's share of the likelihood of all candidates of the item.
    `reciprocal_rank` is 1 / rank, where the rank is 1 plus the number of candidates with a higher score.

    `likelihoods` (log-likelihoods in nats) and `scores` are flat arrays over the candidates of all items;
    those of item i are at `offsets[i] : offsets[i + 1]`. `gold`, int64 [n], is the index of each item's gold
    candidate; every item must have one.
    """
    first, sizes = offsets[:-1], np.diff(offsets)
    right = first + gold
    shares = np.exp(likelihoods - np.repeat(np.maximum.reduceat(likelihoods, first), sizes))
    higher = scores > np.repeat(scores[right], sizes)
    ranks = 1 + np.add.reduceat(higher.astype(np.int64), first)
    probability = shares[right] / np.add.reduceat(shares, first)
    return {
        "gold_probability": (_PROBABILITY, Outcomes(predicted=probability)),
        "reciprocal_rank": (_RANK, Outcomes(predicted=1 / ranks)),
    }
