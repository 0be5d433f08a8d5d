"""The scheduler: agents run in one thread, one at a time, and stop before each operation, where a strategy
chooses the agent that continues.

An agent is a greenlet. Agents belong to processes, which are killed, suspended and ended as a whole. Time is
virtual: an operation takes `op_seconds`, and the clock jumps when all agents are asleep. Every choice that
differs from the default is recorded as a `Decision`, so a list of decisions replays a run exactly.
"""

import os
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, NamedTuple, Protocol

import greenlet

_NEVER = _ALWAYS = float("inf")
LEASE = ".lease"
CRITICAL = frozenset(
    ("rename", "link", "unlink", "rmdir", "put", "delete", "answer")
)  # what others see, or miss, at once
_BEGINNING = 1000.0  # of the clock, in seconds
_strerror = cache(os.strerror)


class Killed(BaseException):
    """Raised in the agents of a dead process at every operation, so that none of their later operations takes
    effect.
    """


class Failure(AssertionError):
    """Raised when an invariant is violated."""


class Livelock(Failure):
    """Raised when the agents run for ever or wait for each other."""


class Decision(NamedTuple):
    """A choice other than the default, made when `agent` was about to run its operation number `number`.

    `action` is run, kill, suspend, fail or power. `target` is an agent, process or machine, and `value` a
    number of seconds or an errno.
    """

    agent: str
    number: int
    action: str
    target: str = ""
    value: float = 0


class Event(NamedTuple):
    """An operation that has taken place, or a fault; `note` describes its outcome."""

    time: float
    agent: str
    operation: str
    path: str
    other: str
    note: str = ""


class Process:
    """Agents that die together. `memory` holds the caches that real processes would not share."""

    def __init__(self, name: str, pid: int, machine: str) -> None:
        self.name, self.pid, self.machine = name, pid, machine
        self.alive, self.killed, self.done = True, False, False
        self.resumes = 0.0  # suspended until then
        self.agents: list[Agent] = []
        self.memory: dict[Any, Any] = {}
        self.result: Any = None
        self.error: BaseException | None = None
        self.output: list[str] = []


class Agent:
    """A thread of a process. `kind`, `path` and `other` describe its next operation."""

    __slots__ = (
        "_random", "ended", "errno", "greenlet", "kind", "name", "names", "number", "ops", "other", "path", "process", "seed",
        "until", "wake",
    )  # fmt: skip

    def __init__(self, name: str, number: int, process: Process, seed: object) -> None:
        self.name, self.number, self.process = name, number, process
        self.ops = self.names = 0  # operations; names that it has made up
        self.kind, self.path, self.other = "start", "", ""
        self.wake: float | None = None  # sleeping until then
        self.until: Callable[[], bool] | None = None  # waiting until this holds
        self.ended = False
        self.errno = 0  # the operation that it is about to do fails with it
        self.seed = seed
        self._random: Random | None = None
        self.greenlet: Any = None

    @property
    def random(self) -> Random:
        """The agent's random number generator, created on first use because few agents need one and the
        set-up takes as long as ten operations.
        """
        if self._random is None:
            self._random = Random(f"{self.seed}/{self.name}")
        return self._random


def is_critical(agent: Agent) -> bool:
    """Return whether the agent's next operation publishes or removes something, writes to a file that is not
    temporary, or concerns a lease.
    """
    kind, path = agent.kind, agent.path
    if kind in CRITICAL or path.endswith(LEASE) or agent.other.endswith(LEASE):
        return True
    return kind == "part" and not path.endswith(".tmp")


class _EachTime:
    """Stands in for a disk that counts its changes, with every operation counted as a change."""

    def __init__(self) -> None:
        self._changes = 0

    @property
    def changes(self) -> int:
        self._changes += 1
        return self._changes


class Strategy(Protocol):
    """Chooses the agent that continues."""

    seed: object

    def disturb(self, world: "World", current: Agent) -> None:
        """Called before `choose`; may call `world.kill`, `suspend`, `fail` and `lose_power`."""

    def choose(self, world: "World", current: Agent | None) -> Agent | None:
        """Return one of `world.ready`, which is not empty, or a sleeping agent, for which the clock jumps.
        Return None to end the run.

        `current` has just run and may no longer be ready. If `choose` calls `kill` or `suspend`, it is called
        again. It may set `world.quiet` and `world.calm`. Neither `choose` nor `disturb` is then called for
        `quiet` operations, of which at most `calm` are critical, unless other agents become ready or the
        chosen agent waits or ends.
        """


class World:
    """One run: its agents, its clock, and the decisions made so far (`record`)."""

    def __init__(self, choices: Strategy, *, op_seconds: float = 0.001, trace: bool = False) -> None:
        self.choices, self.seed, self.op_seconds = choices, choices.seed, op_seconds
        self.now = _BEGINNING
        self.steps, self.limit = 0, 100_000
        self.agents: list[Agent] = []
        self.processes: dict[str, Process] = {}
        self.ready: list[Agent] = []
        self.current: Agent | None = None
        self.record: list[Decision] = []
        self.failed: list[tuple[str, str, int]] = []  # operations that were made to fail: kind, path, errno
        self.failure: BaseException | None = None
        self.trace: list[Event] | None = [] if trace else None
        self.quiet: float = 0  # for so many operations the current agent goes on, while nobody else becomes ready
        self.calm = _ALWAYS  # of them so many may be critical
        self.key = ("", 0)  # where in the run a decision is being made: agent, number of its operation
        self._happened: tuple[Agent, str, str, str] | None = None
        self._changes: Any = _EachTime()  # its attribute `changes` tells whether something was changed
        self._seen = 0
        self._dirty = True
        self._over = False
        self._next_wake = _NEVER
        self._hub = greenlet.getcurrent()

    # What a test calls

    def start(self, name: str, function: Callable[[], Any], machine: str = "a") -> Process:
        """Start a process with one agent; the process ends when this agent ends."""
        assert name not in self.processes, name
        process = self.processes[name] = Process(name, 100 + len(self.processes), machine)

        def main() -> None:
            try:
                process.result = function()
            except Exception as error:
                process.error = error
            process.done = process.alive
            process.alive = False
            self.touch(f"process {process.pid}")

        self._add(name, main, process)
        return process

    def run(self, limit: int = 100_000) -> None:
        """Run until all processes have ended.

        Raises AssertionError if an invariant is violated, and Livelock after `limit` operations or if all
        agents wait for each other.
        """
        self.limit = self.steps + limit
        self._hub = greenlet.getcurrent()
        for agent in self.agents:
            agent.greenlet.parent = self._hub
        last: Agent | None = None
        while (agent := self._pick(last)) is not None:
            self.current = agent
            agent.greenlet.switch()
            last, self.current = self.current, None
            if self._over:
                break
        self._unwind()
        if self.failure is not None:
            raise self.failure

    def after_event(self, event: tuple[Agent, str, str, str]) -> None:
        """Called after an operation (agent, kind, path, other); may raise AssertionError."""

    # What agents call

    def spawn(self, name: str, function: Callable[[], Any]) -> Agent:
        """Start another agent in the current agent's process. The agent ends with the process at the latest."""
        process = self._living().process
        number = sum(agent.name.startswith(f"{process.name}.{name}") for agent in process.agents)
        return self._add(f"{process.name}.{name}{number or ''}", function, process)

    def step(self, kind: str, path: str = "", other: str = "") -> None:
        """Announce the current agent's next operation. Other agents may run first, and the operation may fail
        with OSError.
        """
        agent = self.current
        if agent is None:
            return
        if not agent.process.alive:
            raise Killed
        agent.kind, agent.path, agent.other = kind, path, other
        agent.ops += 1
        if self.quiet <= 0 or not self._goes_on(agent):
            chosen = self._pick(agent)
            if chosen is not agent:
                self._switch(agent, chosen)
        self._happened = (agent, kind, path, other)
        if self.trace is not None:
            self.trace.append(Event(self.now, agent.name, kind, path, other))
        if agent.errno:
            number, agent.errno = agent.errno, 0
            self._happened = None
            self.note(f"fails: {os_error(number, path).strerror}")
            raise os_error(number, path)

    def wait(self, until: Callable[[], bool] | None = None, seconds: float | None = None) -> None:
        """Wait until a condition holds, for at most `seconds` of virtual time."""
        agent = self._living()
        if until is not None and until():
            return
        agent.kind, agent.path, agent.other = ("sleep" if until is None else "wait"), "", ""
        agent.ops += 1
        agent.until = until
        if seconds is not None:
            agent.wake = self.now + max(0.0, seconds)
        self._dirty = True
        chosen = self._pick(agent)
        if chosen is not agent:
            self._switch(agent, chosen)
        if self.trace is not None:
            self.trace.append(Event(self.now, agent.name, agent.kind, "", ""))

    def notify(self) -> None:
        """Announce that a condition that agents wait for may now hold."""
        self._dirty = True

    def fail_run(self, what: str) -> None:
        """End the run because an invariant is violated; the current agent does not continue."""
        self.failure = self.failure or Failure(what)
        self._over = True
        if self.current is not None:
            self._hub.switch()

    def observe(self, value: Any) -> None:
        """Record that the current agent has learned `value`, for strategies that compare states."""

    def touch(self, what: str) -> None:
        """Record that the current agent has changed something not named by its operation, for strategies that
        compare orders.
        """

    def note(self, text: str) -> None:
        """Add the outcome of the current operation to the trace."""
        if self.trace:
            self.trace[-1] = self.trace[-1]._replace(note=text)

    # What a strategy calls

    def default(self, current: Agent | None) -> Agent:
        ready = self.ready
        if current is None:
            return ready[0]
        if current in ready:
            return current
        return next((agent for agent in ready if agent.number > current.number), ready[0])

    def kill(self, process: Process) -> None:
        """Kill a process, so that its agents' pending operations do not take place."""
        self._decided("kill", process.name)
        process.alive, process.killed = False, True

    def suspend(self, process: Process, seconds: float) -> None:
        self._decided("suspend", process.name, seconds)
        process.resumes = self.now + seconds

    def fail(self, agent: Agent, number: int) -> None:
        self._decided("fail", agent.name, number)
        self.failed.append((agent.kind, agent.path, number))
        agent.errno = number

    def lose_power(self, machine: str) -> None:
        """Kill all processes of a machine. Writes that are not durable may be lost."""
        self._decided("power", machine)
        for process in self.processes.values():
            if process.machine == machine and process.alive:
                process.alive, process.killed = False, True
        self.power_lost(machine, Random(f"{self.seed}/power/{self.key}"))

    def power_lost(self, machine: str, chance: Random) -> None:
        """Called after a machine has lost power."""

    def can_run(self, agent: Agent) -> bool:
        if agent.ended or not agent.process.alive or agent.process.resumes > self.now:
            return False
        return agent.wake is not None or agent in self.ready

    # Inside

    def _living(self) -> Agent:
        agent = self.current
        assert agent is not None, "only agents wait, and start agents"
        if not agent.process.alive:
            raise Killed
        return agent

    def _add(self, name: str, function: Callable[[], Any], process: Process) -> Agent:
        agent = Agent(name, len(self.agents), process, self.seed)

        def body() -> None:
            try:
                function()
            except Killed:
                pass
            except Exception as error:
                process.error = process.error or error
            agent.ended, agent.kind = True, "end"
            agent.ops += 1
            self._dirty = True

        agent.greenlet = greenlet.greenlet(body, parent=self._hub)
        self.agents.append(agent)
        process.agents.append(agent)
        self._dirty = True
        return agent

    def _decided(self, action: str, target: str, value: float = 0) -> None:
        self._dirty = True
        self.record.append(Decision(*self.key, action, target, value))
        if self.trace is not None and action != "run":
            self.trace.append(Event(self.now, target, action, "", "", f"{value:g}" if value else ""))

    def _look(self) -> bool:
        event, self._happened = self._happened, None
        changes = self._changes.changes
        if changes != self._seen:
            self._seen = changes
            try:
                assert event is not None
                self.after_event(event)
            except AssertionError as error:
                self.failure = error
                return False
        return True

    def _goes_on(self, agent: Agent) -> bool:
        """Take the place of `_pick` while `quiet` lasts. Return False, with nothing done, if the strategy
        must be consulted.
        """
        if self._dirty or self.steps >= self.limit:
            return False
        now = self.now + self.op_seconds
        if now >= self._next_wake:
            return False
        if self.calm != _ALWAYS and is_critical(agent):
            if self.calm <= 0:
                return False
            self.calm -= 1
        if self._happened is not None and not self._look():
            self._over = True
            self._hub.switch()
        self.quiet -= 1
        self.steps += 1
        self.now = now
        return True

    def _switch(self, agent: Agent, chosen: Agent | None) -> None:
        if chosen is None:
            self._over = True
            self._hub.switch()
        else:
            self.current = chosen
            chosen.greenlet.switch()
        if not agent.process.alive:
            raise Killed

    def _pick(self, current: Agent | None) -> Agent | None:
        if self._happened is not None and not self._look():
            return None
        self.steps += 1
        self.now += self.op_seconds
        if self.steps > self.limit:
            self.failure = Livelock(f"no end after {self.limit} operations")
            return None
        if current is not None:
            self.key = (current.name, current.ops)
            self.choices.disturb(self, current)
        while True:
            if (self._dirty or self.now >= self._next_wake or not self.ready) and not self._refresh():
                return None
            chosen = self.choices.choose(self, current)
            if chosen is None:
                return None
            if not self._dirty:
                break
        if (chosen is not current or chosen.wake is not None) and chosen is not self.default(current):
            self._decided("run", chosen.name)
        if chosen.wake is not None or chosen.until is not None:
            if chosen.wake is not None and chosen not in self.ready:
                self.now = max(self.now, chosen.wake)
            chosen.wake = chosen.until = None
            self._dirty = True
        return chosen

    def _refresh(self) -> bool:
        """Find the ready agents, moving the clock forward until there is one; return False if all have ended
        or wait for ever.
        """
        while True:
            now, wakes, ready = self.now, _NEVER, []
            for agent in self.agents:
                process = agent.process
                if agent.ended or not process.alive:
                    continue
                if process.resumes > now:
                    wakes = min(wakes, process.resumes)
                elif agent.until is not None and agent.until():
                    ready.append(agent)
                elif agent.wake is not None and agent.wake > now:
                    wakes = min(wakes, agent.wake)
                elif agent.wake is not None or agent.until is None:
                    ready.append(agent)
            self.ready, self._next_wake, self._dirty = ready, wakes, False
            if ready:
                return True
            if wakes == _NEVER:
                left = [agent.name for agent in self.agents if not agent.ended and agent.process.alive]
                if left:
                    self.failure = Livelock(f"wait for ever: {', '.join(left)}")
                return False
            self.now = wakes

    def _unwind(self) -> None:
        for process in self.processes.values():
            process.alive = False
        for agent in self.agents:
            if agent.greenlet:  # it has begun and not ended
                self.current = agent
                agent.greenlet.throw(Killed)
                agent.ended = True
        self.current = None


def os_error(number: int, path: str = "", other: str | None = None) -> OSError:
    if other is None:
        return OSError(number, _strerror(number), path)
    return OSError(number, _strerror(number), path, None, other)
