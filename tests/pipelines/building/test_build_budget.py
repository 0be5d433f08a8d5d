"""A build reports where its CPU time went, and the purposes add up to what the operating system counts. For
little work, it does not start Ray unless it must.
"""

import resource
import subprocess
import sys
import threading
import time

import pytest

from gristmill.budget import HASHING, READING, START, WRITING, spend, take_account
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from pipelines.building import read_step
from pipelines.building import run_build as module
from pipelines.building.build import plan_and_build
from pipelines.building.build_budget import describe_budget, summarise_budget
from pipelines.building.run_build import run_build
from pipelines.cluster.local import LocalCluster
from pipelines.cluster.ray import RayCluster
from pipelines.cluster.tasks import Usage
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory

pytestmark = pytest.mark.long


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


class RayStartsError(Exception):
    """Raised in place of starting Ray."""


@pytest.fixture
def built(corpus_file, monkeypatch):
    """Build a corpus and return its file. A further build that would start Ray raises RayStartsError."""

    def start(cluster):
        raise RayStartsError

    monkeypatch.setattr(RayCluster, "_start", start)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    run_build(load_corpus_config(corpus_file, []), in_process=True)
    return corpus_file


STRICTER = "steps.filter=[{signal: word_count, at_least: 9}]"


def test_a_changed_rule_of_a_small_corpus_starts_no_ray_and_gives_the_same_corpus(built, tmp_path, capsys):
    quick = run_build(load_corpus_config(built, [STRICTER]), workers=2)
    assert "they run in this process" in capsys.readouterr().out
    whole = run_build(load_corpus_config(built, [STRICTER, f"output={tmp_path}/other"]), in_process=True)
    assert (quick.fingerprint, quick.shard_sets) == (whole.fingerprint, whole.shard_sets)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(["sources.web.sample=0.5"], id="a source is read"),
        pytest.param(["steps.minhash_signatures={normalisation: fineweb}"], id="a part stage reads texts"),
    ],
)
def test_steps_in_which_a_document_may_break_its_process_run_on_ray(built, changes):
    with pytest.raises(RayStartsError):
        run_build(load_corpus_config(built, changes), workers=2)


def test_work_that_takes_longer_than_starting_ray_runs_on_ray(built, monkeypatch):
    monkeypatch.setattr(module, "_WORTH_RAY", 1e-9)
    with pytest.raises(RayStartsError):
        run_build(load_corpus_config(built, [STRICTER]), workers=2)


def test_a_cluster_that_is_named_is_used(built, monkeypatch):
    with pytest.raises(RayStartsError):
        run_build(load_corpus_config(built, [STRICTER]), address="auto")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # as in a submitted job
    with pytest.raises(RayStartsError):
        run_build(load_corpus_config(built, [STRICTER]), workers=2)


@pytest.mark.parametrize(
    ("part_bytes", "said"), [(1 << 20, ["  notes: 1 of 2 workers can read its 3 files"]), (20, [])]
)
def test_a_source_that_could_be_divided_for_more_workers_is_named(tmp_path, monkeypatch, part_bytes, said):
    monkeypatch.setattr(read_step, "_SMALL", 0)
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"The mill of village number {number} grinds corn.")
    (tmp_path / "c.yaml").write_text(
        f"name: c\noutput: {tmp_path}/out\nsources:\n"
        f"  - {{name: notes, root: {tmp_path}, include: ['*.txt'], format: text, part_bytes: {part_bytes}}}\n"
        "steps:\n  - text_hash: {}\n"
    )
    config, lines = load_corpus_config(tmp_path / "c.yaml"), []
    plan_and_build(config, take_inventory(config.sources, config.place), LocalCluster(workers=2), lines.append)
    found = [line.partition(" at a time")[0] for line in lines if "can read" in line]
    assert found == said
