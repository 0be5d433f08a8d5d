"""Workers of a study: one process trains many runs, and the death of a process affects no other run."""

import os
import signal
from dataclasses import replace

import pytest

from gristmill.errors import UserError
from tests.trainers.studies.running.fake_training import pretend
from tests.trainers.studies.study_files import opened, write_study
from trainers.studies.running.study_workers import StudyWorkers
from trainers.studies.running.train_study_run import read_result

pytestmark = pytest.mark.faults


@pytest.fixture
def runs(tmp_path, corpus_directory):
    study, _ = opened(write_study(tmp_path, corpus_directory))
    return lambda *entries: [replace(r, entry=e) for r, e in zip(study.proxies, entries, strict=False)]


def work(root, runs, count=1):
    lines = []
    StudyWorkers(root, count, 1, lines.append, pretend).run(runs)
    return lines, [read_result(root / run.key).state for run in runs]


def test_a_crash_is_its_own_row(tmp_path, runs):
    chosen = runs("a", "failed", "dies-once", "diverged", "busy", "dies", "b")
    lines, states = work(tmp_path, chosen, count=2)
    assert states == ["finished", "failed", "finished", "diverged", "finished", "failed", "finished"]
    assert "signal 9, 2 times in a row" in read_result(tmp_path / chosen[5].key).reason
    assert sum("continues in another one" in line for line in lines) == 2
    assert lines[-1].startswith("7/7  ")


def test_a_worker_that_died_while_it_was_idle_gets_no_run(tmp_path, runs):
    """The first worker has nothing left to do and dies; then the other dies in the middle of its run."""
    chosen = runs("a", "dies-after-a")
    lines = []

    def show(line):
        lines.append(line)
        if line.startswith("1/2  "):
            process = int((tmp_path / chosen[0].key / "process").read_text().split()[0])
            os.kill(process, signal.SIGKILL)
            (tmp_path / "a-died").touch()

    StudyWorkers(tmp_path, 2, 1, show, pretend).run(chosen)
    assert [read_result(tmp_path / run.key).state for run in chosen] == ["finished", "finished"]
    assert lines[-1].startswith("2/2  ")


def test_one_process_trains_many_runs(tmp_path, runs):
    chosen = runs("a", "b", "c")
    work(tmp_path, chosen)
    assert len({(tmp_path / run.key / "process").read_text() for run in chosen}) == 1


def test_a_full_disk_ends_the_study_and_spoils_no_row(tmp_path, runs):
    chosen = runs("a", "full", "b")
    with pytest.raises(UserError, match=r"No space left on device; fix that and run the same command"):
        work(tmp_path, chosen)
    assert read_result(tmp_path / chosen[1].key) is None
