"""The command `evaluate` on tasks, suites and texts: what it prints, writes and refuses."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.errors import UserError
from tests.trainers.tasks.writing import task_of, write_lines
from trainers.__main__ import main
from trainers.adapters.weights.full import Full
from trainers.engine.hardware.footprint import Footprint
from trainers.evaluation.evaluation_page import render_evaluation, separations
from trainers.evaluation.scoring.scorer import Likelihoods, Scorer
from trainers.evaluation.suites.items import read_items
from trainers.evaluation.suites.run_evaluation import Evaluation, EvaluationSettings, evaluate_models
from trainers.evaluation.suites.suite_result import compare_results, suite_result
from trainers.evaluation.suites.task_result import TaskResult, estimate, item_result, ratio_of, standard_error
from trainers.recipes.finetuning_recipe import finetune
from trainers.runs.run import read_config
from trainers.tasks.load_task import Suite, SuiteColumn
from trainers.tasks.read_examples import read_examples
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.gold_scores import gold_scores
from trainers.tasks.scores.outcomes import Outcomes

TEXTS = ["a cab bade a dead face", "fab cafe decade", "bag had a bed", "a big head fed a deaf hag"]
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    items = [
        {"q": TEXTS[n % 4] + f" {n}", "c": [f"bad {n}", "fed a hag", "cafe"], "y": int(draw.integers(3))}
        for n in range(30)
    ]
    write_lines(folder / "choice.jsonl", items)
    prompt = 'prompt: {context: "{text}", continuation: " {candidate}", normalise: byte, unconditional: "A:", shots_from: dev}'
    (folder / "choice.yaml").write_text(
        "kind: choose\nfiles: {dev: choice.jsonl}\ncolumns: {text: q, candidates: c, label: y}\nmetrics: [accuracy]\n"
        + prompt
    )
    pairs = [{"g": f"a cab {n}", "b": f"a {n} cab cab", "s": f"s{n % 2}", "f": HOSTILE} for n in range(10)]
    write_lines(folder / "pairs.jsonl", pairs)
    (folder / "pairs.yaml").write_text(
        "kind: minimal_pairs\nfiles: {test: pairs.jsonl}\ncolumns: {good: g, bad: b, subtask: s, field: f}\nmetrics: [accuracy]\n"
    )
    write_lines(folder / "cloze.jsonl", [{"c": text.rsplit(" ", 1)[0], "w": text.rsplit(" ", 1)[1]} for text in TEXTS])
    (folder / "cloze.yaml").write_text(
        "kind: generate\nfiles: {test: cloze.jsonl}\ncolumns: {text: c, target: w}\nmetrics: [exact_match]\n"
        'prompt: {context: "{text}", continuation: " {target}"}\n'
    )
    write_lines(folder / "texts.jsonl", [{"text": text} for text in TEXTS])
    (folder / "one.txt").write_text(TEXTS[0])
    return folder


def test_metrics_follow_from_the_likelihoods_of_candidates(tmp_path):
    write_lines(
        tmp_path / "d.jsonl", [{"q": "q", "c": ["aaaa", "b"], "y": 0}, {"q": "q", "c": ["é", "bb", "c"], "y": 2}]
    )
    prompt = {"context": "{text}", "continuation": " {candidate}", "normalise": "unconditional", "unconditional": "A:"}
    columns = {"text": "q", "candidates": "c", "label": "y"}
    task = task_of(tmp_path, "choose", files={"dev": "d.jsonl"}, columns=columns, prompt=prompt)
    items = read_items(task, "dev", None)
    none = np.zeros(5, bool)
    found = Likelihoods(np.array([-4.0, -2, -2.2, -2, -3]), np.array([2, 2, 1, 4, 3]), none, none)
    without = Likelihoods(np.array([-9.0, -1, -1, -1, -8]), found.tokens, none, none)
    result = item_result("m", "form", items, found, without)
    assert result.main == "accuracy_unconditional"
    assert result.scores["bits_per_byte"].value == pytest.approx((4 + 3) / math.log(2) / (4 + 1))
    first, second = math.exp(-4) + math.exp(-2), math.exp(-2.2) + math.exp(-2) + math.exp(-3)
    shares = [math.exp(-4) / first, math.exp(-3) / second]
    assert result.scores["gold_probability"].value == pytest.approx(sum(shares) / 2)
    assert result.scores["reciprocal_rank"].value == 1  # by the main score
    predicted = {name: its.predicted.tolist() for name, (_, its) in result.measured.items() if "accuracy" in name}
    assert predicted == {
        "accuracy_unconditional": [0, 2],
        "accuracy": [1, 1],
        "accuracy_per_token": [1, 1],
        "accuracy_per_byte": [0, 1],
        "accuracy_per_character": [0, 1],
    }
    row = result.rows.to_pylist()[1]
    assert (row["bytes"], row["characters"], row["tokens"]) == ([2, 2, 1], [1, 2, 1], [1, 4, 3])
    assert (row["gold"], row["prediction"], row["log_likelihood_unconditional"]) == (2, 2, [-1, -1, -8])
    score = result.scores["accuracy"]
    assert (score.value, score.n, score.chance) == (0, 2, (1 / 2 + 1 / 3) / 2)
    assert score.verdict == "below"


def test_the_rank_and_the_probability_of_the_gold_candidate():
    likelihoods = np.log([0.2, 0.2, 0.1, 0.3, 0.6])
    offsets, gold = np.array([0, 3, 5]), np.array([1, 0])
    scores = gold_scores(likelihoods, likelihoods, offsets, gold)
    assert scores["gold_probability"][1].predicted == pytest.approx([0.2 / 0.5, 0.3 / 0.9])
    assert scores["reciprocal_rank"][1].predicted.tolist() == [1, 1 / 2]  # an equal score does not count
    (metric, outcomes) = gold_scores(likelihoods - 1e4, -likelihoods, offsets, gold)["reciprocal_rank"]
    assert estimate(metric, outcomes).value == pytest.approx((1 / 2 + 1) / 2)
    far = gold_scores(likelihoods - 1e4, likelihoods, offsets, gold)["gold_probability"]
    assert far[1].predicted == pytest.approx([0.2 / 0.5, 0.3 / 0.9])


def test_errors_and_verdicts_are_those_of_the_items(tmp_path):
    right = np.random.default_rng(0).random(400) < 0.7
    write_lines(tmp_path / "t.jsonl", [{"g": f"g{n}", "b": f"b{n}"} for n in range(400)])
    columns = {"good": "g", "bad": "b"}
    task = task_of(tmp_path, "minimal_pairs", files={"test": "t.jsonl"}, columns=columns, metrics=["accuracy"])
    items = read_items(task, "test", None)

    def result(model, wins):
        nats = np.stack([np.where(wins, -1.0, -2.0), np.full(400, -1.5)], axis=1).ravel()
        ones = np.ones(800, np.int64)
        return item_result(model, "form", items, Likelihoods(nats, ones, ones > 1, ones > 1), None)

    first, other = result("a", right), result("b", np.random.default_rng(1).random(400) < 0.5)
    again = result("c", right)
    score = first.scores["accuracy"]
    assert score.value == right.mean()
    assert score.error == pytest.approx(right.std(ddof=1) / 20)
    assert (score.verdict, other.scores["accuracy"].verdict) == ("above", "at")
    assert score.centred.value == pytest.approx(2 * right.mean() - 1)
    suite = Suite((SuiteColumn("mine"), SuiteColumn("mine")), "s", centred=True)
    mean = suite_result(suite, [first, other])
    assert mean.mean.value == pytest.approx((score.centred.value + other.scores["accuracy"].centred.value) / 2)
    assert mean.at_chance == ("mine",)
    ties = {(each.a, each.b): each.tie for each in compare_results([first, other, again])}
    assert ties == {("a", "b"): False, ("a", "c"): True, ("b", "c"): False}
    (task,) = separations(Evaluation((first, other, again)))
    assert (task.task, task.above, task.apart, task.pairs) == ("mine", 2, 2, 3)
    assert [each.value for each in task.scores] == [score.value, other.scores["accuracy"].value, score.value]
    mixed = [replace(each, task=name) for each in (first, other) for name in ("x", "y")]
    mixed[3] = replace(mixed[2], measured=mixed[1].measured, task="y")  # on y, both models are equal
    rows = separations(Evaluation(tuple(mixed), Suite((SuiteColumn("x"), SuiteColumn("y")), "s")))
    assert [(each.task, each.apart, each.pairs) for each in rows] == [("x", 1, 1), ("y", 0, 1)]
    assert separations(Evaluation((first,))) == []
    twice = list(compare_results([first, first, other, other], suite))[-1]
    assert (twice.name, twice.score) == ("s", "mean")
    assert twice.difference == pytest.approx(2 * (other.scores["accuracy"].value - score.value))
    assert not twice.tie


def test_the_difference_in_the_mean_of_a_suite_weights_items_as_the_scores_do():
    texts = pa.table({"id": ["a", "b", "c"]})
    sizes, losses = np.array([10.0, 100.0, 40.0]), {"a": [30.0, 90.0, 50.0], "b": [29.0, 40.0, 60.0]}
    both = []
    for model, nats in losses.items():
        for task, unit in (("bits_per_byte", "text_bytes"), ("perplexity", "tokens")):
            measured = {task: (METRICS[task], Outcomes(nats=np.array(nats), **{unit: sizes}))}
            both.append(TaskResult(model, "text", task, "test", measured, None, texts))
    suite = Suite((SuiteColumn("bits_per_byte"), SuiteColumn("perplexity")), "s")
    means = [suite_result(suite, both[:2]).mean, suite_result(suite, both[2:]).mean]
    found = list(compare_results(both, suite))[-1]
    assert found.difference == pytest.approx(means[1].value - means[0].value)
    assert found.low < found.difference < found.high


@pytest.mark.long
def test_models_are_compared_on_a_page_and_in_rows(data, decoder_run, other_run, tmp_path, capsys):
    output = tmp_path / "cmp.html"
    tasks = ",".join(str(data / f"{name}.yaml") for name in ("choice", "pairs", "cloze"))
    assert (
        main(["evaluate", str(decoder_run), str(other_run), f"task={tasks}", "shots=0", "--output", str(output)]) == 0
    )
    shown = capsys.readouterr()
    assert re.search(rf"{decoder_run} +choice +dev +1 +30 +accuracy_per_byte +0\.\d{{4}}", shown.out)
    assert "pairs by field" in shown.out
    assert re.search(rf"{decoder_run} +{other_run} +cloze +accuracy", shown.out)
    assert f"{other_run}: scored left to right" in shown.err
    page = output.read_text()
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert "Comparisons on the same items" in page
    assert page.count(" of 1</td>") == 3  # pairs apart on each task
    table = pq.read_table(output.with_suffix(".parquet")).to_pylist()
    assert len(table) == 2 * (30 + 10 + 4)
    row = next(row for row in table if row["task"] == "choice")
    best = int(np.argmax(np.array(row["log_likelihood"]) / row["bytes"]))
    assert (row["prediction"], row["model"], row["bytes"][1]) == (best, str(decoder_run), len("fed a hag"))
    scorer = Scorer.open(decoder_run)
    found = scorer.score([f"{TEXTS[0]} 0"] * 3, [" bad 0", " fed a hag", " cafe"])
    assert row["log_likelihood"] == pytest.approx(found.log_likelihood, abs=1e-4)


def test_json_has_every_score_and_requirements_decide_the_status(data, decoder_run, tmp_path, capsys):
    output = tmp_path / "scores.json"
    command = ["evaluate", str(decoder_run), f"task={data / 'pairs.yaml'}", "limit=3", "--output", str(output)]
    assert main([*command, "--require", "pairs.accuracy>=0"]) == 0
    (task,) = json.loads(output.read_text())["tasks"]
    assert (task["main"], task["scores"]["accuracy"]["n"], sorted(task["subtasks"])) == ("accuracy", 6, ["s0", "s1"])
    assert main([*command, "--require", "pairs.accuracy>1"]) == 1
    assert "pairs.accuracy is" in capsys.readouterr().out
    assert main([*command, "--require", "pairs.f1>1"]) == 2
    assert "no score pairs.f1; allowed pairs.accuracy" in capsys.readouterr().err


def test_bits_per_byte_of_a_file_by_document(data, decoder_run, tmp_path, capsys):
    output = tmp_path / "bits.json"
    assert main(["evaluate", str(decoder_run), f"text={data / 'texts.jsonl'}", "--output", str(output)]) == 0
    rows = pq.read_table(output.with_suffix(".parquet")).to_pylist()
    assert [row["bytes"] for row in rows] == [len(text) for text in TEXTS]
    (task,) = json.loads(output.read_text())["tasks"]
    nats = -sum(row["log_likelihood"] for row in rows)
    assert task["scores"]["bits_per_byte"]["value"] == pytest.approx(nats / math.log(2) / sum(map(len, TEXTS)))
    assert "overlap by half" in task["form"]
    assert main(["evaluate", str(decoder_run), f"text={data / 'one.txt'}", "window=32"]) == 0
    assert "bits_per_byte" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["tiny_bert", "tiny_t5"])
def test_encoders_and_encoder_decoders_are_asked_the_same_items(data, decoder_run, random_run, recipe):
    run = random_run(recipe)
    tasks = [(task_of(data, "generate", **CLOZE), "test")]
    told = []
    results = evaluate_models([decoder_run, run], tasks, None, EvaluationSettings(), told.append)
    assert results[0].rows["id"].to_pylist() == results[1].rows["id"].to_pylist()
    form = {"tiny_bert": "pseudo-log-likelihood within words", "tiny_t5": "T5 sentinel after the context"}[recipe]
    assert results[1].form == form
    assert told[-1] == f"{run}: scored {form}"
    assert form in render_evaluation(Evaluation(results))


CLOZE = {
    "files": {"test": "cloze.jsonl"},
    "columns": {"text": "c", "target": "w"},
    "prompt": {"context": "{text}", "continuation": " {target}"},
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["suite=cor"], "suite: got 'cor'; did you mean 'core'?"),
        (["suite=core", "data=/nowhere"], "hellaswag: dev: no file; looked for /nowhere/hellaswag/hellaswag_val.jsonl"),
        (["suite=core", "task=piqa"], "task: got suite too; give one of suite, task and text"),
        (["suite=core", "limit=0"], "limit: got 0, allowed 1 or more"),
        (["suite=core", "corpus=x"], "corpus: not read with suite; leave it out"),
        (["suit=core"], "did you mean 'suite'?"),
        (["text=/nowhere.jsonl"], "nowhere.jsonl: text: no file; looked for /nowhere.jsonl"),
        (["task=piqa", "--output", "x.csv"], "--output: got x.csv, expected a name that ends in .html or .json"),
        (["limit=3"], "limit: needs suite=NAME, task=NAME or text=FILE"),
        (["--tokens", "0"], "--tokens: got 0, allowed 1 or more"),
        (["--tokens", "9" * 30], f"--tokens: got {'9' * 30}, allowed 1 or more"),
        (["task=cola"], "cola: a task of kind classify without `prompt` cannot be given to a language model"),
        (["task=piqa", "--require", "piqa"], "--require: got 'piqa', expected such as 'core.mean>=0.1'"),
    ],
)
def test_bad_input_is_one_line(decoder_run, words, message, capsys, monkeypatch):
    monkeypatch.delenv("GRISTMILL_TASKS", raising=False)
    assert main(["evaluate", str(decoder_run), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_model_with_the_head_of_a_task_is_refused(data, random_run, monkeypatch, capsys):
    run = random_run("tiny_bert", seed=5)
    classify = {
        "kind": "classify",
        "files": {"train": "x.jsonl"},
        "columns": {"text": "a", "label": "b"},
        "labels": [0, 1],
    }
    config = finetune("tuned", (task_of(data, **classify),), read_config(run).model, None, Full())
    monkeypatch.setattr("trainers.inference.model_export.read_config", lambda path: config)
    assert main(["evaluate", str(run), f"task={data / 'pairs.yaml'}"]) == 2
    assert "holds a model with the head of a task, which writes no text" in capsys.readouterr().err


def test_two_tasks_of_one_name_are_refused(tmp_path, decoder_run, capsys):
    """Else the scores of one would be taken for those of the other."""
    form = "kind: minimal_pairs\nfiles: {test: p.jsonl}\ncolumns: {good: g, bad: b}\nmetrics: [accuracy]\n"
    for folder in ("en", "de"):
        (tmp_path / folder).mkdir()
        write_lines(tmp_path / folder / "p.jsonl", [{"g": "a cab", "b": "a bed"}])
        (tmp_path / folder / "pairs.yaml").write_text(form)
    assert main(["evaluate", str(decoder_run), f"task={tmp_path}/en/pairs.yaml,{tmp_path}/de/pairs.yaml"]) == 2
    assert (
        "task: two are called pairs and have a split test; give one of them another `name`" in capsys.readouterr().err
    )


def test_a_perplexity_too_large_for_a_float_has_a_bound():
    value, influences = ratio_of(np.array([[5000.0, 1.0], [4000.0, 1.0]]), "word_perplexity")
    assert value == pytest.approx(math.exp(300))
    assert np.isfinite(standard_error(influences))
    score = estimate(METRICS["perplexity"], Outcomes(nats=np.array([5000.0, 10.0]), tokens=np.ones(2)))
    assert score.value == pytest.approx(math.exp(300))
    assert math.isfinite(score.error)


def test_the_cost_of_several_passes_is_their_sum():
    one, two = (Footprint({"read": flops}, 1.0, "cpu", None, "unknown") for flops in (1e9, 3e9))
    costs = (("a", one), ("a", one), ("a", two), ("b", None))
    results = [TaskResult(model, "form", "t", "test", {}, None, pa.table({}), cost=cost) for model, cost in costs]
    assert {name: each.flops for name, each in Evaluation(tuple(results)).costs.items()} == {"a": {"read": 4e9}}


def test_tasks_that_nothing_is_trained_on_are_refused_by_finetune(data, decoder_run, capsys):
    assert main(["finetune", str(data / "pairs.yaml"), f"model={decoder_run}", f"run={data}/run"]) == 2
    assert "tasks: pairs is of kind minimal_pairs, which only `trainers evaluate` takes" in capsys.readouterr().err


def test_a_missing_column_of_texts_is_named(data):
    task = task_of(data, "text", files={"test": "cloze.jsonl"}, columns={"text": "text"}, metrics=["bits_per_byte"])
    with pytest.raises(UserError, match=r"columns\.text: no column 'text'"):
        read_examples(task, "test", None)
