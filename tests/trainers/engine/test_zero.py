"""ZeRO stage, number of workers, micro-batch size and loader threads change neither the tokens nor the losses
(to 5 decimals in fp32), for every family of models and every objective.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from itertools import combinations, pairwise, product
from pathlib import Path

import pytest

from gristmill.events import read_events
from tests.trainers.engine.zero_worker import (
    FAMILIES,
    FAMILY_STEPS,
    POISONED_STEP,
    WORLDS_OF,
    execution,
    pretraining_of,
)
from tests.trainers.launching import (
    ROOT,
    SEQUENCES,
    SETTINGS,
    STEPS,
    environment,
    losses,
    recorded,
    run_command,
    run_workers,
    start_command,
)
from trainers.evaluation.scoring.scorer import Scorer
from trainers.objectives import OBJECTIVES
from trainers.runs.ledger import read_ledger

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]
WORLDS, STAGES = (1, 2, 3), (0, 1, 2, 3)
HALF = STEPS // 2
PARTS = ("_loss", "_share", "_accuracy")  # how fields of the log end that no execution changes
NAMES = [f"stage{stage}" for stage in STAGES]
# The stages are run by every number of workers, each family by one and by several.
RUNS = [*product(WORLDS, NAMES), *((world, family) for family in FAMILIES for world in WORLDS_OF[family])]


@pytest.fixture(scope="module")
def corpora(corpus_directory, salient_directory):
    return corpus_directory, salient_directory


@pytest.fixture(scope="module")
def launched(corpora, tmp_path_factory):
    """A function that launches the runs for a number of workers once, and returns their directory."""

    @cache
    def directory(world):
        output = tmp_path_factory.mktemp(f"world{world}")
        statuses, printed = run_workers(world, Path(__file__).with_name("zero_worker.py"), *corpora, output)
        assert not any(statuses), printed[-4000:]
        return output

    return directory


def test_every_pair_of_settings_is_run():
    rows = [{"world": world, **execution(stage, world)} for stage, world in product(STAGES, WORLDS)]
    for one, other in combinations(rows[0], 2):
        values = [{row[name] for row in rows} for name in (one, other)]
        assert {(row[one], row[other]) for row in rows} == set(product(*values))
        assert all(len(found) >= 3 for found in values)


def test_every_objective_is_run():
    assert {"causal", *(pretraining_of(family).objective.kind for family in FAMILIES)} == set(OBJECTIVES)


def steps_of(name):
    return FAMILY_STEPS if name in FAMILIES else STEPS


@pytest.mark.parametrize(("world", "name"), RUNS)
def test_every_execution_gives_the_same_losses(launched, world, name):
    reference = launched(1) / (name if name in FAMILIES else "stage0")
    expected, found = losses(reference), losses(launched(world) / name)
    assert list(found) == list(range(1, steps_of(name) + 1))
    assert found == pytest.approx(expected, abs=5e-6)
    assert name in FAMILIES or expected[STEPS] < expected[1] - 0.5
    parts = {part for entry in read_events(reference / "log.jsonl", "step") for part in entry if part.endswith(PARTS)}
    for part in parts:  # of a loss, and shares beside it
        assert losses(launched(world) / name, part) == pytest.approx(losses(reference, part), abs=5e-6)
    validations = [read_events(run / "log.jsonl", "validation") for run in (launched(world) / name, reference)]
    for entry, other in zip(*validations, strict=True):
        assert entry["loss"] == pytest.approx(other["loss"], abs=5e-6)


@pytest.mark.parametrize(("world", "name"), RUNS)
def test_every_execution_reads_the_same_tokens_at_the_same_step(launched, world, name):
    expected = recorded(launched(1) / f"{name if name in FAMILIES else 'stage0'}.record")
    assert {sample // SEQUENCES + 1 for _, sample in expected} == {step for step, _ in expected}
    assert len(expected) == SEQUENCES * steps_of(name)
    assert {len(digests) for digests in expected.values()} == {1}
    assert recorded(launched(world) / f"{name}.record") == expected


@pytest.mark.parametrize("name", [*NAMES, *FAMILIES])
def test_resuming_half_way_equals_not_stopping_also_under_another_stage(launched, name):
    output = launched(WORLDS_OF[name][-1] if name in FAMILIES else 2)
    whole, resumed = output / name, output / f"{name}-resumed"
    expected, found = losses(whole), losses(resumed)
    assert list(found) == list(range(steps_of(name) // 2 + 1, steps_of(name) + 1))
    assert found == pytest.approx({step: expected[step] for step in found}, abs=5e-6)
    validations = [read_events(run / "log.jsonl", "validation")[-1] for run in (whole, resumed)]
    assert validations[0]["loss"] == pytest.approx(validations[1]["loss"], abs=5e-6)


@pytest.mark.parametrize("name", ["tiny_canine", "tiny_canine_c", "tiny_elmo"])
@pytest.mark.parametrize("world", [1, 2])
def test_another_number_of_workers_resumes_exactly(launched, corpora, tmp_path, name, world):
    """One worker continues the first half of a run of two or three workers, or two workers continue that of
    one. The losses equal those of the uninterrupted run.
    """
    trained = WORLDS_OF[name][-1] if world == 1 else 1
    whole, last = launched(trained) / name, f"step-{FAMILY_STEPS:08d}"
    shutil.copytree(whole, tmp_path / name, ignore=shutil.ignore_patterns(last, "finished.json", "export", "log*"))
    given = Path(__file__).with_name("zero_worker.py"), *corpora, tmp_path, name
    statuses, printed = run_workers(world, *given)
    assert not any(statuses), printed[-4000:]
    expected, found = losses(whole), losses(tmp_path / name)
    assert list(found) == list(range(FAMILY_STEPS // 2 + 1, FAMILY_STEPS + 1))
    assert found == pytest.approx({step: expected[step] for step in found}, abs=5e-6)
    assert recorded(tmp_path / f"{name}.record").items() <= recorded(launched(trained) / f"{name}.record").items()


@pytest.mark.parametrize("name", ["stage0", "tiny_roberta", "tiny_t5"])
def test_every_execution_gives_a_model_with_the_same_likelihoods(launched, name):
    contexts, continuations = (
        ["a cab bade", "", "fed a hag", "a big head"],
        [" a dead face", "bag", " cafe", " fed a deaf hag"],
    )
    names = [name] if name in FAMILIES else NAMES
    found = {
        (world, each): Scorer.open(launched(world) / each).score(contexts, continuations).log_likelihood
        for world, each in RUNS
        if each in names
    }
    expected = found[1, name]
    assert max(expected) < -1
    for likelihoods in found.values():
        assert likelihoods == pytest.approx(expected, abs=1e-4)


def test_ledger_and_log_record_requested_and_read_tokens_for_any_execution(launched):
    runs = [launched(world) / name for world in WORLDS for name in NAMES]
    ledgers = [read_ledger(run) for run in [*runs, *(launched(2) / f"{name}-resumed" for name in NAMES)]]
    assert all(ledger["sources"] == ledgers[0]["sources"] for ledger in ledgers)
    assert (ledgers[0]["step"], ledgers[0]["samples"]) == (STEPS, STEPS * SEQUENCES)
    logged = read_events(launched(2) / "stage0" / "log.jsonl", "step")[-1]
    assert logged["data"] == ledgers[0]["sources"]
    assert logged["tokens"] == sum(source["tokens"] for source in ledgers[0]["sources"].values())


def test_a_loss_that_is_no_number_on_one_worker_is_skipped_by_all(launched):
    expected, found = (
        losses(launched(2) / "stage0"),
        [losses(launched(2) / name) for name in ("poisoned0", "poisoned2")],
    )
    before = {step: expected[step] for step in range(1, POISONED_STEP)}
    for run in found:
        assert list(run) == [step for step in range(1, STEPS + 1) if step != POISONED_STEP]
        assert {step: run[step] for step in before} == pytest.approx(before, abs=5e-6)
    assert found[0] == pytest.approx(found[1], abs=5e-6)
    assert read_events(launched(2) / "poisoned2" / "log.jsonl", "skipped")[0]["step"] == POISONED_STEP


def test_files_that_take_longer_than_the_time_limit_of_collectives_end_no_run(launched):
    """The time limit is 2 s. The two checkpoints, the search for a checkpoint and the export each take at
    least 3 s.
    """
    run = launched(2) / "slow_writer"
    assert len(read_events(run / "log.jsonl", "checkpoint")) == 2
    assert read_events(run / "log.jsonl", "finished")
    times = [entry["time"] for entry in read_events(run / "log.jsonl") if entry["event"] in ("step", "checkpoint")]
    assert max(after - before for before, after in pairwise(times)) > 3


def test_one_worker_resumes_the_run_of_two_is_stopped_and_resumes_again(launched, corpus_directory, tmp_path):
    """Covers a change in the number of workers, SIGTERM, a run that resumes twice, and a finished run that
    has nothing to do.
    """
    run = tmp_path / "run"
    ignored = shutil.ignore_patterns(f"step-{STEPS:08d}", "finished.json", "export", "log*")
    shutil.copytree(launched(2) / "stage3", run, ignore=ignored)
    settings = [*SETTINGS, f"checkpoints={{every: {HALF}, keep: 3}}", f"corpus={corpus_directory}", f"run={run}"]
    command, log = ["pretrain", "llama_tiny", *settings], tmp_path / "log"
    first = start_command(log, *command)
    while not (run / "log.jsonl").exists() or HALF + 1 not in losses(run):
        assert first.is_alive(), log.read_text()
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGTERM)
    first.join(120)
    output = log.read_text()
    assert first.exitcode == 0, output
    stopped = max(losses(run))
    if stopped < STEPS:
        assert f"at step {stopped}, checkpoint saved" in output

    status, output = run_command(log, *command)
    assert status == 0, output
    assert list(losses(run)) == list(range(HALF + 1, STEPS + 1))
    expected = losses(launched(1) / "stage0")
    assert losses(run) == pytest.approx({step: expected[step] for step in losses(run)}, abs=5e-6)
    check_export(run, corpus_directory)

    before = (run / "log.jsonl").read_bytes()
    again = [sys.executable, "-m", "trainers", *command]
    third = subprocess.run(again, env=environment(), cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"finished at step {STEPS}, nothing to do" in third.stdout
    assert (run / "log.jsonl").read_bytes() == before


def check_export(run, corpus_directory):
    """Assert that the exported model, evaluated with plain transformers, has the logged validation loss."""
    from trainers.evaluation.evaluate import evaluate

    logged = read_events(run / "log.jsonl", "validation")[-1]
    found = evaluate(run / "export", (str(corpus_directory),))
    assert found["loss"] == pytest.approx(logged["loss"], abs=1e-4)
    for name, source in logged["sources"].items():
        assert {key: found["sources"][name][key] for key in source} == pytest.approx(source, abs=1e-4)
