"""Rows cut into windows of columns, for truncated back-propagation through time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainers.rows.batch import IGNORED, PADDING, Batch


def columns_read(batches: Sequence[Batch]) -> int:
    """Return the number of columns up to the last one, of all rows, that is not padding; at least 1."""
    return max(int((batch.segments != PADDING).any(axis=0).nonzero()[0].max(initial=0)) for batch in batches) + 1


def window(batch: Batch, first: int, length: int) -> Batch:
    """Return `length` columns of rows from column `first` on, fewer where the rows end before, and a column of padding where
    none are left. Rows have inputs, targets, positions and segments only, as those of objective causal.
    """
    here = slice(first, first + length)
    names = ("inputs", "targets", "positions", "segments")
    if first < batch.inputs.shape[1]:
        return replace(batch, **{name: getattr(batch, name)[:, here] for name in names})
    fill = zip(names, (0, IGNORED, 0, PADDING), strict=True)
    return replace(batch, **{name: np.full((len(batch.inputs), 1), value) for name, value in fill})
