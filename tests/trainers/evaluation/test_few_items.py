"""Scores of very few items, and one file of rows for tasks of several kinds, without a model."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.storage.disk import LocalPath
from gristmill.storage.store import write_json
from tests.trainers.tasks.writing import task_of, write_lines
from trainers.commands.evaluations import _check, _known_scores, _requirement
from trainers.evaluation.evaluation_lines import evaluation_lines
from trainers.evaluation.evaluation_page import render_evaluation
from trainers.evaluation.scoring.scorer import Likelihoods
from trainers.evaluation.suites.items import read_items
from trainers.evaluation.suites.run_evaluation import Evaluation
from trainers.evaluation.suites.task_result import TaskResult, item_result
from trainers.tasks.load_task import Suite, SuiteColumn
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.outcomes import Outcomes


def result_of(model, items, seed=0):
    count = len(items.contexts)
    none = np.zeros(count, bool)
    nats = -np.random.default_rng(seed).random(count)
    return item_result(model, "form", items, Likelihoods(nats, np.ones(count, np.int64), none, none), None)


def text_result_of(model):
    outcomes = Outcomes(nats=np.array([3.0, 4.0]), text_bytes=np.array([5.0, 6.0]))
    rows = pa.table({"id": ["a", "b"], "log_likelihood": [-3.0, -4.0], "tokens": [2, 2], "bytes": [5, 6]})
    measured = {"bits_per_byte": (METRICS["bits_per_byte"], outcomes)}
    return TaskResult(model, "form", "my.notes.txt", "text", measured, None, rows)


@pytest.fixture
def choices(tmp_path):
    write_lines(tmp_path / "d.jsonl", [{"q": "q", "c": ["x", "y", "z"], "y": 0}])
    columns = {"text": "q", "candidates": "c", "label": "y"}
    prompt = {"context": "{text}", "continuation": " {candidate}"}
    return read_items(
        task_of(tmp_path, "choose", files={"dev": "d.jsonl"}, columns=columns, prompt=prompt), "dev", None
    )


@pytest.fixture
def labels(tmp_path):
    write_lines(tmp_path / "l.jsonl", [{"q": "q", "y": "no"}])
    prompt = {"context": "{text}", "continuation": " {label}"}
    columns = {"text": "q", "label": "y"}
    task = task_of(tmp_path, "classify", files={"dev": "l.jsonl"}, columns=columns, labels=["no", "yes"], prompt=prompt)
    return read_items(task, "dev", None)


def test_a_centred_suite_of_one_item_has_a_mean_and_a_comparison(choices, labels, tmp_path):
    results = [result_of(model, items, seed) for seed, model in enumerate(("a", "b")) for items in (choices, labels)]
    suite = Suite((SuiteColumn("choices"), SuiteColumn("labels")), "s", centred=True)
    evaluation = Evaluation(tuple(results), suite)
    mean = evaluation.means[0]
    assert mean.mean.value == pytest.approx(results[0].scores["accuracy"].centred.value / 2)
    assert results[1].task in mean.at_chance
    assert evaluation_lines(evaluation)
    assert render_evaluation(evaluation)
    write_json(LocalPath(tmp_path / "s.json"), evaluation.plain())
    plain = Suite(suite.columns, "s")  # a single item has no variance
    write_json(LocalPath(tmp_path / "p.json"), Evaluation(tuple(results), plain).plain())
    last = json.loads((tmp_path / "p.json").read_text())["differences"][-1]
    assert (last["name"], last["low"], last["high"], last["tie"]) == ("s", None, None, True)


def test_texts_and_other_tasks_are_rows_of_one_file(choices, tmp_path):
    path = LocalPath(tmp_path / "rows.parquet")
    Evaluation((text_result_of("m"), result_of("m", choices))).write_rows(path)
    rows = pq.read_table(path).to_pylist()
    assert [row["log_likelihood"] for row in rows[:2]] == [[-3.0], [-4.0]]
    assert [len(row["bytes"]) for row in rows] == [1, 1, 3]
    Evaluation((text_result_of("m"),)).write_rows(path)
    assert pq.read_table(path)["log_likelihood"].to_pylist() == [-3.0, -4.0]


def test_a_requirement_may_name_a_file_with_dots(capsys):
    evaluation = Evaluation((text_result_of("m"),))
    assert _check(_known_scores(evaluation), [_requirement("my.notes.txt.bits_per_byte < 0.5")]) == 1
    assert _check(_known_scores(evaluation), [_requirement("my.notes.txt.bits_per_byte<=1")]) == 0
    assert "my.notes.txt.bits_per_byte is 0.9181, required" in capsys.readouterr().out
