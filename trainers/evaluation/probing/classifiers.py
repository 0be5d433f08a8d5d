"""Classify hidden states with scikit-learn: with a linear classifier, or an MLP with one hidden layer."""

from typing import Any, Literal

import numpy as np

Classifier = Literal["linear", "mlp"]
_HIDDEN = 128  # units; in Hewitt and Liang (2019), the most selective MLPs are small
_ITERATIONS = {"linear": 300, "mlp": 60}


def predict_labels(
    kind: Classifier, states: np.ndarray, labels: np.ndarray, unseen: np.ndarray, seed: int
) -> np.ndarray:
    """Train a classifier on `states` [n, width] with `labels` [n], and return its predictions for `unseen`
    [m, width], int64 [m]. Raises ImportError without scikit-learn.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) == 1:
        return np.full(len(unseen), labels[0], np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the probe is meant to have limited training
        fitted = make_pipeline(StandardScaler(), _classifier(kind, labels, seed)).fit(states, labels)
    predicted: np.ndarray = fitted.predict(unseen).astype(np.int64)
    return predicted


def _classifier(kind: Classifier, labels: np.ndarray, seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    if kind == "linear":
        return LogisticRegression(max_iter=_ITERATIONS[kind], random_state=seed)
    stops = len(labels) >= 10 * len(np.unique(labels)) and np.bincount(labels)[np.unique(labels)].min() >= 2
    return MLPClassifier((_HIDDEN,), max_iter=_ITERATIONS[kind], early_stopping=bool(stops), random_state=seed)
