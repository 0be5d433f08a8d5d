"""Processes that take a lease, work while holding it, and check at the end that they still hold it."""

from collections.abc import Sequence

from gristmill.errors import ConflictError
from gristmill.storage.disk import LocalPath
from gristmill.storage.lease import LEASE, lock
from tests.schedules.choices import Default
from tests.schedules.explore import Scenario
from tests.schedules.memory_disk import ROOT
from tests.schedules.scheduler import Event
from tests.schedules.simulation import Simulation

PLACE = f"{ROOT}/place"
TIMEOUT, BEAT, WORK = 2.5, 1.0, 2.5  # seconds; between two looks at a lease passes one
SUSPENSIONS = (4.0, 8.0)  # longer than TIMEOUT; the second also than what another does meanwhile


def take_lease(machines: Sequence[str], *, wait: bool = True) -> Scenario:
    """Return a scenario in which processes take the same lease, one process per entry of `machines`. A
    machine may be listed more than once.

    Two processes hold the lease at the same time only if one of them was suspended, or if they are on two
    machines (which share no lock) and have both taken over the lease of a third process that was suspended or
    killed. A process that passes `Lease.check` was the last to take the lease. All processes end, and
    afterwards another process gets the lease, at the latest soon after the time-out.
    """

    def start(world: Simulation) -> None:
        inside: list[str] = []

        def saw(_: Simulation, event: Event) -> None:
            taken = event.other if event.operation in ("rename", "link") else ""
            if taken == f"{PLACE}/{LEASE}":
                world.facts["taker"], world.facts["taken by"] = event.agent.partition(".")[0], event.operation

        def work(name: str) -> None:
            with lock(LocalPath(PLACE), "working", world.say, wait=wait, timeout=TIMEOUT, beat=BEAT) as lease:
                inside.append(name)
                world.touch("inside")
                both = [each for each in inside if world.processes[each].alive]
                suspended = any(world.processes[each].resumes for each in both)
                alone = len(both) == 1 or suspended or _took_over_at_once(world, both)
                assert_here(world, alone, f"{' and '.join(both)} hold the lease at the same time")
                world.host.sleep(WORK)
                taker = world.facts["taker"]
                lease.check()
                assert_here(
                    world, taker == name, f"{name} still holds the lease, says its check; {taker} had it before"
                )
                inside.remove(name)
                world.touch("inside")

        world.watch(saw)
        world.disk.mkdir(PLACE)
        for number, machine in enumerate(machines):
            name = "ABC"[number]
            world.start(name, lambda name=name: work(name), machine)

    faults = ("kills", "suspensions")
    return Scenario(
        "lease", start, judge, faults=faults, suspensions=(1.0, *SUSPENSIONS, 400.0), op_seconds=0, limit=5000
    )


def _took_over_at_once(world: Simulation, both: Sequence[str]) -> bool:
    others = [process for name, process in world.processes.items() if name not in both]
    gone = any(process.killed or process.resumes for process in others)
    taken_over = world.facts["taken by"] == "rename"  # of a lease that was there; another one is linked
    return gone and taken_over and len({world.processes[name].machine for name in both}) == len(both)


def three_processes() -> Scenario:
    return take_lease("aab")


def assert_here(world: Simulation, holds: bool, what: str) -> None:
    """End the run if `holds` is false, even if the surrounding code would catch an exception."""
    if not holds:
        world.fail_run(what)


def judge(world: Simulation) -> None:
    processes = world.processes.values()
    for process in processes:
        lost = isinstance(process.error, ConflictError)
        assert process.done or process.killed, f"{process.name} has not ended"
        assert process.error is None or lost, f"{process.name} ended with {process.error!r}"
    if not any(process.killed for process in processes):
        assert not world.disk.leftovers(), f"left over: {world.disk.leftovers()}"
    after = Simulation(Default(), world.disk, op_seconds=0)

    def again() -> None:
        with lock(LocalPath(PLACE), "working again", after.say, timeout=TIMEOUT, beat=BEAT):
            pass

    process, begun = after.start("after", again), after.now
    after.run(200)
    assert process.error is None, f"the next one ended with {process.error!r}"
    assert after.now - begun <= TIMEOUT + 2, f"the next one waited {after.now - begun} s"
