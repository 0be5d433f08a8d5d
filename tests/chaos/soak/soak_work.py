"""A command that runs on a cluster whose processes are killed."""

import os
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.soak.soak_cluster import SoakCluster
from tests.trainers.launching import ROOT

LONGEST = 600.0  # seconds that anything may take; longer is a hang


class Work:
    """A command that is started again whenever its driver or its cluster has been killed."""

    def __init__(self, cluster: SoakCluster, command: Sequence[str], log: Path, **variables: str) -> None:
        self.cluster, self._command, self._log, self._variables = cluster, list(command), log, variables
        self.chance = random.Random(log.name)
        self._faults: list[str] = []
        self._from: list[float] = []  # seconds of time.perf_counter when recovery from each began, and ended
        self._to: list[float] = []
        self.start()

    def start(self) -> None:
        variables = {**os.environ, **self._variables, "RAY_ADDRESS": self.cluster.address}
        with open(self._log, "a") as log:
            self.driver = subprocess.Popen(
                self._command, env=variables, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; raise AssertionError if the driver ends first or the wait exceeds LONGEST
        seconds.
        """
        last = time.monotonic() + LONGEST
        while not condition():
            assert self.driver.poll() is None, f"the driver has ended before {what}:\n{self.said()}"
            assert time.monotonic() < last, f"nothing but waiting for {what}:\n{self.said()}"
            time.sleep(0.02)

    def said(self) -> str:
        return self._log.read_text()[-4000:]

    def ended(self) -> int:
        try:
            return self.driver.wait(LONGEST)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver does not end:\n{self.said()}") from None

    def recovered(self) -> list[tuple[str, float]]:
        """Return each fault, and the seconds from the start of its recovery to the next kill, or until now
        for the last one.

        Call this when the command has ended.
        """
        ends = [*self._to, time.perf_counter()]
        return [(fault, end - begun) for fault, begun, end in zip(self._faults, self._from, ends[1:], strict=True)]

    def strike(self, phase: str, victim: str, task: str) -> None:
        """Kill `victim` while tasks or actors named `task` run, then do what an operator would do.

        An operator replaces a lost node, and restarts a command or a cluster that is gone.
        """
        self._faults.append(f"{phase}: {victim}")
        self._to.append(time.perf_counter())
        self._kill(victim, task)

    def _kill(self, victim: str, task: str) -> None:
        struck = time.perf_counter()
        if victim in ("a worker", "the controller"):
            self.chance.choice(self.cluster.workers(task)).kill()
        elif victim == "a node":
            self.cluster.kill_node_of(self.chance.choice(self.cluster.workers(task)))
            time.sleep(self.chance.uniform(0, 2))
            self.cluster.add_node()
        elif victim == "the driver":
            self.driver.kill()
            self.driver.wait()
            time.sleep(self.chance.uniform(0, 1))
            struck = time.perf_counter()
            self.start()
        else:
            assert victim == "the head node"
            self.cluster.kill_all()
            assert self.ended() != 0, self.said()
            self.cluster.start()
            struck = time.perf_counter()
            self.start()
        self._from.append(struck)

    def close(self) -> None:
        if self.driver.poll() is None:
            self.driver.kill()
            self.driver.wait()
