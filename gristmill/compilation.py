"""Cache numba's machine code on disk, keyed by a digest of everything that it was compiled from.

numba's own cache lies next to the source, so every clone and every installation compiles all kernels again.
It also checks only the source file of the kernel itself. After a change to an inlined kernel or a frozen
constant in another file, it keeps running stale code.

This cache serves all clones and installations of a user. It is the first of these directories that is
writable: `machine_code` in $NUMBA_CACHE_DIR, if that is set; `gristmill/machine_code` in the user's cache
directory, if it belongs to the user; `__pycache__/machine_code` next to this file. If none is writable, each
process compiles for itself.

Each entry is a file. Its name includes a digest of the kernel's bytecode, the constants and other kernels
that it uses, the versions of Python and the compiler, some of numba's options, the signature and the CPU. A
change to comments or docstrings recompiles nothing, except where a kernel uses an intrinsic: the digest then
covers the whole file of that kernel.
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
    """Return a decorator that compiles a function with numba and caches its machine code."""

    def compiled(function: Callable[..., Any]) -> Any:
        assert isinstance(function, types.FunctionType)
        dispatcher = numba.njit(inline=inline, nogil=nogil)(function)
        if isinstance(dispatcher, Dispatcher):  # with NUMBA_DISABLE_JIT it is the plain function
            dispatcher._cache = _MachineCode(function)
            _compile_in_turn(dispatcher, function)
        return dispatcher

    return compiled


class _MachineCode(_Cache):
    """The cache of one kernel's machine code, with the interface that numba's dispatcher expects. There is
    one file per signature and CPU.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._function = function

    @cached_property
    def stamp(self) -> str:
        """A digest of the kernel, of the constants and kernels that it uses, and of the versions of Python
        and the compiler. It is computed on first use, because kernels further down in the file do not exist
        yet while the module is being imported.
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
        folder = _folder(numba.config.CACHE_DIR)
        return str(folder) if folder else None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
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
        """Cache the machine code for a signature. Code with dynamic globals is not cached: the addresses in
        it are valid only in this process.
        """
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
        """Return the cache file for a signature, or None without a cache directory. The digest in its name
        covers the classes and fields of named tuples, which numba's signatures omit.
        """
        folder = _folder(numba.config.CACHE_DIR)
        if folder is None:
            return None
        tuples = [name for argument in getattr(sig, "args", sig) for name in _named_tuples(argument)]
        options = [getattr(numba.config, name) for name in _OPTIONS]
        facts = f"{self.stamp} {sig} {tuples} {codegen.magic_tuple()} {options}"
        return folder / f"{self._name}-{xxhash.xxh3_128_hexdigest(facts.encode())}.nbc"

    def enable(self) -> None:
        """Do nothing. numba requires the method."""

    def disable(self) -> None:
        """Do nothing. numba requires the method."""

    def flush(self) -> None:
        """Do nothing, because no entry is ever stale. numba requires the method."""


@cache
def _folder(own: str) -> Path | None:
    """Return the first usable cache directory, creating it if needed, or None if no candidate is writable.
    Entries are pickles, which can run code when loaded, so the directory below the user's cache directory
    must belong to this user.
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
    """Make a dispatcher take a lock before it compiles or loads its kernel, so that other processes wait for
    the result.
    """
    compile_or_load = dispatcher.compile
    name = f"{function.__module__}-{_digest_of_file(function.__code__.co_filename).hex()}"

    def compile_in_turn(signature: Any) -> Any:
        # Take numba's lock first. Otherwise, a thread that holds the file lock and one that holds numba's lock could wait for
        # each other.
        with global_compiler_lock, _locked(name):
            return compile_or_load(signature)

    dispatcher.compile = compile_in_turn


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Hold the lock for one version of a source file during the block. If it cannot be taken in time, run the
    block without it. Two processes cannot deadlock, because imports form no cycle.
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
    """Return (digest, callees). The digest covers the function's bytecode, constants, default arguments and
    the globals that it names. `callees` are the Python functions of the kernels that it calls directly; the
    digest covers only their names.
    """
    whole = xxhash.xxh3_128(_digest_of_code(function.__code__, function.__doc__))
    whole.update(f"{function.__defaults__}".encode())
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
        elif value is not None and not isinstance(value, types.ModuleType):
            # Such as an intrinsic, assumed to be defined in the same file.
            whole.update(_digest_of_file(function.__code__.co_filename))
    return whole.hexdigest(), called


def _digest_of_code(code: types.CodeType, docstring: str | None = None) -> bytes:
    """Return a 16-byte digest of a code object and of those nested in it: bytecode, constants and names, but
    not the file name, the line numbers or `docstring`. `docstring` is the function's own, or None if it has
    none.
    """
    constants = [_digest_of_code(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts]
    if docstring is not None:
        constants[0] = ""
    variables = (code.co_argcount, code.co_varnames, code.co_names, code.co_freevars, code.co_cellvars)
    facts = (code.co_code, code.co_exceptiontable, code.co_flags, variables, constants)
    return xxhash.xxh3_128_digest(repr(facts).encode())


def _named_tuples(kind: Any) -> Iterator[str]:
    named = getattr(kind, "instance_class", None)
    if named is not None:
        yield f"{named.__module__}.{named.__qualname__}{named._fields}"
    for each in getattr(kind, "types", ()):
        yield from _named_tuples(each)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


@cache
def _digest_of_file(path: str) -> bytes:
    return xxhash.xxh3_128_digest(Path(path).read_bytes())
