"""The shipped suites of facts, held-out documents and templates, suites with several numbers of shots, and
label calibration.
"""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from pipelines.contracts.document import document_id, file_key
from pipelines.contracts.manifest import CorpusManifest, save_corpus
from pipelines.contracts.shard_set import ShardRecord, ShardSet, TokenizerRecord, write_shard
from tests.trainers.tasks.writing import task_of, write_lines
from tokenizer.encode import Encoder
from tokenizer.vocabulary.definition import read_definition
from trainers.__main__ import main
from trainers.evaluation.scoring.scorer import Likelihoods, Scorer
from trainers.evaluation.suites.clean_scores import clean_scores
from trainers.evaluation.suites.fact_result import fact_result
from trainers.evaluation.suites.item_file import write_item_file
from trainers.evaluation.suites.items import NEUTRAL, read_items
from trainers.evaluation.suites.run_evaluation import EvaluationSettings, evaluate_models
from trainers.evaluation.suites.suite_result import compare_results, suite_results
from trainers.evaluation.suites.task_result import item_result
from trainers.tasks.formats.generated_rows import GENERATORS
from trainers.tasks.load_task import Suite, SuiteColumn, load_suite, load_task, shipped_suites
from trainers.tasks.read_facts import read_facts

FACTS = {"files": {"test": "P*.jsonl"}, "columns": {"subject": "s", "target": "o"}, "metrics": ["accuracy"]}


class Known:
    """A scorer that takes log-probabilities from a given function of context and continuation."""

    def __init__(self, of):
        self.of, self.asked = of, []
        self.form = type("Form", (), {"described": "known"})()

    def score(self, contexts, continuations):
        self.asked += zip(contexts, continuations, strict=True)
        nats = np.array([self.of(context, text) for context, text in zip(contexts, continuations, strict=True)])
        none = np.zeros(len(nats), bool)
        return Likelihoods(nats, np.ones(len(nats), np.int64), none, none)


@pytest.fixture
def capitals(tmp_path):
    facts = [("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Rome", "Rome")]
    write_lines(tmp_path / "P36.jsonl", [{"s": s, "o": o} for s, o in facts])
    write_lines(tmp_path / "P1.jsonl", [{"s": "Anna", "o": "poet"}, {"s": "Ben", "o": "pilot"}])
    statements = ["The capital  of [X] is [Y] .", "[X], whose capital is [Y].", "[Y] is the capital of [X]."]
    relations = [
        {"relation": "P36", "label": "capital", "template": statements[0], "paraphrases": statements},
        {"relation": "P1", "label": "job", "template": "[X] is a [Y] by profession ."},
    ]
    write_lines(tmp_path / "relations.jsonl", relations)
    return task_of(tmp_path, "facts", **FACTS)


def test_paraphrases_may_be_null_but_not_a_text(tmp_path):
    write_lines(tmp_path / "P36.jsonl", [{"s": "France", "o": "Paris"}, {"s": "Italy", "o": "Rome"}])
    relation = {"relation": "P36", "label": "capital", "template": "The capital of [X] is [Y] ."}
    write_lines(tmp_path / "relations.jsonl", [relation | {"paraphrases": None}])
    (found,) = read_facts(task_of(tmp_path, "facts", **FACTS), "test", None).relations
    assert found.statements == (("The capital of [X] is", ""),)
    write_lines(tmp_path / "relations.jsonl", [relation | {"paraphrases": "[X], whose capital is [Y]."}])
    with pytest.raises(
        UserError, match=r"relations\.jsonl: line 1: paraphrases: got .*, expected a list of statements"
    ):
        read_facts(task_of(tmp_path, "facts", **FACTS), "test", None)


def test_facts_are_chosen_among_the_objects_of_their_relation(capitals):
    facts = read_facts(capitals, "test", None)
    assert facts.notes == ("mine: 1 statements left out: their object comes before their subject",)
    right = {"France": " Paris", "Italy": " Rome", "Spain": " Rome", "Anna": " poet by profession"}

    def nats(context, text):
        if context.startswith("Spain, whose"):
            return float(text == " Madrid")
        return max((text == answer for name, answer in right.items() if name in context), default=0.0) * 2.0 - 5

    scorer = Known(nats)
    result = fact_result("m", scorer, facts, None)
    assert ("The capital of France is", " Paris") in scorer.asked
    assert ("Anna is a", " poet by profession") in scorer.asked
    rows = {row["id"]: row for row in result.rows.to_pylist()}
    # The objects are Madrid, Paris and Rome; without a preference the first one is chosen.
    assert [rows[n]["predictions"] for n in "2345"] == [[1, 1], [2, 2], [2, 0], [0, 0]]
    assert [rows[n]["rank"] for n in "2345"] == [1, 1, 2, 1]
    assert result.scores["accuracy"].value == 4 / 6
    assert result.scores["always_right"].value == 4 / 6
    assert result.scores["consistency"].value == 3 / 4
    assert result.scores["reciprocal_rank"].value == pytest.approx((5 + 1 / 2) / 6)
    liked = math.exp(2)  # times as probable as another object
    shares = [liked / (liked + 2)] * 2 + [1 / (liked + 2), 1 / 3, liked / (liked + 1), 1 / 2]
    assert result.scores["gold_probability"].value == pytest.approx(sum(shares) / 6)
    assert result.chance == (1 + 2) / 6
    assert sorted(result.parts(result.subtasks)) == ["P1 job", "P36 capital"]
    assert rows["2"]["bytes"] == [6, 5, 4]
    few = fact_result("m", scorer, facts, 1)
    assert few.rows["id"].to_pylist() == ["0", "2"]
    assert few.chance == 0  # neither Anna's job nor the capital of France is the most common one of all facts


def test_facts_have_the_ids_under_which_a_corpus_is_searched_for_them(capitals, tmp_path):
    write_item_file([(capitals, "test")], None, LocalPath(tmp_path / "items.jsonl"))
    items = [json.loads(line)["id"] for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    result = fact_result("m", Known(lambda context, text: 0.0), read_facts(capitals, "test", None), None)
    (score,) = clean_scores([result], {"m": dict.fromkeys(items[:3], 1.0)})
    assert (score.items, score.searched, score.found) == (6, 3, 3)


def test_facts_without_their_statements_are_refused(capitals, tmp_path):
    statements = tmp_path / "relations.jsonl"
    lines = statements.read_text().splitlines()
    for kept, message in (
        (lines[:1], "relations.jsonl: has no line for relation P1, for which there is a file"),
        ([lines[0].replace("[X]", "X"), lines[1]], "expected a statement with one \\[X\\] and one \\[Y\\]"),
    ):
        statements.write_text("\n".join(kept))
        with pytest.raises(UserError, match=message):
            read_facts(capitals, "test", None)
    statements.unlink()
    with pytest.raises(UserError, match=r"has no relations\.jsonl with the statements of the relations; add it beside"):
        read_facts(capitals, "test", None)


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_rows_are_items_with_distinct_candidates(name):
    task = load_task(name)
    items = read_items(task, "test", None)
    assert items.notes == ()
    assert len(items) > 50
    texts = list(zip(items.contexts, items.continuations, strict=True))
    assert len({tuple(texts[a:b]) for a, b in zip(items.offsets, items.offsets[1:], strict=False)}) == len(items)
    if task.kind == "choose":  # always the same answer is no better than chance
        shares = np.bincount(items.gold) / len(items)
        assert shares.max() < 0.6
    assert GENERATORS[name]() == GENERATORS[name]()


def test_the_truth_of_generated_rows():
    for row in GENERATORS["age_comparison"]():
        first, second = (int(word) for word in row["text"].split() if word.isdigit())
        assert row["candidates"][row["label"]] == ("older" if first > second else "younger")
    for row in GENERATORS["agreement"]():
        subject = row["good"].split()[1]
        plural = subject.endswith("s") and subject != "bus"
        good, bad = ({*row[kind].rstrip(".").split()} for kind in ("good", "bad"))
        verb = (good - bad).pop()
        assert (verb in {"are", "were", "look", "have", "laugh", "swim", "smile"}) == plural
        assert row["subtask"].endswith(row["field"])
        assert row["field"] in ("same_number", "other_number", "without_another_noun")
    counts = Counter(row["subtask"] for row in GENERATORS["agreement"]())
    assert set(counts.values()) <= {144, 300}
    assert {(r["text"], r["passage"]): r["label"] for r in GENERATORS["negation"]()}["hot, it was really", "cold"] == 0
    truths = {(r["text"], r["passage"]): r["candidates"][r["label"]] for r in GENERATORS["always_never"]()}
    assert truths["A horse", "has feathers"] == "never"
    assert truths["A salmon is", "hungry"] == "sometimes"
    assert truths["A square is", "round"] == "never"


def test_calibration_divides_by_what_the_labels_get_without_content(tmp_path):
    write_lines(tmp_path / "dev.jsonl", [{"s": f"s{n}", "y": n % 2} for n in range(3)])
    fields = {"files": {"dev": "dev.jsonl"}, "columns": {"text": "s", "label": "y"}, "labels": [0, 1]}
    prompt = {
        "context": "{text} It was",
        "continuation": " {label}",
        "words": {"0": "bad", "1": "good"},
        "shots_from": "dev",
    }
    task = task_of(tmp_path, "classify", **fields, prompt=prompt)
    items = read_items(task, "dev", None, shots=1, calibrate=True)
    assert len(items.neutral) == len(NEUTRAL) * 6
    before = items.contexts[0].removesuffix("s0 It was")
    assert before
    assert items.neutral[0] == items.neutral[1] == f"{before}N/A It was"
    assert items.neutral[12:14] == [f"{before} It was"] * 2
    none = np.zeros(6, bool)
    found = Likelihoods(np.log([0.25, 0.3, 0.1, 0.5, 0.3, 0.2]), np.ones(6, np.int64), none, none)
    # Shares of the first label: 0.2, 0.4 and 0.6 of an item in the three texts, so 0.4 on average.
    of = np.log(np.array([[0.1, 0.4], [0.2, 0.3], [0.3, 0.2]])).repeat(3, axis=0).ravel()
    result = item_result("m", "form", items, found, None, Likelihoods(of, found.tokens, none, none))
    predicted = {
        name: its.predicted.tolist() for name, (_, its) in result.measured.items() if its.predicted is not None
    }
    assert predicted["accuracy"] == [1, 1, 0]
    assert predicted["calibrated_accuracy"] == [0, 1, 0]  # 0.25 / 0.4 is more than 0.3 / 0.6
    shares = np.exp(result.rows["log_share_without_content"].to_pylist()[0])
    assert shares == pytest.approx([0.4, 0.6])
    assert result.scores["calibrated_accuracy"].chance == result.chance
    other = task_of(tmp_path, "choose", **{**fields, "columns": {"text": "s", "candidates": "c", "label": "y"}, "labels": []},
                    prompt={"context": "{text}", "continuation": " {candidate}"})  # fmt: skip
    write_lines(tmp_path / "dev.jsonl", [{"s": "s", "c": ["a", "b"], "y": 0}])
    (note,) = read_items(other, "dev", None, calibrate=True).notes
    assert note == "mine: not calibrated, because its candidates differ between items"


def test_a_suite_with_shots_has_a_mean_for_each_number(tmp_path):
    write_lines(tmp_path / "t.jsonl", [{"g": f"g{n}", "b": f"b{n}"} for n in range(20)])
    task = task_of(
        tmp_path, "minimal_pairs", files={"test": "t.jsonl"}, columns={"good": "g", "bad": "b"}, metrics=["accuracy"]
    )

    def result(model, name, right):
        items = read_items(replace(task, name=name), "test", None)
        nats = np.stack([np.where(np.arange(20) < right, -1.0, -2.0), np.full(20, -1.5)], axis=1).ravel()
        ones = np.ones(40, np.int64)
        return item_result(model, "form", items, Likelihoods(nats, ones, ones > 1, ones > 1), None)

    suite = Suite((SuiteColumn("a"), SuiteColumn("b")), "s", centred=True, shots=(0, 4))
    of = {model: [result(model, f"{name}@{shots}", 12 + 2 * shots * better) for shots in (0, 4) for name in "ab"]
          for better, model in enumerate(("x", "y"))}  # fmt: skip
    means = suite_results(suite, of["y"])
    assert [(mean.suite, round(mean.mean.value, 6)) for mean in means] == [("s@0", 0.2), ("s@4", 1.0)]
    differences = {each.name: each for each in compare_results([*of["x"], *of["y"]], suite)}
    assert {"s@0", "s@4", "a@0", "b@4"} <= set(differences)
    assert (differences["s@0"].tie, differences["s@4"].tie) == (True, False)


def test_the_command_asks_with_every_number_of_shots(decoder_run, tmp_path, capsys, monkeypatch):
    rows = [{"query": f"a cab {n}", "choices": ["bad", "fed"], "gold": n % 2} for n in range(6)]
    write_lines(tmp_path / "COPA" / "copa.jsonl", rows)
    suite = Suite((SuiteColumn("copa_cloze"),), "few", centred=True, shots=(0, 2), limit=4)
    monkeypatch.setattr("trainers.tasks.load_task.load_suite", lambda name: suite)
    output = tmp_path / "out.json"
    assert main(["evaluate", str(decoder_run), "suite=few", f"data={tmp_path}", "--output", str(output)]) == 0
    record = json.loads(output.read_text())
    assert [(task["task"], task["scores"]["accuracy"]["n"]) for task in record["tasks"]] == [
        ("copa_cloze@0", 4), ("copa_cloze@2", 4),
    ]  # fmt: skip
    assert [each["suite"] for each in record["suites"]] == ["few@0", "few@2"]


@pytest.mark.parametrize("name", ["core", "blimp", "facts", "gpt3", "probes"])
def test_every_suite_for_evaluation_names_tasks_with_gold(name):
    suite = load_suite(name)
    for column in suite.columns:
        task = load_task(column.task)
        assert column.split in task.splits
        assert column.split not in task.unlabelled
        assert task.kind in ("minimal_pairs", "facts") or task.prompt is not None
    assert name in shipped_suites()


TEXTS = {"plays": ["a cab", "bad cafe, decade", "deaf"], "notes": ["a café"]}


@pytest.fixture
def held_out(corpus_directory, tmp_path):
    source, directory = LocalPath(corpus_directory), LocalPath(tmp_path)
    (directory / "tokenizer.json").write_atomic((source / "tokenizer.json").read_bytes())
    encoder = Encoder.load(str(directory / "tokenizer.json"))
    records = []
    for name, texts in TEXTS.items():
        for split in ("train", "validation", "test") if name == "plays" else ("train", "validation"):
            tokens, offsets = encoder.encode(pa.array(texts, pa.large_string()))
            ids = pa.array([document_id(file_key(name, split), n) for n in range(len(texts))], pa.binary(16))
            n_bytes = np.array([len(text.encode()) for text in texts], np.int64)
            path = f"shards/{name}/{split}.arrow"
            packed = (tokens.astype(np.uint16), offsets, ids, n_bytes)
            (directory / path).write_atomic(lambda sink, packed=packed: write_shard(sink, *packed, {}, None))
            file = directory.record(path)
            size = (len(texts), len(tokens), int(n_bytes.sum()))
            records.append(ShardRecord(file.path, file.bytes, file.xxh3_128, name, split, *size))
    file, definition = directory.record("tokenizer.json"), read_definition(str(directory / "tokenizer.json"))
    facts = (definition.vocab_size, definition.kind, definition.roles)
    record = TokenizerRecord(file.path, file.bytes, file.xxh3_128, *facts)
    shards = {"shards": ShardSet(record, "uint16", (), tuple(records))}
    save_corpus(
        directory, CorpusManifest("held", "f" * 32, {}, {name: {} for name in TEXTS}, shards, (), (), {}), lambda: None
    )
    return directory


def test_held_out_documents_are_measured_by_source_and_split(held_out, decoder_run, tmp_path, capsys):
    output = tmp_path / "out.json"
    command = ["evaluate", str(decoder_run), "suite=likelihood", f"corpus={held_out}"]
    assert main([*command, "--output", str(output)]) == 0
    assert "by source" in capsys.readouterr().out
    tasks = {task["split"]: task for task in json.loads(output.read_text())["tasks"]}
    assert sorted(tasks["validation"]["subtasks"]) == ["notes", "plays"]
    assert sorted(tasks["test"]["subtasks"]) == ["plays"]
    found, _ = Scorer.open(decoder_run).score_texts(TEXTS["plays"])
    bits = -found.log_likelihood.sum() / math.log(2) / sum(map(len, TEXTS["plays"]))
    assert tasks["validation"]["subtasks"]["plays"]["value"] == pytest.approx(bits)
    rows = pq.read_table(output.with_suffix(".parquet")).to_pylist()
    assert [row["bytes"] for row in rows if row["subtask"] == "notes"] == [[len("a café".encode())]] or rows[-1][
        "bytes"
    ]
    assert main([*command, "limit=1", "--output", str(output)]) == 0
    assert {task["scores"]["bits_per_byte"]["n"] for task in json.loads(output.read_text())["tasks"]} == {1, 2}


def test_tokens_that_do_not_spell_the_text_are_refused(corpus_directory, decoder_run, capsys):
    assert main(["evaluate", str(decoder_run), "suite=likelihood", f"corpus={corpus_directory}"]) == 2
    error = capsys.readouterr().err
    assert "the text cannot be restored from tokens of a byte_bpe vocabulary; measure its files with text=FILE" in error
    assert error.count("\n") == 1


def test_shots_before_facts_are_refused(capitals, decoder_run):
    with pytest.raises(ConfigError, match="shots: got 1, but facts"):
        evaluate_models([decoder_run], [(capitals, "test")], None, EvaluationSettings(shots=1), print)
