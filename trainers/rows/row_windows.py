"""Cut rows into windows of columns, for truncated back-propagation through time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainers.rows.batch import IGNORED, ORDER_COLUMNS, PADDING, Batch


def columns_read(batches: Sequence[Batch]) -> int:
    """Return the number of columns up to and including the last one that has a token in any row of the
    batches; at least 1.
    """
    return max(int((batch.segments != PADDING).any(axis=0).nonzero()[0].max(initial=0)) for batch in batches) + 1


def window(batch: Batch, first: int, length: int) -> Batch:
    """Return a batch with `length` columns of the rows, from column `first` on; fewer if the rows end
    earlier, and a single column of padding if they have no column `first`.

    Inputs, targets, positions, segments and the factorization must be the only arrays of the batch that have
    columns.
    """
    here, shape = slice(first, first + length), (len(batch.inputs), 1)
    rows = (batch.inputs, batch.targets, batch.positions, batch.segments)
    if first < batch.inputs.shape[1]:
        inputs, targets, positions, segments = (array[:, here] for array in rows)
    else:
        inputs, targets, positions, segments = (np.full(shape, value) for value in (0, IGNORED, 0, PADDING))
    order = None if batch.factorization is None else _within(batch.factorization, first, length)
    return replace(batch, inputs=inputs, targets=targets, positions=positions, segments=segments, factorization=order)


def _within(order: np.ndarray, first: int, length: int) -> np.ndarray:
    """Return the columns of `order` that lie in a window, counted from the window's first column. `order` and
    the result are int64 [rows, targets], padded with -1.
    """
    inside = (order >= first) & (order < first + length)
    counts = inside.sum(1, keepdims=True)
    width = max(1, -(-int(counts.max(initial=0)) // ORDER_COLUMNS)) * ORDER_COLUMNS
    found = np.full((len(order), width), -1, dtype=np.int64)
    found[np.arange(width) < counts] = order[inside] - first  # both by rows, from left to right
    return found
