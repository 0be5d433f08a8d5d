"""The gold answers and the predictions for a set of examples, from which every metric is computed."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Outcomes:
    """Gold and predictions of n examples.

    The content of `gold` and `predicted` depends on the kind of task: label indices, int64 [n], for classify;
    candidate indices, int64 [n], for choose; numbers, float64 [n], for regress. For tag they are label
    indices, int64, flat over all words; example i has the entries from `offsets[i]` up to, but not including,
    `offsets[i + 1]`. `labels` are the names of the labels, and `positive` is the index of the label whose F1
    the metric `f1` computes. `groups`, int64 [n], is the index of each example's group; `question_accuracy`
    counts a group as one question.

    For span, generate and choose, `references` holds the accepted texts of each example, and `texts` its
    predicted text. With `no_answer`, an example without references has no answer in its passage, and an empty
    predicted text means "no answer".

    For perplexity, `nats` [n] is the loss of each gold text, and `tokens` [n] its number of tokens or of
    other units over which the loss is averaged. For bits per byte, `text_bytes`, float64 [n], is the size in
    UTF-8 bytes of each text whose loss is in `nats`.
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
