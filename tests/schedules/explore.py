"""Exploration: run many schedules of a scenario, each determined by a seed, and shrink a failure."""

import gc
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from tests.schedules.choices import SUSPENSIONS, Conflicts, Default, Faults, Pct, Random, Replay, Starve, Stop
from tests.schedules.memory_disk import MemoryDisk, Node
from tests.schedules.process_caches import quick_paths
from tests.schedules.scheduler import Decision, Strategy
from tests.schedules.shrinking import shrink
from tests.schedules.simulation import Simulation
from tests.schedules.story import tell

_SCHEDULES_A_COLLECTION = 100


@dataclass(frozen=True)
class Scenario:
    """A set of concurrent processes. `start` starts them and registers what must hold after every event.
    `judge` checks what must hold at the end, and may run more commands on the same disk. A violation raises
    AssertionError.

    `faults` lists the kinds of fault that may occur: kills, suspensions, errors, power. `suspensions` holds
    the possible lengths of suspensions, in seconds.
    """

    name: str
    start: Callable[[Simulation], None]
    judge: Callable[[Simulation], None]
    disk: Node | None = None  # a snapshot to begin with
    faults: tuple[str, ...] = ("kills", "suspensions", "errors", "power")
    suspensions: tuple[float, ...] = SUSPENSIONS
    op_seconds: float = 0.001
    limit: int = 100_000
    around: Callable[[], AbstractContextManager[object]] = nullcontext  # entered for each run: stand-ins of slow parts


@dataclass
class Tally:
    schedules: int = 0
    steps: int = 0
    seconds: float = 0.0  # of processor time
    actions: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)  # how processes ended

    def add(self, world: Simulation) -> None:
        self.schedules += 1
        self.steps += world.steps
        self.actions.update(decision.action for decision in world.record)
        for process in world.processes.values():
            error = type(process.error).__name__ if process.error else str(process.result)
            self.ends["killed" if process.killed else error] += 1

    def merge(self, other: "Tally") -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.seconds += other.seconds
        self.actions.update(other.actions)
        self.ends.update(other.ends)

    def __str__(self) -> str:
        rate = self.schedules / self.seconds if self.seconds else 0.0
        faults = ", ".join(f"{count:,} {action}" for action, count in sorted(self.actions.items()) if action != "run")
        ends = ", ".join(f"{count:,} {end}" for end, count in self.ends.most_common(8))
        return (
            f"{self.schedules:,} schedules, {self.steps:,} operations, {rate:.0f} schedules a second of processor time; "
            f"faults: {faults or 'none'}; ends: {ends}"
        )


@dataclass(frozen=True)
class Found:
    """A failure: its seed, its message, and a list of decisions that reproduces it."""

    scenario: Scenario
    seed: int
    what: str
    record: tuple[Decision, ...]

    def story(self) -> str:
        world, what = run(self.scenario, Replay(self.record, self.seed), trace=True)
        decisions = "\n".join(f"  {decision!r}," for decision in self.record)
        return f"{self.scenario.name}, seed {self.seed}: {what}\n\n{tell(world.trace or ())}\n\ndecisions:\n{decisions}"


def run(scenario: Scenario, choices: Strategy, *, trace: bool = False) -> tuple[Simulation, str | None]:
    """Run one schedule; return its simulation, and the failure message or None."""
    with scenario.around():
        return _run(scenario, choices, trace)


def _run(scenario: Scenario, choices: Strategy, trace: bool) -> tuple[Simulation, str | None]:
    disk = MemoryDisk()
    if scenario.disk is not None:
        disk.restore(scenario.disk)
    world = Simulation(choices, disk, op_seconds=scenario.op_seconds, trace=trace)
    try:
        scenario.start(world)
        world.run(scenario.limit)
        scenario.judge(world)
    except AssertionError as error:
        return world, f"{type(error).__name__}: {error}"
    return world, None


def choose_strategy(scenario: Scenario, seed: int, length: int) -> Strategy:
    """Return the strategy and faults of a seed; `length` is the approximate number of operations of a run."""
    chance = random.Random(f"strategy/{seed}")
    faults = None
    if scenario.faults and chance.random() < 0.7:
        count = chance.choice((1, 1, 1, 2, 3))
        numbers = Counter(chance.choice(scenario.faults) for _ in range(count))
        faults = Faults(seed, length, **numbers, seconds=scenario.suspensions)
    make = chance.choice(
        (
            Random,
            Conflicts,
            Conflicts,
            partial(Pct, depth=chance.randint(1, 5), length=length),
            partial(Starve, length=length),
            partial(Stop, length=length),
        )
    )
    return make(seed=seed, faults=faults)


def explore(scenario: Scenario, seeds: Iterator[int], tally: Tally, until: float = float("inf")) -> Found | None:
    """Run the schedules of the seeds until one fails or `time.perf_counter` exceeds `until`."""
    length = run(scenario, Default())[0].steps
    begun = time.process_time()
    with rare_collection() as collect:
        for seed in seeds:
            world, what = run(scenario, choose_strategy(scenario, seed, length))
            tally.add(world)
            collect()
            if what is not None or time.perf_counter() > until:
                break
        else:
            what = None
    tally.seconds += time.process_time() - begun
    return shrunk(scenario, seed, world.record, what) if what is not None else None


@contextmanager
def rare_collection() -> Iterator[Callable[[], None]]:
    """Cache paths and disable the garbage collector while the block runs; the collector would scan the
    growing caches to no effect.

    Yield a function that collects garbage at every hundredth call. Objects frozen before, such as the imports
    of a test process, stay frozen.
    """
    calls, was_enabled, was_frozen = itertools.count(1), gc.isenabled(), gc.get_freeze_count() > 0

    def collect() -> None:
        if next(calls) % _SCHEDULES_A_COLLECTION == 0:
            gc.collect()
            gc.freeze()

    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with quick_paths():
            yield collect
    finally:
        if not was_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()


def shrunk(scenario: Scenario, seed: int, record: list[Decision], what: str) -> Found:
    """Return the failure with a minimal list of decisions that still gives the same message, apart from
    numbers.
    """

    def fails(decisions: list[Decision]) -> list[Decision] | None:
        world, again = run(scenario, Replay(decisions, seed))
        return world.record if again is not None and _kind(again) == _kind(what) else None

    return Found(scenario, seed, what, tuple(shrink(record, fails)))


def _kind(what: str) -> str:
    return re.sub(r"[0-9a-f]{8,}|\d+", "#", what)
