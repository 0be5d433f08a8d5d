"""ZeRO stage, world size, micro-batch, accumulation and resuming change no loss: 5 decimals over 20 steps, fp32."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.contracts.events import read_events
from trainers.ledger import read_ledger

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
NAMES = ["stage0", "stage1", "stage2", "stage3", "accumulated", "uneven"]
SETTINGS = [
    "batch.sequences=6",
    "budget.steps=20",
    "validation={every: 10, tokens: 512}",
    "checkpoints={every: 10, keep: 3}",
    "log_every=1",
]


def environment():
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**kept, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}


def losses(run):
    return {entry["step"]: entry["loss"] for entry in read_events(run / "log.jsonl", "step")}


def command(corpus, run, *more):
    return [
        sys.executable,
        "-m",
        "trainers",
        "pretrain",
        "llama_tiny",
        f"corpus={corpus}",
        f"run={run}",
        *SETTINGS,
        *more,
    ]


@pytest.fixture(scope="module")
def launched(corpus_directory, tmp_path_factory):
    """The runs of one launch of two workers."""
    output = tmp_path_factory.mktemp("zero")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(Path(__file__).with_name("zero_worker.py")), str(corpus_directory), str(output)]
    done = subprocess.run(
        [*launcher, *script], env=environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return output


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_and_micro_batch_gives_the_same_losses(launched, name):
    expected, found = losses(launched / "stage0"), losses(launched / name)
    assert list(found) == list(range(1, 21))
    assert found == pytest.approx(expected, abs=5e-6)
    assert expected[20] < expected[1] - 0.5


@pytest.mark.parametrize("name", NAMES)
def test_resuming_at_step_10_equals_not_stopping_also_under_another_stage(launched, name):
    expected, found = losses(launched / name), losses(launched / f"{name}-resumed")
    assert list(found) == list(range(11, 21))
    assert found == pytest.approx({step: expected[step] for step in found}, abs=5e-6)
    validations = [read_events(launched / run / "log.jsonl", "validation")[-1] for run in (name, f"{name}-resumed")]
    assert validations[0]["loss"] == pytest.approx(validations[1]["loss"], abs=5e-6)


def test_ledger_and_log_say_what_was_requested_and_read_whatever_the_execution(launched):
    ledgers = [read_ledger(launched / f"{name}{resumed}") for name in NAMES for resumed in ("", "-resumed")]
    assert all(ledger["sources"] == ledgers[0]["sources"] for ledger in ledgers)
    assert (ledgers[0]["step"], ledgers[0]["samples"]) == (20, 120)
    logged = read_events(launched / "stage0" / "log.jsonl", "step")[-1]
    assert logged["data"] == ledgers[0]["sources"]
    assert logged["tokens"] == sum(source["tokens"] for source in ledgers[0]["sources"].values())


def test_a_loss_that_is_no_number_on_one_worker_is_skipped_by_all(launched):
    expected, found = losses(launched / "stage0"), [losses(launched / name) for name in ("poisoned0", "poisoned2")]
    before = {step: expected[step] for step in (1, 2, 3, 4)}
    for run in found:
        assert list(run) == [1, 2, 3, 4, *range(6, 21)]
        assert {step: run[step] for step in before} == pytest.approx(before, abs=5e-6)
    assert found[0] == pytest.approx(found[1], abs=5e-6)
    assert read_events(launched / "poisoned2" / "log.jsonl", "skipped")[0]["step"] == 5


def test_one_worker_goes_on_with_the_run_of_two_is_stopped_and_goes_on_again(launched, corpus_directory, tmp_path):
    """Another world size, SIGTERM, a resume of a resume, and a finished run that recomputes nothing."""
    run = tmp_path / "run"
    ignored = shutil.ignore_patterns("step-00000020", "finished.json", "export", "log*")
    shutil.copytree(launched / "stage3", run, ignore=ignored)
    first = subprocess.Popen(
        command(corpus_directory, run),
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not (run / "log.jsonl").exists() or 12 not in losses(run):
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.02)
    first.send_signal(signal.SIGTERM)
    output, _ = first.communicate(timeout=120)
    assert first.returncode == 0, output
    stopped = max(losses(run))
    if stopped < 20:
        assert f"at step {stopped}, checkpoint saved" in output

    second = subprocess.run(
        command(corpus_directory, run), env=environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert second.returncode == 0, second.stderr
    assert list(losses(run)) == list(range(11, 21))
    expected = losses(launched / "stage0")
    assert losses(run) == pytest.approx({step: expected[step] for step in losses(run)}, abs=5e-6)
    check_export(run, corpus_directory)

    before = (run / "log.jsonl").read_bytes()
    third = subprocess.run(
        command(corpus_directory, run), env=environment(), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "finished at step 20, nothing to do" in third.stdout
    assert (run / "log.jsonl").read_bytes() == before


def check_export(run, corpus_directory):
    """The exported model's validation loss, computed with plain transformers, is the one logged."""
    from trainers.evaluate import evaluate

    logged = read_events(run / "log.jsonl", "validation")[-1]
    found = evaluate(run / "export", (str(corpus_directory),))
    assert found["loss"] == pytest.approx(logged["loss"], abs=1e-4)
    for name, source in logged["sources"].items():
        assert found["sources"][name] == pytest.approx(source, abs=1e-4)


@pytest.mark.ray
def test_ray_train_gives_the_same_run(launched, corpus_directory, tmp_path):
    run = tmp_path / "run"
    ray = {"RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}
    done = subprocess.run(
        command(corpus_directory, run, "--workers", "2"),
        env={**environment(), **ray},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert losses(run) == pytest.approx(losses(launched / "stage0"), abs=5e-6)
    assert "step 20/20" in done.stdout
    assert (run / "export" / "model.safetensors").exists()
