"""Leases keep a second process from doing the same work in the same directory.

A lease is a small file, `.lease`, with a counter that its holder increments every few seconds. Another
process watches the file and measures time with its own monotonic clock. While the bytes keep changing, the
holder is alive; after a timeout without a change, the lease may be taken over. Neither the clocks of two
machines nor file times are ever compared. If the holder is known to be dead, its lease may be taken over at
once; this can be known only on the same machine, in the same boot and process namespace.

A lease saves work and does not guarantee exclusion. It can be lost when its holder is suspended or the store
does not answer, and two processes may both acquire it at the same instant. Writes under a lease must
therefore be correct with two writers.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from gristmill.errors import ConflictError, StorageError, UserError
from gristmill.host import host
from gristmill.storage.location import Location

LEASE = ".lease"
TIMEOUT_SECONDS = (
    30.0  # six heartbeats, so that a slow store or a library that blocks all threads does not count as dead
)
_HEARTBEAT_SECONDS = 5.0
_POLL_SECONDS = 1.0
_STOPPED = 2  # timeouts for which the same lease cannot be taken: who has locked it is not merely slow
_DIGITS = 12  # a lease is overwritten in place, so its length is fixed
Say = Callable[[str], None]


@dataclass
class Lease:
    """A lease that this process holds on a directory. `path` is the lease file, and `work` says what the
    process is doing in the directory, such as `building`.
    """

    path: Location
    work: str
    holder: str = field(default_factory=lambda: host().unique())
    count: int = 0

    def state(self) -> bytes:
        """Return the lease as bytes to write to its file."""
        facts: dict[str, object] = {"holder": self.holder, "count": str(self.count).zfill(_DIGITS), "work": self.work}
        return json.dumps(facts | host().identity()).encode() + b"\n"

    def beat(self) -> bool:
        """Increment the counter and renew the lease. Returns False if the lease is lost. A missing lease file
        counts as lost.
        """
        self.count += 1
        return self.path.update(self._owns, self.state())

    def check(self) -> None:
        """Raise ConflictError if the lease file names another holder or is missing, as it is after another
        process has taken the lease and finished.
        """
        current = _read(self.path)
        if current is None or not self._owns(current):
            raise ConflictError(
                f"{self.path.parent}: another process took over while this one was suspended; run the command again"
            )

    def release(self) -> None:
        """Remove the lease, unless another process has taken it."""
        found = _read(self.path)
        if found is None or not self._owns(found):
            return
        self.path.unlink(missing_ok=True)

    def _owns(self, found: bytes) -> bool:
        """Return whether the bytes of a lease file name the holder of this lease. Unreadable bytes count as
        this holder's.
        """
        return _facts(found).get("holder", self.holder) == self.holder


@contextmanager
def lock(
    place: Location,
    work: str,
    say: Say,
    *,
    wait: bool = True,
    lost: Callable[[], None] | None = None,
    timeout: float = TIMEOUT_SECONDS,
    beat: float = _HEARTBEAT_SECONDS,
) -> Iterator[Lease]:
    """Hold the lease of a directory or prefix during the block, and renew it every `beat` seconds. Waits, and
    raises errors, as `acquire` does.

    If the lease is lost, the thread that renews it calls `lost` or, by default, `say` with a message. The
    block is not interrupted.
    """
    lease = acquire(place, work, say, wait=wait, timeout=timeout)

    def tell() -> None:
        say(
            f"{place}: another process took over, because this one did not renew its lease; this one continues only "
            f"if the result is the same"
        )

    def keep() -> bool:
        # If the disk or store fails now, a waiting process may take over, which only costs work.
        with suppress(OSError, StorageError, UserError):
            if not lease.beat():
                (lost or tell)()
                return False
        return True

    end = host().repeat(beat, keep)
    try:
        yield lease
    finally:
        end()
        with suppress(OSError, StorageError, UserError):  # the lease then expires
            lease.release()


def acquire(
    place: Location,
    work: str,
    say: Say,
    *,
    wait: bool = True,
    timeout: float = TIMEOUT_SECONDS,
) -> Lease:
    """Take the lease of a directory or prefix.

    If another process holds it, wait until that process has finished, is dead, or has not renewed it for
    `timeout` seconds. Without `wait`, raise ConflictError as soon as the holder is known to be alive.

    Also raises ConflictError if this process fails to take over the same lease for 2 * `timeout` seconds, and
    StorageError if the store cannot be read for `timeout` seconds.
    """
    lease, clock, sleep = Lease(place / LEASE, work), host().monotonic, host().sleep
    watched: bytes | None = None
    since = read = clock()
    told = ""
    refused: tuple[bytes | None, float] = (None, 0.0)  # the lease that could not be taken, and since when
    while True:
        now = clock()
        try:
            found = _read(lease.path)
        except StorageError:
            if now - read >= timeout:
                raise
            watched = None
            sleep(_POLL_SECONDS)
            continue
        read = clock()
        moved = None not in (watched, found) and found != watched
        if found != watched:
            watched, since = found, read
        alive = None if found is None else host().is_alive(_facts(found))
        if found is None or alive is False or now - since >= timeout:
            if _put(lease, found):
                if told:
                    say(f"{place}: it is {'done' if found is None else 'dead, or not responding'}; continuing")
                return lease
            watched = None  # another process took the lease first, or is about to
            if found is None or found != refused[0]:
                refused = found, read
            elif read - refused[1] >= _STOPPED * timeout:
                raise ConflictError(
                    f"{place}: a process that was taking over the lease has stopped and keeps others from it; end the "
                    "processes that use this directory, and run the command again"
                )
            sleep(_POLL_SECONDS)
            continue
        if not wait and (alive or moved):
            raise ConflictError(f"{place}: another process is {_who(found)}; wait for it or end it")
        if told != (told := _who(found)):
            doing = "waiting for it" if wait else "checking whether it is alive"
            say(
                f"{place}: another process is {told}; {doing}; this process takes over if the lease is not renewed "
                f"for {timeout:.0f} s"
            )
        sleep(_POLL_SECONDS)


def _put(lease: Lease, found: bytes | None) -> bool:
    if found is None:
        try:
            return lease.path.write_new(lease.state())
        except FileNotFoundError:  # another process has removed the directory
            return False
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
