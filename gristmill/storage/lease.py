"""Leases: who works in an output root or a run directory, so that a second process does not do the same work beside the first.

A lease is a small file, `.lease`, with a counter that its holder raises every few seconds. Whoever finds one watches it by
its own monotonic clock: while the bytes change the holder lives, and when they have stood still for long enough the lease is
taken over. No two clocks are compared, nor are times of files. A holder that is known to be dead is not waited for: a process
of this machine, since its start, and in the same process namespace, which alone can be looked up.

A lease saves work and guards nothing. It can be lost (a process that was suspended, a store that was away) and two that come
at the same instant may both hold it: what is written while one is held must be right with two writers.
"""

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gristmill.errors import ConflictError, StorageError, UserError
from gristmill.storage.location import Location
from gristmill.storage.store import digest

LEASE = ".lease"
PATIENCE_SECONDS = 30.0  # six beats: a store that is slow, or a library that keeps all threads waiting, is no death
_BEAT_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_DIGITS = 12  # a lease is overwritten in place, so its length stays
Say = Callable[[str], None]


@dataclass
class Lease:
    """A lease that this process holds. `work` says what it does, for people: building, training."""

    path: Location
    work: str
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)
    count: int = 0

    def state(self) -> bytes:
        """The bytes of the lease: all for people but the holder, the counter, and what tells whether the holder is dead."""
        facts: dict[str, object] = {"holder": self.holder, "count": str(self.count).zfill(_DIGITS), "work": self.work}
        pid = os.getpid()
        facts |= {"host": os.uname().nodename, "pid": pid, "kernel": _kernel(), "started": _started(pid)}
        return json.dumps(facts).encode() + b"\n"

    def beat(self) -> bool:
        """Raise the counter; False where another process has taken the lease."""
        self.count += 1
        return self.path.update(self._owns, self.state())

    def release(self) -> None:
        """Remove the lease, unless it is another's by now."""
        found = _read(self.path)
        if found is None or not self._owns(found):
            return
        self.path.unlink(missing_ok=True)

    def _owns(self, found: bytes) -> bool:
        """Whether a lease is this one; one that cannot be read is nobody else's."""
        return _facts(found).get("holder", self.holder) == self.holder


@contextmanager
def lock(
    place: Location,
    work: str,
    say: Say,
    *,
    wait: bool = True,
    lost: Callable[[], None] | None = None,
    patience: float = PATIENCE_SECONDS,
    beat: float = _BEAT_SECONDS,
) -> Iterator[None]:
    """Hold the lease of a directory or prefix while the block runs; waiting and ConflictError as `take`.

    `lost` is called, in a thread, once another process has taken the lease over; without it that is said, and work goes on.
    """
    lease = take(place, work, say, wait=wait, patience=patience)
    ended = threading.Event()

    def tell() -> None:
        say(f"{place}: another process took over, since this one had stood still; both go on, to the same result")

    def keep() -> None:
        while not ended.wait(beat):
            # A disk or a store that fails now: whoever waits may take over, which costs work and nothing else.
            with suppress(OSError, StorageError, UserError):
                if not lease.beat():
                    (lost or tell)()
                    return

    thread = threading.Thread(target=keep, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(OSError, StorageError, UserError):  # it stands still, then
            lease.release()


def take(
    place: Location,
    work: str,
    say: Say,
    *,
    wait: bool = True,
    patience: float = PATIENCE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Lease:
    """Take the lease of a directory or prefix. Where another process holds it, wait until it is done, is dead, or has stood
    still for `patience` seconds of `clock`; without `wait`, ConflictError as soon as it is known to live.
    """
    lease = Lease(place / LEASE, work)
    watched: bytes | None = None
    since = read = clock()
    told = ""
    while True:
        now = clock()
        try:
            found = _read(lease.path)
        except StorageError:
            if now - read >= patience:
                raise
            watched = None
            sleep(_LOOK_SECONDS)
            continue
        read = clock()
        moved = None not in (watched, found) and found != watched
        if found != watched:
            watched, since = found, read
        alive = None if found is None else _alive(found)
        if found is None or alive is False or now - since >= patience:
            if _put(lease, found):
                if told:
                    say(f"{place}: it is {'done' if found is None else 'dead, or stands still'}; going on")
                return lease
            watched = None  # another process was quicker
            sleep(_LOOK_SECONDS)
            continue
        if not wait and (alive or moved):
            raise ConflictError(f"{place}: another process is {_who(found)}; wait for it or end it")
        if told != (told := _who(found)):
            doing = "waiting for it" if wait else "watching whether it lives"
            say(
                f"{place}: another process is {told}; {doing}, or taking over when it has not moved for {patience:.0f} s"
            )
        sleep(_LOOK_SECONDS)


def _put(lease: Lease, found: bytes | None) -> bool:
    """Put a lease where `found` lies, or nothing; False where something else lies there by now."""
    if found is None:
        return lease.path.write_new(lease.state())
    return lease.path.compare_and_swap(found, lease.state())


def _read(path: Location) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _facts(found: bytes) -> dict[str, object]:
    try:
        facts = json.loads(found)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _who(found: bytes) -> str:
    facts = _facts(found)
    return (
        f"{facts.get('work', 'working')} here (host {facts.get('host', 'unknown')}, pid {facts.get('pid', 'unknown')})"
    )


def _alive(found: bytes) -> bool | None:
    """Whether the holder of a lease lives; None where that cannot be known from here."""
    facts = _facts(found)
    kernel, pid = facts.get("kernel"), facts.get("pid")
    if not kernel or kernel != _kernel() or not isinstance(pid, int) or pid < 1:
        return None
    try:
        os.kill(pid, 0)  # /proc may hide the processes of other users
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _started(pid) in (None, facts.get("started"))


def _kernel() -> str:
    """A digest of what a process id is valid in: the machine, its start, its namespaces of processes and of time; empty where
    the system does not say. Containers of one machine, and of one name, differ in their namespaces.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [str(Path("/proc/self/ns", kind).readlink()) for kind in ("pid", "time")]
    except OSError:
        return ""
    return digest([os.uname().nodename, boot, *spaces])


def _started(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; "" for one that is dead and not waited for, None where unknown."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in ("Z", "X") else fields[18]
