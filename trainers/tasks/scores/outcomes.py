"""Outcomes: gold and predictions of the same examples, the only input of a metric."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Outcomes:
    """Gold and predictions of n examples.

    `gold` and `predicted` hold label indices, int64 [n], for classify; candidate indices, int64 [n], for
    choose; and numbers, float64 [n], for regress. For tag they hold label indices, int64, flat over all
    words; example i has the entries `offsets[i] : offsets[i + 1]`. `positive` is the index of the label that
    f1 scores. `groups`, int64 [n], is the index of each example's group.

    For span, generate and choose, `references` holds the accepted texts of each example, and `texts` its
    predicted text. With `no_answer`, an example without references has no answer in its passage, and an empty
    predicted text means "no answer". `nats` [n] is the loss of each gold text, `tokens` [n] its number of
    tokens or other units over which perplexity averages, and `text_bytes` [n] its size in UTF-8 bytes.
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
