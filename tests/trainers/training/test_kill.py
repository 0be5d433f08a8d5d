"""A run that is killed with kill -9 at any moment and resumed with another number of workers has the tokens
and losses of an undisturbed run.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from gristmill.events import read_events
from tests.trainers.launching import (
    SEQUENCES,
    SETTINGS,
    STEPS,
    free_port,
    losses,
    recorded,
    run_workers,
    start_torchrun,
)
from trainers.runs import checkpoint
from trainers.runs.ledger import read_ledger

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow, pytest.mark.timeout(1200)]
WORKER = Path(__file__).parents[1] / "kill_worker.py"
# Options of torchrun with which its workers are forks of it, not Pythons of their own that import all again.
FORKS = ("--start-method", "fork", "--run-path")


class Attempt(NamedTuple):
    """A launch of `workers` workers that starts at step `begins`; worker `victim` dies at `moment` of step
    `at`.

    `machines` is the number of machines on which torchrun starts the workers. With 0, the test starts them
    directly.
    """

    workers: int
    zero_stage: int
    begins: int
    moment: str
    at: int
    victim: int
    machines: int = 0


# One run: every launch but the first continues with what the one before has left.
ATTEMPTS = [
    Attempt(2, 1, 0, "before_the_first_step", 1, 1),
    Attempt(3, 2, 0, "amid_a_checkpoint", 5, 0),
    Attempt(1, 0, 0, "after_a_checkpoint", 5, 0),
    Attempt(3, 3, 5, "amid_a_step", 8, 2),
    Attempt(2, 1, 5, "amid_a_validation", 10, 1, machines=2),
    Attempt(3, 2, 5, "amid_an_export", STEPS, 0),
    Attempt(1, 0, STEPS, "never", 0, 0),
]


def launch(attempt, corpus, directory):
    """Return (exit statuses, output) of torchrun on each machine, or of the workers if torchrun is not used."""
    script = [WORKER, attempt.moment, attempt.at, attempt.victim, directory / "record"]
    execution = [f"execution.zero_stage={attempt.zero_stage}", "execution.micro_batch=1"]
    arguments = ["pretrain", "llama_tiny", f"corpus={corpus}", f"run={directory / 'run'}", *SETTINGS, *execution]
    if not attempt.machines:
        return run_workers(attempt.workers, *script, *arguments)
    meeting = ["--nnodes", attempt.machines, "--master-addr", "127.0.0.1", "--master-port", free_port()]
    each, logs = attempt.workers // attempt.machines, [directory / f"machine{node}" for node in range(attempt.machines)]
    started = [
        start_torchrun(log, [*meeting, "--node-rank", node, *(FORKS if node else ())], each, *script, *arguments)
        for node, log in enumerate(logs)
    ]
    for process, log in zip(started, logs, strict=True):
        process.join(300)
        assert process.exitcode is not None, log.read_text()
    return [process.exitcode for process in started], "\n".join(log.read_text() for log in logs)


@pytest.fixture(scope="module")
def broken(corpus_directory, tmp_path_factory):
    directory = tmp_path_factory.mktemp("broken")
    return directory / "run", [launch(attempt, corpus_directory, directory) for attempt in ATTEMPTS]


@pytest.mark.parametrize("number", range(len(ATTEMPTS)), ids=[attempt.moment for attempt in ATTEMPTS])
def test_a_killed_worker_ends_its_launch_and_the_others_say_why(broken, number):
    attempt, (run, launches) = ATTEMPTS[number], broken
    statuses, output = launches[number]
    if attempt.moment == "never":
        assert statuses == [0], output
        return
    assert 0 not in statuses
    assert (run.parent / f"record.{attempt.moment}").exists()
    assert "RuntimeError" not in output
    # Before the loop a worker that torchrun ends says nothing.
    if attempt.workers > 1 and attempt.moment != "before_the_first_step":
        assert "the connection to another worker broke" in output


def test_every_launch_goes_on_from_the_last_checkpoint_with_its_own_number_of_workers(broken):
    events = read_events(broken[0] / "log.jsonl", "start")
    found = [(entry["workers"], entry["zero_stage"], entry["step"]) for entry in events]
    assert found == [(attempt.workers, attempt.zero_stage, attempt.begins) for attempt in ATTEMPTS]


def test_every_worker_of_every_launch_read_the_tokens_of_never_stopping(broken, unbroken):
    expected, found = recorded(unbroken.parent / "record"), recorded(broken[0].parent / "record")
    assert [sample for _, sample in sorted(expected)] == list(range(STEPS * SEQUENCES))
    assert {len(digests) for digests in expected.values()} == {1}
    assert found == expected


def test_every_loss_of_every_launch_is_that_of_never_stopping(broken, unbroken):
    run = broken[0]
    expected = losses(unbroken)
    assert list(expected) == list(range(1, STEPS + 1))
    assert set(losses(run)) == set(expected)
    for entry in read_events(run / "log.jsonl", "step"):
        assert entry["loss"] == pytest.approx(expected[entry["step"]], abs=5e-6)
    validations = {entry["step"]: entry["loss"] for entry in read_events(unbroken / "log.jsonl", "validation")}
    for entry in read_events(run / "log.jsonl", "validation"):
        assert entry["loss"] == pytest.approx(validations[entry["step"]], abs=5e-6)


def test_the_run_is_complete_and_leaves_nothing_of_the_killed_one(broken, unbroken):
    run = broken[0]
    assert read_ledger(run)["sources"] == read_ledger(unbroken)["sources"]
    ours, theirs = (checkpoint.read_state(checkpoint.newest(path, pytest.fail)) for path in (run, unbroken))
    for name, tensors in theirs.items():
        for key, tensor in tensors.items():
            assert ours[name][key].sub(tensor).abs().max() < 1e-4
    assert (run / "export" / "model.safetensors").exists()
    names = {str(path.relative_to(run)) for path in run.rglob("*")}
    assert names == {str(path.relative_to(unbroken)) for path in unbroken.rglob("*")}


def test_torchrun_starts_all_again_where_it_is_told_to(corpus_directory, unbroken, tmp_path):
    run = tmp_path / "run"
    script = [WORKER, "amid_a_step", 8, 1, tmp_path / "record"]
    arguments = [
        "pretrain",
        "llama_tiny",
        f"corpus={corpus_directory}",
        f"run={run}",
        *SETTINGS,
        "execution.micro_batch=1",
    ]
    log = tmp_path / "log"
    process = start_torchrun(log, ["--standalone", "--max-restarts", 1, *FORKS], 2, *script, *arguments)
    process.join()
    output = log.read_text()
    assert process.exitcode == 0, output
    assert "RuntimeError" not in output
    assert [entry["step"] for entry in read_events(run / "log.jsonl", "start")] == [0, 5]
    assert losses(run) == pytest.approx(losses(unbroken), abs=5e-6)
    assert recorded(tmp_path / "record") == recorded(unbroken.parent / "record")
