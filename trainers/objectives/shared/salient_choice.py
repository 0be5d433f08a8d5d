"""Choose which salient spans an encoder's objective masks, or an encoder-decoder's objective replaces with
sentinels.
"""

from collections.abc import Sequence

import numpy as np

from pipelines.contracts.shard_set import SPAN_TYPES


def choose_spans(
    spans: np.ndarray,
    documents: np.ndarray,
    units: np.ndarray,
    draws: np.ndarray,
    types: Sequence[str],
    rate: float | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose spans at random in each unit, which is a document or a sentence: max(round(`rate` n), 1) of the
    unit's n spans, or one span if `rate` is None.

    `spans`, int64 [tokens, 2], are the `Batch.spans` of the tokens; spans of types other than `types` are
    ignored. `documents` and `units`, bool [tokens], mark the first token of each document and of each unit. A
    span belongs to the unit of its first token. `draws`, float64 [tokens], are uniform numbers.

    Returns two arrays. The first, bool [tokens], marks the tokens of chosen spans. The second, int64
    [tokens], holds for each token the index of the first token of its span, whether the span is chosen or
    not, and 0 for tokens outside spans.
    """
    number, kind = spans.T
    inside = np.isin(kind, [SPAN_TYPES.index(one) for one in types])
    first = inside & (documents | (number != np.concatenate([number[:1] - 1, number[:-1]])))
    begins = np.flatnonzero(first)
    _, unit, counts = np.unique(np.cumsum(units)[begins], return_inverse=True, return_counts=True)
    amounts = np.ones_like(counts)
    if rate is not None:
        amounts = np.maximum(np.rint(rate * counts).astype(np.int64), 1)
    # The spans of a unit in the order of their draws: the first ones of them are chosen.
    order = np.lexsort((draws[begins], unit))
    place = np.arange(len(begins)) - np.repeat(np.cumsum(counts) - counts, counts)
    taken = np.zeros(len(begins), dtype=bool)
    taken[order] = place < np.repeat(amounts, counts)
    chosen, owner = np.zeros(len(number), dtype=bool), np.zeros(len(number), dtype=np.int64)
    which = np.cumsum(first)[inside] - 1
    chosen[inside], owner[inside] = taken[which], begins[which]
    return chosen, owner
