"""Write texts as rows of equal length, one text per row."""

from collections.abc import Sequence

import numpy as np

from trainers.rows.batch import PADDING


def pad_rows(rows: Sequence[np.ndarray], fill: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids, positions and segments of the texts in `rows`, each int64 [rows, longest], padded with
    `fill`, 0 and -1 respectively.
    """
    shape = (len(rows), max(map(len, rows)))
    ids, positions = np.full(shape, fill, np.int64), np.zeros(shape, np.int64)
    segments = np.full(shape, PADDING, np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)], segments[number, : len(row)] = row, 0
        positions[number, : len(row)] = np.arange(len(row))
    return ids, positions, segments
