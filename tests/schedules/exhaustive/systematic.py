"""Exhaustive search: all interleavings of a small scenario, with a few faults at any point, except those that
differ only in the order of commuting operations.

The search is depth-first and reruns the scenario for each branch. It uses sleep sets to skip equivalent
orders of commuting operations, and it skips states seen before (Godefroid 1996, sections 5 and 6.3). Whether
operations commute is determined from the paths that each transition has read and changed. A state consists of
the disk, the clock, and everything each agent has seen so far, since an agent's behaviour is a function of
what it has seen.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tests.schedules.choices import Default
from tests.schedules.explore import Scenario
from tests.schedules.memory_disk import MemoryDisk, Node
from tests.schedules.scheduler import Agent, World
from tests.schedules.simulated_host import SimulatedHost
from tests.schedules.simulation import Simulation
from tests.schedules.story import tell

_ALL = frozenset(("everything",))


@dataclass(frozen=True)
class Option:
    """A transition: an agent runs its next operation, or a process is killed or suspended for some seconds."""

    action: str
    target: str
    seconds: float = 0


@dataclass(frozen=True)
class Effects:
    """The paths that a transition has read and changed. Two transitions commute unless one of them changes
    what the other reads or changes.
    """

    read: frozenset[str]
    changed: frozenset[str]

    def commutes(self, other: "Effects") -> bool:
        if _ALL in (self.changed, other.changed):
            return False
        return not (self.changed & (other.read | other.changed) or other.changed & self.read)


@dataclass
class _Choice:
    """A state on the current path: the options still to be tried, those that can be skipped (`asleep`), and
    the option being tried.
    """

    left: list[Option]
    asleep: dict[Option, Effects]
    taken: Option | None = None


@dataclass
class Report:
    """Statistics of the search. `failure` is the story of the failing run, or empty."""

    states: int = 0
    transitions: int = 0
    runs: int = 0
    failure: str = ""
    ends: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.states} states, {self.transitions} transitions, {self.runs} runs"


class _ObservedHost(SimulatedHost):
    """A host that records what its methods return to the current agent, or the errors they raise. `_observe`
    wraps the methods.
    """


def _observe(name: str) -> None:
    method = getattr(SimulatedHost, name)

    def call(self: _ObservedHost, *arguments: Any) -> Any:
        try:
            result = method(self, *arguments)
        except OSError as error:
            self._world.observe(error.errno)
            raise
        self._world.observe(_plain(result))
        return result

    setattr(_ObservedHost, name, call)


for _name in ("open", "fsync_directory", "rename", "link", "unlink", "mkdir", "rmdir", "entries", "stat", "probe"):
    _observe(_name)


def _plain(result: Any) -> Hashable:
    if isinstance(result, list):
        return tuple(result)
    node = getattr(result, "node", None)
    if isinstance(node, Node):
        return node.number
    return None if result is None else (result.st_ino, result.st_size, result.st_mtime_ns)


class _Observed(Simulation):
    """A simulation that records what each agent has seen, and what each transition reads and changes."""

    make_host = _ObservedHost

    def __init__(self, search: "_Search", disk: MemoryDisk, *, trace: bool) -> None:
        super().__init__(search, disk, op_seconds=0, trace=trace)
        self.seen: dict[Agent, int] = {}
        self.read: set[str] = set()
        self.changed: set[str] = set()
        disk.number = self._node_number

    def step(self, kind: str, path: str = "", other: str = "") -> None:
        super().step(kind, path, other)
        self.observe((kind, path, other))
        effects = _effects(kind, path, other)
        self.read |= effects.read
        self.changed |= effects.changed

    def observe(self, value: Any) -> None:
        agent = self.current
        if agent is not None:
            self.seen[agent] = hash((self.seen.get(agent, 0), value))

    def touch(self, what: str) -> None:
        self.changed.add(what)

    def state(self) -> int:
        """Return a digest of everything that determines how the run can continue."""
        agents = [(agent.name, agent.ended, agent.kind, agent.wake, self.seen.get(agent)) for agent in self.agents]
        processes = [(p.name, p.alive, max(self.now, p.resumes)) for p in self.processes.values()]
        facts = tuple(sorted(self.facts.items()))
        return hash((self.now, tuple(agents), tuple(processes), facts, _contents(self.disk.root)))

    def _node_number(self) -> int:
        """Return a file number that does not depend on the files other agents have created."""
        agent = self.current
        return 1 if agent is None else (agent.number + 1) << 32 | agent.ops


def _contents(node: Node) -> Hashable:
    if node.entries is None:
        return (node.number, node.data)
    return (node.number, tuple((name, _contents(child)) for name, child in sorted(node.entries.items())))


@lru_cache(maxsize=100_000)
def _effects(kind: str, path: str, other: str) -> Effects:
    """Return the paths that an operation reads and changes; `PATH/` stands for the names in a directory.

    Operations that look up a path also read the directories that lead to it.
    """
    place, target = (each.rpartition("/")[0] for each in (path, other))
    ways = [*_ancestors(path), *_ancestors(other)]
    if kind in ("stat", "open", "read", "native read", "probe", "fsync_directory"):
        return Effects(frozenset((path, *ways)), frozenset())
    if kind == "entries":
        return Effects(frozenset((path, f"{path}/", *ways)), frozenset())
    if kind in ("part", "rest", "utime", "fsync"):
        return Effects(frozenset(), frozenset((path,)))
    if kind == "lock":
        return Effects(frozenset((path, *ways)), frozenset((f"{path} lock",)))
    if kind in ("rename", "link"):
        return Effects(frozenset(ways), frozenset((path, other, f"{place}/", f"{target}/")))
    if kind == "rmdir":
        return Effects(frozenset((f"{path}/", *ways)), frozenset((path, f"{place}/")))
    return Effects(frozenset(ways), frozenset((path, f"{place}/")))


def _ancestors(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(3, len(parts))]


class _Search:
    """The depth-first search, implemented as a strategy that chooses the transitions of each run."""

    seed = 0

    def __init__(self, kills: int, suspensions: int, seconds: tuple[float, ...], commuting: bool) -> None:
        self.budget = {"kill": kills, "suspend": suspensions}
        self.seconds, self.commuting = seconds, commuting
        self.path: list[_Choice] = []
        self.known: dict[int, frozenset[Option]] = {}
        self.transitions = 0
        self.cut = False
        self._depth = 0
        self._before = 0.0

    def begin(self) -> None:
        self._depth, self.cut = 0, False

    def disturb(self, world: World, current: Agent) -> None:
        """Do nothing: the search chooses faults like any other option."""

    def choose(self, world: World, current: Agent | None) -> Agent | None:
        """Repeat the path up to its last choice, then continue with the first option of each state."""
        assert isinstance(world, _Observed)
        if self._depth == len(self.path) and not self._enter(world, current):
            self.cut = True
            return None
        choice = self.path[self._depth]
        self._depth += 1
        assert choice.taken is not None
        self._before = world.now
        world.read.clear()
        world.changed.clear()
        return _do(world, choice.taken)

    def _enter(self, world: _Observed, current: Agent | None) -> bool:
        asleep = self.asleep_after(world)
        key = hash((world.state(), *self._left().values()))
        options, before = self._options(world, current), self.known.get(key)
        if before is None:
            left = [option for option in options if option not in asleep]
        else:
            left = [option for option in options if option in before and option not in asleep]
        self.known[key] = frozenset(asleep) if before is None else before & frozenset(asleep)
        if not left:
            return False
        self.path.append(_Choice(left[1:], asleep, left[0]))
        self.transitions += 1
        return True

    def asleep_after(self, world: _Observed) -> dict[Option, Effects]:
        """Return the options that can be skipped after the last transition, now that its effects are known."""
        if not self.path:
            return {}
        last = self.path[-1]
        assert last.taken is not None
        changed = _ALL if world.now != self._before else frozenset(world.changed) | _own(world, last.taken)
        effects = Effects(frozenset(world.read), changed)
        kept = {option: each for option, each in last.asleep.items() if self.commuting and each.commutes(effects)}
        last.asleep[last.taken] = effects
        return kept

    def _left(self) -> dict[str, int]:
        taken = [choice.taken.action for choice in self.path if choice.taken is not None]
        return {action: count - taken.count(action) for action, count in self.budget.items()}

    def _options(self, world: _Observed, current: Agent | None) -> list[Option]:
        first = world.default(current)
        options = [Option("run", agent.name) for agent in (first, *(each for each in world.ready if each is not first))]
        left = self._left()
        for process in world.processes.values():
            if process.alive and process.resumes <= world.now:
                if left["kill"] > 0:
                    options.append(Option("kill", process.name))
                if left["suspend"] > 0:
                    options += [Option("suspend", process.name, seconds) for seconds in self.seconds]
        return options

    def back(self) -> bool:
        while self.path:
            choice = self.path[-1]
            choice.left = [option for option in choice.left if option not in choice.asleep]
            if choice.left:
                choice.taken = choice.left.pop(0)
                self.transitions += 1
                return True
            self.path.pop()
        return False


def _own(world: World, option: Option) -> frozenset[str]:
    """Return markers that every transition of a process changes, so that agents of one process never commute."""
    if option.action == "run":
        process = next(agent.process for agent in world.agents if agent.name == option.target)
        return frozenset((f"agents of {process.name}",))
    alive = f"process {world.processes[option.target].pid}"
    return frozenset((f"agents of {option.target}", f"budget of {option.action}", alive))


def _do(world: World, option: Option) -> Agent:
    if option.action == "run":
        return next(agent for agent in world.agents if agent.name == option.target)
    process = world.processes[option.target]
    if option.action == "kill":
        world.kill(process)
    else:
        world.suspend(process, option.seconds)
    return world.ready[0]  # not used: the world asks again


def explore_all(
    scenario: Scenario,
    *,
    kills: int = 0,
    suspensions: int = 0,
    seconds: tuple[float, ...] = (100.0,),
    commuting: bool = True,
    progress: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Run all schedules of a scenario that are not equivalent, with up to the given numbers of faults, until
    one fails.

    A suspension lasts one of `seconds`. If `commuting` is false, equivalent orders are run too.
    """
    search, report = _Search(kills, suspensions, seconds, commuting), Report()
    while True:
        world, what = _run(scenario, search, trace=False)
        report.runs += 1
        report.states, report.transitions = len(search.known), search.transitions
        if what:
            again, _ = _run(scenario, search, trace=True)
            report.failure = f"{scenario.name}: {what}\n\n{tell(again.trace or ())}"
            return report
        if not search.cut:
            ends = ", ".join(_end(world, name) for name in world.processes)
            report.ends[ends] = report.ends.get(ends, 0) + 1
        if report.runs % 1000 == 0:
            progress(report)
        if not search.back():
            return report


def _end(world: Simulation, name: str) -> str:
    process = world.processes[name]
    if process.killed:
        return f"{name} killed"
    ended = process.error if process.error is not None else process.result
    return f"{name} {ended if isinstance(ended, bool | None) else type(ended).__name__}"


def _run(scenario: Scenario, search: _Search, *, trace: bool) -> tuple[Simulation, str]:
    search.begin()
    disk = MemoryDisk()
    if scenario.disk is not None:
        disk.restore(scenario.disk)
    world = _Observed(search, disk, trace=trace)
    try:
        scenario.start(world)
        world.run(scenario.limit)
        if not search.cut:
            search.asleep_after(world)
            scenario.judge(world)
    except AssertionError as error:
        return world, f"{type(error).__name__}: {error}"
    return world, ""


def all_ended(world: Simulation) -> None:
    for process in world.processes.values():
        assert process.done or process.killed, f"{process.name} has not ended"
        assert process.error is None, f"{process.name} ended with {process.error!r}"


def next_run(world: Simulation, work: Callable[[], object]) -> None:
    """Run `work`, alone and undisturbed, on the disk as the processes left it, and check that it ends without
    an error.
    """
    after = Simulation(Default(), world.disk, op_seconds=0)
    process = after.start("after", work)
    after.run(500)
    assert process.error is None, f"the next run ended with {process.error!r}"
