"""Fine-tuning from the command line: what a run writes, which checkpoint it keeps, and when it ends."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.errors import ConfigError, UserError
from gristmill.events import read_events
from gristmill.storage.store import read_json, write_json
from trainers.__main__ import main, parser
from trainers.adapters.weights.full import Full
from trainers.commands.finetune import _finetune
from trainers.config.finetuning import Encoding
from trainers.config.job import BatchSize
from trainers.data.examples.task_corpus import open_tasks, task_training
from trainers.engine.forward import Forward
from trainers.recipes.decoders import tiny_gpt2
from trainers.recipes.finetuning_recipe import finetune
from trainers.recipes.tiny_encoders import tiny_roberta
from trainers.runs.resolve_finetuning import describe_tasks, resolve_finetuning
from trainers.runs.run import FORMAT
from trainers.tasks.load_task import load_task
from trainers.tasks.predictions import read_predictions

WORDS = ("abcd", "bcde", "cdef", "defg", "efgh")
TASK = """
kind: classify
files: {train: train.jsonl, dev: dev.jsonl, test: test.jsonl}
columns: {text: text, label: label}
labels: ["no", "yes"]
unlabelled: [test]
metrics: [accuracy, matthews]
"""
SETTINGS = (
    "model=tiny_roberta",
    "optimizer.learning_rate=3e-3",
    "batch.sequences=16",
    "log_every=5",
    "checkpoints.every=1000",
    "checkpoints.keep=1",
)


def write_split(path, seed, count, labelled=True):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = [str(word) for word in rng.choice(WORDS[1:], 5)]
        if rng.random() < 0.5:
            words[rng.integers(5)] = WORDS[0]
        label = {"label": "yes" if WORDS[0] in words else "no"} if labelled else {}
        rows.append(json.dumps({"text": f"{' '.join(words)} {seed}{len(rows)}", **label}))
    path.write_text("\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def task_file(tmp_path_factory):
    directory = tmp_path_factory.mktemp("task")
    (directory / "find.yaml").write_text(TASK)
    write_split(directory / "train.jsonl", 1, 320)
    write_split(directory / "dev.jsonl", 2, 100)
    write_split(directory / "test.jsonl", 3, 20, labelled=False)
    return directory / "find.yaml"


def run_finetune(*arguments):
    return main(["finetune", *map(str, arguments)])


def events_of(run, kind):
    return [event for event in read_events(run / "log.jsonl") if event["event"] == kind]


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("alone")
def test_a_run_learns_its_task_keeps_the_best_checkpoint_and_predicts(task_file, corpus_directory, tmp_path, capsys):
    run = tmp_path / "run"
    tokenizer = f"tokenizer={corpus_directory / 'tokenizer.json'}"
    assert run_finetune(task_file, f"run={run}", tokenizer, *SETTINGS, "budget.epochs=6", "validation.every=20") == 0
    validations = events_of(run, "validation")
    accuracies = [event["scores"]["accuracy"] for event in validations]
    best = max(accuracies)
    assert best > 0.9
    first_best = next(event["step"] for event in validations if event["scores"]["accuracy"] == best)
    scores = read_json(run / "scores.json")
    assert (scores["step"], list(scores["splits"])) == (first_best, ["dev"])  # the gold of `test` is hidden
    accuracy = scores["splits"]["dev"]["accuracy"]
    assert accuracy["value"] == pytest.approx(best)
    assert accuracy["low"] <= best <= accuracy["high"]
    kept = {int(path.name[5:]) for path in (run / "checkpoints").iterdir()}
    assert kept == {first_best, validations[-1]["step"]}
    dev = read_predictions(run / "predictions" / "dev.parquet")
    assert (dev.outcomes.gold == dev.outcomes.predicted).mean() == pytest.approx(best)
    assert len(read_predictions(run / "predictions" / "test.parquet")) == 20

    # The texts of dev without labels get the same predictions.
    texts = [json.loads(line)["text"] for line in (task_file.parent / "dev.jsonl").read_text().splitlines()]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    output = tmp_path / "out.jsonl"
    assert main(["predict", str(run), "--input", str(tmp_path / "texts.jsonl"), "--output", str(output)]) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["prediction"] for row in rows] == [("no", "yes")[label] for label in dev.outcomes.predicted]

    capsys.readouterr()
    assert run_finetune(task_file, f"run={run}", tokenizer, *SETTINGS, "budget.epochs=6", "validation.every=20") == 0
    assert "nothing to do" in capsys.readouterr().out


def test_a_finished_run_whose_base_is_gone_says_that_there_is_nothing_to_do(task_file, tmp_path, capsys):
    run, base = tmp_path / "run", tmp_path / "base"
    run.mkdir()
    write_json(run / "run.json", {"format": FORMAT, "parent": {"path": str(base), "kind": "export"}})
    assert run_finetune(task_file, f"run={run}", f"model={base}") == 2
    assert "put it back, or begin another run" in capsys.readouterr().err
    write_json(run / "finished.json", {"step": 3})
    assert run_finetune(task_file, f"run={run}", f"model={tmp_path / 'other'}") == 2
    assert run_finetune(task_file, f"run={run}", f"model={base}") == 0
    assert "finished at step 3, nothing to do" in capsys.readouterr().out


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("alone")
def test_the_penalty_of_adalora_stays_the_same_when_micro_batches_are_halved(
    task_file, corpus_directory, tmp_path, monkeypatch
):
    settings = ("method=adalora", "method.orthogonality=50", "budget.steps=1", "model.dropout=0", "head.dropout=0")
    named = (task_file, f"tokenizer={corpus_directory / 'tokenizer.json'}", *SETTINGS, *settings)
    assert run_finetune(*named, f"run={tmp_path / 'whole'}") == 0
    forward = Forward.forward

    def of_half_the_tokens(self, **arrays):
        if self.training and arrays["inputs"].device.type == "cpu" and arrays["inputs"].numel() > 300:
            raise torch.OutOfMemoryError("no memory")
        return forward(self, **arrays)

    monkeypatch.setattr(Forward, "forward", of_half_the_tokens)
    assert run_finetune(*named, f"run={tmp_path / 'halved'}") == 0
    (warning,) = events_of(tmp_path / "halved", "warning")
    assert warning["micro_batch"] == 8
    norms = [events_of(tmp_path / name, "step")[0]["gradient_norm"] for name in ("whole", "halved")]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("alone")
def test_seeds_make_runs_that_end_early_and_a_table(task_file, corpus_directory, tmp_path, capsys):
    settings = (*SETTINGS, "optimizer.learning_rate=1e-9", "validation.every=2", "validation.patience=2", "seeds=2")
    named = (f"run={tmp_path}", f"tokenizer={corpus_directory / 'tokenizer.json'}", "method=bitfit")
    assert run_finetune(task_file, *named, *settings, "budget.epochs=3") == 0
    shown = capsys.readouterr().out
    for seed in (0, 1):
        run = tmp_path / f"seed_{seed}"
        (ended,) = events_of(run, "ended_early")
        assert ended["step"] == ended["best_step"] + 2 * 2
        assert read_json(run / "finished.json")["step"] == ended["step"]
        assert events_of(run, "start")[0]["trained_parameters"] < events_of(run, "start")[0]["parameters"] / 10
    values = [read_json(tmp_path / f"seed_{seed}" / "scores.json")["splits"]["dev"] for seed in (0, 1)]
    mean = sum(value["accuracy"]["value"] for value in values) / 2
    assert f"{mean:.4f}" in next(line for line in shown.splitlines() if line.startswith("find") and "accuracy" in line)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((), "model: missing; give model=DIR"),
        (("model=tiny_roberta",), "tokenizer: missing; tiny_roberta is a recipe"),
        (("model=tiny_roberta", "method=lorra", "tokenizer=T"), "method: got 'lorra', expected one of .* 'lora'"),
        (("model=tiny_roberta", "tokenizer=T", "seeds=0"), "seeds: got '0', expected how many runs"),
        (
            ("model=tiny_roberta", "tokenizer=T", "method=lora", "method.rank=65"),
            "method.rank: got 65, allowed 1 to 64",
        ),
        (("model=tiny_modernbert", "tokenizer=T", "method=bitfit"), "trains biases, and modernbert has none"),
        (("model=tiny_roberta", "tokenizer=T", "encoding.max_length=200"), "max_length: got 200, the model has 128"),
        (("model=tiny_roberta", "tokenizer=T", "encoding.text_to_text=true"), "roberta is an encoder"),
        (("model=tiny_roberta", "tokenizer=T", "head.pooling=last"), "head.pooling: got last"),
        (
            ("model=tiny_roberta", "tokenizer=T", "method=features", "method.layers=last_four"),
            "method.layers: got last_four",
        ),
        (("model=tiny_roberta", "tokenizer=T", "budget.epochs=null"), "give budget.steps"),
        (("model=tiny_gpt2", "tokenizer=T", "head.pooling=first"), "head.pooling: got first, gpt2 reads the last"),
        (
            ("model=tiny_skip_thought", "tokenizer=T", "head.pooling=first"),
            "got first, gru pools .*; allowed mean, max",
        ),
        (("model=tiny_elmo", "tokenizer=T", "head.pooling=first"), "got first, elmo pools .*; allowed mean, max"),
        (("model=tiny_roberta", "tokenizer=T", "class_weights={no: 1}"), "class_weights: got .*no, yes"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_written(
    task_file, corpus_directory, tmp_path, settings, message
):
    tokenizer = f"tokenizer={corpus_directory / 'tokenizer.json'}"
    settings = [tokenizer if setting == "tokenizer=T" else setting for setting in settings]
    options = parser().parse_args(["finetune", str(task_file), f"run={tmp_path / 'run'}", *settings])
    with pytest.raises((ConfigError, UserError), match=message):
        _finetune(options)
    assert not (tmp_path / "run").exists()


def test_labels_are_smoothed_only_by_a_head_that_classifies(task_file):
    task = load_task(str(task_file))
    job = replace(finetune("find", (task,), tiny_gpt2().model, None, Full()), label_smoothing=0.1)
    job.check()
    message = "label_smoothing: got 0.1, allowed above 0 only for a task of kind classify without encoding.text_to_text"
    others = [{"encoding": Encoding(text_to_text=True)}]
    others += [{"tasks": (replace(task, kind=kind),)} for kind in ("regress", "tag", "span", "choose", "generate")]
    for changes in others:
        with pytest.raises(ValueError, match=message):
            replace(job, **changes).check()


def test_a_copy_of_a_training_example_in_a_scored_test_split_is_refused(task_file, corpus_directory, tmp_path):
    rows = (task_file.parent / "train.jsonl").read_text().splitlines()
    for name, chosen in (("train", rows[:8]), ("dev", rows[8:12]), ("test", rows[12:14] + rows[3:4])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(chosen) + "\n")
    (tmp_path / "leaky.yaml").write_text(TASK.replace("unlabelled: [test]\n", ""))
    tokenizer = f"tokenizer={corpus_directory / 'tokenizer.json'}"
    given = ["finetune", str(tmp_path / "leaky.yaml"), f"run={tmp_path / 'run'}", "model=tiny_roberta", tokenizer]
    with pytest.raises(UserError, match=r"test.jsonl: line 3: the text is also that of .*train.jsonl: line 4 "):
        _finetune(parser().parse_args(given))
    job = replace(
        finetune(
            "leaky", (load_task(str(tmp_path / "leaky.yaml"), ["leak=report"]),), tiny_roberta().model, None, Full()
        ),
        tokenizer=str(corpus_directory / "tokenizer.json"),
    )
    corpus = open_tasks(job)
    corpus.examples(job.tasks[0], "test")
    resolved = resolve_finetuning(job, corpus)
    described = describe_tasks(job, resolved, corpus, task_training(corpus, resolved))
    assert described[-1] == "leak  leaky: 1 example of test has the text of one of train"


def test_a_set_smaller_than_a_batch_is_read_whole_in_each_step(task_file, corpus_directory, tmp_path):
    task = load_task(str(task_file))
    tokenizer = str(corpus_directory / "tokenizer.json")
    job = replace(finetune("find", (task,), tiny_roberta().model, None, Full()), tokenizer=tokenizer)
    corpus = open_tasks(job)
    resolved = [
        resolve_finetuning(replace(job, batch=BatchSize(sequences=sequences)), corpus) for sequences in (999, 320)
    ]
    assert resolved[0] == resolved[1]
    assert (resolved[0].batch.sequences, resolved[0].budget.steps) == (320, 3)
    described = describe_tasks(
        replace(job, batch=BatchSize(sequences=999)), resolved[0], corpus, task_training(corpus, resolved[0])
    )
    assert described[-1] == "data  999 inputs per step were requested, the training set has 320"


def test_answers_may_be_as_long_as_the_longest_target_of_the_training_split(task_file, corpus_directory):
    task = load_task(
        str(task_file), ["templates={input: '{text}', target: '{label}', words: {no: a, yes: abcd bcde cdef}}"]
    )
    tokenizer = str(corpus_directory / "tokenizer.json")
    job = replace(finetune("find", (task,), tiny_gpt2().model, None, Full()), tokenizer=tokenizer)
    for given, expected in ((None, len(open_tasks(job).encode("abcd bcde cdef"))), (3, 3)):
        asked = replace(job, encoding=Encoding(text_to_text=True, answer_tokens=given))
        assert resolve_finetuning(asked, open_tasks(job)).encoding.answer_tokens == expected
    assert resolve_finetuning(job, open_tasks(job)).encoding.answer_tokens is None


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("alone")
def test_models_that_write_are_scored_by_what_they_write(task_file, corpus_directory, tmp_path):
    run = tmp_path / "run"
    settings = [
        *SETTINGS[1:],
        "model=tiny_gpt2",
        "encoding.text_to_text=true",
        "budget.steps=30",
        "validation.every=30",
    ]
    assert run_finetune(task_file, f"run={run}", f"tokenizer={corpus_directory / 'tokenizer.json'}", *settings) == 0
    scores = read_json(run / "scores.json")
    dev = read_predictions(run / "predictions" / "dev.parquet")
    assert scores["splits"]["dev"]["accuracy"]["value"] == pytest.approx(
        (dev.outcomes.gold == dev.outcomes.predicted).mean()
    )
    assert len(read_predictions(run / "predictions" / "test.parquet")) == 20
    (tmp_path / "texts.jsonl").write_text('{"text": "abcd bcde"}\n{"text": "cdef"}\n')
    output = tmp_path / "out.jsonl"
    assert main(["predict", str(run), "--input", str(tmp_path / "texts.jsonl"), "--output", str(output)]) == 0
    assert len(output.read_text().splitlines()) == 2


def test_tags_with_spaces_are_not_written_as_text(task_file):
    task = replace(load_task(str(task_file)), kind="tag", labels=("O", "first name"))
    job = finetune("find", (task,), tiny_gpt2().model, None, Full())
    written = replace(job, encoding=Encoding(text_to_text=True))
    written.check()  # a run that began before this was refused can be read
    with pytest.raises(
        ConfigError, match="tasks: find has the label 'first name', but tags written as text have spaces"
    ):
        resolve_finetuning(written, None)
