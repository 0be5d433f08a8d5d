"""Opening the tasks of a fine-tuning run from files: splits, fingerprint, length limits, and errors in a base
model.
"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from gristmill.storage.store import write_json
from tests.trainers.data.examples.conftest import sentences
from tokenizer.encode import Encoder
from trainers.adapters.virtual.multitask_prompt import MultitaskPrompt
from trainers.config.architecture import Model, fill
from trainers.config.finetuning import Encoding, Finetuning
from trainers.config.job import BatchSize, Init, TrainingBudget
from trainers.data.examples.task_corpus import open_tasks, task_split, task_training, task_validation
from trainers.rows.task_outputs import TaskOutputs
from trainers.runs.resolve_finetuning import resolve_finetuning
from trainers.tasks.predictions import score_predictions
from trainers.tasks.schema.task import Task

TASK = {
    "kind": "classify",
    "name": "toy",
    "files": {"train": "train.jsonl", "dev_one": "dev.jsonl", "dev_two": "dev.jsonl", "test": "test.jsonl"},
    "columns": {"text": "text", "label": "label"},
    "labels": ["short", "long"],
    "metrics": ["accuracy"],
    "unlabelled": [],
}


def write(path, values):
    rows = [{"text": value, "label": "long" if len(value) > 30 else "short"} for value in values]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "files"
    folder.mkdir()
    for number, (split, count) in enumerate((("train", 40), ("dev", 12), ("test", 6))):
        write(folder / f"{split}.jsonl", sentences(count, seed=100 + number))
    return folder


@pytest.fixture
def base(tmp_path, tokenizer_files):
    folder = tmp_path / "base"
    folder.mkdir()
    shutil.copy(tokenizer_files["byte_bpe"], folder / "tokenizer.json")
    return folder


def job_of(base, files, **fields):
    model = fill(Model("roberta", layers=1, width=32, heads=2, positions=64), 420)
    task = parse(Task, {**TASK, **fields.pop("task", {})}, "toy.yaml")
    init = None if base is None else Init(str(base))
    budget = (BatchSize(sequences=8), TrainingBudget(steps=1))
    return Finetuning(
        name="toy", model=model, batch=budget[0], budget=budget[1], tasks=(task,), files=str(files), init=init, **fields
    )


def test_a_split_that_shares_examples_with_train_is_refused_each_time(base, files):
    write(files / "dev.jsonl", sentences(12, seed=100))  # the first of the training split
    job = job_of(base, files)
    corpus = open_tasks(job)
    for _ in range(2):
        with pytest.raises(UserError, match="remove the copies from one of the files"):
            corpus.examples(job.tasks[0], "dev_one")


def test_the_splits_of_a_run(base, files):
    """A run trains on the train split and is validated on the first dev split. Any other split can be
    predicted.
    """
    job = job_of(base, files)
    corpus = open_tasks(job)
    data, held_out = task_training(corpus, job), task_validation(corpus, job)
    assert (len(data.tasks[0]), len(held_out.tasks[0])) == (40, 12)
    assert held_out.examples[0].split == "dev_one"
    assert len(task_split(corpus, job, "test").tasks[0]) == 6
    assert corpus.tokenizer.specials["<cls>"] == 5
    assert data.row_lengths == [64]
    batch = next(data.split(data.order.take(0, 8), 8, 0, 1))
    assert len(batch.task.labels) == 8


def test_the_tokenizer_of_a_corpus_step_serves_a_control_without_pretraining(base, files):
    """The directory of such a tokenizer contains a build's run.json, which records no special tokens."""
    write_json(base / "run.json", {"seconds": 1.0})
    job = replace(job_of(None, files), tokenizer=str(base / "tokenizer.json"))
    assert open_tasks(job).tokenizer.specials["<cls>"] == 5


def test_a_task_without_dev_is_not_validated(base, files):
    job = job_of(base, files, task={"files": {"train": "train.jsonl"}})
    assert task_validation(open_tasks(job), job).sources == ()


def test_the_fingerprint_is_of_content(base, files, tmp_path):
    job = job_of(base, files)
    shutil.copytree(files, tmp_path / "elsewhere")
    first = open_tasks(job).fingerprint
    assert open_tasks(job_of(base, tmp_path / "elsewhere")).fingerprint == first
    assert open_tasks(job_of(base, files, task={"labels": ["long", "short"]})).fingerprint != first
    write(files / "test.jsonl", sentences(9, seed=7))
    assert open_tasks(job).fingerprint == first
    write(files / "train.jsonl", sentences(41, seed=100))
    assert open_tasks(job).fingerprint != first


def test_lengths_count_virtual_tokens_and_prefixes(base, files, monkeypatch):
    """`max_length` includes virtual tokens. A prefix takes up positions but no tokens."""
    job = job_of(base, files, encoding=Encoding(max_length=20))
    assert task_training(open_tasks(job), job).length == 20
    monkeypatch.setattr(type(job.method), "virtual_tokens", 5)
    data = task_training(open_tasks(job), job)
    assert data.length == 15
    assert data.tasks[0].sizes.max() == 20
    monkeypatch.setattr(type(job.method), "virtual_tokens", 0)
    monkeypatch.setattr(type(job.method), "prefix_length", 50)
    assert task_training(open_tasks(job), job).length == 14


def test_t5_reads_longer_inputs_than_it_has_positions(base, files, monkeypatch):
    """In T5, a prefix takes up no positions."""
    model = fill(Model("t5", layers=1, width=32, heads=2, positions=16), 420)
    job = job_of(None, files, encoding=Encoding(max_length=40), tokenizer=str(base / "tokenizer.json"))
    job = replace(job, model=model)
    corpus = open_tasks(job)
    job = resolve_finetuning(job, corpus)
    monkeypatch.setattr(type(job.method), "prefix_length", 5)
    data, held_out = task_training(corpus, job), task_validation(corpus, job)
    assert data.length == held_out.length == 40
    assert data.tasks[0].sizes.max() > 16


def test_every_task_has_the_virtual_tokens_that_its_method_gives_it(base, files):
    """With `multitask_prompt`, the virtual tokens of the second task follow those of the first."""
    job = job_of(base, files, method=MultitaskPrompt(tokens=3, tasks=2), encoding=Encoding(packed=False))
    job = replace(job, tasks=(job.tasks[0], replace(job.tasks[0], name="other")))
    corpus = open_tasks(job)
    data = task_training(corpus, job)
    first = job.model.vocab_size
    for batch in data.split(data.order.take(0, 16), 16, 0, 1):
        filled = batch.sample >= 0
        assert set(batch.source[filled]) == {0, 1}
        expected = first + 3 * batch.source[filled][:, None] + np.arange(3)
        assert (batch.inputs[filled][:, :3] == expected).all()
    with pytest.raises(ConfigError, match=r"method.tasks: got 1, the run has more; set it to 2 or more"):
        task_training(corpus, replace(job, method=MultitaskPrompt(tokens=3)))


def test_a_prompt_begins_from_the_tokens_of_a_text(base, files):
    corpus = open_tasks(job_of(base, files))
    tokenizer = Encoder.load(str(base / "tokenizer.json"))
    assert corpus.encode("It was") == tokenizer.encode(pa.array(["It was"], pa.large_string()))[0].tolist()


def test_a_run_tells_the_roles_of_its_specials(base, files):
    write_json(base / "run.json", {"specials": {"<bos>": 7, "<eos>": 8}})
    assert open_tasks(job_of(base, files)).tokenizer.specials == {"<bos>": 7, "<eos>": 8}


def test_a_new_model_reads_with_the_tokenizer_that_is_named(base, files):
    job = job_of(None, files, tokenizer=str(base))
    assert len(task_training(open_tasks(job), job).tasks[0]) == 40
    assert open_tasks(job_of(None, files, tokenizer=str(base / "tokenizer.json"))).tokenizer.vocab_size == 420
    with pytest.raises(ConfigError, match=r"^tokenizer: missing; a model without a base needs tokenizer=FILE"):
        open_tasks(job_of(None, files))


def test_a_base_without_a_tokenizer_is_refused(base, files):
    (base / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer.json.*; give a base with an intact tokenizer.json$"):
        open_tasks(job_of(base, files))
    (base / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer.json: no such file; the base's directory must hold"):
        open_tasks(job_of(base, files))


def test_examples_of_train_in_dev_are_refused(base, files):
    job = job_of(base, files)
    shutil.copy(files / "train.jsonl", files / "dev.jsonl")
    with pytest.raises(UserError, match=r"toy: 40 examples of dev_one have the text of some of train"):
        task_validation(open_tasks(job), job)


def test_the_same_inputs_whatever_the_dev_split(base, files):
    job = job_of(base, files)
    corpus = open_tasks(job)
    validated = task_validation(corpus, job).tasks[0]
    other = task_split(corpus, job, "dev_two").tasks[0]
    assert np.array_equal(validated.lengths, other.lengths)


def test_a_split_is_predicted_and_scored(base, files):
    """The outputs of a head become predictions of examples. A perfect head gets every example right, and an
    inverted head gets every example wrong.
    """
    job = job_of(base, files)
    held_out = task_split(open_tasks(job), job, "test")
    labels = held_out.examples[0].labels
    found = held_out.predictions(TaskOutputs(np.arange(6), np.eye(2)[labels]), "perfect")
    assert score_predictions(found, repetitions=0)["accuracy"].value == 1.0
    assert found.model == "perfect"
    found = held_out.predictions(TaskOutputs(np.arange(6), np.eye(2)[1 - labels]))
    assert score_predictions(found, repetitions=0)["accuracy"].value == 0.0


def test_any_task_is_solved_as_text(base, files):
    """Sources and targets follow the templates and use the vocabulary of the base model."""
    model = fill(Model("gpt2", layers=1, width=32, heads=2, positions=128), 420)
    templates = {
        "input": "How long is {text}",
        "target": "It is {label}",
        "words": {"short": "brief", "long": "lengthy"},
    }
    job = replace(job_of(base, files, task={"templates": templates}), model=model, encoding=Encoding(text_to_text=True))
    held_out = task_split(open_tasks(job), job, "test")
    definition = Encoder.load(str(base))
    text = held_out.examples[0].texts[0][2].as_py()
    label = ("brief", "lengthy")[held_out.examples[0].labels[2]]
    source, target = held_out.tasks[0].render(np.array([2])), held_out.tasks[0].render_targets(np.array([2]))
    assert definition.decode(source.ids) == f"<bos>How long is {text}"
    assert definition.decode(target.ids) == f"It is {label}<eos>"
    assert held_out.tasks[0].kind == "text_to_text"
    written = ["It is brief", "It is LENGTHY", "brief", "nothing", "It is brief", "It is brief"]
    found = held_out.written_predictions(written, "model")
    assert found.outcomes.predicted.tolist() == [0, 1, 0, -100, 0, 0]
