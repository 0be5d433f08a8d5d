"""Everything that storage and leases need from the machine: clock, sleep, randomness, processes and files.

Code that publishes files uses `host()` instead of the operating system, so that a test can substitute another
host (`tests/schedules`).
"""

import fcntl
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

from gristmill.process import kernel, process_start

Result = TypeVar("Result")


class TimedOut(Exception):
    """A call took longer than its limit."""


class Host:
    """The machine that this process runs on. Paths are strings; failed operations on files raise OSError."""

    def monotonic(self) -> float:
        """Return the time in seconds of a clock that never runs backwards."""
        return time.monotonic()

    def time(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds` seconds."""
        time.sleep(seconds)

    def unique(self) -> str:
        """Return 32 random hexadecimal digits, different on every call."""
        return uuid.uuid4().hex

    def identity(self) -> dict[str, object]:
        """Return what identifies this process: the host name, the process ID with the scope in which it is
        unique (`kernel`), and the start time.
        """
        pid = os.getpid()
        return {"host": os.uname().nodename, "pid": pid, "kernel": kernel(), "started": process_start(pid)}

    def is_alive(self, identity: Mapping[str, object]) -> bool | None:
        """Return whether the process with the given identity is alive, or None if this process cannot tell."""
        scope, pid = identity.get("kernel"), identity.get("pid")
        if not scope or scope != kernel() or not isinstance(pid, int) or pid < 1:
            return None
        try:
            os.kill(pid, 0)  # /proc may hide the processes of other users
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return process_start(pid) in (None, identity.get("started"))

    def repeat(self, seconds: float, call: Callable[[], bool]) -> Callable[[], None]:
        """Run `call` in a thread every `seconds` seconds until it returns False.

        Returns a function that stops the repetition and waits for a call in progress.
        """
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(seconds) and call():
                pass

        thread = threading.Thread(target=work, daemon=True)
        thread.start()

        def end() -> None:
            ended.set()
            thread.join()

        return end

    def within(self, seconds: float, call: Callable[[], Result]) -> Result:
        """Run `call` in a thread and return its result. Raises TimedOut if it takes longer than `seconds`;
        the thread is then left running.
        """
        answer: Future[Result] = Future()

        def work() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        wait([answer], seconds)
        if not answer.done():
            raise TimedOut(f"no answer within {seconds:.0f} s")
        return answer.result()

    def exit(self, status: int) -> NoReturn:
        """End this process at once, without any cleanup."""
        os._exit(status)

    def open(self, path: str, mode: str = "rb", buffering: int = -1) -> BinaryIO:
        """Open a file in a binary mode: rb, wb, xb, r+b or ab."""
        return open(path, mode, buffering)  # type: ignore[return-value]

    def fsync(self, file: BinaryIO) -> None:
        """Make the content of an open file durable. Its buffer must have been flushed."""
        os.fsync(file.fileno())

    def fsync_directory(self, path: str) -> None:
        """Make changes to the entries of a directory durable."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory. A file may replace an existing file; a directory may replace an empty
        directory.
        """
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        """Create `new` as a hard link to the file `old`. Raises FileExistsError if `new` exists."""
        os.link(old, new)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        """Create a directory. Its parent must exist."""
        os.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def entries(self, path: str) -> list[tuple[str, bool]]:
        """Return (name, whether it is a directory) for each entry of a directory, in no particular order. A
        symbolic link does not count as a directory.
        """
        with os.scandir(path) as found:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]

    def stat(self, path: str) -> os.stat_result:
        """Return the status of a file or directory. Raises FileNotFoundError if the path does not exist."""
        return os.stat(path)

    def utime(self, path: str, times: tuple[int, int]) -> None:
        """Set the times of last access and modification, in nanoseconds since the epoch."""
        os.utime(path, ns=times)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything below it."""
        shutil.rmtree(path)

    @contextmanager
    def lock(self, path: str) -> Iterator[bool]:
        """Try to lock a file or directory for the duration of the block, without waiting. Yields False if the
        lock is already held. On file systems without locks, it always yields True.
        """
        descriptor = os.open(path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass
            yield True
        finally:
            os.close(descriptor)

    def probe(self, path: str) -> None:
        """Check that files can be created in a directory, by creating a temporary one. Raises OSError if not."""
        with tempfile.TemporaryFile(dir=path, prefix=".", suffix=".tmp"):
            pass

    def lend(self, path: str) -> str:
        """Return a path at which native code can read a file, or the files of a directory. On this host it is
        the same path.
        """
        return path

    def deliver(self, path: str, write: Callable[[str], None]) -> None:
        """Let native code write a new file, or new files in an existing directory. `write` is called with the
        path to write to.
        """
        write(path)

    def store(self, scheme: str, make: Callable[[], Any]) -> Any:
        """Return the fsspec file system for a URL scheme. This host calls `make` to create it."""
        return make()


_current = Host()


def host() -> Host:
    """Return the current host: the machine of this process, unless `use_host` has replaced it."""
    return _current


@contextmanager
def use_host(other: Host) -> Iterator[Host]:
    """Make `host()` return another host while the block runs, in all threads."""
    global _current
    before, _current = _current, other
    try:
        yield other
    finally:
        _current = before


def lent(path: Path) -> str:
    """Return the path at which native code can read a file; see `Host.lend`."""
    return _current.lend(str(path))
