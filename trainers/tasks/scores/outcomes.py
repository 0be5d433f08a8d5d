"""Outcomes: gold and predictions of the same examples, the only input of a metric."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Outcomes:
    """Gold and predictions of n examples.

    `gold` and `predicted` depend on the kind of task. For classify they are label indices, int64 [n]; for
    choose, numbers of candidates, int64 [n]; for regress, numbers, float64 [n]. For tag they are label
    indices, int64, flat over all words; example i has those from `offsets[i]` up to `offsets[i + 1]`.
    `labels` are the names of the labels, and `positive` is the index of the one that f1 scores. `groups`,
    int64 [n], is the number of each example's group; `question_accuracy` counts a group as one.

    `references` are the accepted texts of each example and `texts` the predicted one, for span, generate and
    choose. With `no_answer`, an example without references has no answer in its passage, and the empty text
    predicts that. `nats` and `tokens`, float64 [n], are the loss of each gold text and its number of tokens.
    `text_bytes`, float64 [n], are the UTF-8 bytes of a text that was given.
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
    text_bytes: np.ndarray | None = None
