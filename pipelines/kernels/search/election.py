"""Greedy elections among near-copies: who stays, if nobody may who is like enough others that stay.

Evidence is a ragged array of uint32: of each document a signature, compared place by place, or its set of shingle hashes,
ascending.
"""

import numpy as np
from numba import njit

STAYS, OF_THE_FIRST = -1, -2
"""In place of the number of a document: nobody, or the preferred document of the cluster, which is not among those here."""


@njit(cache=True)
def _similarity(
    values: np.ndarray, i: int, end: int, others: np.ndarray, j: int, other_end: int, sets: bool, least: np.float32
) -> np.float32:
    """Share of equal values of two signatures, or Jaccard similarity of two sets; 0 where it cannot reach `least`."""
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


@njit(cache=True)
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
    """(what `winner` becomes, similarity to the first that it is like) for document i beside the others at `rows`."""
    like, first, similarity = begun, STAYS, np.float32(0)
    for r in rows:
        found = _similarity(
            values, offsets[i], offsets[i + 1], other_values, other_offsets[r], other_offsets[r + 1], sets, least
        )
        if found >= least:
            if first == STAYS:
                first, similarity = r, found
            like += enough if decisive[r] else 1
            if like >= enough:
                break
    if always or like < enough:
        return STAYS, similarity
    return (OF_THE_FIRST if begun else first), similarity


@njit(cache=True)
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
    """Decide on all documents, in their order, cluster c being those from starts[c] to starts[c + 1].

    A document goes if `enough` of those that stay are at or above `least`; begun[i] says how many of them it was found like
    before. One with always[i] stays; being like one with decisive[i] is enough. winner[i] becomes STAYS, OF_THE_FIRST where
    begun[i] is not 0, or the first document that i is like; similarity[i] is that to the first document that i is like.
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


@njit(cache=True)
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
    """As `elect`, for documents that are compared with the others from low[i] to high[i] alone; decisive[r] is of the others."""
    every = np.arange(len(other_offsets) - 1)
    for i in range(len(low)):
        winner[i], similarity[i] = _decide(
            offsets, values, i, other_offsets, other_values, every[low[i] : high[i]], sets, begun[i], always[i], decisive,
            enough, least,
        )  # fmt: skip
