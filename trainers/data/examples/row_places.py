"""Assign the segments of a batch to rows. Either each segment has a row to itself, or segments are packed
into rows of equal length. The packed length is the one that makes the batch cheapest to compute, between
about one and four times the longest segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainers.rows.best_fit import best_fit

_MULTIPLE = 8  # row lengths are rounded up to it, for tensor cores and vector units
_LONGEST = 4  # rows are at most this many times as long as the longest segment
# The row length at which attention costs as much as a block's other matrix products. In theory it is 6 x
# width (24 width^2 and 4 length x width operations per position). Measured on a CPU with width 256 and rows
# of 64 to 512, it is 970 to 1,900. It is larger in wider models, where hardly any row reaches it.
_ATTENTION_EQUALS = 1024


@dataclass(frozen=True)
class Places:
    """The places of s segments in rows of shape [count, width]: the `row` of each segment, its first position
    `base` in the flattened rows, and its index `number` within the row.
    """

    row: np.ndarray
    base: np.ndarray
    number: np.ndarray
    count: int
    width: int

    def of_tokens(self, offsets: np.ndarray, skip: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return (flattened position, index within its segment) of the tokens of all segments. Segment i has
        the tokens `offsets[i] : offsets[i + 1]`, which begin `skip` positions after the segment's first
        position.
        """
        sizes = np.diff(offsets)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        return np.repeat(self.base + skip, sizes) + within, within


def assign_rows(weights: Sequence[np.ndarray], packed: bool) -> np.ndarray:
    """Return the row of each segment, int64 [s]. `weights` holds an array for each task: the number of
    positions that each of its segments takes. If `packed`, a row can hold several segments of the same task;
    otherwise, every segment has its own row.
    """
    if not packed:
        return np.arange(sum(map(len, weights)))
    length = _row_length(weights)
    rows, before = [], 0
    for sizes in weights:
        order, first = best_fit(sizes, length, 0)
        row = np.empty(len(sizes), np.int64)
        row[order] = before + np.repeat(np.arange(len(first) - 1), np.diff(first))
        rows.append(row)
        before += len(first) - 1
    return np.concatenate(rows)


def _row_length(weights: Sequence[np.ndarray]) -> int:
    longest = max((int(sizes.max(initial=0)) for sizes in weights), default=0)
    total = sum(int(sizes.sum()) for sizes in weights)
    shortest = max(_MULTIPLE, -(-longest // _MULTIPLE) * _MULTIPLE)
    best, least = shortest, np.inf
    for length in range(shortest, _LONGEST * shortest + 1, max(_MULTIPLE, shortest // 4 // _MULTIPLE * _MULTIPLE)):
        if -(-total // length) * length * (_ATTENTION_EQUALS + length) >= least:
            continue  # too expensive even without padding
        rows = sum(len(best_fit(sizes, length, 0)[1]) - 1 for sizes in weights)
        cost = rows * length * (_ATTENTION_EQUALS + length)
        if cost < least:
            best, least = length, cost
    return best


def place(rows: np.ndarray, sizes: np.ndarray) -> Places:
    """Return the places of segments. Segment i lies in row `rows[i]` and takes `sizes[i]` positions. The
    segments of a row keep their order.
    """
    order = np.argsort(rows, kind="stable")
    sorted_rows, sorted_sizes = rows[order], sizes[order]
    before = np.cumsum(sorted_sizes) - sorted_sizes
    begins = np.flatnonzero(np.diff(sorted_rows, prepend=-1))
    counts = np.diff(np.append(begins, len(order)))
    column, number = np.empty_like(rows), np.empty_like(rows)
    column[order] = before - np.repeat(before[begins], counts)
    number[order] = np.arange(len(order)) - np.repeat(begins, counts)
    count = max(1, int(rows.max(initial=-1)) + 1)
    fullest = int((column + sizes).max(initial=1))
    width = max(_MULTIPLE, -(-fullest // _MULTIPLE) * _MULTIPLE)
    return Places(rows, rows * width + column, number, count, width)
