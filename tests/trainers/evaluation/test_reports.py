"""What an evaluation reports besides scores: items won and lost, scores over seeds, unknown tokens, costs and
files.
"""

import csv
import json
import math
import re
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.trainers.tasks.writing import task_of, write_lines
from trainers.__main__ import main
from trainers.evaluation.evaluation_page import render_evaluation
from trainers.evaluation.scoring.scorer import Likelihoods, Scorer
from trainers.evaluation.suites.items import read_items
from trainers.evaluation.suites.run_evaluation import Evaluation
from trainers.evaluation.suites.seed_scores import seed_groups, seed_scores
from trainers.evaluation.suites.task_result import item_result
from trainers.evaluation.suites.won_items import shown_items, won_items

HOSTILE = "<script>alert(1)</script>"
PROMPT = {"context": "{text}", "continuation": " {candidate}", "normalise": "none", "unconditional": "A:"}


def choice(folder, count=6):
    rows = [{"q": f"question {n} {HOSTILE}", "c": [f"good {n}", f"bad {n}"], "y": 0} for n in range(count)]
    write_lines(folder / "d.jsonl", rows)
    columns = {"text": "q", "candidates": "c", "label": "y"}
    return task_of(folder, "choose", files={"dev": "d.jsonl"}, columns=columns, prompt=PROMPT)


def result_of(items, model, right, cut=()):
    nats = np.stack([np.where(right, -1.0, -2.0), np.full(len(right), -1.5)], axis=1).ravel()
    ones, long = np.ones(len(nats), np.int64), np.zeros(len(nats), bool)
    long[list(cut)] = True
    return item_result(model, "form", items, Likelihoods(nats, ones, ones > 1, long), None)


def test_contexts_that_were_cut_are_counted_by_item(tmp_path):
    items = read_items(choice(tmp_path), "dev", None)
    assert result_of(items, "a", [True] * 6, cut=(2, 3, 9)).cut == 2  # both candidates of one item, one of another


def test_won_and_lost_items_are_named_and_shown_escaped(tmp_path):
    items = read_items(choice(tmp_path), "dev", None)
    a, b = (result_of(items, name, right) for name, right in (("a", [1, 1, 0, 0, 1, 0]), ("b", [1, 0, 1, 1, 0, 0])))
    (each,) = won_items([a, b])
    assert each.plain() == {
        "a": "a",
        "b": "b",
        "task": "mine",
        "split": "dev",
        "won": [items.ids[2], items.ids[3]],
        "lost": [items.ids[1], items.ids[4]],
    }
    first = shown_items(each, each.won)[0]
    assert (first.candidates, first.gold, first.chosen_by_a, first.chosen_by_b) == ([" good 2", " bad 2"], 0, 1, 0)
    page = render_evaluation(Evaluation((a, b)))
    assert "2 won, 2 lost of 6" in page
    assert "question 2 &lt;script&gt;" in page
    assert HOSTILE not in page
    facts = render_evaluation(Evaluation((replace(a, items=None), replace(b, items=None))))
    assert "2 won, 2 lost of 6" in facts
    assert "question 2" not in facts


def test_models_that_differ_in_their_seed_have_a_mean_and_its_error(random_run):
    first, second = random_run("llama_tiny", seed=3), random_run("llama_tiny", seed=4)
    other = random_run("tiny_gpt2", seed=3)
    assert seed_groups([first, other, second]) == [(str(first), str(second))]
    (score,) = seed_scores([("x", "y", "z")], {"piqa.accuracy": {"x": 0.5, "y": 0.6, "z": 0.7}})
    assert (score.mean, score.deviation) == (pytest.approx(0.6), pytest.approx(0.1))
    assert score.error == pytest.approx(0.1 / math.sqrt(3))


def test_every_form_of_the_scores_is_beside_the_page_with_its_cost(tmp_path, decoder_run, other_run, capsys):
    write_lines(tmp_path / "p.jsonl", [{"g": f"a cab {n}", "b": f"{n} cab a"} for n in range(4)])
    (tmp_path / "p.yaml").write_text(
        "version: 3\nkind: minimal_pairs\nfiles: {test: p.jsonl}\ncolumns: {good: g, bad: b}\nmetrics: [accuracy]\n"
    )
    page = tmp_path / "out.html"
    command = ["evaluate", str(decoder_run), str(other_run), f"task={tmp_path / 'p.yaml'}", "--output", str(page)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    data = json.loads((tmp_path / "out.json").read_text())
    with (tmp_path / "out.csv").open() as lines:
        table = list(csv.DictReader(lines))
    values = [score["value"] for task in data["tasks"] for score in task["scores"].values()]
    assert [float(row["value"]) for row in table] == values
    rows = [("p", "accuracy", "1"), ("p", "bits_per_byte", "0")]
    assert [(row["task"], row["score"], row["counts"]) for row in table] == rows * 2
    assert sorted(data["costs"]) == sorted([str(decoder_run), str(other_run)])
    assert f"cost of {decoder_run}: " in shown
    assert {row["version"] for row in table} == {task["version"] for task in data["tasks"]} == {"3"}
    assert set(pq.read_table(tmp_path / "out.parquet")["version"].to_pylist()) == {"3"}
    assert re.search(r"p +test +3 +4 +accuracy", shown)
    assert "<td>p</td><td>test</td><td>3</td>" in page.read_text()
    assert "Cost of this evaluation" in page.read_text()


def test_operations_are_those_of_the_formula(decoder_run):
    from trainers.engine.hardware.mfu import flops_of
    from trainers.runs.run import read_config

    scorer = Scorer.open(decoder_run)
    found = scorer.score(["a cab"] * 2, [" bade a face", " bed"])
    network, model = scorer.forward.model, read_config(decoder_run).model
    lengths = [len(scorer._encoder.encode(text)[0]) for text in texts_of(["a cab bade a face", "a cab bed"])]
    expected = sum(flops_of(network, model, length).of(length, 0, 0) for length in lengths)
    expected += flops_of(network, model, 1).of(0, 0, int(found.tokens.sum()))
    assert scorer.flops.sum() == pytest.approx(expected / 3)


def texts_of(texts):
    import pyarrow as pa

    return [pa.array([text], pa.large_string()) for text in texts]


def test_unknown_tokens_of_a_text_are_told(tmp_path, decoder_run, capsys, monkeypatch):
    (tmp_path / "one.txt").write_text("a cab fed a dead face")
    scorer = Scorer.open(decoder_run)
    ids, _ = scorer._encoder.encode(texts_of(["a cab fed a dead face"])[0])
    assert scorer.count_unknown(["a cab fed"]).tolist() == [0]
    monkeypatch.setitem(scorer._encoder.specials, "<unk>", int(ids[0]))  # as if the first token were that mark
    monkeypatch.setattr(Scorer, "open", lambda path, pseudo: scorer)
    assert main(["evaluate", str(decoder_run), f"text={tmp_path / 'one.txt'}"]) == 0
    told = capsys.readouterr().err
    assert f"{int((ids == ids[0]).sum())} of {len(ids)} tokens are unknown to the tokenizer of {decoder_run}" in told
