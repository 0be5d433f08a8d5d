"""Scheduling strategies, which use a seed to decide which agent runs each operation and which faults occur."""

import errno
import random
from collections.abc import Sequence

from tests.schedules.scheduler import CRITICAL, LEASE, Agent, Decision, World, is_critical

_READS = frozenset(("open", "stat", "entries", "read", "native read"))
_WRITES = frozenset(("create", "part", "rest", "fsync", "fsync_directory", "mkdir", "rename", "link"))
_REQUESTS = frozenset(("head", "get", "list"))
SUSPENSIONS = (1.0, 20.0, 40.0, 400.0, 1e6)  # seconds: below and above the time after which a lease expires
_ALWAYS = float("inf")
_JUMPS = 0.01  # of all switches, how many wake one that sleeps, as if the others were slow


class Faults:
    """The faults of one run, at positions drawn from a seed: anywhere, or immediately before or after
    critical operations.

    `length` is the approximate number of operations, and `seconds` holds the possible lengths of suspensions;
    the other keyword arguments are numbers of faults.
    """

    def __init__(
        self,
        seed: object,
        length: int,
        *,
        kills: int = 0,
        suspensions: int = 0,
        errors: int = 0,
        power: int = 0,
        seconds: tuple[float, ...] = SUSPENSIONS,
    ) -> None:
        self._seconds = seconds
        self._chance = random.Random(f"faults/{seed}")
        self._steps: list[tuple[int, str]] = []
        self._critical: list[tuple[int, str]] = []
        self._after: list[tuple[Agent, int, str]] = []
        self._seen = 0
        self._granted = _ALWAYS  # critical operations that may happen before this is asked again
        for action, count in (("kill", kills), ("suspend", suspensions), ("fail", errors), ("power", power)):
            for _ in range(count):
                anywhere = self._chance.random() < 0.3
                plan, places = (self._steps, length) if anywhere else (self._critical, max(1, length // 6))
                plan.append((self._chance.randrange(places), action))
        self._steps.sort(reverse=True)
        self._critical.sort(reverse=True)

    def quiet(self, world: World) -> float:
        """Return the number of operations before the next fault, and set `world.calm` to the number of
        critical ones allowed among them.
        """
        if self._after:
            return 0
        world.calm = self._granted = self._critical[-1][0] - self._seen if self._critical else _ALWAYS
        return self._steps[-1][0] - world.steps - 1 if self._steps else _ALWAYS

    def happen(self, world: World, current: Agent) -> None:
        """Apply the faults that are due now to the agent that has just run."""
        if self._granted != _ALWAYS:
            self._seen += int(self._granted - world.calm)
            self._granted = world.calm
        if self._after:
            due = [entry for entry in self._after if entry[0].ops > entry[1]]
            self._after = [entry for entry in self._after if entry[0].ops == entry[1]]
            for agent, _, action in due:
                self._do(world, agent, action)
        if self._steps and world.steps >= self._steps[-1][0]:
            self._do(world, current, self._steps.pop()[1])
        if self._critical and is_critical(current):
            self._seen += 1
            if self._seen > self._critical[-1][0]:
                action = self._critical.pop()[1]
                if action == "fail" or self._chance.random() < 0.5:
                    self._do(world, current, action)
                else:
                    self._after.append((current, current.ops, action))

    def _do(self, world: World, agent: Agent, action: str) -> None:
        if not agent.process.alive:
            return
        if action == "kill":
            world.kill(agent.process)
        elif action == "power":
            world.lose_power(agent.process.machine)
        elif action == "suspend":
            world.suspend(agent.process, self._chance.choice(self._seconds))
        elif agent.kind in _WRITES:
            world.fail(agent, self._chance.choice((errno.ENOSPC, errno.EIO, errno.ESTALE)))
        elif agent.kind in _READS or agent.kind == "put":
            world.fail(agent, self._chance.choice((errno.EIO, errno.ESTALE)))
        elif agent.kind in CRITICAL or agent.kind in _REQUESTS:
            world.fail(agent, errno.EIO)


class Default:
    """Switches agents only when necessary. Base class of the other strategies with a seed, which override
    `choose`.
    """

    seed: object

    def __init__(self, seed: object = 0, faults: Faults | None = None) -> None:
        self.seed, self.faults = seed, faults
        self.chance = random.Random(f"{type(self).__name__}/{seed}")

    def disturb(self, world: World, current: Agent) -> None:
        if self.faults is not None:
            self.faults.happen(world, current)

    def choose(self, world: World, current: Agent | None) -> Agent:
        self.let_go_on(world, _ALWAYS)
        return world.default(current)

    def let_go_on(self, world: World, operations: float) -> None:
        """Let the chosen agent run for `operations` operations, unless a fault is due earlier."""
        if self.faults is not None:
            operations = min(operations, self.faults.quiet(world))
        world.quiet = operations if type(self).disturb is Default.disturb else 0


class Random(Default):
    """Switches at random, at a mean interval drawn once per run, so that some runs have long uninterrupted
    stretches and others have none.
    """

    def __init__(self, seed: object, faults: Faults | None = None) -> None:
        super().__init__(seed, faults)
        self._mean = self.chance.choice((1, 3, 10, 30, 100))
        self._left = self._steps = 0

    def choose(self, world: World, current: Agent | None) -> Agent:
        self._left -= world.steps - self._steps
        self._steps = world.steps
        if self._left > 0 and current in world.ready:
            self.let_go_on(world, self._left - 1)
            return current
        self._left = int(self.chance.expovariate(1 / self._mean)) + 1
        self.let_go_on(world, self._left - 1)
        if self.chance.random() < _JUMPS:
            asleep = [agent for agent in world.agents if agent.wake is not None and world.can_run(agent)]
            if asleep:
                return self.chance.choice(asleep)
        return self.chance.choice(world.ready)


class Pct(Default):
    """Random priorities with `depth - 1` changes (Burckhardt et al. 2010, section 3).

    With n agents and k operations, a run finds a bug that needs `depth` ordered operations with a probability
    of at least 1 / (n k^(depth - 1)). `length` is approximately k.
    """

    def __init__(self, seed: object, depth: int, length: int, faults: Faults | None = None) -> None:
        super().__init__(seed, faults)
        self._changes = sorted((self.chance.randrange(max(1, length)) for _ in range(depth - 1)), reverse=True)
        self._priorities: dict[Agent, float] = {}
        self._ready: list[Agent] | None = None

    def choose(self, world: World, current: Agent | None) -> Agent:
        if self._changes and world.steps >= self._changes[-1]:
            self._changes.pop()
            if current is not None:
                self._priorities[current] = len(self._changes) / 100  # below all that are drawn
            self._ready = None
        self.let_go_on(world, self._changes[-1] - world.steps - 1 if self._changes else _ALWAYS)
        if world.ready is self._ready and current in self._ready:
            return current
        self._ready = world.ready
        return max(world.ready, key=self._priority)

    def _priority(self, agent: Agent) -> float:
        if agent not in self._priorities:
            self._priorities[agent] = 1 + self.chance.random()
        return self._priorities[agent]


class Conflicts(Default):
    """Switches where two agents touch the same directory, and holds back agents about to publish or remove
    something.
    """

    def __init__(self, seed: object, faults: Faults | None = None) -> None:
        super().__init__(seed, faults)
        self._likely = self.chance.choice((0.05, 0.2, 0.5))
        self._hold = self.chance.choice((0.0, 0.02, 0.1, 0.3))
        self._longest = self.chance.choice((10, 100, 1000))
        self._held: dict[Agent, int] = {}
        self._last: dict[str, Agent] = {}

    def choose(self, world: World, current: Agent | None) -> Agent:
        if self._held:
            self._held = {agent: until for agent, until in self._held.items() if until > world.steps}
        if current is None or current not in world.ready or current in self._held:
            return self._other(world, current)
        if is_critical(current) and self.chance.random() < self._hold:
            self._held[current] = world.steps + 1 + self.chance.randrange(self._longest)
            return self._other(world, current)
        place = current.path.rpartition("/")[0]
        other, self._last[place] = self._last.get(place), current
        meets = (other is not None and other is not current) or any(
            agent.kind == "start" or agent.path.rpartition("/")[0] == place
            for agent in world.ready
            if agent is not current
        )
        if meets and self.chance.random() < self._likely:
            return self._other(world, current)
        return current

    def _other(self, world: World, current: Agent | None) -> Agent:
        free = [agent for agent in world.ready if agent not in self._held and agent is not current]
        return self.chance.choice(free or world.ready)


class Starve(Default):
    """Lets one process run only when no other process can, during a random stretch of the run."""

    def __init__(self, seed: object, length: int, who: str | None = None, faults: Faults | None = None) -> None:
        super().__init__(seed, faults)
        self._who = who
        self._from = self.chance.randrange(max(1, length))
        self._until = self._from + self.chance.choice((length // 10, length, 1 << 30))

    def choose(self, world: World, current: Agent | None) -> Agent:
        if self._who is None:
            self._who = self.chance.choice(sorted(world.processes))
        if current in world.ready and self.chance.random() > 0.05 and not self._starves(world, current):
            return current
        return self.chance.choice([agent for agent in world.ready if not self._starves(world, agent)] or world.ready)

    def _starves(self, world: World, agent: Agent) -> bool:
        return agent.process.name == self._who and self._from <= world.steps < self._until


class Stop(Default):
    """Runs one process first and stops it before it publishes or removes something. The process continues
    once the others have ended or have done a number of operations, so its earlier checks may be out of date
    by then.
    """

    def __init__(self, seed: object, length: int, faults: Faults | None = None) -> None:
        super().__init__(seed, faults)
        self._who: str | None = None
        self._left = self.chance.randrange(max(1, length // 20))  # what it publishes and removes before
        self._operations = self.chance.choice((_ALWAYS, self.chance.randrange(max(1, length))))
        self._until: float | None = None

    def choose(self, world: World, current: Agent | None) -> Agent:
        if self._who is None:
            self._who = self.chance.choice(sorted(world.processes))
        if self._until is None and current is not None and current.process.name == self._who:
            if current.kind in CRITICAL and not current.path.endswith(LEASE) and not current.other.endswith(LEASE):
                self._left -= 1
            if self._left < 0:
                self._until = world.steps + self._operations
        mine = self._until is None or world.steps >= self._until
        first = [agent for agent in world.ready if (agent.process.name == self._who) == mine] or world.ready
        return current if current in first else self.chance.choice(first)


class Replay:
    def __init__(self, decisions: Sequence[Decision], seed: object) -> None:
        self.seed = seed
        self._runs: dict[tuple[str, int], str] = {}
        self._faults: dict[tuple[str, int], list[Decision]] = {}
        for decision in decisions:
            key = decision.agent, decision.number
            if decision.action == "run":
                self._runs[key] = decision.target
            else:
                self._faults.setdefault(key, []).append(decision)

    def disturb(self, world: World, current: Agent) -> None:
        for decision in self._faults.get(world.key, ()):
            _apply(world, decision)

    def choose(self, world: World, current: Agent | None) -> Agent:
        name = self._runs.get(world.key)
        if name is not None:
            agent = _agent(world, name)
            if agent is not None and world.can_run(agent):
                return agent
        return world.default(current)


def _agent(world: World, name: str) -> Agent | None:
    return next((agent for agent in world.agents if agent.name == name and not agent.ended), None)


def _apply(world: World, decision: Decision) -> None:
    action, target = decision.action, decision.target
    agent, process = _agent(world, target), world.processes.get(target)
    if action == "power":
        world.lose_power(target)
    elif action == "fail" and agent is not None:
        world.fail(agent, int(decision.value))
    elif process is not None and process.alive:
        if action == "kill":
            world.kill(process)
        elif action == "suspend":
            world.suspend(process, decision.value)
