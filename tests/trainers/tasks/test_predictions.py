"""Predictions are stored for each example and scored from the file alone."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from gristmill.errors import UserError
from tests.trainers.tasks.writing import read, task_of, write_lines
from trainers.tasks.majority import majority_predictions
from trainers.tasks.predictions import (
    compare_predictions,
    predictions_of,
    read_predictions,
    score_predictions,
    tune_threshold,
    write_predictions,
)

ROWS = [
    {"i": f"q{n}", "a": f"text {n}", "y": ["no", "yes"][n % 2], "v": n, "c": ["x", "y", "z"][: 2 + n % 2], "k": n % 2}
    | {"w": ["Ann", "ran"][: 1 + n % 2], "t": ["B-PER", "O"][: 1 + n % 2], "s": "Rome", "g": f"g{n // 2}"}
    | {"p": "Rome fell.", "o": [{"text": "Rome", "answer_start": 0}] if n else []}
    for n in range(4)
]
COLUMNS = {
    "classify": {"text": "a", "label": "y", "group": "g"}, "regress": {"text": "a", "label": "v"},
    "tag": {"words": "w", "tags": "t"}, "span": {"question": "a", "passage": "p", "answers": "o"},
    "choose": {"text": "a", "candidates": "c", "label": "k"}, "generate": {"text": "a", "target": "s"},
}  # fmt: skip
METRICS = {
    "classify": ["accuracy", "f1", "matthews", "question_accuracy"], "regress": ["pearson", "spearman"],
    "tag": ["entity_f1", "accuracy"], "span": ["token_f1", "exact_match"], "choose": ["accuracy", "exact_match"],
    "generate": ["rouge1", "bleu", "exact_match", "perplexity"],
}  # fmt: skip
PREDICTED = {
    "classify": np.array([0, 1, 1, 1]), "regress": np.array([0.5, 1.0, 4.0, 2.0]), "tag": np.array([1, 1, 0, 0, 2, 0]),
    "span": ["Rome", "Rome", "fell", "Rome fell"], "choose": np.array([0, 1, 1, 2]),
    "generate": ["Rome", "rome.", "Paris", ""],
}  # fmt: skip


def examples_of(folder, kind, **fields):
    write_lines(folder / "dev.jsonl", ROWS)
    labels = {"classify": ["no", "yes"], "tag": ["O", "B-PER", "I-PER"]}.get(kind)
    fields = {"labels": labels, **fields} if labels else fields
    fields |= {"no_answer": True} if kind == "span" else {}
    columns = {**COLUMNS[kind], "id": "i"}
    return read(
        task_of(folder, kind, files={"dev": "dev.jsonl"}, columns=columns, metrics=METRICS[kind], **fields), "dev"
    )


def predictions(folder, kind, **fields):
    more = {}
    if kind in ("classify", "span"):
        more["scores"] = np.arange(8.0).reshape(4, 2)
    if kind == "choose":
        more["scores"] = [np.arange(2.0), np.arange(3.0), np.arange(2.0), np.arange(3.0)]
    if kind == "generate":
        more |= {"nats": np.array([1.0, 2, 3, 4]), "tokens": np.array([1.0, 1, 2, 2])}
    return predictions_of(examples_of(folder, kind, **fields), PREDICTED[kind], "runs/x at step 7", **more)


@pytest.mark.parametrize("kind", COLUMNS)
def test_scores_from_the_file_are_those_of_the_run(tmp_path, kind):
    before = predictions(tmp_path, kind)
    write_predictions(before, tmp_path / "dev.parquet")
    (tmp_path / "dev.jsonl").unlink()
    after = read_predictions(tmp_path / "dev.parquet")
    assert (after.task, after.split, after.model, after.ids) == (before.task, "dev", "runs/x at step 7", before.ids)
    scores = score_predictions(before, repetitions=50)
    assert list(scores) == METRICS[kind]
    assert score_predictions(after, repetitions=50) == pytest.approx(scores, nan_ok=True)
    if before.scores is not None:
        assert after.scores.tolist() == before.scores.tolist()
        assert after.score_offsets.tolist() == before.score_offsets.tolist()


@pytest.mark.parametrize("kind", COLUMNS)
def test_gold_and_predictions_are_legible_without_the_task_file(tmp_path, kind):
    write_predictions(predictions(tmp_path, kind), tmp_path / "dev.parquet")
    row = pq.read_table(tmp_path / "dev.parquet").to_pylist()[3]
    assert row["id"] == "q3"
    expected = {
        "classify": ("yes", "yes"), "regress": (3.0, 2.0), "tag": (["B-PER", "O"], ["I-PER", "O"]),
        "span": (["Rome"], "Rome fell"), "choose": (1, 2), "generate": (["Rome"], ""),
    }[kind]  # fmt: skip
    assert (row["gold"], row["prediction"]) == expected


@pytest.mark.parametrize("kind", COLUMNS)
def test_predictions_of_hidden_gold_are_stored_and_not_scored(tmp_path, kind):
    hidden = predictions(tmp_path, kind, unlabelled=["dev"])
    write_predictions(hidden, tmp_path / "dev.parquet")
    after = read_predictions(tmp_path / "dev.parquet")
    assert pq.read_table(tmp_path / "dev.parquet")["gold"].null_count == (0 if kind == "tag" else 4)
    with pytest.raises(UserError, match="mine: dev: its gold is hidden, so it cannot be scored"):
        score_predictions(after)


def test_values_of_a_file_by_hand(tmp_path):
    values = {name: score.value for name, score in score_predictions(predictions(tmp_path, "classify")).items()}
    assert values["accuracy"] == 0.75
    assert values["f1"] == pytest.approx(0.8)
    assert values["question_accuracy"] == 0.5
    assert score_predictions(predictions(tmp_path, "tag"))["entity_f1"].value == pytest.approx(6 / 7)


def test_another_metric_than_the_task_s_can_be_recomputed(tmp_path):
    assert list(score_predictions(predictions(tmp_path, "classify"), ["micro_f1"])) == ["micro_f1"]
    with pytest.raises(UserError, match="metric: got 'macrof1'; did you mean 'macro_f1'"):
        score_predictions(predictions(tmp_path, "classify"), ["macrof1"])


@pytest.mark.parametrize(("kind", "metric"), [("classify", "bleu"), ("regress", "accuracy"), ("span", "entity_f1")])
def test_a_metric_of_another_kind_of_task_is_refused(tmp_path, kind, metric):
    with pytest.raises(UserError, match=f"metric: {metric} does not measure mine, a task of kind {kind}, which allows"):
        score_predictions(predictions(tmp_path, kind), [metric])


def test_the_threshold_of_no_answer_is_tuned_stored_and_applied(tmp_path):
    examples = examples_of(tmp_path, "span")
    scores = np.array([[1.0, 5.0], [3.0, 2.0], [2.0, 2.0], [4.0, 1.0]])
    plain = predictions_of(examples, ["Rome", "Rome", "Rome", "Rome"], "m", scores)
    tuned = tune_threshold(plain)
    assert 0 <= tuned.threshold < 4
    assert score_predictions(plain)["exact_match"].value == 0.75
    assert score_predictions(tuned)["exact_match"].value == 1.0
    assert tuned.outcomes.texts == plain.outcomes.texts
    write_predictions(tuned, tmp_path / "dev.parquet")
    assert score_predictions(read_predictions(tmp_path / "dev.parquet"))["exact_match"].value == 1.0


def test_two_runs_are_compared_on_the_same_examples_only(tmp_path):
    examples = examples_of(tmp_path, "classify")
    first = predictions_of(examples, np.array([0, 1, 0, 1]), "a")
    second = predictions_of(examples, np.array([1, 0, 0, 1]), "b")
    difference = compare_predictions(first, second)
    assert (difference.a, difference.b, difference.metric) == (1.0, 0.5, "accuracy")
    with pytest.raises(
        UserError, match=r"compare: got mine dev \(4\) and mine dev \(4\), expected predictions of the same"
    ):
        compare_predictions(first, predictions(tmp_path, "regress").__class__(**{**vars(second), "ids": list("abcd")}))


def test_the_majority_of_choices_is_a_candidate_that_the_example_has(tmp_path):
    several = [{"a": "t", "c": list("uvwx")[:size], "k": right} for size, right in ((3, 2), (3, 2), (3, 1), (4, 0))]
    write_lines(tmp_path / "train.jsonl", several)
    write_lines(tmp_path / "dev.jsonl", [{"a": "t", "c": list("uvwx")[:size], "k": 0} for size in (2, 4, 2)])
    files = {"train": "train.jsonl", "dev": "dev.jsonl"}
    task = task_of(tmp_path, "choose", files=files, columns=COLUMNS["choose"])
    found = majority_predictions(read(task), read(task, "dev"))
    assert found.outcomes.predicted.tolist() == [0, 2, 0]
    assert found.outcomes.texts == ["u", "w", "u"]


def test_predictions_that_are_not_finite_are_refused(tmp_path):
    with pytest.raises(UserError, match="mine: dev: 2 predictions are not finite"):
        predictions_of(examples_of(tmp_path, "regress"), np.array([1.0, np.nan, np.inf, 2.0]), "m")


def test_a_file_that_holds_no_predictions_is_named(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    pq.write_table(pq.read_table(_table(tmp_path)), tmp_path / "y.parquet")
    for name in ("x", "y"):
        with pytest.raises(UserError, match=f"{name}.parquet: not a file of predictions that gristmill wrote"):
            read_predictions(tmp_path / f"{name}.parquet")
    with pytest.raises(UserError, match=r"z.parquet: no such file; expected predictions of a run"):
        read_predictions(tmp_path / "z.parquet")


def _table(folder):
    import pyarrow as pa

    pq.write_table(pa.table({"id": ["a"]}), folder / "t.parquet")
    return folder / "t.parquet"
