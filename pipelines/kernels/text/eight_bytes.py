"""Load eight bytes as one little-endian integer, and find the first 1 among eight bytes that are flags."""

import numpy as np

from gristmill.compilation import kernel

_ONES = np.uint64(0x0101010101010101)


@kernel(inline="always")
def load_eight(data: np.ndarray, i: int) -> np.uint64:
    """Return the eight bytes at i as a little-endian integer."""
    k = np.uint64(i)
    low = np.uint64(data[k]) | np.uint64(data[k + np.uint64(1)]) << np.uint64(8)
    low |= np.uint64(data[k + np.uint64(2)]) << np.uint64(16) | np.uint64(data[k + np.uint64(3)]) << np.uint64(24)
    high = np.uint64(data[k + np.uint64(4)]) | np.uint64(data[k + np.uint64(5)]) << np.uint64(8)
    high |= np.uint64(data[k + np.uint64(6)]) << np.uint64(16) | np.uint64(data[k + np.uint64(7)]) << np.uint64(24)
    return low | high << np.uint64(32)


@kernel(inline="always")
def count_before_first(flags: np.uint64) -> int:
    """Return how many of the eight bytes in `flags`, each 0 or 1, come before the first 1, counting from the
    lowest byte; 8 if none is 1.
    """
    return np.int64((((flags - np.uint64(1)) & ~flags & _ONES) * _ONES) >> np.uint64(56))
