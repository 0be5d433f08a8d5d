"""Measure how well predicted scores agree with a judge's: rank correlation, ROC-AUC, mean absolute error,
precision, recall and F1 at a threshold, and calibration.
"""

from typing import Any

import numpy as np

from pipelines.classifiers.classifier_metrics import mean_ranks, roc_auc

GROUPS = 10


def spearman(predicted: np.ndarray, judged: np.ndarray) -> float | None:
    """Return Spearman's rank correlation of two arrays, float64 [n], or None if either array is constant."""
    ranks = mean_ranks(predicted), mean_ranks(judged)
    if min(np.ptp(each) for each in ranks) == 0:
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def at_threshold(chosen: np.ndarray, good: np.ndarray) -> dict[str, float]:
    """Return the precision, recall and F1 with which the chosen documents match the good ones, and the shares
    of documents that are chosen and that are good. `chosen` and `good` are bool [n]. Precision, recall and F1
    are 0 where their denominator is 0.
    """
    hits = int((chosen & good).sum())
    precision, recall = hits / max(1, int(chosen.sum())), hits / max(1, int(good.sum()))
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * hits / max(1, int(chosen.sum()) + int(good.sum())),
        "chosen": float(chosen.mean()),
        "good": float(good.mean()),
    }


def graded_calibration(predicted: np.ndarray, judged: np.ndarray) -> tuple[list[dict[str, Any]], float]:
    """Return (one row per non-empty tenth, calibration error). The documents are divided into tenths at the
    deciles of the predicted scores.

    The error is the mean over the tenths, weighted by documents, of |mean judged score - mean predicted
    score|.
    """
    bounds = np.quantile(predicted, np.arange(1, GROUPS) / GROUPS)
    groups = np.searchsorted(bounds, predicted, side="right")
    rows, error = [], 0.0
    for number in np.unique(groups):
        inside = groups == number
        mean, given = float(predicted[inside].mean()), float(judged[inside].mean())
        error += abs(given - mean) * float(inside.mean())
        rows.append({"documents": int(inside.sum()), "mean_score": mean, "mean_judged": given})
    return rows, error


def agreement(
    predicted: np.ndarray, judged: np.ndarray, threshold: float, probabilities: bool = False
) -> dict[str, Any]:
    """Return measures of how well predictions, float64 [n], agree with judged scores, float64 [n].

    Documents with a judged score of `threshold` or more are good, and documents with a prediction of
    `threshold` or more are chosen. With `probabilities`, predictions are the probabilities that documents are
    good: those of 0.5 or more are chosen, calibration compares them with the share of good documents, and the
    mean absolute error is left out.
    """
    good = judged >= threshold
    target = good.astype(np.float64) if probabilities else judged
    rows, error = graded_calibration(predicted, target)
    return {
        "documents": len(judged),
        "spearman": spearman(predicted, judged),
        "roc_auc": roc_auc(predicted, good) if 0 < good.sum() < len(good) else None,
        **({} if probabilities else {"mean_absolute_error": float(np.abs(predicted - judged).mean())}),
        **at_threshold(predicted >= (0.5 if probabilities else threshold), good),
        "calibration": rows,
        "calibration_error": error,
    }
