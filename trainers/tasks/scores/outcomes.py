"""Outcomes: gold and predictions of the same examples, the only input of a metric."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Outcomes:
    """Gold and predictions of n examples.

    `gold` and `predicted` are int64 [n] for the labels of classify; float64 [n] for the numbers of regress;
    or int64 for the tags of all words, those of example i from `offsets[i]` up to `offsets[i + 1]`. Choose
    has int64 [n] numbers of candidates. `labels` are the labels' names, and `positive` is the number of the
    one that f1 scores. `groups`, int64 [n], numbers the groups of examples that `question_accuracy` counts as
    one.

    `references` are the accepted texts of each example and `texts` the predicted one, for span, generate and
    choose. With `no_answer`, an example without references has no answer in its passage, and the empty text
    predicts that. `nats` and `tokens`, float64 [n], are the cost of the gold texts and the number of their
    tokens.
    """

    gold: np.ndarray | None = None
    predicted: np.ndarray | None = None
    labels: tuple[str, ...] = ()
    positive: int = 1
    offsets: np.ndarray | None = None
    groups: np.ndarray | None = None
    references: list[list[str]] | None = None
    texts: list[str] | None = None
    no_answer: bool = False
    nats: np.ndarray | None = None
    tokens: np.ndarray | None = None
