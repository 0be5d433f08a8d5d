"""Competing drivers: command lines in separate processes, and a lease left by a dead process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from gristmill.storage.lease import LEASE, Lease
from tests.chaos.harness.driver import PAUSE_SECONDS
from tests.trainers.launching import ROOT, environment

GROUP = "Two drivers, leases, clocks"
QUICK = {"timeout": 3.0, "beat": 0.5}  # of leases, in seconds
_started: list[subprocess.Popen] = []
_SCRIPT = Path(__file__).with_name("driver.py")


class Driver:
    def __init__(self, directory, name, *arguments, module="pipelines", **options):
        self.out = directory / f"{name}.out"
        command = [sys.executable, str(_SCRIPT), json.dumps(options, default=str), module, *map(str, arguments)]
        with open(self.out, "w") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=out, stderr=out)
        _started.append(self.process)

    @property
    def said(self):
        return self.out.read_text()

    def until(self, condition):
        """Wait for a condition, and fail if the driver ends before the condition holds."""
        while not condition():
            assert self.process.poll() is None, self.said
            time.sleep(PAUSE_SECONDS)

    def until_said(self, words):
        self.until(lambda: words in self.said)

    def finish(self, status=0):
        assert self.process.wait(300) == status, self.said
        return self.said


def end_all():
    for process in _started:
        process.kill()
        process.wait()
    _started.clear()


def dead_lease(place, work, hours):
    """Write the lease of a dead process on another machine whose clock was `hours` ahead."""
    lease = Lease(place / LEASE, work)
    place.mkdir()
    lease.path.write_text(json.dumps(json.loads(lease.state()) | {"host": "dead", "kernel": "dead"}))
    os.utime(lease.path, (time.time() + hours * 3600,) * 2)
