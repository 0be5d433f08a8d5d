"""Scores of fine-tuned runs, averaged over seeds, with intervals and comparisons on the same examples,
printed as lines and shown on the page.
"""

from dataclasses import asdict
from statistics import median, stdev

import numpy as np
import pytest

from gristmill.errors import UserError
from gristmill.events import EventLog
from gristmill.storage.store import write_json
from tests.trainers.report.test_report import Strict, make_run
from tests.trainers.tasks.writing import read, task_of, write_lines
from trainers.__main__ import main
from trainers.report.read_runs import read_runs
from trainers.report.run_comparisons import compare_groups, comparison_lines
from trainers.report.run_page import render
from trainers.report.task_table import group_results, read_results, results_of, score_rows, suite_lines, table
from trainers.tasks.load_task import load_suite
from trainers.tasks.predictions import predictions_of, score_predictions, write_predictions

GOLD = np.arange(40) % 2


def make_scored(folder, name, wrong, task="mine", examples=40, **changes):
    """Make a run whose predictions are wrong for the first `wrong` examples."""
    run = make_run(folder / name, [(0, [2.0])], **changes)
    rows = [{"a": f"text {n}", "y": int(GOLD[n])} for n in range(examples)]
    write_lines(folder / "dev.jsonl", rows)
    columns = {"text": "a", "label": "y"}
    fields = {"files": {"dev": "dev.jsonl"}, "columns": columns, "labels": [0, 1], "name": task}
    held_out = read(task_of(folder, "classify", **fields, metrics=["accuracy", "f1"]), "dev")
    predicted = np.where(np.arange(examples) < wrong, 1 - held_out.labels, held_out.labels)
    predictions = predictions_of(held_out, predicted, name)
    (run / "predictions").mkdir()
    write_predictions(predictions, run / "predictions" / "dev.parquet")
    scores = {metric: asdict(score) for metric, score in score_predictions(predictions).items()}
    write_json(
        run / "scores.json",
        {"task": task, "method": "full", "step": 1, "splits": {"dev": scores}, "floors": {"dev": {"accuracy": 0.5}}},
    )
    return run


@pytest.fixture
def seeds(tmp_path):
    wrong = {"full": (8, 10, 12), "lora": (20, 18, 22)}
    return [
        make_scored(tmp_path, f"{method}_{seed}", count, seed=seed, method={"kind": method})
        for method, counts in wrong.items()
        for seed, count in enumerate(counts)
    ]


def test_runs_that_differ_in_their_seed_alone_are_one_row(seeds):
    rows = [row for row in score_rows(group_results(read_results(seeds))) if row.metric == "accuracy"]
    assert [row.group.label for row in rows] == ["method.kind=full", "method.kind=lora"]
    values = [1 - wrong / 40 for wrong in (8, 10, 12)]
    assert rows[0].values == pytest.approx(values)
    assert (rows[0].mean, rows[0].median, rows[0].deviation) == pytest.approx((0.75, median(values), stdev(values)))
    assert (rows[0].n, rows[0].low) == (40, None)


def test_one_run_has_its_interval(tmp_path):
    (row,) = [r for r in score_rows(group_results(read_results([make_scored(tmp_path, "a", 8)]))) if r.metric == "f1"]
    assert row.deviation is None
    assert row.low < row.mean < row.high
    assert row.group.label == ""


def test_configurations_are_compared_seed_by_seed_on_the_same_examples(seeds):
    compared = list(compare_groups(group_results(read_results(seeds))))
    assert [(c.a.run.name, c.b.run.name) for c in compared] == [(f"full_{seed}", f"lora_{seed}") for seed in range(3)]
    differences = [c.difference.difference for c in compared]
    assert differences == pytest.approx([-12 / 40, -8 / 40, -10 / 40])
    assert all(c.difference.p < 0.02 and c.difference.high < 0 for c in compared)
    lines = comparison_lines(compared)
    assert "lora_0 against" in lines[0]
    assert "accuracy -0.3000 [" in lines[0]
    assert lines[0].endswith("40 examples")


def test_each_of_two_runs_with_the_same_settings_and_seed_is_compared(tmp_path):
    wrong = {("full", "a"): 8, ("full", "b"): 10, ("lora", "a"): 20, ("lora", "b"): 22}
    runs = [
        make_scored(tmp_path, f"{method}_{name}", count, seed=0, method={"kind": method})
        for (method, name), count in wrong.items()
    ]
    pairs = [(c.a.run.name, c.b.run.name) for c in compare_groups(group_results(read_results(runs)))]
    assert sorted(pairs) == [(f"full_{one}", f"lora_{other}") for one in "ab" for other in "ab"]


def test_runs_on_other_examples_are_not_compared_and_it_is_said(tmp_path):
    runs = [make_scored(tmp_path, "a", 8, data={"x": 1}), make_scored(tmp_path, "b", 8, examples=30)]
    (compared,) = compare_groups(group_results(read_results(runs)))
    assert compared.difference is None
    (line,) = comparison_lines([compared])
    assert "not compared: compare: got mine dev (40) and mine dev (30)" in line


def test_the_table_and_the_page_show_every_value(seeds, capsys):
    lines = table(read_results(seeds))
    heads, first = (" ".join(line.split()) for line in lines[:2])
    assert heads == "task split metric examples runs mean spread median floor values configuration"
    assert first == "mine dev accuracy 40 3 0.7500 ± 0.0500 0.7500 0.5000 0.8000 0.7500 0.7000 method.kind=full"
    page = Strict()
    page.feed(render(read_runs(seeds)))
    for shown in ("± 0.0500", "method.kind=lora", "Paired comparisons", "0.8000 0.7500 0.7000"):
        assert shown in page.text
    assert main(["report", *map(str, seeds), "--output", str(seeds[0].parent / "page.html")]) == 0
    printed = capsys.readouterr().out
    assert lines[1] in printed
    assert "against" in printed


def test_the_page_of_fine_tuned_runs_speaks_of_tasks(tmp_path):
    run = make_scored(tmp_path, "run", 8, kind="finetuning")
    log = EventLog(run / "log.jsonl")
    for step, value in ((5, 0.75), (10, 0.5)):
        log.write(
            "validation", step=step, tokens=step, loss=1.0, sources={"web": {"loss": 1.0}}, scores={"accuracy": value}
        )
    log.close()
    page = render(read_runs([run]))
    Strict().feed(page)
    assert "best accuracy at a validation, step 5" in page
    assert "accuracy, validation" in page
    for words in ("bits per byte", "mixture requests", "that <code>pretrain</code> takes", "<th>source</th>"):
        assert words not in page
        assert words in render(read_runs([make_run(tmp_path / words.split()[0].strip("<>"), [(0, [2.0])])]))


def test_a_pretraining_run_has_no_scores(tmp_path):
    run = make_run(tmp_path / "pretrained", [(0, [2.0])])
    assert results_of(run) is None
    page = Strict()
    page.feed(render(read_runs([run])))
    assert ("section", {"id": "scores"}) not in page.tags
    with pytest.raises(UserError, match=r"pretrained: has no scores.json; it is written when a fine-tuning run ends"):
        read_results([run])


def test_a_suite_s_score_is_of_the_means_over_seeds(tmp_path):
    runs = [make_scored(tmp_path / "rte", f"{seed}", wrong, "rte", seed=seed) for seed, wrong in enumerate((8, 12))]
    runs.append(make_scored(tmp_path / "sst2", "0", 20, "sst2", seed=0))
    assert suite_lines(load_suite("glue"), read_results(runs)) == ["glue: 0.6250, the mean of 2 of 9 columns"]


def test_configurations_that_differ_in_many_settings_have_labels_of_their_own(tmp_path):
    settings = [dict(zip("wxyz", row, strict=True)) for row in ((1, 1, 1, 1), (1, 1, 1, 2), (2, 2, 2, 1))]
    runs = [make_scored(tmp_path, f"{i}", 8 * (i + 1), "rte", data=its) for i, its in enumerate(settings)]
    results = read_results(runs)
    labels = ["data.w=1 data.x=1 data.y=1 data.z=1", "data.w=1 data.x=1 data.y=1 data.z=2"]
    labels.append("data.w=2 data.x=2 data.y=2 ...")
    assert [group.label for group in group_results(results)] == labels
    lines = suite_lines(load_suite("glue"), results)
    assert [line.split("  ")[1] for line in lines] == labels
    assert [line.split()[1].rstrip(",") for line in lines] == ["0.8000", "0.6000", "0.4000"]


def test_a_configuration_that_lacks_a_setting_of_the_others_is_labelled_by_it(tmp_path):
    """A run made before the setting existed lacks it."""
    settings = [{"w": 1}, {"w": 1, "x": 1}, {"w": 1, "x": 2}]
    runs = [make_scored(tmp_path, f"{i}", 8 * (i + 1), "rte", data=its) for i, its in enumerate(settings)]
    results = read_results(runs)
    labels = ["without data.x", "data.x=1", "data.x=2"]
    assert [group.label for group in group_results(results)] == labels
    assert [line.split("  ")[1] for line in suite_lines(load_suite("glue"), results)] == labels


def test_a_configuration_of_a_suite_is_one_line_even_if_a_task_has_no_other(tmp_path):
    small, large = {"data": {"w": 1}}, {"data": {"w": 2}}
    runs = [
        make_scored(tmp_path / "rte", "small", 8, "rte", **small),
        make_scored(tmp_path / "rte", "large", 12, "rte", **large),
        make_scored(tmp_path / "sst2", "small", 20, "sst2", **small),
    ]
    assert suite_lines(load_suite("glue"), read_results(runs)) == [
        "glue: 0.6500, the mean of 2 of 9 columns  data.w=1",
        "glue: 0.7000, the mean of 1 of 9 columns  data.w=2",
    ]
