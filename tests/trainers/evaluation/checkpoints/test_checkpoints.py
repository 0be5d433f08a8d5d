"""The scores of a run's checkpoints are measured once, stored, averaged and compared."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from gristmill.storage.store import write_json
from tests.trainers.evaluation.conftest import save_random
from tests.trainers.tasks.writing import write_lines
from trainers.__main__ import main
from trainers.data.packed_corpus import open_corpus
from trainers.evaluation.checkpoints.evaluate_checkpoints import evaluate_checkpoints
from trainers.evaluation.checkpoints.history_lines import history_lines
from trainers.evaluation.checkpoints.history_page import charts
from trainers.evaluation.checkpoints.score_history import ScoreHistory, compare_histories, signals
from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.run_evaluation import EvaluationSettings
from trainers.runs.stored_evaluations import read_evaluations, result_path
from trainers.tasks.harness_format.harness_task import load_harness_task
from trainers.tasks.load_task import Suite, SuiteColumn, load_task

STEPS = (2, 4, 6)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    pairs = [{"g": f"a cab {n} bed", "b": f"bed {n} a cab"} for n in range(12)]
    write_lines(folder / "pairs.jsonl", pairs)
    (folder / "pairs.yaml").write_text(
        "kind: minimal_pairs\nfiles: {test: pairs.jsonl}\ncolumns: {good: g, bad: b}\nmetrics: [accuracy]\n"
    )
    return folder / "pairs.yaml"


@pytest.fixture(scope="module")
def stored(random_run, task):
    runs = random_run("llama_tiny", steps=STEPS), random_run("tiny_gpt2", steps=STEPS)
    assert main(["evaluate", *map(str, runs), f"task={task}", "--checkpoints", "all"]) == 0
    return runs


@pytest.fixture
def run(stored, tmp_path):
    return shutil.copytree(stored[0], tmp_path / "run")


def measured(monkeypatch):
    """Return a list that grows by one entry whenever a checkpoint is measured from now on."""
    steps, whole = [], Scorer.of.__func__

    def of(cls, name, trained, pseudo):
        steps.append(name)
        return whole(cls, name, trained, pseudo)

    monkeypatch.setattr(Scorer, "of", classmethod(of))
    return steps


def scores(run):
    return {each.step: each.scores["pairs"]["value"] for each in read_evaluations(run)}


def test_what_is_stored_is_not_measured_again_and_outlives_its_checkpoint(
    run, task, monkeypatch, capsys, corpus_directory
):
    before, begun = scores(run), measured(monkeypatch)
    assert list(before) == list(STEPS)
    shutil.rmtree(run / "checkpoints/step-00000002")
    assert main(["evaluate", str(run), f"task={task}", "--checkpoints", "all"]) == 0
    assert (begun, scores(run)) == ([], before)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:4]] == ["2", "4", "6"]
    result_path(run, "pairs.test", 4).unlink()
    save_random(run, open_corpus((str(corpus_directory),), None), 6, seed=77)  # other weights at the same step
    assert main(["evaluate", str(run), f"task={task}", "--checkpoints", "all"]) == 0
    assert len(begun) == 2
    assert scores(run)[4] == before[4]


def test_other_items_are_measured_anew_and_results_of_others_are_left_out(run, task, monkeypatch, tmp_path, capsys):
    shutil.rmtree(run / "checkpoints/step-00000002")
    begun = measured(monkeypatch)
    copy = shutil.copytree(task.parent, tmp_path / "changed")
    write_lines(copy / "pairs.jsonl", [{"g": "a cab", "b": "cab a"}, {"g": "bed", "b": "dab"}])
    assert main(["evaluate", str(run), f"task={copy / 'pairs.yaml'}", "--checkpoints", "all"]) == 0
    shown = capsys.readouterr()
    assert len(begun) == 2
    assert "left out 2: their results are for other items or another prompt" in shown.err
    assert [line.split()[1] for line in shown.out.splitlines()[1:3]] == ["4", "6"]


def test_a_step_that_the_second_run_lacks_is_an_error_before_the_first_is_measured(
    stored, run, task, monkeypatch, tmp_path, capsys
):
    shutil.rmtree(run / "evaluations")
    other = shutil.copytree(stored[1], tmp_path / "other", ignore=shutil.ignore_patterns("evaluations", "step-*6"))
    begun = measured(monkeypatch)
    assert main(["evaluate", str(run), str(other), f"task={task}", "--checkpoints", "4,6"]) == 2
    assert begun == []
    assert f"{other} has neither a checkpoint nor a result of step 6; it has 2, 4" in capsys.readouterr().err


def test_another_normalisation_is_measured_anew(run, monkeypatch, tmp_path):
    """Normalisation changes neither items nor candidates nor gold answers, but it can change which candidate
    wins.
    """
    write_lines(
        tmp_path / "ends.jsonl", [{"q": f"a cab {n}", "ends": ["bed", "a bed and a cab"], "gold": 0} for n in range(4)]
    )
    columns = "columns: {text: q, candidates: ends, label: gold}\nmetrics: [accuracy]\nfiles: {test: ends.jsonl}\nkind: choose\n"
    begun = measured(monkeypatch)
    for normalise in ("none", "character", "none"):
        (tmp_path / "ends.yaml").write_text(
            f"{columns}prompt: {{context: '{{text}}', continuation: ' {{candidate}}', normalise: {normalise}}}\n"
        )
        assert main(["evaluate", str(run), f"task={tmp_path / 'ends.yaml'}", "--checkpoints", "6"]) == 0
    assert len(begun) == 3


@pytest.mark.long
def test_another_main_metric_of_written_answers_is_measured_anew(run, tmp_path):
    write_lines(tmp_path / "w.jsonl", [{"q": f"a cab {n}", "t": "bed"} for n in range(3)])
    for metrics in ("exact_match, token_f1", "token_f1"):
        (tmp_path / "w.yaml").write_text(
            f"kind: generate\nfiles: {{test: w.jsonl}}\ncolumns: {{text: q, target: t}}\nmetrics: [{metrics}]\n"
            "prompt: {context: '{text}', continuation: ' {target}', generation: {tokens: 2}}\n"
        )
        assert main(["evaluate", str(run), f"task={tmp_path / 'w.yaml'}", "--checkpoints", "4,6"]) == 0
        scores = [each.scores["w"]["score"] for each in read_evaluations(run) if "w" in each.scores]
        assert scores == [metrics.partition(",")[0]] * 2


def test_results_of_another_version_are_not_compared(run, task, monkeypatch, tmp_path, capsys):
    """Such results are measured again. If their checkpoint is gone, they are left out, and a line says why."""
    shutil.rmtree(run / "checkpoints/step-00000002")
    begun = measured(monkeypatch)
    copy = shutil.copytree(task.parent, tmp_path / "changed") / "pairs.yaml"
    copy.write_text(f"version: 2\n{copy.read_text()}")
    assert main(["evaluate", str(run), f"task={copy}", "--checkpoints", "all"]) == 0
    shown = capsys.readouterr()
    assert len(begun) == 2
    assert "left out 2: their results are for version 1 of pairs, not 2, and their checkpoints are gone" in shown.err
    assert [line.split()[1:4] for line in shown.out.splitlines()[1:3]] == [["4", "pairs", "2"], ["6", "pairs", "2"]]
    assert [each.versions for each in read_evaluations(run)] == [{"pairs": "1"}, {"pairs": "2"}, {"pairs": "2"}]


def test_results_that_were_stored_before_there_were_versions_are_of_the_first(run, task, monkeypatch):
    begun = measured(monkeypatch)
    for step in STEPS:
        path = result_path(run, "pairs.test", step)
        record = json.loads(path.read_text())
        del record["scores"]["pairs"]["version"]
        write_json(path, record)
    assert main(["evaluate", str(run), f"task={task}", "--checkpoints", "all"]) == 0
    assert begun == []


def test_the_version_of_a_suite_counts_too(run, task):
    suite = Suite((SuiteColumn(str(task), "test"),), "mine", version=4)
    columns, told = [(load_task(str(task)), "test")], []

    def evaluate(version):
        asked = replace(suite, version=version)
        return evaluate_checkpoints([run], None, asked, columns, None, EvaluationSettings(), told.append)[0]

    assert evaluate(4)[0].versions == {"mine.mean": "4", "pairs": "1"}
    shutil.rmtree(run / "checkpoints/step-00000002")
    assert [each.step for each in evaluate(5)] == [4, 6]
    assert told[-1].endswith(
        "left out 2: their results are for version 4 of mine, not 5, and their checkpoints are gone"
    )


def test_settings_have_results_of_their_own(run, task):
    assert main(["evaluate", str(run), f"task={task}", "limit=3", "--checkpoints", "4"]) == 0
    found = {(each.name, each.step): each.scores["pairs"]["n"] for each in read_evaluations(run)}
    assert found == {("pairs.test", step): 12 for step in STEPS} | {("pairs.test,limit=3", 4): 3}
    (run / "evaluations" / "pairs.test,limit=3").rename(run / "evaluations" / "pairs.test[1]")
    assert [each.step for each in read_evaluations(run, "pairs.test[1]")] == [4]


def test_an_averaged_perplexity_is_the_exponential_of_the_averaged_nats(stored, tmp_path):
    """With only the last checkpoint, the average, its standard error and the difference between two runs are
    those of that checkpoint.
    """
    write_lines(tmp_path / "test.jsonl", [{"q": f"a cab {n}", "t": " bed and bag" * (1 + n % 3)} for n in range(9)])
    (tmp_path / "cloze.yaml").write_text(
        "task: cloze\ndataset_path: json\ndataset_kwargs: {data_files: {test: test.jsonl}}\ntest_split: test\n"
        "output_type: loglikelihood\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{t}}'\n"
    )
    columns = [(load_harness_task(tmp_path / "cloze.yaml"), "test")]
    found = evaluate_checkpoints(stored, None, None, columns, None, EvaluationSettings(), lambda line: None)
    newest, both = (
        [ScoreHistory(str(run), tuple(results), None, last) for run, results in zip(stored, found, strict=True)]
        for last in (1, 2)
    )
    for history in newest:
        score, single = history.averages["cloze"].score, history.results[-1].scores["cloze"]
        assert (score.value, score.error) == pytest.approx((single["value"], single["error"]))
    rows = [pq.read_table(each.rows, columns=["score", "weight"]).to_pandas() for each in found[0][1:]]
    nats = sum(each["score"].sum() for each in rows) / sum(each["weight"].sum() for each in rows)
    assert both[0].averages["cloze"].score.value == pytest.approx(np.exp(nats))
    (difference,) = compare_histories(newest)
    values = [history.results[-1].scores["cloze"]["value"] for history in newest]
    assert difference.difference == pytest.approx(values[1] - values[0])
    assert difference.low < difference.difference < difference.high


def test_one_item_decides_nothing(stored, task):
    suite = Suite((SuiteColumn(str(task), "test"),), "mine", centred=True)
    columns, settings = [(load_task(str(task)), "test")], EvaluationSettings(limit=1)
    found = evaluate_checkpoints(stored, None, suite, columns, None, settings, lambda line: None)
    histories = [ScoreHistory(str(run), tuple(results), suite, 1) for run, results in zip(stored, found, strict=True)]
    differences = list(compare_histories(histories))
    assert [each.name for each in differences] == ["pairs", "mine"]
    assert all(each.tie and each.plain()["low"] is each.plain()["high"] is None for each in differences)


def test_the_average_is_that_of_items_over_the_last_checkpoints(stored, task):
    suite = Suite((SuiteColumn(str(task), "test"),), "mine", centred=True)
    columns = [(load_task(str(task)), "test")]
    found = evaluate_checkpoints(stored, None, suite, columns, None, EvaluationSettings(), lambda line: None)
    histories = [ScoreHistory(str(run), tuple(results), suite, 2) for run, results in zip(stored, found, strict=True)]
    right = [pq.read_table(each.rows)["score"].to_numpy() for each in found[0]]
    average = histories[0].averages["pairs"]
    assert average.steps == (4, 6)
    assert average.score.value == pytest.approx((right[1].mean() + right[2].mean()) / 2)
    assert average.score.error == pytest.approx(np.std((right[1] + right[2]) / 2, ddof=1) / np.sqrt(12))
    assert average.deviation == pytest.approx(np.std([right[1].mean(), right[2].mean()], ddof=1))
    assert histories[0].averages["mine.mean"].score.value == pytest.approx(2 * average.score.value - 1)
    unsure = [history.averages["pairs"].score.low <= 0.5 for history in histories]  # at chance or below it
    assert [history.at_chance for history in histories] == [("pairs",) if each else () for each in unsure]
    lines = "\n".join(history_lines(histories))
    assert lines.count("not above chance in the mean of mine: pairs") == sum(unsure)
    assert ("no run above chance" in lines) == all(unsure)
    values = [[each.scores["pairs"]["value"] for each in results[1:]] for results in found]
    signal = next(each for each in signals(histories) if each.name == "pairs")
    assert signal.signal == pytest.approx(abs(np.mean(values[0]) - np.mean(values[1])))
    assert signal.noise == pytest.approx(np.sqrt(np.mean([np.var(each, ddof=1) for each in values])))


def test_the_page_and_the_data_show_every_checkpoint(stored, task, tmp_path, capsys):
    page, data = tmp_path / "curves.html", tmp_path / "curves.json"
    command = ["evaluate", *map(str, stored), f"task={task}", "--checkpoints", "all", "--average", "2"]
    assert main([*command, "--output", str(page), "--require", "pairs.accuracy>=0"]) == 0
    assert main([*command, "--output", str(data), "--require", "pairs.accuracy>1"]) == 1
    assert "pairs.accuracy is" in capsys.readouterr().out
    text = page.read_text()
    assert text.count("<path") >= 4  # a line and a band for each run
    assert "Signal and noise" in text
    found = json.loads(data.read_text())
    assert [[each["step"] for each in run["checkpoints"]] for run in found["runs"]] == [list(STEPS)] * 2
    assert found["differences"][0]["name"] == "pairs"


def test_bands_are_the_intervals(stored):
    results = tuple(read_evaluations(stored[0], "pairs.test"))
    (chart,) = charts([ScoreHistory("a", results, None, 3)])
    ((_, outline),) = chart.bands
    assert len(outline) == 2 * len(STEPS)
    middle = dict(chart.lines[0][1])
    for place, (x, y) in enumerate(outline):
        assert y <= middle[x] + 0.1 if place < len(STEPS) else y >= middle[x] - 0.1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--checkpoints", "last"], "--checkpoints: got 'last', expected all, or steps such as 500,1000"),
        (["--checkpoints", "5"], "has neither a checkpoint nor a result of step 5; it has 2, 4, 6"),
        (["--checkpoints", "all", "--average", "0"], "--average: got 0, allowed 1 or more"),
        (["--average", "2"], "--average: needs --checkpoints"),
    ],
)
def test_bad_input_is_one_line(stored, task, words, message, capsys):
    assert main(["evaluate", str(stored[0]), f"task={task}", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
