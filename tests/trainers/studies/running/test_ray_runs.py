"""Runs of a study as Ray tasks: lost and slow runs are tried again, a failed run does not affect the others,
and several runs share a CPU.
"""

import errno
import os
from contextlib import closing
from dataclasses import asdict, replace
from types import SimpleNamespace

import psutil
import pytest

from gristmill.errors import UserError
from gristmill.events import EventLog
from gristmill.libraries import local_ray
from gristmill.storage.store import write_json
from tests.trainers.studies.running.fake_training import pretend
from tests.trainers.studies.study_files import opened, write_study
from trainers.__main__ import main
from trainers.studies.running import ray_runs
from trainers.studies.running.ray_runs import RayResources, train_on_ray
from trainers.studies.running.train_study_run import FORMAT, RESULT, RunResult, read_result
from trainers.training.ray_tasks import start_ray


@pytest.fixture(scope="module")
def cluster():
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        start_ray()
        yield
        ray.shutdown()


@pytest.fixture
def runs(tmp_path, corpus_directory):
    study, _ = opened(write_study(tmp_path, corpus_directory))
    return lambda *entries: [replace(r, entry=e) for r, e in zip(study.proxies, entries, strict=False)]


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_ray_on_this_machine_starts_nothing_that_tasks_do_not_need(cluster):
    from ray._private.node import Node

    commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert any("raylet" in command for command in commands)
    assert not [command for command in commands if "dashboard.py" in command or "monitor.py" in command]
    assert all(getattr(Node, name).__module__ == Node.__module__ for name in local_ray._NEEDLESS)  # Ray is what it was


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_runs_on_ray_end_as_those_of_processes(cluster, tmp_path, runs):
    chosen, lines = runs("a", "failed", "dies-once", "diverged", "busy", "dies", "b"), []
    train_on_ray(tmp_path, chosen, RayResources(0.5), lines.append, pretend)
    states = [read_result(tmp_path / run.key).state for run in chosen]
    assert states == ["finished", "failed", "finished", "diverged", "finished", "failed", "finished"]
    assert "its task was lost: " in read_result(tmp_path / chosen[5].key).reason
    assert sum("it continues in another one" in line for line in lines) == 2
    assert lines[-1].startswith("7/7  ")
    chosen = runs("full", "c")[:1]
    with pytest.raises(UserError, match="No space left on device; fix that and run the same command"):
        train_on_ray(tmp_path / "other", chosen, RayResources(0.5), lines.append, pretend)
    with pytest.raises(UserError, match="a run needs 1 CPUs and 1000 GPUs, but no node of the Ray cluster has as many"):
        train_on_ray(tmp_path, chosen, RayResources(1, 1000), lines.append, pretend)


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_a_slow_run_continues_in_another_task(cluster, tmp_path, runs, monkeypatch):
    monkeypatch.setattr(ray_runs, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(ray_runs, "_OTHER_SECONDS", 1.0)
    chosen, lines = runs("slow", "a", "b", "c"), []
    train_on_ray(tmp_path, chosen, RayResources(0.5), lines.append, pretend)
    assert [read_result(tmp_path / run.key).state for run in chosen] == ["finished"] * 4
    assert [len((tmp_path / run.key / "attempts").read_text()) for run in chosen] == [2, 1, 1, 1]
    assert any("slow/" in line and "more than 4 times as long as expected; it continues" in line for line in lines)
    assert lines[-1].startswith("4/4  ")


def test_runs_are_slow_by_what_their_steps_should_take(tmp_path, runs, monkeypatch):
    clock = [1e6]
    monkeypatch.setattr(ray_runs, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    pace, chosen = ray_runs._Pace(tmp_path), runs("a", "b", "c", "begun", "resumed")
    begun, resumed = chosen[3:]
    seconds = begun.job.budget.tokens * 1000 / 1e6  # at 1,000 FLOPs a token and a million a second

    def log(run, event):
        with closing(EventLog(tmp_path / run.key / "log.jsonl")) as events:
            events.write(event, flops_per_token={"read": 600.0, "predicted": 400.0})

    def looks_slow(after):
        clock[0] += after
        return [run.entry for run in pace.slow([begun, resumed])]

    for run in chosen:
        (tmp_path / run.key).mkdir()
    log(resumed, "start")  # of an attempt long ago
    log(resumed, "step")
    for run in (begun, resumed):
        pace.submitted(run)
    log(begun, "start")
    assert looks_slow(0) == []
    for run in chosen[:3]:
        assert looks_slow(10 * seconds) == []
        result = RunResult("finished", flops=1e6, step_seconds=0.6, validation_seconds=0.4)
        write_json(tmp_path / run.key / RESULT, {"format": FORMAT, **asdict(result)})
        pace.ended(run)
    assert looks_slow(0) == []  # one has not begun, so no room is free
    log(resumed, "start")
    assert looks_slow(0) == ["begun"]
    assert looks_slow(4 * seconds + ray_runs._OTHER_SECONDS) == []
    assert looks_slow(1) == ["resumed"]
    assert looks_slow(1000 * seconds) == []  # once


def test_a_log_that_cannot_be_read_stops_nothing(tmp_path, runs, monkeypatch):
    def stale(path, event):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    pace, chosen = ray_runs._Pace(tmp_path), runs("a")
    monkeypatch.setattr(ray_runs, "read_events", stale)
    pace.submitted(chosen[0])
    assert pace.slow(chosen) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus-per-run", "0.5"], "--cpus-per-run, --gpus-per-run: need --ray"),
        (["--ray", "--cpus-per-run", "-1"], "--cpus-per-run: got -1, allowed 0 or more"),
    ],
)
def test_resources_that_do_not_fit_are_one_line(tmp_path, corpus_directory, words, message, capsys):
    assert main(["study", "run", str(write_study(tmp_path, corpus_directory)), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
