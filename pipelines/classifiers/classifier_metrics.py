"""Metrics of a binary classifier: ROC-AUC, precision and recall, calibration. Plain numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

CURVE_POINTS = 101
BINS = 10


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value, float64 [n], counting from 1. Equal values share the mean of their
    ranks.
    """
    _, groups, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[groups]
    return ranks


def roc_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the probability that a random positive document scores higher than a random negative one; ties
    count half. There must be documents of both classes.

    It is the Mann-Whitney U statistic divided by the number of pairs (Hanley and McNeil 1982).
    """
    ranks = mean_ranks(scores)
    p = int(positive.sum())
    n = len(positive) - p
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * n))


def precision_recall(scores: np.ndarray, positive: np.ndarray) -> list[dict[str, float]]:
    """Return at most 101 points of the precision-recall curve, by ascending threshold. For each recall of 0,
    0.01, ..., 1, they include the point with the highest threshold that reaches this recall. At least one
    document must be positive.

    Each point has `threshold`, `precision`, `recall` and `kept`, the share of documents whose score is at
    least the threshold.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(positive[order])
    ends = np.flatnonzero(np.r_[ranked[1:] != ranked[:-1], True])  # documents with equal scores share a threshold
    hundredths = np.arange(CURVE_POINTS) * hits[-1]  # whole numbers, since floats would miss some
    wanted = np.searchsorted(hits[ends] * (CURVE_POINTS - 1), hundredths, side="left")
    picked = np.unique(np.minimum(wanted, len(ends) - 1))
    return [
        {
            "threshold": float(ranked[end]),
            "precision": float(hits[end] / (end + 1)),
            "recall": float(hits[end] / hits[-1]),
            "kept": float((end + 1) / len(scores)),
        }
        for end in ends[picked][::-1]
    ]


def average_precision(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the average precision: the sum over thresholds of the precision times the increase in recall. At
    least one document must be positive.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(positive[order])
    ends = np.flatnonzero(np.r_[ranked[1:] != ranked[:-1], True])
    steps = np.diff(hits[ends], prepend=0) / hits[-1]
    return float((steps * hits[ends] / (ends + 1)).sum())


def calibration(scores: np.ndarray, positive: np.ndarray) -> tuple[list[dict[str, Any]], float]:
    """Return (one row per non-empty tenth of the range from 0 to 1, expected calibration error). All scores
    must be in this range.

    The error is the mean over the tenths, weighted by documents, of |share of positives - mean score| (Naeini
    et al. 2015; Guo et al. 2017).
    """
    bins = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    rows, error = [], 0.0
    for number in np.unique(bins):
        inside = bins == number
        mean, share = float(scores[inside].mean()), float(positive[inside].mean())
        error += abs(share - mean) * float(inside.mean())
        rows.append(
            {
                "from": number / BINS, "to": (number + 1) / BINS, "documents": int(inside.sum()), "mean_score": mean,
                "share_positive": share,
            }
        )  # fmt: skip
    return rows, error


def calibration_by_source(scores: np.ndarray, positive: np.ndarray, sources: Sequence[str]) -> list[dict[str, Any]]:
    """Return the calibration of the scores for each source of the held-out documents, sorted by the name of
    the source. `wrong_side` is the share of documents whose score is on the wrong side of 0.5.
    """
    names, rows = np.array(sources), []
    for name in sorted(set(sources)):
        inside = names == name
        _, error = calibration(scores[inside], positive[inside])
        rows.append(
            {
                "source": name, "documents": int(inside.sum()), "mean_score": float(scores[inside].mean()),
                "share_positive": float(positive[inside].mean()), "expected_calibration_error": error,
                "wrong_side": float(((scores[inside] >= 0.5) != positive[inside]).mean()),
            }
        )  # fmt: skip
    return rows


def evaluate(scores: np.ndarray, positive: np.ndarray) -> dict[str, Any]:
    """Return all metrics of a classifier's scores for held-out documents, which must include both classes."""
    rows, error = calibration(scores, positive)
    return {
        "roc_auc": roc_auc(scores, positive),
        "average_precision": average_precision(scores, positive),
        "precision_recall": precision_recall(scores, positive),
        "calibration": rows,
        "expected_calibration_error": error,
    }
