# What stands in for functions of `os` is below `pathlib`, which calls them.
# ruff: noqa: PTH100, PTH102, PTH108, PTH110, PTH112, PTH113, PTH115, PTH118, PTH120, PTH202
"""Commands that die at a chosen operation on the disk or on an object store.

The product has no hooks for this: in the process that is to die, the functions that change durable storage
are replaced by counting ones. A first pass records the operations of a command. Each further run is killed
with SIGKILL just before one of them, and the disk is left as a crash of the process, or of the machine, would
leave it. The state after an operation is the state before the next one, so it is enough to kill before each
operation, and once after the last.
"""

import builtins
import fcntl
import functools
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

Crash = Literal["kill", "torn", "names kept", "names lost"]
"""What is lost besides the process. kill: nothing. torn: the second half of the file that the last operation opened, or
of its last line if the file was opened to append. The others are losses of power, in which files lose what was not
fsynced. names kept: all files keep their names. names lost: changes of names (creations, removals, renames) that were
not fsynced in their directory are undone.
"""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_STORE_CALLS = ("Put", "Delete", "Upload", "Complete", "Copy")  # of the API of S3 that change what it holds


@dataclass(frozen=True)
class Operation:
    """A watched operation.

    `kind` is creation, opening (to append), fsync, rename, removal, ...; `path` is relative to the watched
    root.
    """

    kind: str
    path: str


class Point(NamedTuple):
    """Where and how to die: before operation `number`, with the losses that `crash` names.

    Operations are counted from 0. The total number of operations means after the last one.
    """

    number: int
    crash: Crash


class Watch:
    """Counts the operations of this process below `root` from now on, and kills the process at `point`.

    The operations are written to `log` as JSON at the end or on death. `backups` is a directory on the same
    file system, for files that a simulated loss of power restores.
    """

    def __init__(self, root: Path, log: Path, point: Point | None, backups: Path) -> None:
        self._root, self._log, self._point, self._backups = str(root), log, point, backups
        self._operations: list[Operation] = []
        self._synced: dict[str, int] = {}  # of files that were opened for writing: how many bytes are safe
        self._undo: list[tuple[str, Callable[[], None]]] = []  # directory that was not fsynced since, how to take back
        self._opened: str | None = None  # the file of the last operation
        self._watching = True
        self._replace_all()

    def end(self) -> None:
        """Finish after the command: die here if `point` is after the last operation, otherwise write the log."""
        if self._point is not None and self._point.number == len(self._operations):
            self._die()
        self._write()

    def _write(self) -> None:
        self._watching = False
        self._log.write_text(json.dumps([asdict(operation) for operation in self._operations]))

    def _inside(self, path: Any) -> str | None:
        """Return the absolute path if it is watched, otherwise None."""
        if not self._watching or isinstance(path, int):
            return None
        absolute = os.path.abspath(os.fsdecode(path))
        return absolute if absolute == self._root or absolute.startswith(f"{self._root}/") else None

    def _note(self, kind: str, path: str) -> None:
        """Record an operation that is about to happen, or die if `point` is before it."""
        if self._point is not None and self._point.number == len(self._operations):
            self._die()
        self._operations.append(Operation(kind, path.removeprefix(self._root).removeprefix("/")))
        self._opened = None

    def _die(self) -> None:
        assert self._point is not None
        self._write()
        if self._point.crash == "torn" and self._opened is not None:
            _tear(Path(self._opened), self._operations[-1].kind == "opening")
        if self._point.crash == "names lost":
            for _, take_back in reversed(self._undo):
                with suppress(OSError):  # what it stood in is gone
                    take_back()
        if self._point.crash in ("names kept", "names lost"):
            for path, length in self._synced.items():
                with suppress(OSError):
                    os.truncate(path, min(length, os.path.getsize(path)))
        os.kill(os.getpid(), signal.SIGKILL)

    def _pending(self, path: str, take_back: Callable[[], None]) -> None:
        self._undo.append((os.path.dirname(path), take_back))

    def _backup(self, path: str) -> str | None:
        """Link a file that is about to lose its name to a backup, if a loss of power could bring the file
        back.
        """
        if self._point is None or self._point.crash != "names lost" or not os.path.isfile(path):
            return None
        backup = str(self._backups / str(len(self._operations)))
        os.link(path, backup)
        return backup

    def _replace_all(self) -> None:
        real_open = builtins.open
        builtins.open = io.open = functools.partial(_opening, self, real_open)
        os.open = functools.partial(_opening_descriptor, self, os.open)
        for name in ("rename", "replace"):
            setattr(os, name, functools.partial(_renaming, self, getattr(os, name)))
        for name in ("unlink", "remove", "rmdir"):
            setattr(os, name, functools.partial(_removing, self, getattr(os, name)))
        os.link = functools.partial(_linking, self, os.link)
        os.mkdir = functools.partial(_making, self, os.mkdir)
        os.fsync = functools.partial(_syncing, self)
        fcntl.flock = functools.partial(_locking, self, fcntl.flock)
        if tensors := sys.modules.get("safetensors.torch"):
            tensors.serialize_file = functools.partial(_serialising, self, tensors.serialize_file)

    def watch_store(self, bucket: str) -> None:
        """Also watch calls that change objects in an S3 bucket."""
        from aiobotocore.client import AioBaseClient

        call = AioBaseClient._make_api_call

        async def counted(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
            if operation.startswith(_STORE_CALLS) and self._watching and arguments.get("Bucket") == bucket:
                self._note(operation, str(arguments.get("Key", "")))
            return await call(client, operation, arguments)

        AioBaseClient._make_api_call = counted

    # What the functions below have done.

    def opened(self, path: str, existed: bool, stay: int) -> None:
        """Note that a file was opened for writing, with its first `stay` bytes kept."""
        self._opened = path
        self._synced[path] = min(self._synced.get(path, stay), stay)
        if not existed:
            self._pending(path, lambda: os.unlink(path))

    def renamed(self, old: str, new: str, backup: str | None) -> None:
        for path in [path for path in self._synced if path == old or path.startswith(f"{old}/")]:
            self._synced[new + path.removeprefix(old)] = self._synced.pop(path)

        def take_back() -> None:
            os.rename(new, old)
            if backup:
                os.link(backup, new)

        self._pending(new, take_back)

    def linked(self, path: str) -> None:
        self._pending(path, lambda: os.unlink(path))

    def removed(self, path: str, backup: str | None, directory: bool) -> None:
        self._synced.pop(path, None)
        if directory:
            self._pending(path, lambda: os.mkdir(path))
        elif backup:
            self._pending(path, lambda: os.link(backup, path))

    def made(self, path: str) -> None:
        """Note that a directory was made. If a loss of power takes its name, its contents are lost too."""
        self._pending(path, lambda: shutil.rmtree(path))

    def synced(self, path: str) -> None:
        """Note that a file, or the names in a directory, were fsynced."""
        if path in self._synced:
            self._synced[path] = os.path.getsize(path)
        self._undo = [(directory, back) for directory, back in self._undo if directory != path]


def _tear(file: Path, appended: bool) -> None:
    """Cut off the second half of a file, or of its last line if the file was appended to."""
    with suppress(FileNotFoundError):
        content = file.read_bytes()
        begin = content.rstrip(b"\n").rfind(b"\n") + 1 if appended else 0
        os.truncate(file, begin + (len(content) - begin) // 2)


def _at(path: Any, directory: int | None) -> Any:
    return path if directory is None else os.path.join(os.readlink(f"/proc/self/fd/{directory}"), os.fsdecode(path))


def _opening(watch: Watch, real: Callable[..., Any], file: Any, mode: str = "r", *others: Any, **named: Any) -> Any:
    path = watch._inside(file) if set(mode) & set("wax+") and not named.get("opener") else None
    if path is None:
        return real(file, mode, *others, **named)
    watch._note("opening" if "a" in mode else "creation", path)
    existed = os.path.exists(path)
    before = os.path.getsize(path) if existed and "w" not in mode else 0
    found = real(file, mode, *others, **named)
    watch.opened(path, existed, before)
    return found


def _opening_descriptor(
    watch: Watch, real: Callable[..., int], file: Any, flags: int, *others: Any, **named: Any
) -> int:
    written = flags & _WRITES and flags & os.O_TMPFILE != os.O_TMPFILE  # a file without a name leaves nothing
    path = watch._inside(_at(file, named.get("dir_fd"))) if written else None
    if path is None:
        return real(file, flags, *others, **named)
    watch._note("creation", path)
    existed = os.path.exists(path)
    found = real(file, flags, *others, **named)
    watch.opened(path, existed, 0)
    return found


def _renaming(watch: Watch, real: Callable[..., None], old: Any, new: Any, **named: Any) -> None:
    path = watch._inside(new)
    if path is None:
        return real(old, new, **named)
    watch._note("rename", path)
    backup = watch._backup(path)
    real(old, new, **named)
    return watch.renamed(os.path.abspath(os.fsdecode(old)), path, backup)


def _linking(watch: Watch, real: Callable[..., None], old: Any, new: Any, **named: Any) -> None:
    path = watch._inside(new)
    if path is not None:
        watch._note("link", path)
    real(old, new, **named)
    if path is not None:
        watch.linked(path)


def _removing(watch: Watch, real: Callable[..., None], file: Any, *, dir_fd: int | None = None) -> None:
    named = {} if dir_fd is None else {"dir_fd": dir_fd}
    path = watch._inside(_at(file, dir_fd))
    if path is None or not os.path.lexists(path):
        return real(file, **named)
    watch._note("removal", path)
    backup, directory = watch._backup(path), os.path.isdir(path)
    real(file, **named)
    return watch.removed(path, backup, directory)


def _making(watch: Watch, real: Callable[..., None], file: Any, *others: Any, **named: Any) -> None:
    path = watch._inside(file)
    if path is None or os.path.isdir(path) or not os.path.isdir(os.path.dirname(path)):
        return real(file, *others, **named)
    watch._note("make directory", path)
    real(file, *others, **named)
    return watch.made(path)


def _syncing(watch: Watch, descriptor: int) -> None:
    """Record an fsync without flushing.

    A kill does not lose what was written, and losses of power are simulated.
    """
    path = watch._inside(os.readlink(f"/proc/self/fd/{descriptor}"))
    if path is not None:
        watch._note("fsync directory" if os.path.isdir(path) else "fsync", path)
        watch.synced(path)


def _locking(watch: Watch, real: Callable[..., None], file: Any, operation: int) -> None:
    number = file if isinstance(file, int) else file.fileno()
    path = watch._inside(os.readlink(f"/proc/self/fd/{number}"))
    if path is not None:
        watch._note("lock", path)
    real(file, operation)


def _serialising(watch: Watch, real: Callable[..., None], tensors: Any, file: Any, *others: Any, **named: Any) -> None:
    path = watch._inside(file)
    if path is not None:
        watch._note("creation", path)
        existed = os.path.exists(path)
    real(tensors, file, *others, **named)
    if path is not None:
        watch.opened(path, existed, 0)
