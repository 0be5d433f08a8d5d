"""Arrays that take long to compute, kept in the local cache under a name that says all they depend on."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import xxhash

from gristmill.storage.cache import path_for

_HEADER = 16  # bytes of checksum


def cached(name: str, make: Callable[[], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Arrays of int64 of one dimension, from the cache where they are there and intact, else from `make`.

    Those from the cache are mapped into memory, which the workers of a machine share, and read-only. A cache that cannot
    be read or written is none: what is made again is the same.
    """
    path = path_for("packing", name)
    with suppress(OSError, ValueError):
        return _read(path)
    arrays = make()
    with suppress(OSError):
        sizes = np.array([len(arrays), *map(len, arrays)], dtype=np.int64)
        body = b"".join(np.ascontiguousarray(part, np.int64).tobytes() for part in (sizes, *arrays))
        path.write_atomic(xxhash.xxh3_128_digest(body) + body)
    return arrays


def _read(path: Path) -> tuple[np.ndarray, ...]:
    content = np.memmap(path, mode="r")
    if len(content) <= _HEADER or xxhash.xxh3_128_digest(content[_HEADER:].data) != content[:_HEADER].tobytes():
        raise ValueError("not what was written")
    numbers = content[_HEADER:].view(np.int64).view(np.ndarray)
    count = int(numbers[0])
    return tuple(np.split(numbers[1 + count :], np.cumsum(numbers[1 : count + 1])[:-1]))
