"""A build says where its processor time went; the purposes sum to what the operating system counts."""

import resource
import subprocess
import sys
import threading
import time

import pytest

from gristmill.budget import HASHING, READING, START, WRITING, spend, take_account
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from pipelines.building.build_budget import describe_budget, summarise_budget
from pipelines.cluster.tasks import Usage


def work(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_time_belongs_to_the_innermost_purpose():
    take_account()
    before = time.process_time()
    with spend("outer"):
        work(0.02)
        with spend("inner"), spend("innermost"):
            work(0.03)
        with pytest.raises(ValueError, match="x"), spend("fails"):
            raise ValueError("x")
    spent, seconds = take_account(), time.process_time() - before
    assert spent["outer"] >= 0.02
    assert spent["innermost"] >= 0.03 > spent["inner"]
    assert sum(spent.values()) == pytest.approx(seconds, rel=0.1, abs=0.02)
    assert "outer" not in take_account()


def test_other_threads_keep_no_account():
    take_account()

    def run():
        with spend("of a thread"):
            assert take_account() == {}

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "of a thread" not in take_account()


def test_what_no_process_accounts_for_is_rays():
    usage = Usage(spent={"pii": 6.0, "read": 1.0}, start_seconds=2.0)
    budget = summarise_budget(usage, 10.0)
    assert budget == {"processor_seconds": 10.0, "by_purpose": {"pii": 6.0, "Ray": 3.0, "read": 1.0}}
    assert describe_budget(budget) == "processor time 10.0 s: pii 6.0, Ray 3.0, read 1.0, other 0.0"
    on_other_machines = summarise_budget(usage, 5.0)
    assert on_other_machines["processor_seconds"] == 7.0
    assert "Ray" not in on_other_machines["by_purpose"]


def test_a_build_writes_its_budget_and_one_that_builds_nothing_does_not(corpus_file, tmp_path):
    command = [sys.executable, "-m", "pipelines", "build", str(corpus_file), "--in-process"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    counted = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    path = LocalPath(tmp_path / "out") / "run.json"
    run = read_json(path)
    assert "processor time" in said
    assert sum(run["by_purpose"].values()) == pytest.approx(run["processor_seconds"], rel=0.1)
    # What the process takes to end is not in its own account: a large share of so small a build.
    assert counted / 2 < run["processor_seconds"] <= 1.02 * counted
    assert {START, READING, WRITING, HASHING, "quality_signals", "shards", "funnel"} <= run["by_purpose"].keys()
    assert 0 < run["fixed_seconds"] < run["wall_seconds"]
    subprocess.run(command, check=True, capture_output=True)
    assert read_json(path) == run
