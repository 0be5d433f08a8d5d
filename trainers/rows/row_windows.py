"""Rows cut into windows of columns, for truncated back-propagation through time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainers.rows.batch import IGNORED, ORDER_COLUMNS, PADDING, Batch


def columns_read(batches: Sequence[Batch]) -> int:
    """Return the number of columns up to the last one, of all rows, that is not padding; at least 1."""
    return max(int((batch.segments != PADDING).any(axis=0).nonzero()[0].max(initial=0)) for batch in batches) + 1


def window(batch: Batch, first: int, length: int) -> Batch:
    """Return `length` columns of rows from column `first` on, fewer where the rows end before, and a column of padding where
    none are left. Rows have inputs, targets, positions and segments only, as those of objective causal, and the order of a
    factorization, as those of permutation, whose targets in the window keep their order.
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
    """Return those of the columns in `order`, int64 [rows, targets], -1 to fill, that lie in a window, counted from its first
    column. What is left of a uniform order is uniform.
    """
    inside = (order >= first) & (order < first + length)
    counts = inside.sum(1, keepdims=True)
    width = max(1, -(-int(counts.max(initial=0)) // ORDER_COLUMNS)) * ORDER_COLUMNS
    found = np.full((len(order), width), -1, dtype=np.int64)
    found[np.arange(width) < counts] = order[inside] - first  # both by rows, from left to right
    return found
