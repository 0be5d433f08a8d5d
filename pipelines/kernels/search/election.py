"""Greedy elections among near-copies: a document stays unless enough of the earlier documents that stay are
similar to it.

A document is given either as a signature, which is compared element by element, or as a set of shingle hashes
in ascending order.
"""

import numpy as np

from gristmill.compilation import kernel

STAYS, OF_THE_FIRST = -1, -2
"""Values of `winner` other than the index of a document. STAYS: the document stays. OF_THE_FIRST: it is dropped
in favour of the preferred document of its cluster, which is not among the documents of this call.
"""


@kernel()
def _similarity(
    values: np.ndarray, i: int, end: int, others: np.ndarray, j: int, other_end: int, sets: bool, least: np.float32
) -> np.float32:
    """Return the share of equal values in two signatures, or the Jaccard similarity of two sets. For sets,
    return 0 early if the similarity cannot reach `least`.
    """
    common = 0
    if not sets:
        for k in range(end - i):
            common += values[i + k] == others[j + k]
        return np.float32(common / (end - i))
    size, other_size = end - i, other_end - j
    if not size and not other_size:
        return np.float32(1)
    if np.float32(min(size, other_size) / max(size, other_size)) < least:
        return np.float32(0)
    while i < end and j < other_end:
        a, b = values[i], others[j]
        common += a == b
        i += a <= b
        j += b <= a
    return np.float32(common / (size + other_size - common))


@kernel()
def _decide(
    offsets: np.ndarray,
    values: np.ndarray,
    i: int,
    other_offsets: np.ndarray,
    other_values: np.ndarray,
    rows: np.ndarray,
    sets: bool,
    begun: int,
    always: bool,
    decisive: np.ndarray,
    enough: int,
    least: np.float32,
) -> tuple[int, np.float32]:
    """Compare document i with the documents `rows` of the other collection until it has enough matches.
    Return the values that `elect` writes to winner[i] and similarity[i].
    """
    like, first, similarity = begun, STAYS, np.float32(0)
    for r in rows:
        value = _similarity(
            values, offsets[i], offsets[i + 1], other_values, other_offsets[r], other_offsets[r + 1], sets, least
        )
        if value >= least:
            if first == STAYS:
                first, similarity = r, value
            like += enough if decisive[r] else 1
            if like >= enough:
                break
    if always or like < enough:
        return STAYS, similarity
    return (OF_THE_FIRST if begun else first), similarity


@kernel()
def elect(
    offsets: np.ndarray,
    values: np.ndarray,
    sets: bool,
    starts: np.ndarray,
    begun: np.ndarray,
    always: np.ndarray,
    decisive: np.ndarray,
    enough: int,
    least: np.float32,
    winner: np.ndarray,
    similarity: np.ndarray,
) -> None:
    """Decide for each document, in order, whether it stays. Document i is values[offsets[i]:offsets[i + 1]],
    a set of hashes if `sets`, otherwise a signature. Cluster c is the documents starts[c]:starts[c + 1].

    Two documents match if their similarity is `least` or more. A document is dropped if it has at least
    `enough` matches among the earlier documents of its cluster that stay. begun[i] is the number of matches
    of document i found before this call; they count, too. A match with a document r counts as `enough`
    matches if decisive[r] is true. A document i stays in any case if always[i] is true.

    winner[i] becomes STAYS if document i stays, OF_THE_FIRST if it is dropped and begun[i] is not 0, and
    otherwise the index of the first document that it matches. similarity[i] becomes the similarity to the
    first document that it matches in this call, or 0.
    """
    chosen = np.empty(len(begun), np.int64)
    for c in range(len(starts) - 1):
        count = 0
        for i in range(starts[c], starts[c + 1]):
            winner[i], similarity[i] = _decide(
                offsets, values, i, offsets, values, chosen[:count], sets, begun[i], always[i], decisive, enough, least
            )
            if winner[i] == STAYS:
                chosen[count] = i
                count += 1


@kernel()
def follow(
    offsets: np.ndarray,
    values: np.ndarray,
    other_offsets: np.ndarray,
    other_values: np.ndarray,
    sets: bool,
    low: np.ndarray,
    high: np.ndarray,
    begun: np.ndarray,
    always: np.ndarray,
    decisive: np.ndarray,
    enough: int,
    least: np.float32,
    winner: np.ndarray,
    similarity: np.ndarray,
) -> None:
    """Decide as `elect` does, but compare document i only with the documents low[i] to high[i] - 1 of a
    second collection, given by `other_offsets` and `other_values`. All documents of the second collection
    stay; `decisive` and the indices in `winner` refer to them.
    """
    every = np.arange(len(other_offsets) - 1)
    for i in range(len(low)):
        winner[i], similarity[i] = _decide(
            offsets, values, i, other_offsets, other_values, every[low[i] : high[i]], sets, begun[i], always[i], decisive,
            enough, least,
        )  # fmt: skip
