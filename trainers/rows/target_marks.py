"""Mark the tokens in rows that belong to the targets of pairs."""

import numpy as np

from gristmill.compilation import kernel
from trainers.rows.packing import document_at


@kernel(nogil=True)
def mark_targets(
    offsets: np.ndarray,
    targets: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    filled: np.ndarray,
    lead: int,
    marks: int,
    marked: np.ndarray,
) -> None:
    """Set `marked`, bool [all rows, length], to True at each token that belongs to the target of a pair,
    including targets that continue from an earlier row.

    `offsets` and `targets` are fields of `pipelines.contracts.shard_set.Shard`; `starts`, `counts`, `rows`
    and `filled` are the arguments of `packing.pack`. Call this before `pack`, which changes `filled`. Each
    document has `marks` special tokens around it, `lead` of them before it.
    """
    length, columns = marked.shape[1], filled.copy()
    for i in range(len(rows)):
        row, column = rows[i], columns[rows[i]]
        d = document_at(offsets, starts[i], marks)
        inside = starts[i] - (offsets[d] - offsets[0] + marks * d)
        until = min(length, column + counts[i])
        while column < until and d < len(offsets) - 1:
            size = offsets[d + 1] - offsets[d]
            count = min(size + marks - inside, until - column)
            if targets[d] >= 0:
                first, end = max(0, lead + targets[d] - inside), min(count, lead + size - inside)
                for position in range(first, end):
                    marked[row, column + position] = True
            column, d, inside = column + count, d + 1, 0
        columns[row] = column
