"""Examples are converted to text-to-text form, and outputs are converted back to predictions."""

import json

import numpy as np
import pytest

from gristmill.errors import ConfigError
from tests.trainers.tasks.writing import read, task_of, write_lines
from trainers.tasks.load_task import load_suite
from trainers.tasks.predictions import predictions_of, score_predictions
from trainers.tasks.suite_mean import suite_score
from trainers.tasks.text_to_text import parse_outputs, render_inputs, render_targets

ROWS = [
    {"a": "one", "b": "two", "y": "no", "v": 3.93, "c": ["x", "y y"], "k": 1, "w": ["Ann", "ran"], "t": ["B-PER", "O"]}
    | {"p": "Rome fell.", "o": [{"text": "Rome", "answer_start": 0}], "g": ["x y", "z"]},
    {"a": "three", "b": "four", "y": "yes", "v": 0, "c": ["u", "v", "w"], "k": 0, "w": ["Bo"], "t": ["B-PER"]}
    | {"p": "Rome fell.", "o": [], "g": ["u"]},
]
COLUMNS = {
    "classify": {"text": "a", "text_b": "b", "label": "y"}, "regress": {"text": "a", "label": "v"},
    "tag": {"words": "w", "tags": "t"}, "span": {"question": "a", "passage": "p", "answers": "o"},
    "choose": {"text": "a", "candidates": "c", "label": "k"}, "generate": {"text": "a", "target": "g"},
}  # fmt: skip
RENDERED = {
    "classify": ("mine text: one text_b: two", ["no"]),
    "regress": ("mine text: one", ["4.0"]),
    "tag": ("mine words: Ann ran", ["B-PER O"]),
    "span": ("mine question: one passage: Rome fell.", ["Rome"]),
    "choose": ("mine text: one candidates: (A) x (B) y y", ["y y"]),
    "generate": ("mine text: one", ["x y", "z"]),
}


def examples_of(folder, kind, **fields):
    write_lines(folder / "dev.jsonl", ROWS)
    labels = {"classify": ["no", "yes"], "tag": ["O", "B-PER", "I-PER"]}.get(kind)
    fields |= {"labels": labels} if labels else {}
    fields |= {"no_answer": True} if kind == "span" else {}
    return read(task_of(folder, kind, files={"dev": "dev.jsonl"}, columns=COLUMNS[kind], **fields), "dev")


@pytest.mark.parametrize("kind", COLUMNS)
def test_without_templates_the_roles_are_named(tmp_path, kind):
    examples = examples_of(tmp_path, kind)
    assert (render_inputs(examples)[0], render_targets(examples)[0]) == RENDERED[kind]


@pytest.mark.parametrize("kind", COLUMNS)
def test_the_gold_s_text_is_read_back_as_the_gold(tmp_path, kind):
    examples = examples_of(tmp_path, kind)
    predicted = parse_outputs(examples, [f" {targets[0]}\n" for targets in render_targets(examples)])
    metric = {"regress": "pearson", "span": "exact_match", "generate": "exact_match"}.get(kind, "accuracy")
    scores = score_predictions(predictions_of(examples, predicted, "gold"), [metric], repetitions=10)
    assert scores[metric].value == pytest.approx(1.0)


def test_squad_files_without_columns_or_templates_have_questions_and_passages(tmp_path):
    answers = [{"text": "Rome", "answer_start": 0}]
    paragraph = {"context": "Rome fell.", "qas": [{"id": "1", "question": "Who?", "answers": answers}]}
    (tmp_path / "dev.json").write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": [paragraph]}]}))
    examples = read(task_of(tmp_path, "span", files={"dev": "dev.json"}, format="squad"), "dev")
    assert render_inputs(examples) == ["mine question: Who? passage: Rome fell."]
    assert render_targets(examples) == [["Rome"]]


def test_templates_words_and_what_surrounds_the_gold(tmp_path):
    templates = {"input": "{text_b} / {text}?", "target": "It is {label}.", "words": {"no": "False", "yes": "True"}}
    examples = examples_of(tmp_path, "classify", templates=templates)
    assert render_inputs(examples) == ["two / one?", "four / three?"]
    assert render_targets(examples) == [["It is False."], ["It is True."]]
    texts = [["It is False.", "It is True."], ["false", "  TRUE "], ["It is", "no"]]
    assert [parse_outputs(examples, pair).tolist() for pair in texts] == [[0, 1], [0, 1], [-100, -100]]
    scores = score_predictions(predictions_of(examples, parse_outputs(examples, ["?", "true"]), "m"))
    assert scores["accuracy"].value == 0.5


def test_words_that_differ_only_in_case_are_told_apart(tmp_path):
    for words in (["Yes", "yes"], ["yes", "Yes"]):
        templates = {"input": "{text}", "target": "{label}", "words": dict(zip(("no", "yes"), words, strict=True))}
        examples = examples_of(tmp_path, "classify", templates=templates)
        assert parse_outputs(examples, [text for (text,) in render_targets(examples)]).tolist() == [0, 1]


def test_white_space_at_the_ends_of_a_word_is_written_and_not_read(tmp_path):
    templates = {"input": "{text}", "target": "{label}", "words": {"no": " No", "yes": " Yes\n"}}
    examples = examples_of(tmp_path, "classify", templates=templates)
    targets = [text for (text,) in render_targets(examples)]
    assert targets == [" No", " Yes\n"]
    assert parse_outputs(examples, targets).tolist() == parse_outputs(examples, ["no", "Yes"]).tolist() == [0, 1]
    templates["words"]["no"] = "Yes"
    with pytest.raises(ConfigError, match="words: two labels have the same word"):
        examples_of(tmp_path, "classify", templates=templates)


@pytest.mark.parametrize(
    ("value", "step", "text"), [(3.93, 0.2, "4.0"), (2.5, 0.25, "2.50"), (2.57, 0.2, "2.6"), (7.4, 5, "5")]
)
def test_numbers_are_rounded_as_in_t5(tmp_path, value, step, text):
    write_lines(tmp_path / "train.jsonl", [{"a": "x", "v": value}])
    templates = {"input": "{text}", "target": "{score}", "step": step}
    task = task_of(
        tmp_path, "regress", files={"train": "train.jsonl"}, columns={"text": "a", "label": "v"}, templates=templates
    )
    assert render_targets(read(task)) == [[text]]


def test_what_is_no_number_is_the_lowest_and_what_is_beyond_the_range_its_end(tmp_path):
    examples = examples_of(tmp_path, "regress", range=[0, 5])
    assert parse_outputs(examples, ["nan", "7"]).tolist() == [0, 5]
    assert parse_outputs(examples, ["many", "-1"]).tolist() == [0, 0]


def test_tags_that_are_missing_unknown_or_too_many(tmp_path):
    examples = examples_of(tmp_path, "tag")
    assert parse_outputs(examples, ["I-PER", "B-PER O O"]).tolist() == [2, 0, 1]
    assert parse_outputs(examples, ["PER I-PER", ""]).tolist() == [0, 2, 0]


def test_an_answer_that_says_that_there_is_none(tmp_path):
    assert parse_outputs(examples_of(tmp_path, "span"), ["Unanswerable.", "Rome"]) == ["", "Rome"]


def test_a_text_that_is_no_candidate_is_the_nearest(tmp_path):
    assert parse_outputs(examples_of(tmp_path, "choose"), ["the y", "nothing"]).tolist() == [1, 0]


def test_a_suite_s_mean_averages_the_metrics_of_a_column_first():
    values = {
        ("cola", "dev"): {"matthews": 0.4}, ("mrpc", "dev"): {"f1": 0.8, "accuracy": 0.7},
        ("mnli", "dev_mismatched"): {"accuracy": 0.6},
    }  # fmt: skip
    scored = suite_score(load_suite("glue"), values)
    assert scored.mean == pytest.approx(np.mean([0.4, 0.75, 0.6]))
    assert str(scored) == "glue: 0.5833, the mean of 3 of 9 columns"
    assert scored.columns["mnli/dev_mismatched"] == 0.6
    assert scored.columns["mnli"] is None
    assert str(suite_score(load_suite("glue"), {})) == "glue: none of 9 columns is scored"
