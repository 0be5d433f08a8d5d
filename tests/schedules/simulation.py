"""A simulation: the product's commands as processes of a scheduler, on a file system in memory."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from gristmill.host import use_host
from tests.schedules.memory_disk import ROOT, MemoryDisk
from tests.schedules.process_caches import own_caches
from tests.schedules.scheduler import Agent, Event, Strategy, World
from tests.schedules.simulated_host import SimulatedHost

CACHE = f"{ROOT}/cache"  # of remote files and computed ones
_scratch: list[tempfile.TemporaryDirectory[str]] = []
Check = Callable[["Simulation", Event], None]


class Simulation(World):
    """One run of several processes. `disk` may be left over from an earlier run."""

    make_host = SimulatedHost

    def __init__(
        self, choices: Strategy, disk: MemoryDisk | None = None, *, op_seconds: float = 0.001, trace: bool = False
    ) -> None:
        super().__init__(choices, op_seconds=op_seconds, trace=trace)
        self.disk = disk or MemoryDisk()
        self.disk.worlds += 1
        self.now = max(self.now, self.disk.clock())
        self.disk.clock = lambda: self.now
        self.disk.machine = self._machine
        self.host = self.make_host(self, self.disk, scratch())
        self.facts: dict[str, Any] = {}  # what checks remember; hashable
        self._checks: list[Check] = []
        self._changes, self._seen = self.disk, self.disk.changes

    def watch(self, check: Check) -> None:
        """Call `check(simulation, event)` after each operation that has changed the disk. A failed check
        raises AssertionError.
        """
        self._checks.append(check)

    def say(self, *words: Any) -> None:
        if self.current is not None and self.current.process.alive:
            self.current.process.output.append(" ".join(map(str, words)))

    def run(self, limit: int = 100_000) -> None:
        with use_host(self.host), own_caches(self), _cache_directory(CACHE):
            super().run(limit)

    def after_event(self, event: tuple[Agent, str, str, str]) -> None:
        agent, *what = event
        for check in self._checks:
            check(self, Event(self.now, agent.name, *what))

    def power_lost(self, machine: str, chance: Random) -> None:
        self.disk.lose_power(machine, chance)

    def _machine(self) -> str:
        return self.current.process.machine if self.current is not None else ""


@contextmanager
def _cache_directory(path: str) -> Iterator[None]:
    """Set the environment variable for the cache directory. `patch.dict` would write the whole environment in
    each of thousands of runs.
    """
    before = os.environ.get("GRISTMILL_CACHE")
    os.environ["GRISTMILL_CACHE"] = path
    try:
        yield
    finally:
        if before is None:
            del os.environ["GRISTMILL_CACHE"]
        else:
            os.environ["GRISTMILL_CACHE"] = before


def scratch() -> str:
    """Return a directory of the real process for files that native code reads or writes; the directory is
    removed when the process ends.
    """
    if not _scratch:
        _scratch.append(tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    return _scratch[0].name
