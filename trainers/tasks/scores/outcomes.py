"""Outcomes: gold and predictions of the same examples, which is all that a metric sees."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Outcomes:
    """Gold and predictions of n examples.

    `gold` and `predicted` are int64 [n], labels of classify and choose; float64 [n], numbers of regress;
    or int64, tags of all words, those of example i from `offsets[i]` up to `offsets[i + 1]`. `labels` are
    the labels' names, `positive` is the number of the one that f1 scores. `groups`, int64 [n], number
    what `question_accuracy` counts as one.

    `references` are the accepted texts of each example and `texts` the predicted one, for span, generate
    and choose. With `no_answer` no reference means that the passage has no answer, which the empty text
    states. `nats` and `tokens`, float64 [n], are the cost of the gold texts and what it was measured
    over.
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
