"""Best-fit packing without cropping (Ding et al., "Fewer Truncations Improve Language Modeling", 2024).

A document longer than a sequence is cut into whole sequences and a remainder. Remainders and shorter
documents, longest first, go into the sequence with the least room in which they still fit. Nothing is
dropped, and no document that fits in a sequence is cut. Every shard is packed separately. The seed determines
the order of pieces that have the same size.
"""

import numpy as np

from gristmill.compilation import kernel
from trainers.rows.batch import Room
from trainers.rows.random import mix


def cut_documents(offsets: np.ndarray, marks: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the start in the shard's stream and the number of positions of each piece, both int64 [pieces].
    The pieces of a document are its whole sequences, then its remainder. `offsets` are a shard's; each
    document has `marks` marks.
    """
    sizes = np.diff(offsets) + marks
    many = -(-sizes // length)
    within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    starts = np.repeat(np.cumsum(sizes) - sizes, many) + within * length
    return starts, np.minimum(np.repeat(sizes, many) - within * length, length)


def room_of_pieces(offsets: np.ndarray, lead: int, starts: np.ndarray, counts: np.ndarray, room: Room) -> np.ndarray:
    """Return the positions of a `Room` that each piece of `cut_documents` takes, int64 [pieces]. A document
    begins with `lead` marks.

    A piece counts as at least its share of the longest piece, so that no row holds more of the stream than
    the longest piece.
    """
    begins = offsets[:-1] - offsets[0] + lead * np.arange(len(offsets) - 1)
    tokens = counts - lead * np.isin(starts, begins)
    taken: np.ndarray = np.maximum(room.needed[tokens], -(-counts * room.positions // room.length))
    return taken


def best_fit(counts: np.ndarray, length: int, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Pack pieces of `counts` positions into sequences of `length` by best-fit decreasing; `key` shuffles
    ties.

    Returns the order of the pieces, and for each sequence the index in that order of its first piece,
    followed by the number of pieces.
    """
    ties = _random_ranks(len(counts), np.uint64(key))
    row, rows = _fit(counts, np.lexsort((ties, -counts)), length)
    first = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int64)
    return np.argsort(row, kind="stable"), first


@kernel(nogil=True)
def _random_ranks(count: int, key: np.uint64) -> np.ndarray:
    """Return a pseudo-random number for each of range(count): the finaliser of SplitMix64 (Steele et al.,
    2014).
    """
    result = np.empty(count, np.uint64)
    for i in range(count):
        result[i] = mix(key + np.uint64(i) * np.uint64(0x9E3779B97F4A7C15))
    return result


@kernel(nogil=True)
def _fit(counts: np.ndarray, order: np.ndarray, length: int) -> tuple[np.ndarray, int]:
    """Return (row of each piece, number of rows). Pieces, in `order`, go into the row with the least room
    that holds them.

    Rows with equal room form a stack. A binary tree over amounts of room shows which stacks are not empty.
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
