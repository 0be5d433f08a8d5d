"""Number the distinct spans of a document in the order of their first occurrences: equal words, lines or
paragraphs get the same number.

Spans are compared by a 64-bit hash of their unchanged bytes. In a document with a million distinct spans, the
probability of any collision is 3 in 100 million.
"""

from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.text.eight_bytes import load_eight
from pipelines.kernels.text.words import Spans

_MIX, _ONES, _ALL = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0x0101010101010101), np.uint64(0xFFFFFFFFFFFFFFFF)
_LEAST_SLOTS = 256


class SpanNumbers(NamedTuple):
    """Numbers for the spans of a block, counted from 0 in each document; equal spans of a document have the
    same number.
    """

    ids: np.ndarray  # int32 [spans]
    chars: np.ndarray  # int32 [spans], code points
    distinct: np.ndarray  # int64 [documents], number of distinct spans


def number_spans(data: np.ndarray, spans: Spans) -> SpanNumbers:
    """Number the spans of a block. The bytes of each document seed its hashes, so a list of words that
    collide in one document cannot slow down another.
    """
    ids, chars = np.empty(len(spans.starts), np.int32), np.empty(len(spans.starts), np.int32)
    distinct = np.zeros(len(spans.offsets) - 1, np.int64)
    most = int(np.diff(spans.offsets).max(initial=0))
    slots = np.empty(max(_LEAST_SLOTS, 1 << (2 * most).bit_length()), np.int32)
    hashes = np.empty(most + 1, np.uint64)
    _number(data, *spans, slots, hashes, ids, chars, distinct)
    return SpanNumbers(ids, chars, distinct)


@kernel(inline="always")
def _first(data: np.ndarray, i: int, size: int) -> np.uint64:
    """Return the bytes data[i : i + size] as a little-endian integer; `size` is 0 to 8."""
    if size > 0 and i + 8 <= len(data):
        return load_eight(data, i) & (_ALL >> np.uint64(64 - 8 * size))
    value = np.uint64(0)
    for k in range(size):
        value |= np.uint64(data[i + k]) << np.uint64(8 * k)
    return value


@kernel(inline="always")
def _count_continuations(eight: np.uint64) -> int:
    return np.int64((((eight >> np.uint64(7)) & ~(eight >> np.uint64(6)) & _ONES) * _ONES) >> np.uint64(56))


@kernel(inline="always")
def _mix(value: np.uint64, eight: np.uint64) -> np.uint64:
    value = (value ^ eight) * _MIX
    return value ^ (value >> np.uint64(32))


@kernel()
def _refill(slots: np.ndarray, size: int, hashes: np.ndarray, count: int) -> None:
    slots[:size] = -1
    mask = np.uint64(size - 1)
    for k in range(count):
        at = hashes[k] & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = k


@kernel(inline="always")
def _seed(data: np.ndarray, start: int, end: int) -> np.uint64:
    seed, i = _MIX, np.int64(start)
    while end - i >= 8:
        seed = _mix(seed, load_eight(data, i))
        i += 8
    return seed


@kernel()
def _number(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray, slots: np.ndarray,
    hashes: np.ndarray, ids: np.ndarray, chars: np.ndarray, distinct: np.ndarray,
) -> None:  # fmt: skip
    for d in range(len(offsets) - 1):
        size, count = _LEAST_SLOTS, 0
        slots[:size] = -1
        mask = np.uint64(size - 1)
        seed = np.uint64(0)
        if offsets[d] < offsets[d + 1]:
            seed = _seed(data, starts[offsets[d]], ends[offsets[d + 1] - 1])
        for span in range(offsets[d], offsets[d + 1]):
            i, end = np.int64(starts[span]), np.int64(ends[span])
            value, inside = seed ^ (np.uint64(end - i) * _MIX), end - i
            while end - i > 8:
                eight = load_eight(data, i)
                value = _mix(value, eight)
                inside -= _count_continuations(eight)
                i += 8
            eight = _first(data, i, end - i)
            value = _mix(_mix(value, eight), np.uint64(0))
            chars[span] = inside - _count_continuations(eight)
            at = value & mask
            while slots[at] >= 0 and hashes[slots[at]] != value:
                at = (at + np.uint64(1)) & mask
            if slots[at] < 0:
                slots[at], hashes[count] = count, value
                ids[span] = count
                count += 1
                if 2 * count > size:
                    size *= 2
                    _refill(slots, size, hashes, count)
                    mask = np.uint64(size - 1)
            else:
                ids[span] = slots[at]
        distinct[d] = count
