"""Metrics of labels: accuracy, F1 and Matthews' correlation, defined as in scikit-learn 1.9, and the share of
questions whose answers are all labelled correctly.
"""

import numpy as np

from trainers.tasks.scores.metric import TaskMetric, mean_of, ratio, summed
from trainers.tasks.scores.outcomes import Outcomes


def _labels(outcomes: Outcomes) -> tuple[np.ndarray, np.ndarray]:
    assert outcomes.gold is not None
    assert outcomes.predicted is not None
    return outcomes.gold, outcomes.predicted


def _correct(outcomes: Outcomes) -> np.ndarray:
    """Return the number of correct labels and the number of labels of each example, float64 [n, 2]."""
    gold, predicted = _labels(outcomes)
    columns = np.stack([gold == predicted, np.ones(len(gold), bool)], axis=1).astype(np.float64)
    if outcomes.offsets is None:
        return columns
    totals = np.concatenate([np.zeros((1, 2)), np.cumsum(columns, axis=0)])
    return totals[outcomes.offsets[1:]] - totals[outcomes.offsets[:-1]]


def _by_label(outcomes: Outcomes) -> np.ndarray:
    """Return indicators for each example and label, float64 [n, 3 L], in three blocks of L: whether the label
    is correctly predicted, predicted, and gold.
    """
    gold, predicted = _labels(outcomes)
    every = np.arange(len(outcomes.labels))
    is_gold, is_predicted = gold[:, None] == every, predicted[:, None] == every
    return np.concatenate([is_gold & is_predicted, is_predicted, is_gold], axis=1).astype(np.float64)


def _by_question(outcomes: Outcomes) -> np.ndarray:
    """Return two columns, float64 [groups, 2]: whether all examples of the group are correct, and a constant
    1, which counts the groups.
    """
    gold, predicted = _labels(outcomes)
    assert outcomes.groups is not None
    right = np.ones(int(outcomes.groups.max()) + 1)
    np.minimum.at(right, outcomes.groups, gold == predicted)
    return np.stack([right, np.ones(len(right))], axis=1)


def _positive(outcomes: Outcomes) -> np.ndarray:
    columns = _by_label(outcomes)
    return columns[:, outcomes.positive :: len(outcomes.labels)]


def _f1(sums: np.ndarray) -> np.ndarray:
    """Return the F1 of each label, [repetitions, labels]. `sums`, [repetitions, 3 x labels], contains the
    sums of the columns of `_by_label`, or of those of `_positive`, which cover a single label.
    """
    found, predicted, gold = np.split(sums, 3, axis=1)
    return ratio(2 * found, predicted + gold)


def _macro_f1(sums: np.ndarray) -> np.ndarray:
    _, predicted, gold = np.split(sums, 3, axis=1)
    return ratio(_f1(sums).sum(axis=1), ((predicted + gold) > 0).sum(axis=1))


def _micro_f1(sums: np.ndarray) -> np.ndarray:
    found, predicted, gold = (part.sum(axis=1) for part in np.split(sums, 3, axis=1))
    return ratio(2 * found, predicted + gold)


def _matthews(sums: np.ndarray) -> np.ndarray:
    """Return Matthews' correlation in Gorodkin's generalisation to L labels. Predictions that are not a label
    count as an additional label.
    """
    found, predicted, gold = np.split(sums, 3, axis=1)
    count = gold.sum(axis=1)
    together = found.sum(axis=1) * count - (predicted * gold).sum(axis=1)
    none = count - predicted.sum(axis=1)
    spread = (count**2 - (predicted**2).sum(axis=1) - none**2) * (count**2 - (gold**2).sum(axis=1))
    return ratio(together, np.sqrt(spread))


METRICS = (
    TaskMetric("accuracy", _correct, summed(mean_of), "the share of correct examples, or of correct words"),
    TaskMetric("f1", _positive, summed(lambda sums: _f1(sums)[:, 0]), "van Rijsbergen, 1979: of the positive label"),
    TaskMetric("macro_f1", _by_label, summed(_macro_f1), "the mean of F1 over the labels that occur"),
    TaskMetric("micro_f1", _by_label, summed(_micro_f1), "F1 of the counts of all labels; equals accuracy"),
    TaskMetric("matthews", _by_label, summed(_matthews), "Matthews, 1975; Gorodkin, 2004, for more than two labels"),
    TaskMetric(
        "question_accuracy",
        _by_question,
        summed(mean_of),
        "Khashabi et al., 2018: questions whose answers are all correct",
    ),
)
