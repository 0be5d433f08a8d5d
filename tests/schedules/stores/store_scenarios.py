"""Concurrent processes that take the same lease or write the same new file in an object store."""

from gristmill.errors import ConflictError, StorageError
from gristmill.storage.lease import TIMEOUT_SECONDS, lock
from gristmill.storage.object_store import RemotePath
from gristmill.storage.parsing import parse_location
from gristmill.storage.remote import Remote
from tests.schedules.choices import Default
from tests.schedules.explore import Scenario
from tests.schedules.scheduler import Event
from tests.schedules.simulation import Simulation

FAULTS = ("kills", "suspensions", "errors")
_WORK = 12.0  # seconds: two heartbeats


def place() -> RemotePath:
    found = parse_location("s3://bucket/place", Remote(allow_private=True))
    assert isinstance(found, RemotePath)
    return found


def take_store_lease() -> Scenario:
    """Two processes take a lease and both end; the next process waits no longer than for a dead holder.

    A store has no conditional replacement, so a late heartbeat may overwrite another process's lease. `check`
    therefore proves nothing there, and commands that remove files need a local directory.
    """

    def start(world: Simulation) -> None:
        def work() -> None:
            with lock(place(), "working", world.say):
                world.host.sleep(_WORK)

        for name in "AB":
            world.start(name, work, machine=name)

    def judge(world: Simulation) -> None:
        _all_ended(world)
        process, seconds = _next_run(world, lambda after: _take(after))
        assert process.error is None, f"the next one ended with {process.error!r}"
        assert seconds <= TIMEOUT_SECONDS + 2, f"the next one waited {seconds} s"

    return Scenario("lease in a store", start, judge, faults=FAULTS)


def write_new_object() -> Scenario:
    """Three processes write the same new file. At most one reports success, and its bytes stay; late requests
    of the others change nothing.
    """

    def start(world: Simulation) -> None:
        def saw(_: Simulation, event: Event) -> None:
            content, before = world.disk.objects.get("bucket/place/file"), world.facts.get("file")
            assert before is None or (content is not None and content[0] == before), f"replaced by {event.agent}"
            if content is not None:
                world.facts["file"] = content[0]

        world.watch(saw)
        for name in "ABC":
            world.start(name, lambda name=name: (place() / "file").write_new(name.encode()), machine=name)

    def judge(world: Simulation) -> None:
        _all_ended(world)
        winners = [process.name for process in world.processes.values() if process.result]
        assert len(winners) <= 1, f"{' and '.join(winners)} say that they wrote the file"
        if winners:
            assert world.disk.objects["bucket/place/file"][0] == winners[0].encode()

    return Scenario("write_new in a store", start, judge, faults=FAULTS)


def _take(world: Simulation) -> None:
    with lock(place(), "working", world.say):
        pass


def _next_run(world: Simulation, work):
    after = Simulation(Default(), world.disk)
    begun = after.now
    process = after.start("after", lambda: work(after), machine="after")
    after.run(1000)
    return process, after.now - begun


def _all_ended(world: Simulation) -> None:
    disturbed = any(decision.action != "kill" for decision in world.record)
    for process in world.processes.values():
        assert process.done or process.killed, f"{process.name} has not ended"
        allowed = (ConflictError, StorageError, OSError) if disturbed else ()
        assert process.error is None or isinstance(process.error, allowed), (
            f"{process.name} ended with {process.error!r}"
        )
