"""Texts as rows of equal length, one text a row."""

from collections.abc import Sequence

import numpy as np

from trainers.rows.batch import PADDING


def pad_rows(rows: Sequence[np.ndarray], fill: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids, with `fill` after the end of a row, positions and segments of texts, int64 [rows, longest]."""
    shape = (len(rows), max(map(len, rows)))
    ids, positions = np.full(shape, fill, np.int64), np.zeros(shape, np.int64)
    segments = np.full(shape, PADDING, np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)], segments[number, : len(row)] = row, 0
        positions[number, : len(row)] = np.arange(len(row))
    return ids, positions, segments
