"""The training loop with one worker: resuming, steps that are not finite, full memory and disks, and trainers
that others have replaced.
"""

from dataclasses import replace

import numpy as np
import pytest

from gristmill.errors import UserError
from gristmill.events import read_events
from gristmill.storage.store import read_json, write_json
from tests.trainers import conftest
from tests.trainers.launching import run_command
from tokenizer.vocabulary.definition import read_definition
from trainers.__main__ import main
from trainers.config.architecture import RECURRENT_RATES
from trainers.config.job import BatchSize, Checkpoints, Optimizer, Schedule, TrainingBudget
from trainers.config.pretraining import Data, LengthPhase, Validation
from trainers.data.packed_corpus import open_corpus
from trainers.evaluation.evaluate import evaluate
from trainers.inference.model_export import load_trained
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.recipes import RECIPES, llama_tiny
from trainers.runs import checkpoint
from trainers.runs.resolve import resolve
from trainers.runs.run import SupersededError, begin_attempt, open_run

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("alone"),
]
STEPS = 6


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


def small(corpus, stage=0, **changes):
    recipe = llama_tiny()
    settings = {
        "batch": BatchSize(sequences=2),
        "budget": TrainingBudget(steps=STEPS),
        "schedule": Schedule(warmup_steps=1),
        "validation": Validation(every=STEPS, tokens=128),
        "checkpoints": Checkpoints(every=1, keep=STEPS),
        "log_every": 1,
        "execution": replace(recipe.execution, zero_stage=stage, micro_batch=1, peak_tflops=1.0),
    }
    changed = replace(recipe, **{**settings, **changes})
    return resolve(changed, corpus)


def train(corpus, run, stage=0, **changes):
    from trainers.training.loop import train

    config = small(corpus, stage, **changes)
    open_run(run, config, corpus)
    train(config, corpus, run, None)


def launched(corpus, run, execution):
    from trainers.training.launch import launch

    config = small(corpus, batch=BatchSize(sequences=5), execution=execution)
    open_run(run, config, corpus)
    launch(config, corpus, run, 1, None)


@pytest.fixture
def not_finite(monkeypatch):
    """A function that makes the loss of a micro-batch, or only its gradient, non-finite at given updates,
    counted from 1.
    """
    import torch

    from trainers.engine.forward import Forward

    whole, calls = Forward.forward, []

    def choose(steps, first=1):
        def forward(self, **arrays):
            nats = whole(self, **arrays)
            if not self.training:
                return nats
            calls.append(arrays)
            number, half = divmod(len(calls) - 1, 2)
            wrong = steps.get(number + first) if half == 0 else None
            if wrong == "gradient":  # the square root's slope is infinite at 0
                return {name: its + torch.sqrt(its * 0) for name, its in nats.items()}
            return {name: its * float("nan") for name, its in nats.items()} if wrong == "loss" else nats

        calls.clear()
        monkeypatch.setattr(Forward, "forward", forward)

    return choose


def losses(run):
    return {entry["step"]: entry["loss"] for entry in read_events(run / "log.jsonl", "step")}


def weights(run, step):
    found = checkpoint.read_state(checkpoint.newest(run, pytest.fail, step))
    return {(name, key): value for name, tensors in found.items() for key, value in tensors.items()}


@pytest.mark.parametrize("recipe", ["tiny_awd_lstm", "tiny_character_elmo"])
def test_a_recurrent_model_with_dropout_resumes_exactly(corpus_directory, tmp_path, not_finite, recipe):
    """Recurrent states do not outlive a step, and dropout masks depend on the step number. Models that read
    characters take them from the tokenizer, in training and afterwards. With windows, a step makes several
    updates, or fewer if one of them is not finite.
    """
    run, whole, windows = tmp_path / "run", RECIPES[recipe](), recipe == "tiny_awd_lstm"
    corpus = open_corpus((str(corpus_directory),), None, whole.objective.frame)
    model = {"model": whole.model, "objective": whole.objective}
    if windows:
        model["data"] = replace(whole.data, corpora=(str(corpus_directory),), bptt=16)
        not_finite({10: "gradient"})  # the second of the four updates of step 3
    assert all(
        getattr(whole.model, name) > 0 for name in ("dropout", *RECURRENT_RATES) if name in whole.model.traits.has
    )
    train(corpus, run, **model)
    expected = losses(run)
    (logged,) = read_events(run / "log.jsonl", "validation")
    assert evaluate(run, (str(corpus_directory),))["loss"] == pytest.approx(logged["loss"], abs=1e-5)
    if whole.model.character_filters:
        text = read_definition(str(run / "tokenizer.json")).token_bytes(300)
        assert load_trained(run).model.elmo.embed.table[300, 1 : 1 + len(text)].tolist() == list(text)
    counts = [checkpoint.newest(run, pytest.fail, step).updates for step in range(1, STEPS + 1)]
    assert counts == ([4, 8, 9, 13, 17, 21] if windows else [1, 2, 3, 4, 5, 6])
    told = [event["message"] for event in read_events(run / "log.jsonl", "skipped")]
    assert [message.partition(":")[0] for message in told] == windows * [
        "step 3 is not finite and ends after 1 of its updates"
    ]
    not_finite({})
    final = weights(run, STEPS)
    final = {name: value.clone() for name, value in final.items()}  # the file is mapped, and damaged below
    for step in range(4, STEPS + 1):
        (run / "checkpoints" / f"step-{step:08d}" / "model.safetensors").write_bytes(b"")
    for name in ("log.jsonl", "finished.json"):
        (run / name).unlink()
    train(corpus, run, **model)
    assert losses(run) == pytest.approx({step: expected[step] for step in (4, 5, 6)}, abs=1e-6)
    again = weights(run, STEPS)
    assert all(np.allclose(final[name], again[name], atol=1e-6) for name in final)


@pytest.mark.parametrize("wrong", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing_and_is_recorded(corpus, tmp_path, not_finite, wrong):
    run = tmp_path / "run"
    not_finite({3: wrong})
    train(corpus, run)
    (skipped,) = read_events(run / "log.jsonl", "skipped")
    assert (skipped["step"], skipped["in_row"]) == (3, 1)
    assert f"loss {'nan' if wrong == 'loss' else ''}" in skipped["message"]
    assert list(losses(run)) == [1, 2, 4, 5, 6]
    before, after, later = weights(run, 2), weights(run, 3), weights(run, 4)
    assert all(before[name].equal(after[name]) for name in before)
    assert not all(after[name].equal(later[name]) for name in before)

    # Resuming after it equals not stopping: AdamW's count leaves the skipped step out.
    expected = losses(run)
    for step in (5, 6):
        (run / "checkpoints" / f"step-{step:08d}" / "model.safetensors").write_bytes(b"")
    for name in ("log.jsonl", "finished.json"):
        (run / name).unlink()
    not_finite({})
    train(corpus, run)
    assert losses(run) == pytest.approx({step: expected[step] for step in (5, 6)}, abs=1e-6)
    assert "CORRUPT CHECKPOINT of step 6" in read_events(run / "log.jsonl", "warning")[0]["message"]


def test_too_many_in_a_row_stop_the_run_and_the_knob_is_named(corpus, tmp_path, not_finite):
    not_finite({1: "loss", 3: "loss", 4: "gradient", 5: "loss"})
    with pytest.raises(UserError, match=r"3 steps in a row up to step 5 .*optimizer\.max_skipped_in_row allows 2"):
        train(corpus, tmp_path / "run", optimizer=Optimizer(max_skipped_in_row=2))
    assert len(read_events(tmp_path / "run" / "log.jsonl", "skipped")) == 4
    assert checkpoint.newest(tmp_path / "run", pytest.fail).step == 4


def test_a_run_continues_without_excluded_documents_and_its_past_is_unchanged(corpus, tmp_path):
    from trainers.data.packed_corpus import training_data
    from trainers.data.sequence_documents import ids_of
    from trainers.runs.run import read_config

    run = tmp_path / "run"
    train(corpus, run)
    expected = {entry["step"]: entry for entry in read_events(run / "log.jsonl", "step")}
    for step in (4, 5, 6):
        (run / "checkpoints" / f"step-{step:08d}" / "model.safetensors").write_bytes(b"")
    for name in ("log.jsonl", "finished.json"):
        (run / name).unlink()
    config = read_config(run)
    samples = training_data(corpus, config).order.take(8, 1)  # the first sequence of step 5
    source = corpus.train[sorted(corpus.train)[samples.source[0]]]
    ids = ids_of(source, int(samples.sequence[0]), config.data.sequence_length)
    (tmp_path / "garbage.txt").write_text("\n".join(identifier.hex() for identifier in ids))
    arguments = [f"corpus={corpus.directory}", f"run={run}", "--exclude-documents", str(tmp_path / "garbage.txt")]
    assert main(["pretrain", str(run / "resolved.yaml"), *arguments]) == 0
    found = {entry["step"]: entry for entry in read_events(run / "log.jsonl", "step")}
    assert found[4]["loss"] == pytest.approx(expected[4]["loss"], abs=1e-6)
    predicted, before = (
        {step: sum(source["tokens"] for source in entry["sources"].values()) for step, entry in entries.items()}
        for entries in (found, expected)
    )
    assert predicted[4] == before[4]
    assert predicted[5] <= before[5] - samples.tokens[0]
    assert found[5]["tokens"] == expected[5]["tokens"]  # they are read all the same
    assert found[5]["loss"] != expected[5]["loss"]
    assert read_events(run / "log.jsonl", "excluded")[0]["documents"] == len(set(ids))


def test_steps_without_targets_are_reported(corpus, tmp_path, monkeypatch):
    run, sources = tmp_path / "run", corpus.train.values()
    ids = {i for source in sources for n in range(len(source.shards)) for i in source.shard(n).doc_ids.to_pylist()}
    monkeypatch.setattr("trainers.training.loop.read_excluded", lambda _: frozenset(ids))
    train(corpus, run)
    told = [event["message"] for event in read_events(run / "log.jsonl", "warning")]
    assert len(told) == STEPS
    assert "NOTHING WAS PREDICTED up to step 1" in told[0]
    assert not read_events(run / "log.jsonl", "step")


def flops_at(corpus, length):
    from trainers.engine.hardware.mfu import flops_of
    from trainers.models import build_model

    config = small(corpus)
    return flops_of(build_model(config.model, corpus.tokenizer.specials, 0), config.model, length)


@pytest.mark.parametrize("kept", [2, 3, 4])
def test_a_run_of_two_lengths_resumes_within_either(corpus, tmp_path, kept):
    from trainers.data.packed_corpus import training_data
    from trainers.runs.ledger import read_ledger
    from trainers.runs.run import read_config

    run = tmp_path / "run"
    phases = (LengthPhase(until_step=3, sequence_length=32),)
    train(corpus, run, data=Data(sequence_length=64, phases=phases, packing="documents"))
    expected, ledger = read_events(run / "log.jsonl", "step"), read_ledger(run)
    for entry in expected:
        length, targets = (32 if entry["step"] <= 3 else 64), sum(s["tokens"] for s in entry["sources"].values())
        operations = entry["mfu"] * 1e12 / entry["tokens_per_second"] * targets
        assert operations == pytest.approx(flops_at(corpus, length).of(targets, 0, targets), rel=1e-9)
    for step in range(kept + 1, STEPS + 1):
        (run / "checkpoints" / f"step-{step:08d}" / "model.safetensors").write_bytes(b"")
    for name in ("log.jsonl", "finished.json", "ledger.json"):
        (run / name).unlink()
    order = training_data(corpus, read_config(run)).order
    assert checkpoint.newest(run, lambda _: None).order == order.state(kept * 2)
    assert main(["pretrain", str(run / "resolved.yaml"), f"corpus={corpus.directory}", f"run={run}"]) == 0
    found = {entry["step"]: entry for entry in read_events(run / "log.jsonl", "step")}
    assert sorted(found) == list(range(kept + 1, STEPS + 1))
    for entry in expected[kept:]:
        assert found[entry["step"]]["loss"] == pytest.approx(entry["loss"], abs=1e-6)
        for name in ("tokens", "data"):
            assert found[entry["step"]][name] == entry[name]
    assert read_ledger(run)["sources"] == ledger["sources"]
    padding = sum(entry["padding"] for entry in ledger["sources"].values())
    tokens = sum(entry["tokens"] for entry in ledger["sources"].values())
    assert tokens + padding == 3 * 2 * 32 + 3 * 2 * 64
    assert tokens == read_config(run).budget.tokens


def test_an_automatic_micro_batch_is_halved_when_memory_runs_out(corpus, tmp_path, monkeypatch):
    import torch

    from trainers.engine.forward import Forward

    execution = replace(small(corpus).execution, micro_batch="auto", zero_stage=2)
    train(corpus, tmp_path / "whole", batch=BatchSize(sequences=5), execution=execution)
    forward = Forward.forward

    def of_two_rows(self, **arrays):
        if self.training and arrays["inputs"].device.type == "cpu" and len(arrays["inputs"]) > 2:
            raise torch.OutOfMemoryError("no memory")
        return forward(self, **arrays)

    monkeypatch.setattr(Forward, "forward", of_two_rows)
    train(corpus, tmp_path / "halved", batch=BatchSize(sequences=5), execution=execution)
    warnings = read_events(tmp_path / "halved" / "log.jsonl", "warning")
    assert [warning["micro_batch"] for warning in warnings] == [3, 2]
    (start,) = read_events(tmp_path / "whole" / "log.jsonl", "start")
    assert (start["micro_batch"], start["accumulation"]) == (5, 1)
    assert start["zero_stage"] == 0  # a single worker does not use DeepSpeed
    assert losses(tmp_path / "halved") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    with pytest.raises(UserError, match=r"ran out of memory\. Lower execution.micro_batch"):
        launched(corpus, tmp_path / "fixed", replace(execution, micro_batch=4))


def test_validation_documents_too_short_for_the_objective_give_no_loss(tmp_path, monkeypatch):
    from trainers.evaluation.evaluate import evaluate

    held_out, made = {count for counts in conftest.VALIDATION.values() for count in counts}, conftest.documents
    short = [np.array([200], np.uint16)]
    monkeypatch.setattr(conftest, "documents", lambda rng, n: short * n if n in held_out else made(rng, n))
    monkeypatch.setattr(conftest, "_shards", conftest._shards.__wrapped__)  # else those of other documents
    directory = conftest.build_corpus(tmp_path / "corpus")
    train(open_corpus((str(directory),), None, SpanCorruption.frame), tmp_path / "run", objective=SpanCorruption())
    assert len(losses(tmp_path / "run")) == STEPS
    assert read_events(tmp_path / "run" / "log.jsonl", "validation") == []
    with pytest.raises(UserError, match="no targets for the span_corruption objective"):
        evaluate(tmp_path / "run", (str(directory),))


@pytest.mark.parametrize("at", [2, 3, STEPS])
def test_workers_that_were_cut_off_end_where_others_go_on(corpus, tmp_path, monkeypatch, at):
    from trainers.engine.engine import Engine
    from trainers.training.loop import train as attempt_of

    run, config = tmp_path / "run", small(corpus)
    open_run(run, config, corpus)
    whole = Engine.train_step

    def train_step(self, batches, step, *others):
        if step + 1 == at:
            begin_attempt(run)
        return whole(self, batches, step, *others)

    monkeypatch.setattr(Engine, "train_step", train_step)
    with pytest.raises(SupersededError, match="other workers have continued"):
        attempt_of(config, corpus, run, None, begin_attempt(run))
    assert [entry["step"] for entry in read_events(run / "log.jsonl", "step")] == list(range(1, at))
    assert checkpoint.newest(run, pytest.fail).step == at - 1
    assert not (run / "finished.json").exists()
    assert not (run / "export").exists()


def test_a_disk_that_is_full_ends_a_worker_with_one_line(corpus, tmp_path):
    """On Ray, a worker's OSError would otherwise reach the user as a Ray traceback."""
    from trainers.training.launch import launch

    run, config = tmp_path / "run", small(corpus)
    open_run(run, config, corpus)
    (run / "log.jsonl").symlink_to("/dev/full")
    with pytest.raises(
        UserError, match=r"run: worker 0: .*log\.jsonl: .*; fix that and run the same command, which continues"
    ):
        launch(config, corpus, run, 1, print)


def test_a_trainer_that_stood_still_leaves_the_ledger_of_the_one_that_finished(corpus, tmp_path, monkeypatch):
    """The suspended trainer has already checked that no other trainer has taken over, and resumes as it
    writes its ledger.
    """
    from trainers.runs import ledger
    from trainers.training import loop

    run, config = tmp_path / "run", small(corpus)
    open_run(run, config, corpus)
    whole, waiting = ledger.write_json, ["another"]

    def late(path, value):
        if waiting:
            waiting.pop()
            settings = [str(run / "resolved.yaml"), f"corpus={corpus.directory}", f"run={run}"]
            status, output = run_command(tmp_path / "output", "pretrain", *settings)
            assert status == 0, output
        whole(path, value)

    monkeypatch.setattr(ledger, "write_json", late)
    with pytest.raises(SupersededError):
        loop.train(config, corpus, run, None, begin_attempt(run))
    assert read_json(run / "finished.json")["step"] == ledger.read_ledger(run)["step"] == STEPS


def test_a_finished_run_whose_ledger_is_of_an_earlier_step_is_put_right(corpus, tmp_path):
    """This happens if a suspended trainer is killed just after it has written an old ledger."""
    from trainers.runs.ledger import read_ledger

    run = tmp_path / "run"
    train(corpus, run)
    whole = read_ledger(run)
    write_json(run / "ledger.json", whole | {"step": 2})
    assert main(["pretrain", str(run / "resolved.yaml"), f"corpus={corpus.directory}", f"run={run}"]) == 0
    assert read_ledger(run) == whole
