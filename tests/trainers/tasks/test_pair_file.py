"""The training examples of a task as a source of a corpus."""

import json

import pytest
import yaml

from gristmill.errors import UserError
from pipelines.building.build import plan_and_build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.shard_set import open_shard
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from tests.trainers.tasks.test_text_to_text import COLUMNS, RENDERED, ROWS
from tests.trainers.tasks.writing import read, task_of, write_lines
from tokenizer.encode import Encoder
from trainers.__main__ import main
from trainers.tasks.pair_file import write_pair_file
from trainers.tasks.text_to_text import render_inputs, render_targets


def training_task(folder, kind):
    write_lines(folder / "train.jsonl", ROWS)
    labels = {"classify": ["no", "yes"], "tag": ["O", "B-PER", "I-PER"]}.get(kind)
    fields = {"labels": labels} if labels else {}
    fields |= {"no_answer": True} if kind == "span" else {}
    return task_of(folder, kind, files={"train": "train.jsonl"}, columns=COLUMNS[kind], **fields)


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_line_has_the_texts_that_fine_tuning_reads(tmp_path, kind):
    task = training_task(tmp_path, kind)
    assert write_pair_file(task, None, tmp_path / "out.jsonl") == len(ROWS)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    examples = read(task)
    assert [line["id"] for line in lines] == examples.ids
    assert [line["input"] for line in lines] == render_inputs(examples)
    assert [line["target"] for line in lines] == [answers[0] for answers in render_targets(examples)]
    given, answers = RENDERED[kind]
    assert (lines[0]["input"], lines[0]["target"]) == (given, answers[0])


def test_hidden_gold_makes_no_pairs(tmp_path):
    write_lines(tmp_path / "train.jsonl", ROWS)
    columns = {"text": "a", "target": "g"}
    task = task_of(tmp_path, "generate", files={"train": "train.jsonl"}, columns=columns, unlabelled=["train"])
    with pytest.raises(UserError, match="its split train has no gold"):
        write_pair_file(task, None, tmp_path / "out.jsonl")


def test_the_command_says_what_to_write_in_the_corpus_file_and_it_builds(tmp_path, capsys):
    rows = [{"text": f"film {n} is a mill's tale", "label": ["bad", "good"][n % 2]} for n in range(12)]
    write_lines(tmp_path / "train.jsonl", rows)
    task = {"kind": "classify", "format": "jsonl", "files": {"train": "train.jsonl"}, "labels": ["bad", "good"]}
    task |= {"columns": {"text": "text", "label": "label"}, "metrics": ["accuracy"]}
    (tmp_path / "films.yaml").write_text(yaml.safe_dump(task))
    assert main(["pairs", str(tmp_path / "films.yaml"), str(tmp_path / "raw/films.jsonl")]) == 0
    first, _, rest = capsys.readouterr().out.partition("\n")
    assert first == f"{tmp_path}/raw/films.jsonl  12 pairs; in the corpus file:"
    printed = yaml.safe_load(rest)
    assert set(printed) == {"sources", "steps"}
    write_lines(
        tmp_path / "raw/another.jsonl", [{"input": "of another task", "target": "yes"}]
    )  # no part of the source
    printed["steps"] = [{"text_hash": {}}, {"learn_tokenizer": {"kind": "bytes"}}, *printed["steps"]]
    path = tmp_path / "corpus.yaml"
    path.write_text(yaml.safe_dump({"name": "films", "output": str(tmp_path / "out"), **printed}))
    config = load_corpus_config(path, ())
    built = plan_and_build(config, take_inventory(config.sources, config.place), LocalCluster(), lambda line: None)
    (shard_set,) = built.shard_sets.values()
    encoder, found = Encoder.load(str(tmp_path / "out" / shard_set.tokenizer.path)), set()
    for record in shard_set.shards:
        shard = open_shard(tmp_path / "out", record.file)
        for number, at in enumerate(shard.targets.tolist()):
            tokens = shard.tokens[shard.offsets[number] : shard.offsets[number + 1]]
            found.add((encoder.decode(tokens[:at]), encoder.decode(tokens[at:])))
    assert found == {(f"films text: {row['text']}", row["label"]) for row in rows}


def test_a_kind_without_pairs_is_named(tmp_path):
    write_lines(tmp_path / "train.jsonl", [{"text": "one"}])
    task = task_of(
        tmp_path, "text", files={"train": "train.jsonl"}, columns={"text": "text"}, metrics=["bits_per_byte"]
    )
    with pytest.raises(
        UserError, match=f"{task.name}: a task of kind text has no pairs; allowed: classify, regress, tag"
    ):
        write_pair_file(task, None, tmp_path / "out.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sst3", "out.jsonl"], "task: got 'sst3'"),
        (["sst2", "out.json"], "FILE.jsonl: got out.json, expected a name that ends in .jsonl"),
        (["sst2", "out.jsonl", "dta=x"], "'dta=x': expected data=DIR"),
        (["sst2", "out.jsonl", "data=/nowhere"], "/nowhere"),
        (["blimp", "out.jsonl"], "blimp"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["pairs", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
