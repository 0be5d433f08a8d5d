"""Evaluation during training: what is started, logged and repeated. Kills change no loss and lose no finished
result.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from gristmill.errors import ConfigError, UserError
from gristmill.events import read_events
from gristmill.storage.store import read_json, write_json
from tests.trainers.launching import SETTINGS, STEPS, losses, run_command, start_command
from tests.trainers.tasks.writing import write_lines
from trainers.config.pretraining import PeriodicEvaluation
from trainers.evaluation.checkpoints.evaluate_checkpoints import name_of
from trainers.evaluation.suites.run_evaluation import EvaluationSettings
from trainers.recipes import llama_tiny
from trainers.report.run_page import write_report
from trainers.runs import checkpoint
from trainers.runs.progress import Progress
from trainers.runs.stored_evaluations import FORMAT, evaluation_name, read_evaluations, resolve_evaluation, result_path
from trainers.tasks import load_task
from trainers.tasks.load_task import load_suite
from trainers.training.periodic_evaluation import PeriodicEvaluator

SCORES = {"blimp": {"value": 0.6, "error": 0.1, "low": 0.4, "high": 0.8, "n": 9, "chance": 0.5, "verdict": "at"}}


@pytest.fixture
def evaluator(tmp_path, monkeypatch):
    """(make, started). `make` returns an evaluator whose processes end at once with a given status, and by
    default leave a result if the status is 0. `started` lists the steps whose evaluation was started.
    """
    started, opened = [], []
    (tmp_path / "checkpoints").mkdir()

    def make(status=0, writes=True):
        def evaluate(self, step):
            started.append(step)
            if status == 0 and writes:
                write_result(tmp_path, step)
            return subprocess.Popen([sys.executable, "-S", "-c", f"raise SystemExit({status})"])

        monkeypatch.setattr(PeriodicEvaluator, "_evaluate", evaluate)
        config = replace(llama_tiny(), evaluation=PeriodicEvaluation("blimp", every=10))
        config = replace(config, budget=replace(config.budget, steps=25, tokens=None))
        progress = Progress(tmp_path / "log.jsonl", None)
        opened.append(progress)
        progress.write("start", step=0)
        return PeriodicEvaluator(config, tmp_path, progress, True)

    yield make, started
    for progress in opened:
        progress.close()


def save(run, step, checksum="same"):
    place = run / "checkpoints" / f"step-{step:08d}"
    place.mkdir(exist_ok=True)
    write_json(place / checkpoint.RECORD, {"step": step, "weights": checksum})


def write_result(run, step):
    checksum = read_json(run / "checkpoints" / f"step-{step:08d}" / checkpoint.RECORD)["checksum"]
    known = {"name": "blimp", "step": step, "tokens": 9, "checkpoint": checksum, "items": "x", "scores": SCORES}
    path = result_path(run, "blimp", step)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"format": FORMAT, **known})


def settle(evaluator):
    assert evaluator.finish(lambda: False)


def logged(run, event="evaluation"):
    return [each["step"] for each in read_events(run / "log.jsonl", event)]


def test_due_are_the_multiples_and_the_last_step(evaluator):
    made = evaluator[0]()
    assert [step for step in range(1, 26) if made.due_at(step)] == [10, 20, 25]
    assert not PeriodicEvaluator(llama_tiny(), None, None, True).due_at(10)


def test_the_newest_due_checkpoint_is_evaluated_and_older_ones_are_left_out(evaluator, tmp_path):
    make, started = evaluator
    made = make()
    for step in (5, 10, 20):
        save(tmp_path, step)
    settle(made)
    save(tmp_path, 25)
    made.advance()  # nothing is looked for after a step without a checkpoint
    assert started == [20]
    made.advance(25)
    settle(made)
    assert (started, logged(tmp_path)) == ([20, 25], [20, 25])
    (event, _) = read_events(tmp_path / "log.jsonl", "evaluation")
    assert event["scores"] == SCORES
    assert event["message"] == "blimp at step 20: blimp 0.6000 ± 0.1000 (at chance)"


def test_a_resumed_run_logs_what_it_finds_once_and_repeats_what_is_missing(evaluator, tmp_path):
    make, started = evaluator
    save(tmp_path, 10)
    write_result(tmp_path, 10)
    settle(make())
    settle(make())
    assert (started, logged(tmp_path)) == ([], [10])
    save(tmp_path, 10, "others")  # the run has resumed before step 10, and its weights are others now
    settle(make())
    assert (started, logged(tmp_path)) == ([10], [10, 10])


def test_a_failed_evaluation_is_a_warning_and_is_tried_again_by_the_next_command_only(evaluator, tmp_path):
    make, started = evaluator
    save(tmp_path, 10)
    made = make(3)
    output = tmp_path / "evaluations" / "blimp" / "output.txt"
    output.parent.mkdir(parents=True)
    output.write_text("error: no file\x1b\n")
    settle(made)
    settle(made)
    assert started == [10]
    (warning,) = read_events(tmp_path / "log.jsonl", "warning")
    assert warning["message"].startswith("the evaluation of step 10 ended with status 3: error: no file\\x1b (")
    settle(make())
    assert (started, logged(tmp_path)) == ([10, 10], [10])


def test_a_process_that_leaves_no_result_is_a_warning_and_not_repeated(evaluator, tmp_path):
    make, started = evaluator
    save(tmp_path, 10)
    settle(make(writes=False))
    assert started == [10]
    (warning,) = read_events(tmp_path / "log.jsonl", "warning")
    assert warning["message"].startswith("the evaluation of step 10 ended without a result: ")


def test_training_looks_where_evaluate_stores(monkeypatch):
    """Training and `evaluate` give the results of a suite the same name, even if the suite limits its items."""
    suite = replace(load_suite("probes"), limit=2)
    monkeypatch.setattr(load_task, "load_suite", lambda name: suite)
    settings = resolve_evaluation(PeriodicEvaluation("probes"))
    assert settings.limit == 2
    assert evaluation_name("probes", settings.settings) == name_of(suite, [], EvaluationSettings(limit=2))


def test_a_name_that_is_too_long_for_a_directory_is_cut_and_stays_unique(tmp_path):
    task = "ü" * 120
    assert evaluation_name(task, {"limit": 12345}) == f"{task},limit=12345"
    long = [evaluation_name(f"{task}/{task}", {"limit": limit}) for limit in (1, 2)]
    assert long[0] != long[1]
    for name in long:
        assert name.startswith("ü" * 100 + "...")
        (tmp_path / name).mkdir()


def test_settings_without_files_are_refused_before_training(tmp_path):
    with pytest.raises(ConfigError, match="suite: got 'blim'; did you mean 'blimp'"):
        resolve_evaluation(PeriodicEvaluation("blim", data=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"evaluation\.shots: got 0, the suite gpt3 has several; choose one of 1, 10"):
        resolve_evaluation(PeriodicEvaluation("gpt3", data=str(tmp_path)))
    with pytest.raises(UserError, match="blimp: test: no file; looked for"):
        resolve_evaluation(PeriodicEvaluation("blimp", data=str(tmp_path)))
    with pytest.raises(ValueError, match="every: got 0, allowed 1 or more"):
        PeriodicEvaluation("blimp", every=0).check()


def command(run, corpus, data):
    words = [f"evaluation.{each}" for each in ("suite=blimp", "every=5", f"data={data}", "limit=4")]
    return ["pretrain", "llama_tiny", f"corpus={corpus}", f"run={run}", *SETTINGS, *words]


def wait_for(path, process):
    for _ in range(6000):
        if path.exists():
            return
        assert process.is_alive()
        time.sleep(0.1)
    raise AssertionError(path)


def children(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as listed:
        return [int(word) for word in listed.read().split()]


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_amid_an_evaluation_change_no_loss_and_lose_no_result(corpus_directory, unbroken, tmp_path):
    run, data = tmp_path / "run", tmp_path / "data"
    pairs = [{"sentence_good": f"a cab {n}", "sentence_bad": f"{n} cab a", "UID": "s", "field": "f"} for n in range(6)]
    write_lines(data / "blimp" / "s.jsonl", pairs)
    again = command(run, corpus_directory, data)
    first = start_command(tmp_path / "output", *again)
    finished = result_path(run, "blimp,limit=4", 5)
    wait_for(finished, first)
    before = finished.read_bytes()
    while not (below := children(first)):  # the evaluation of the last step begins
        time.sleep(0.05)
    for number in (*below, first.pid):
        os.kill(number, signal.SIGKILL)
    first.join()
    assert not (run / "finished.json").exists()
    status, output = run_command(tmp_path / "output", *again)
    assert status == 0, output
    assert (run / "finished.json").exists()
    assert losses(run) == losses(unbroken)
    assert finished.read_bytes() == before
    assert [each.step for each in read_evaluations(run)] == [5, STEPS]
    assert sorted(logged(run)) == [5, STEPS]
    assert f"blimp,limit=4 at step {STEPS}: blimp.mean" in output
    assert "blimp.mean" in (run / "report.html").read_text()
    shutil.rmtree(run / "evaluations")  # the page is made from the log
    write_report([run], tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count('class="card') > 3
