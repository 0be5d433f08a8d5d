"""Mark the tokens in rows that belong to spans stored with the documents."""

import numpy as np

from gristmill.compilation import kernel
from trainers.rows.packing import document_at


@kernel(nogil=True)
def mark_spans(
    offsets: np.ndarray,
    spans: np.ndarray,
    span_offsets: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    filled: np.ndarray,
    lead: int,
    marks: int,
    marked: np.ndarray,
) -> None:
    """Write the spans of documents into `marked`, int64 [all rows, length, 2]: at the place of each token of
    a span, the index of the span in its document and the span's type. Spans that are cut at either end of a
    sequence are left out.

    Each row of `spans` [n, 3] holds a span's first token, end and type; spans of document d are the rows from
    span_offsets[d] to span_offsets[d + 1] - 1. `starts`, `counts`, `rows` and `filled` are the arguments of
    `packing.pack`; call this before `pack`, which changes `filled`. Each document has `marks` special tokens
    around it, `lead` of them before it.
    """
    length, columns = marked.shape[1], filled.copy()
    for i in range(len(rows)):
        row, column = rows[i], columns[rows[i]]
        d = document_at(offsets, starts[i], marks)
        inside = starts[i] - (offsets[d] - offsets[0] + marks * d)
        until = min(length, column + counts[i])
        while column < until and d < len(offsets) - 1:
            count = min(offsets[d + 1] - offsets[d] + marks - inside, until - column)
            for k in range(span_offsets[d], span_offsets[d + 1]):
                first, end = lead + spans[k, 0] - inside, lead + spans[k, 1] - inside
                if first >= 0 and end <= count:
                    for position in range(first, end):
                        marked[row, column + position, 0] = k - span_offsets[d]
                        marked[row, column + position, 1] = spans[k, 2]
            column, d, inside = column + count, d + 1, 0
        columns[row] = column
