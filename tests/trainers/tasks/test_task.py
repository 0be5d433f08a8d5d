"""The task file: what is accepted, and what is refused in one line."""

import re
from pathlib import Path

import pytest

from gristmill.config import parse, plain
from gristmill.errors import ConfigError
from trainers.tasks.load_task import load_suite, load_task, shipped_suites, shipped_tasks
from trainers.tasks.schema.task import Task

CLASSIFY = {
    "kind": "classify",
    "files": {"train": "train.tsv"},
    "columns": {"text": "sentence", "label": "label"},
    "labels": ["no", "yes"],
    "metrics": ["accuracy"],
}


def parsed(**changes):
    return parse(Task, {**CLASSIFY, **changes}, "my.yaml")


@pytest.mark.parametrize("name", shipped_tasks())
def test_every_shipped_task_survives_a_resolved_configuration(name):
    task = load_task(name)
    assert parse(Task, plain(task), name) == task
    assert task.name == name
    assert task.about.endswith((".", "?"))
    assert task.source
    assert (task.templates is None) == (task.kind in ("minimal_pairs", "facts") or task.format == "generated")


@pytest.mark.parametrize("name", shipped_suites())
def test_every_column_of_a_suite_is_a_split_of_a_task_of_it(name):
    suite = load_suite(name)
    for column in suite.columns:
        assert column.split in load_task(column.task).splits
        assert name in ("core", "gpt3", "answers") or load_task(column.task).suite in (name, "glue")


def test_glue_has_the_nine_columns_of_its_mean():
    assert len(load_suite("glue").columns) == 9
    assert "wnli" not in load_suite("glue").tasks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {"text": "sentence"}}, "columns: label missing; classify needs text, label"),
        ({"columns": {"txt": "a", "label": "b"}}, "columns.txt: classify has no such column; did you mean 'text'?"),
        ({"kind": "choose", "labels": [], "columns": {"candidates": [], "label": "b"}}, "columns.candidates: got"),
        ({"labels": ["yes"]}, "labels: got 1, classify needs 2 or more"),
        ({"labels": ["a", "b", "a"]}, "labels: a occurs twice"),
        ({"metrics": []}, "metrics: got none; checkpoints are picked by the first"),
        ({"metrics": ["acuracy"]}, "metrics[0]: got 'acuracy', no such metric of classify; did you mean 'accuracy'?"),
        ({"metrics": ["pearson"]}, "metrics[0]: pearson does not measure classify; allowed: accuracy"),
        ({"metrics": ["f1"], "labels": ["a", "b", "c"]}, "metrics: f1 needs two labels or `positive`"),
        ({"positive": "maybe"}, "positive: got 'maybe', expected a label"),
        ({"files": {"train": "train.txt"}}, "format: missing, and the suffix of train.txt names none"),
        ({"files": {}}, "files: got none"),
        ({"unlabelled": ["test"]}, "unlabelled: got test, expected splits of files (train)"),
        ({"columns": {"text": 1, "label": 0}}, "columns.text: got the number 1; a file with a header names its columns"),
        ({"rename": {"0": "nope"}}, "rename: got 'nope', expected a label of the task"),
        ({"scheme": "bio"}, "scheme: classify has none; it belongs to tag"),
        ({"no_answer": True}, "no_answer: classify has none"),
        ({"range": [0, 5]}, "range: classify has none"),
        ({"pattern": "(?P<text>.*)"}, "pattern: None has none"),
        ({"templates": {"input": "{passage}", "target": "{label}"}}, "templates.input: got {passage}, classify allows text"),
        ({"templates": {"input": "{text}", "target": "yes"}}, "templates.target: got no name in braces"),
        ({"templates": {"input": "{text}", "target": "{label}", "words": {"no": "x"}}}, "templates.words: yes: expected a word"),
        ({"templates": {"input": "{text}", "target": "{label} {label}"}}, "templates.target: got several names"),
        ({"elsewhere": [{"files": {"dev": "d.csv"}, "columns": {"text": "a"}}]}, "elsewhere[0].columns: label missing"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named_with_what_is_allowed(changes, message):
    with pytest.raises(ConfigError) as raised:
        parsed(**changes)
    assert str(raised.value).startswith(f"my.yaml: {message}")
    assert "\n" not in str(raised.value)


def test_entities_need_labels_that_begin_and_continue_them():
    fields = {"kind": "tag", "columns": {"words": "w", "tags": "t"}, "metrics": ["entity_f1"]}
    assert parsed(**fields, labels=["O", "B-PER", "I-PER"]).label_names == ("O", "B-PER", "I-PER")
    with pytest.raises(ConfigError, match="metrics: entity_f1 needs labels O, B-TYPE and I-TYPE, got 'PER'"):
        parsed(**fields, labels=["O", "PER"])


def test_an_unknown_task_names_those_that_are_near():
    with pytest.raises(ConfigError, match="did you mean 'sst2'"):
        load_task("sst-2")


def test_the_example_of_the_guide_is_a_task(tmp_path):
    guide = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", guide, re.S)
    assert len(blocks) == 2
    (tmp_path / "reviews.yaml").write_text("".join(blocks))
    task = load_task(str(tmp_path / "reviews.yaml"), ["leak=report"])
    assert (task.name, task.folder, task.leak) == ("reviews", str(tmp_path), "report")
    assert task.templates.words["5"] == "great"


def test_labels_are_text_however_yaml_reads_them():
    assert parsed(labels=[0, 1]).label_names == ("0", "1")
    assert parsed(labels=[False, True]).label_names == ("false", "true")
    assert parsed(labels=["no", "yes"], positive="no").positive_label == 0
