"""From the stream of a source to rows: the documents end to end, cut into sequences, with documents kept apart.

The stream of a source is `<bos> document <bos> document ...`: one separator token per document. The target of a
document's last token is `<eos>`, so models learn where documents end as well, and no target crosses a document.
Positions restart at every document and at the start of every sequence; `segments` number the documents of a sequence
from 0, for the attention mask.
"""

from typing import Any

import numba
import numpy as np

IGNORED = -100


@numba.njit(cache=True, nogil=True)
def pack(
    tokens: np.ndarray,
    offsets: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    filled: np.ndarray,
    bos: int,
    eos: int,
    inputs: np.ndarray,
    targets: np.ndarray,
    positions: np.ndarray,
    segments: np.ndarray,
) -> None:
    """Copy `counts[i]` positions of the stream of a shard from `starts[i]` on into row `rows[i]`, or fewer where the row is
    full or the shard ends.

    `filled` [all rows] counts the columns of each row that are written; it says where to begin and is advanced. The
    four arrays are [all rows, length]. Document d begins at stream position offsets[d] - offsets[0] + d: before it lie
    its predecessors' tokens and d separators.
    """
    length = inputs.shape[1]
    for i in range(len(rows)):
        row, start, column = rows[i], starts[i], filled[rows[i]]
        document = _document_at(offsets, start)
        inside = start - (offsets[document] - offsets[0] + document)
        segment: Any = segments[row, column - 1] + 1 if column > 0 else 0
        until = min(length, column + counts[i])
        while column < until and document < len(offsets) - 1:
            first, size = offsets[document], offsets[document + 1] - offsets[document]
            count = min(size + 1 - inside, until - column)
            # Loops without branches, which the compiler turns into vector instructions; then a document's two ends.
            for k in range(count):
                positions[row, column + k] = k
                segments[row, column + k] = segment
            begins, ends = inside == 0, inside + count == size + 1
            if begins:
                inputs[row, column] = bos
            for k in range(1 if begins else 0, count):
                inputs[row, column + k] = tokens[first + inside - 1 + k]
            for k in range(count - 1 if ends else count):
                targets[row, column + k] = tokens[first + inside + k]
            if ends:
                targets[row, column + count - 1] = eos
            column, document, segment, inside = column + count, document + 1, segment + 1, 0
        filled[row] = column


@numba.njit(cache=True, nogil=True)
def _document_at(offsets: np.ndarray, position: int) -> int:
    """The document that holds a position of a shard's stream."""
    low, high = 0, len(offsets) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if offsets[middle] - offsets[0] + middle <= position:
            low = middle
        else:
            high = middle
    return low


@numba.njit(cache=True, nogil=True)
def pad(
    filled: np.ndarray,
    padding: int,
    inputs: np.ndarray,
    targets: np.ndarray,
    positions: np.ndarray,
    segments: np.ndarray,
) -> None:
    """Fill the columns of all rows from `filled` on with padding: a segment of its own, without targets."""
    for row in range(len(filled)):
        first = filled[row]
        segment: Any = segments[row, first - 1] + 1 if first > 0 else 0
        for column in range(first, inputs.shape[1]):
            inputs[row, column] = padding
            targets[row, column] = IGNORED
            positions[row, column] = column - first
            segments[row, column] = segment
