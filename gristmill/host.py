"""Host: all that storage and leases need of the machine: clock, sleep, randomness, processes and files.

The product calls `host()` and never the operating system for anything below an output, so that a test can put
another host in its place: one with virtual time and files in memory, on which several commands run in any
order (`tests/schedules`). Everything durable is made of the operations below, each of which takes effect at
once or not at all, except that a write may be cut off.
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
    """The machine that this process runs on. Paths are strings; errors are OSErrors."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def unique(self) -> str:
        """32 hexadecimal digits that no other call gives."""
        return uuid.uuid4().hex

    def identity(self) -> dict[str, object]:
        """This process: host name, pid, the scope of the pid (see `gristmill.process.kernel`), start time."""
        pid = os.getpid()
        return {"host": os.uname().nodename, "pid": pid, "kernel": kernel(), "started": process_start(pid)}

    def is_alive(self, identity: Mapping[str, object]) -> bool | None:
        """Whether the process with an identity is alive; None if this process cannot know."""
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
        """Run `call` in a thread every so many seconds until it returns False.

        The function returned ends this, and waits for a call in progress.
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
        """The result of `call`. Raises TimedOut if it takes longer; it is then left to itself, in its thread."""
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
        """End this process at once."""
        os._exit(status)

    def open(self, path: str, mode: str = "rb", buffering: int = -1) -> BinaryIO:
        """Open a file in a binary mode: rb, wb, xb, r+b or ab."""
        return open(path, mode, buffering)  # type: ignore[return-value]

    def fsync(self, file: BinaryIO) -> None:
        """Make the content of an open file durable; what it buffers was flushed before."""
        os.fsync(file.fileno())

    def fsync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory; it replaces a file, or an empty directory."""
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name. FileExistsError if the name is taken."""
        os.link(old, new)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        """Make a directory in one that exists."""
        os.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def entries(self, path: str) -> list[tuple[str, bool]]:
        """The names in a directory in any order, and whether each is a directory (a symbolic link is none)."""
        with os.scandir(path) as found:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]

    def stat(self, path: str) -> os.stat_result:
        """The status of a file or directory. FileNotFoundError if there is none."""
        return os.stat(path)

    def utime(self, path: str, times: tuple[int, int]) -> None:
        """Set the times of the last access and change, in nanoseconds since the epoch."""
        os.utime(path, ns=times)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything below: one listing, and one removal for each name."""
        shutil.rmtree(path)

    @contextmanager
    def lock(self, path: str) -> Iterator[bool]:
        """Whether no other process of this machine is in this block for a directory.

        File systems without locks never report one.
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
        """Make a temporary file in a directory: OSError if that is impossible."""
        with tempfile.TemporaryFile(dir=path, prefix=".", suffix=".tmp"):
            pass

    def lend(self, path: str) -> str:
        """A path under which native code finds a file, or the files of a directory: the same path."""
        return path

    def deliver(self, path: str, write: Callable[[str], None]) -> None:
        """Let native code write a new file, or new files in a directory that exists."""
        write(path)

    def store(self, scheme: str, make: Callable[[], Any]) -> Any:
        """The fsspec file system for a scheme of URLs, made by `make`."""
        return make()


_current = Host()


def host() -> Host:
    """The host that this process runs on."""
    return _current


@contextmanager
def use_host(other: Host) -> Iterator[Host]:
    """Let `host()` be another one while the block runs, in all threads."""
    global _current
    before, _current = _current, other
    try:
        yield other
    finally:
        _current = before


def lent(path: Path) -> str:
    """The path that native code reads a file by; see `Host.lend`."""
    return _current.lend(str(path))
