"""Find equal byte strings of a fixed size in a corpus without storing a hash of each: windows are grouped by
their minimizer.

A **window** is a substring of `size` bytes of one document. Its **minimizer** is the smallest hash among its
substrings of size // 2 bytes; if several have this hash, the last counts. Equal windows have equal minimizers
(winnowing: Schleimer et al. 2003, section 4; minimizers: Roberts et al. 2004), so windows with different
minimizers need not be compared. A **block** is a run of neighbouring windows whose minimizer is at the same
position of the text.
"""

from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.search.spans import xxh64

_ONE, _LARGEST = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)
_BASE, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)  # the constants of splitmix64


class Blocks(NamedTuple):
    """Blocks of windows in text order; positions are byte offsets within the document."""

    documents: np.ndarray  # int64: index of the document
    starts: np.ndarray  # int64: where the first window begins
    counts: np.ndarray  # int64: number of windows; the block has counts + size - 1 bytes
    minima: np.ndarray  # uint64: the minimizer
    hashes: np.ndarray  # uint64: xxh64 of the block's bytes


def average_windows(size: int) -> float:
    """Return the mean number of windows per block of ordinary text: (w + 1) / 2 for w hashes per window
    (Schleimer et al. 2003, section 4.2).
    """
    return (size - size // 2 + 2) / 2


def find_blocks(offsets: np.ndarray, data: np.ndarray, size: int) -> Blocks:
    """Find the blocks of the documents data[offsets[d]:offsets[d + 1]]. A document of fewer than `size` bytes
    has no blocks.
    """
    room, found = len(data) // 16 + 16, -1
    while found < 0:  # one round, but for texts that repeat themselves at once
        documents, starts, minima = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint64)
        found = _mark_blocks(offsets, data, size, size // 2, documents, starts, minima)
        room *= 4
    documents, starts, minima = documents[:found], starts[:found], minima[:found]
    begins = offsets[:-1][documents] + starts
    ends = np.append(begins[1:], 0)[: len(begins)]
    last = np.append(documents[1:] != documents[:-1], True)[: len(begins)]
    ends[last] = offsets[1:][documents[last]] - size + 1
    hashes = np.empty(len(starts), np.uint64)
    _hash_ranges(data, begins, ends + size - 1, hashes)
    return Blocks(documents, starts, ends - begins, minima, hashes)


def split_blocks(offsets: np.ndarray, data: np.ndarray, blocks: Blocks, size: int) -> Blocks:
    """Return each window of the given blocks as a separate block."""
    owner = np.repeat(np.arange(len(blocks.counts)), blocks.counts)
    documents, minima = blocks.documents[owner], blocks.minima[owner]
    starts = blocks.starts[owner] + np.arange(len(owner)) - (np.cumsum(blocks.counts) - blocks.counts)[owner]
    hashes = np.empty(len(owner), np.uint64)
    begins = offsets[documents] + starts
    _hash_ranges(data, begins, begins + size, hashes)
    return Blocks(documents, starts, np.ones(len(owner), np.int64), minima, hashes)


def join_ranges(
    documents: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merge byte ranges that overlap or touch within a document. The ranges must be sorted by document and
    start. For each merged range, return the index of the first range in it, its start and its end, as three
    int64 arrays.
    """
    if not len(starts):
        return starts, starts, ends
    span = int(ends.max()) + 1
    reach = np.maximum.accumulate(documents * span + ends)
    opens = np.append(True, documents[1:] * span + starts[1:] > reach[:-1])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(starts)) - 1
    return first, starts[first], reach[last] - documents[first] * span


def whole_characters(
    offsets: np.ndarray, data: np.ndarray, documents: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Narrow byte ranges within documents to whole characters, and return their (starts, ends)."""
    starts, ends = starts.copy(), ends.copy()
    _narrow(offsets, data, documents, starts, ends)
    return starts, ends


@kernel(inline="always")
def _mix(value: np.uint64) -> np.uint64:
    """Spread a polynomial hash over all bits."""
    value = (value ^ (value >> np.uint64(30))) * _MIX
    return value ^ (value >> np.uint64(29))


@kernel()
def _last_smallest(recent: np.ndarray, mask: np.uint64, first: np.uint64, last: np.uint64) -> np.uint64:
    """Return the position of the smallest hash from `first` to `last`, both inclusive; if several are equal,
    the last position. `recent` is a ring buffer.
    """
    place = first
    while first < last:
        first += _ONE
        if recent[first & mask] <= recent[place & mask]:
            place = first
    return place


@kernel()
def _mark_blocks(
    offsets: np.ndarray,
    data: np.ndarray,
    size: int,
    part: int,
    documents: np.ndarray,
    starts: np.ndarray,
    minima: np.ndarray,
) -> int:
    """Write the document, start and minimizer of each block. Return the number of blocks, or -1 if the arrays
    are too short for them.
    """
    found = 0
    # With unsigned positions numba has no negative ones to handle, which makes the loop several times as fast.
    length, width = np.uint64(part), np.uint64(size - part + 1)  # bytes per hash, hashes per window
    slots, leaving = 1, _ONE
    while slots < width:
        slots *= 2
    recent, mask = np.empty(slots, np.uint64), np.uint64(slots - 1)
    for _ in range(part - 1):
        leaving *= _BASE
    for document in range(len(offsets) - 1):
        if offsets[document + 1] - offsets[document] < size:
            continue
        begin, end = np.uint64(offsets[document]), np.uint64(offsets[document + 1])
        value, smallest, place, i = np.uint64(0), _LARGEST, np.uint64(0), np.uint64(0)
        while i < length - _ONE:
            value = value * _BASE + np.uint64(data[begin + i])
            i += _ONE
        i = np.uint64(0)
        while begin + i + length <= end:
            value = value * _BASE + np.uint64(data[begin + i + length - _ONE])
            mixed = _mix(value)
            value -= leaving * np.uint64(data[begin + i])
            recent[i & mask] = mixed
            opens = i + _ONE == width
            if mixed <= smallest:
                smallest, place, opens = mixed, i, True
            elif i - place >= width:
                place = _last_smallest(recent, mask, i - width + _ONE, i)
                smallest, opens = recent[place & mask], True
            i += _ONE
            if opens and i >= width:
                if found == len(starts):
                    return -1
                documents[found], starts[found], minima[found] = document, i - width, smallest
                found += 1
    return found


@kernel()
def _hash_ranges(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, hashes: np.ndarray) -> None:
    for k in range(len(starts)):
        hashes[k] = xxh64(data, starts[k], ends[k])


@kernel()
def _narrow(offsets: np.ndarray, data: np.ndarray, documents: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
    for k in range(len(starts)):
        begin, end = offsets[documents[k]], offsets[documents[k] + 1]
        while starts[k] < ends[k] and data[begin + starts[k]] & 0xC0 == 0x80:
            starts[k] += 1
        while starts[k] < ends[k] and begin + ends[k] < end and data[begin + ends[k]] & 0xC0 == 0x80:
            ends[k] -= 1
