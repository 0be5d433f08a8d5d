"""Best-fit packing without cropping (Ding et al., "Fewer Truncations Improve Language Modeling", 2024).

A document longer than a sequence is cut into whole sequences and a remainder. Remainders and shorter
documents are placed from the longest to the shortest, each in the sequence with the least room in which it
still fits. Nothing is dropped, and no document that fits in a sequence is cut. Every shard is packed
separately. The seed determines the order of pieces of the same size.
"""

import numpy as np

from gristmill.compilation import kernel
from trainers.rows.batch import Room
from trainers.rows.random import mix


def cut_documents(offsets: np.ndarray, marks: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut the documents of a shard, each with `marks` special tokens around it, into pieces of at most
    `length` stream positions: whole sequences, then a remainder.

    Returns where each piece begins in the shard's stream and its number of positions, both int64 [pieces].
    """
    sizes = np.diff(offsets) + marks
    many = -(-sizes // length)
    within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    starts = np.repeat(np.cumsum(sizes) - sizes, many) + within * length
    return starts, np.minimum(np.repeat(sizes, many) - within * length, length)


def room_of_pieces(offsets: np.ndarray, lead: int, starts: np.ndarray, counts: np.ndarray, room: Room) -> np.ndarray:
    """Return the number of row positions to reserve for each piece, including the marks that the objective
    adds: int64 [pieces]. `starts` and `counts` are from `cut_documents`, and `lead` is the number of marks
    before a document; there must be none after it.

    Each piece gets at least the fraction `counts / room.length` of a row, so that no row holds more than
    `room.length` positions of the stream.
    """
    begins = offsets[:-1] - offsets[0] + lead * np.arange(len(offsets) - 1)
    tokens = counts - lead * np.isin(starts, begins)
    taken: np.ndarray = np.maximum(room.needed[tokens], -(-counts * room.positions // room.length))
    return taken


def best_fit(counts: np.ndarray, length: int, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Pack pieces of `counts` positions, each at most `length`, into sequences of `length` by best-fit
    decreasing. `key` determines the order of pieces of equal size.

    Returns (order, first): the indices of the pieces, sequence by sequence, and the place in `order` where
    each sequence begins, followed by the number of pieces.
    """
    ties = _random_ranks(len(counts), np.uint64(key))
    row, rows = _fit(counts, np.lexsort((ties, -counts)), length)
    first = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int64)
    return np.argsort(row, kind="stable"), first


@kernel(nogil=True)
def _random_ranks(count: int, key: np.uint64) -> np.ndarray:
    """Return `count` pseudo-random numbers, uint64, from SplitMix64 (Steele et al., 2014)."""
    result = np.empty(count, np.uint64)
    for i in range(count):
        result[i] = mix(key + np.uint64(i) * np.uint64(0x9E3779B97F4A7C15))
    return result


@kernel(nogil=True)
def _fit(counts: np.ndarray, order: np.ndarray, length: int) -> tuple[np.ndarray, int]:
    """Put each piece, in the given `order`, into the row with the least room in which it fits, or into a new
    row. Return (row of each piece, number of rows).

    Rows with equal room form a stack. A binary tree over amounts of room counts the stacked rows.
    """
    half = 1
    while half <= length:
        half *= 2
    stacked = np.zeros(2 * half, np.int64)
    top, below = np.full(length + 1, -1, np.int64), np.empty(len(counts), np.int64)
    row, rows = np.empty(len(counts), np.int64), 0
    for piece in order:
        node = half + counts[piece]
        while node > 0 and stacked[node] == 0:
            while node & 1:
                node >>= 1
            node += node > 0
        if node == 0:
            chosen, room = rows, length
            rows += 1
        else:
            while node < half:
                node = 2 * node if stacked[2 * node] > 0 else 2 * node + 1
            room = node - half
            chosen = top[room]
            top[room] = below[chosen]
            while node > 0:
                stacked[node] -= 1
                node >>= 1
        row[piece] = chosen
        room -= counts[piece]
        if room > 0:
            below[chosen], top[room] = top[room], chosen
            node = half + room
            while node > 0:
                stacked[node] += 1
                node >>= 1
    return row, rows
