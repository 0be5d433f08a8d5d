"""Machine code from numba, cached on disk under a digest of everything that it was compiled from.

numba's own cache lies beside the source and checks only the file of a kernel: every clone and every installation
compiles all kernels again, and code into which an old version of a kernel from another file was inlined, or in which
the old value of a constant was frozen, goes on running. Here one directory serves all clones and installations of a
user: `machine_code` in $NUMBA_CACHE_DIR if that is set, else `gristmill/machine_code` in the user's cache directory, or,
where that cannot be written, a directory beside this file. If none can be written, each process compiles for itself.

An entry is a file. Its name holds a digest of the kernel's source file, the constants and other kernels that it
uses, the versions of all that compiles it, the signature and the CPU, so no entry is ever stale. Beyond `_LIMIT` bytes,
those that were not used for longest are removed. Processes that need the same new kernel at the same moment, such as
the workers of a machine, do not all compile it: one does, and the others load what it has cached.
"""

import os
import pickle
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba
import numpy as np
import xxhash
from numba.core import entrypoints
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps

from gristmill.host import Host

# At the first kernel, numba would load the extensions of all installed packages, such as that of awkward, which imports
# half of that library. Our kernels use none of them.
entrypoints._already_initialized = True

# Seconds to wait for another process to compile. The slowest kernels take some ten on a free core, and several times that
# where processes share it, which those that compile too would make worse; a process that was suspended meanwhile must not
# stop others.
_LONGEST_WAIT = 180.0
_PAUSE = 0.05
_compiling: set[str] = set()  # names of source files that this process has locked; guarded by numba's own lock

_LIMIT = 256 << 20  # bytes; all kernels of one version take 12 MB
_MARK_USED_SECONDS = 86_400  # the time of an entry is when it was last used, to the day
_VERSIONS = f"{sys.version} numba {numba.__version__} llvmlite {version('llvmlite')} numpy {np.__version__}"
_OPTIONS = ("OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT")  # of numba.config: they change the code, and numba keys none


def kernel(inline: str = "never", nogil: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function with numba on its first call, or load it from the cache. It may call kernels of
    other files.

    `inline` and `nogil` are those of `numba.njit`.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        assert isinstance(function, types.FunctionType)
        dispatcher = numba.njit(inline=inline, nogil=nogil)(function)
        if isinstance(dispatcher, Dispatcher):  # with NUMBA_DISABLE_JIT it is the plain function
            dispatcher._cache = _MachineCode(function)
            _compile_in_turn(dispatcher, function)
        return dispatcher

    return compiled


class _MachineCode(_Cache):
    """The cache of a kernel, as numba's dispatcher uses it: one file for each signature and CPU.

    A file that cannot be read or is damaged is compiled again; one that cannot be written is left out.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._function = function

    @cached_property
    def stamp(self) -> str:
        """A digest of the kernel, of its file, of the constants that it uses, and of all kernels that it calls, directly or not.

        It is computed at the first call: while its module is imported, a kernel cannot see those further down in its file.
        """
        found, pending = dict[str, str](), [self._function]
        while pending:
            function = pending.pop()
            name = f"{function.__module__}.{function.__qualname__}"
            if name not in found:
                found[name], called = _facts(function)
                pending += called
        return xxhash.xxh3_128_hexdigest(f"{_VERSIONS} {self._name} {sorted(found.items())}".encode())

    @property
    def cache_path(self) -> str | None:
        """The directory of the cache; None if there is none."""
        folder = _folder(numba.config.CACHE_DIR)
        return str(folder) if folder else None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code for a signature, or None if it is not cached."""
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        if path is None:
            return None
        try:
            content = path.read_bytes()
        except OSError:
            return None
        with suppress(OSError):  # it may belong to another user, or have just been removed
            if time.time() - path.stat().st_mtime > _MARK_USED_SECONDS:
                os.utime(path)
        reduced = memoryview(content)[16:]
        if xxhash.xxh3_128_digest(reduced) != content[:16]:  # cut off, as when the machine lost power
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(reduced))

    def save_overload(self, sig: Any, data: Any) -> None:
        """Cache the machine code for a signature, unless it holds addresses of this process."""
        path = self._path(sig, data.codegen)
        if path is None or data.library.has_dynamic_globals or not all(loop.can_cache for loop in data.lifted):
            return
        reduced = dumps(data._reduce())
        own = path.with_name(f"{path.name}.{Host().unique()}")
        with suppress(OSError):
            _make_room(path.parent)
            try:
                own.write_bytes(xxhash.xxh3_128_digest(reduced) + reduced)
                own.rename(path)
            except OSError:
                own.unlink(missing_ok=True)

    def _path(self, sig: Any, codegen: Any) -> Path | None:
        """Return the file for a signature. The classes and fields of named tuples, which signatures leave out, count."""
        folder = _folder(numba.config.CACHE_DIR)
        if folder is None:
            return None
        tuples = [name for argument in getattr(sig, "args", sig) for name in _named_tuples(argument)]
        options = [getattr(numba.config, name) for name in _OPTIONS]
        facts = f"{self.stamp} {sig} {tuples} {codegen.magic_tuple()} {options}"
        return folder / f"{self._name}-{xxhash.xxh3_128_hexdigest(facts.encode())}.nbc"

    def enable(self) -> None:
        """Do nothing; numba asks for it."""

    def disable(self) -> None:
        """Do nothing; numba asks for it."""

    def flush(self) -> None:
        """Do nothing; numba asks for it. No entry is ever stale."""


@cache
def _folder(own: str) -> Path | None:
    """Return the directory of the cache, made if there is none. `own` is $NUMBA_CACHE_DIR, or empty. Entries are pickles,
    so what lies in the user's cache directory must not belong to another.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - without a home, it fails below
    users = Path(base) / "gristmill" / "machine_code"
    for folder in (
        *([Path(own).absolute() / "machine_code"] if own else []),
        users,
        Path(__file__).parent / "__pycache__" / "machine_code",
    ):
        with suppress(OSError):
            if folder.is_absolute():
                folder.mkdir(parents=True, exist_ok=True)
                Host().probe(str(folder))
                if folder != users or folder.stat().st_uid == os.geteuid():
                    return folder
    return None


@cache  # once a process is enough: it adds a version of the kernels at most
def _make_room(folder: Path) -> None:
    """Remove the files that were not used for longest, those of killed processes included, until the limit is kept."""
    files = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
    held = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if held <= _LIMIT:
            break
        path.unlink(missing_ok=True)
        held -= size


def _compile_in_turn(dispatcher: Any, function: types.FunctionType) -> None:
    """Make a kernel compile, or load from the cache, in one process at a time for each version of its source file."""
    compile_or_load = dispatcher.compile
    name = f"{function.__module__}-{_digest_of_file(function.__code__.co_filename).hex()}"

    def compile_in_turn(signature: Any) -> Any:
        # numba's lock first: a thread that has the file and waits for it would block one that has it and waits for the file.
        with global_compiler_lock, _locked(name):
            return compile_or_load(signature)

    dispatcher.compile = compile_in_turn


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Lock a version of a source file, unless this process has done so already or there is no cache. Kernels call those of
    other files only in the order of imports, so no two processes wait for each other.
    """
    folder = _folder(numba.config.CACHE_DIR)
    if folder is None or name in _compiling:
        yield
        return
    machine = Host()  # not the one that a test may have substituted: machine code is cached on the real one
    path = folder / f"{name}.lock"
    until = time.monotonic() + _LONGEST_WAIT
    with ExitStack() as held:
        # Where no lock can be had, as when someone has just removed the directory, this process compiles at once.
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path.touch()
            while not held.enter_context(machine.lock(str(path))) and time.monotonic() < until:
                held.close()
                time.sleep(_PAUSE)
        _compiling.add(name)
        try:
            yield
        finally:
            _compiling.discard(name)


def _facts(function: types.FunctionType) -> tuple[str, list[types.FunctionType]]:
    """Return a digest of a kernel's file and of the globals that it uses, constants by value and kernels by name; and these
    kernels.
    """
    whole = xxhash.xxh3_128(_digest_of_file(function.__code__.co_filename))
    whole.update(f"{function.__code__.co_firstlineno}".encode())
    called = []
    for name in sorted(set(_names(function.__code__))):
        value = function.__globals__.get(name)
        if isinstance(value, Dispatcher):
            callee = value.py_func
            called.append(callee)
            whole.update(f"{name}={callee.__module__}.{callee.__qualname__}".encode())
        elif isinstance(value, np.ndarray):
            whole.update(f"{name}={value.dtype}{value.shape}".encode())
            whole.update(value.tobytes())
        elif isinstance(value, bool | int | float | complex | str | bytes | tuple | np.generic | type):
            whole.update(f"{name}={value!r}{getattr(value, '_fields', '')}".encode())
    return whole.hexdigest(), called


def _named_tuples(kind: Any) -> Iterator[str]:
    """Yield the module, name and fields of each class of named tuples in a type, within other tuples too."""
    named = getattr(kind, "instance_class", None)
    if named is not None:
        yield f"{named.__module__}.{named.__qualname__}{named._fields}"
    for each in getattr(kind, "types", ()):
        yield from _named_tuples(each)


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of the globals and attributes that a function, or a function nested in it, uses."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


@cache
def _digest_of_file(path: str) -> bytes:
    return xxhash.xxh3_128_digest(Path(path).read_bytes())
