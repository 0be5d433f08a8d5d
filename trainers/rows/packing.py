"""Copy the stream of a shard into rows. The stream consists of the shard's documents, each with the marks
that the objective's frame puts around it.

If `<bos>` is the only mark, the stream is `<bos> document <bos> document ...`, and the target of a document's
last token is `<eos>`, so that no target belongs to another document. Positions restart at every document and
at the start of every sequence.
"""

from typing import Any

import numpy as np

from gristmill.compilation import kernel
from trainers.rows.batch import IGNORED, PADDING


@kernel(nogil=True)
def pack(
    tokens: np.ndarray,
    offsets: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    filled: np.ndarray,
    before: int,
    after: int,
    following: int,
    inputs: np.ndarray,
    targets: np.ndarray,
    positions: np.ndarray,
    segments: np.ndarray,
) -> None:
    """Copy `counts[i]` positions of a shard's stream, from `starts[i]` on, into row `rows[i]`, or fewer if
    the row is full or the shard ends.

    `filled` [all rows] is the number of columns of each row that are already written; it is increased by the
    columns written here. The four arrays to write are [all rows, length]. `before` and `after` are the ids of
    the marks put around a document, -1 for none.

    The target of a token is the next token of its document; the target of the document's last token is
    `following`. If `following` is -1, all targets are -100; it must be -1 if there is an `after`.
    """
    length = inputs.shape[1]
    marks, lead = (before >= 0) + (after >= 0), int(before >= 0)
    for i in range(len(rows)):
        row, start, column = rows[i], starts[i], filled[rows[i]]
        document = document_at(offsets, start, marks)
        inside = start - (offsets[document] - offsets[0] + marks * document)
        segment: Any = segments[row, column - 1] + 1 if column > 0 else 0
        until = min(length, column + counts[i])
        while column < until and document < len(offsets) - 1:
            first, size = offsets[document], offsets[document + 1] - offsets[document]
            count = min(size + marks - inside, until - column)
            # Branch-free loops, which the compiler can vectorise. The two ends of a document are corrected
            # afterwards.
            for k in range(count):
                positions[row, column + k] = k
                segments[row, column + k] = segment
            # The columns of the document's own tokens, without the marks at its two ends.
            begins, ends = max(0, lead - inside), min(count, lead + size - inside)
            for k in range(begins):
                inputs[row, column + k] = before
            for k in range(begins, ends):
                inputs[row, column + k] = tokens[first + inside - lead + k]
            for k in range(max(0, ends), count):
                inputs[row, column + k] = after
            if following >= 0:
                last = inside + count == size + marks
                for k in range(count - 1 if last else count):
                    targets[row, column + k] = tokens[first + inside + 1 - lead + k]
                if last and count > 0:
                    targets[row, column + count - 1] = following
            else:
                for k in range(count):
                    targets[row, column + k] = IGNORED
            # A document without tokens and marks is not a segment.
            column, document, segment, inside = column + count, document + 1, segment + (count > 0), 0
        filled[row] = column


@kernel(nogil=True)
def document_at(offsets: np.ndarray, position: int, marks: int) -> int:
    """Return the index of the document that contains `position` of a shard's stream. Each document has
    `marks` special tokens around it.
    """
    low, high = 0, len(offsets) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if offsets[middle] - offsets[0] + marks * middle <= position:
            low = middle
        else:
            high = middle
    return low


@kernel(nogil=True)
def pad(
    filled: np.ndarray,
    padding: int,
    inputs: np.ndarray,
    targets: np.ndarray,
    positions: np.ndarray,
    segments: np.ndarray,
) -> None:
    """Pad each row r from column `filled[r]` on: inputs with `padding`, targets with -100, positions with 0
    and segments with -1.
    """
    for row in range(len(filled)):
        for column in range(filled[row], inputs.shape[1]):
            inputs[row, column] = padding
            targets[row, column] = IGNORED
            positions[row, column] = 0
            segments[row, column] = PADDING
