"""Machine code from numba, cached on disk until anything that it was compiled from changes.

numba's own cache checks only the file of a kernel. It would keep running code into which an old version of a
kernel from another file was inlined, or in which the old value of a constant was frozen. Our kernels
therefore also carry a digest of the other kernels and constants that they use. A stale entry is overwritten,
so caches do not grow. Processes that need the same new kernel at the same moment, such as the workers of a machine,
do not all compile it: one does, and the others load what it has cached.
"""

import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import xxhash
from numba.core import entrypoints
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from gristmill.host import Host

# At the first kernel, numba would load the extensions of all installed packages, such as that of awkward, which imports
# half of that library. Our kernels use none of them.
entrypoints._already_initialized = True

# Seconds to wait for another process to compile. The slowest kernels take some ten on a free core, and several times that
# where processes share it, which those that compile too would make worse; a process that was suspended meanwhile must not
# stop others.
_PATIENCE = 180.0
_PAUSE = 0.05
_compiling: set[str] = set()  # source files that this process has locked; guarded by numba's own lock


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
            _compile_in_turn(dispatcher, function.__code__.co_filename)
        return dispatcher

    return compiled


def _compile_in_turn(dispatcher: Any, path: str) -> None:
    """Make a kernel of the source file `path` compile, or load from the cache, in one process at a time."""
    compile_or_load = dispatcher.compile

    def compile_in_turn(signature: Any) -> Any:
        # numba's lock first: a thread that has the file and waits for it would block one that has it and waits for the file.
        with global_compiler_lock, _locked(path):
            return compile_or_load(signature)

    dispatcher.compile = compile_in_turn


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Lock a source file, unless this process has done so already. Kernels call those of other files only in the order of
    imports, so no two processes wait for each other.
    """
    if path in _compiling:
        yield
        return
    machine = Host()  # not the one that a test may have substituted: machine code is cached on the real one
    until = time.monotonic() + _PATIENCE
    while True:
        with machine.lock(path) as free:
            if free or time.monotonic() > until:
                _compiling.add(path)
                try:
                    yield
                finally:
                    _compiling.discard(path)
                return
        time.sleep(_PAUSE)


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
