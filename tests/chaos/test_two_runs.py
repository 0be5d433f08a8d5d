"""Two drivers in one run directory: the second is refused, or takes over from a first that is dead or
suspended.
"""

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from gristmill.storage.disk import LocalPath
from tests.chaos.harness.drivers import GROUP, QUICK, Driver, dead_lease, end_all
from tests.chaos.harness.outcome import Trained, run_outcome, trained
from tests.trainers.conftest import build_corpus
from tests.trainers.launching import LONG_SETTINGS

pytestmark = [pytest.mark.chaos, pytest.mark.deepspeed, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def ended():
    yield
    end_all()


class Run(NamedTuple):
    directory: Path
    corpus: Path
    wanted: Trained

    def train(self, name, run, **options):
        arguments = ["pretrain", "llama_tiny", f"corpus={self.corpus}", f"run={run}", *LONG_SETTINGS]
        return Driver(self.directory, name, *arguments, module="trainers", record=f"{run}.rows", **options)

    def outcome(self, run):
        return run_outcome(self.wanted, trained(run, LocalPath(f"{run}.rows")))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    found = Run(directory, build_corpus(directory / "corpus"), Trained({}, {}))
    found.train("undisturbed", directory / "undisturbed").finish()
    return found._replace(wanted=trained(directory / "undisturbed", directory / "undisturbed.rows"))


def test_a_second_run_is_refused_and_goes_on_at_once_when_the_first_is_killed(runs, injected):
    run, hold = runs.directory / "killed", runs.directory / "killed.hold"
    first = runs.train("killed1", run, hold=["checkpoint.json", hold])
    first.until(LocalPath(f"{hold}.held").exists)
    words = (
        f"another process is training here (host {os.uname().nodename}, pid {first.process.pid}); wait for it or end it"
    )
    assert words in runs.train("killed2", run).finish(2)
    first.process.kill()
    first.process.wait()
    started = time.perf_counter()
    assert "watching" not in runs.train("killed3", run).finish()
    fault = "a second pretrain in one run directory, and the first is killed"
    injected(GROUP, fault, runs.outcome(run), time.perf_counter() - started)


def test_a_lease_of_a_dead_host_does_not_keep_a_run_from_going_on(runs, injected):
    run = runs.directory / "dead"
    dead_lease(run, "training", hours=7)
    started = time.perf_counter()
    assert "not responding; continuing" in runs.train("dead", run, lease=QUICK).finish()
    fault = "a lease of a dead host in a run directory"
    injected(GROUP, fault, runs.outcome(run), time.perf_counter() - started)


def test_a_run_that_was_suspended_and_taken_over_ends(runs, injected):
    run, hold = runs.directory / "suspended", runs.directory / "suspended.hold"
    first = runs.train("suspended1", run, hold=["checkpoint.json", hold], host="elsewhere", lease=QUICK)
    first.until(LocalPath(f"{hold}.held").exists)
    first.process.send_signal(signal.SIGSTOP)
    LocalPath(f"{hold}.go").touch()
    started = time.perf_counter()
    second = runs.train("suspended2", run, lease=QUICK, hold=["checkpoint.json", f"{hold}2"])
    second.until(LocalPath(f"{hold}2.held").exists)
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(300) != 0
    LocalPath(f"{hold}2.go").touch()
    second.finish()
    fault = "a run is suspended, taken over, and woken beside the other"
    injected(GROUP, fault, runs.outcome(run), time.perf_counter() - started)
