"""Keep arrays that are expensive to compute in the local cache, under a digest of everything that they depend
on.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import xxhash

from gristmill.host import lent
from gristmill.storage.cache import path_for, store

_HEADER = 16  # bytes of checksum


def load_or_make(name: str, make: Callable[[], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Load the one-dimensional int64 arrays stored as `name` from the cache; if they are missing or damaged,
    compute them with `make` and store them. `name` must be a digest of everything that the arrays depend on.
    Arrays from the cache are memory-mapped and read-only.
    """
    with suppress(OSError, ValueError):
        return _read(path_for("packing", name))
    arrays = make()
    with suppress(OSError):
        sizes = np.array([len(arrays), *map(len, arrays)], dtype=np.int64)
        body = b"".join(np.ascontiguousarray(part, np.int64).tobytes() for part in (sizes, *arrays))
        store("packing", name, xxhash.xxh3_128_digest(body) + body)
    return arrays


def _read(path: Path) -> tuple[np.ndarray, ...]:
    content = np.memmap(lent(path), mode="r")
    if len(content) <= _HEADER or xxhash.xxh3_128_digest(content[_HEADER:].data) != content[:_HEADER].tobytes():
        raise ValueError("checksum mismatch")
    numbers = content[_HEADER:].view(np.int64).view(np.ndarray)
    count = int(numbers[0])
    return tuple(np.split(numbers[1 + count :], np.cumsum(numbers[1 : count + 1])[:-1]))
