"""Machine code from numba, cached on disk until anything that it was compiled from changes.

numba's own cache checks only the file of a kernel. It would keep running code into which an old version of a
kernel from another file was inlined, or in which the old value of a constant was frozen. Our kernels
therefore also carry a digest of the other kernels and constants that they use. A stale entry is overwritten,
so caches do not grow.
"""

import types
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import xxhash
from numba.core import entrypoints
from numba.core.dispatcher import Dispatcher

# At the first kernel, numba would load the extensions of all installed packages, such as that of awkward, which imports
# half of that library. Our kernels use none of them.
entrypoints._already_initialized = True


def kernel(inline: str = "never", nogil: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function with numba on its first call, or load it from the cache. It may call kernels of
    other files.

    `inline` and `nogil` are those of `numba.njit`.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        assert isinstance(function, types.FunctionType)
        dispatcher = numba.njit(cache=True, inline=inline, nogil=nogil)(function)
        if isinstance(dispatcher, Dispatcher):  # with NUMBA_DISABLE_JIT it is the plain function
            dispatcher._cache._cache_file._source_stamp = _stamp(function)
        return dispatcher

    return compiled


def _stamp(function: types.FunctionType) -> str:
    """Return a digest of the file of a kernel and of the globals that it uses: constants by value, kernels by
    their own stamps.
    """
    whole = xxhash.xxh3_128(_digest_of_file(function.__code__.co_filename))
    for name in sorted(_names(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, Dispatcher):
            whole.update(f"{name}={value._cache._cache_file._source_stamp}".encode())
        elif isinstance(value, np.ndarray):
            whole.update(f"{name}={value.dtype}{value.shape}".encode())
            whole.update(value.tobytes())
        elif isinstance(value, bool | int | float | complex | str | bytes | tuple | np.generic):
            whole.update(f"{name}={value!r}".encode())
    return whole.hexdigest()


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of the globals and attributes that a function, or a function nested in it, uses."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


@cache
def _digest_of_file(path: str) -> bytes:
    return xxhash.xxh3_128_digest(Path(path).read_bytes())
