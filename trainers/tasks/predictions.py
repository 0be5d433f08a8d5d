"""The predictions for a split, one per example: store, score and compare them without the model.

The columns of a Parquet file of predictions are `id`, `gold`, `prediction` and, if there are scores, `score`.
Its schema metadata holds the task, the split, the model and the no-answer threshold, which is not yet applied
to `prediction`. A prediction is a label for classify, a number for regress, a candidate index for choose, a
list of labels for tag, and a text for span and generate. Gold has the same type, except that it is the list
of accepted texts for span and generate. `score` holds one number per label or candidate for classify and
choose; for span, it holds the score of the answer and the score of "no answer". Some tasks have further
columns: `accepted` and `text` for choose (the accepted texts and the predicted text), `group` (the index of
the example's group), and `nats` and `tokens` (the loss of the gold text and its number of tokens).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.config import near_match, parse, plain
from gristmill.errors import UserError
from gristmill.storage.location import Location
from trainers.tasks.examples import HIDDEN, Examples
from trainers.tasks.schema.metric_names import METRIC_KINDS
from trainers.tasks.schema.task import Task
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.answer_scores import best_threshold, exact_matches, token_f1s
from trainers.tasks.scores.metric import TaskMetric
from trainers.tasks.scores.outcomes import Outcomes
from trainers.tasks.scores.resampling import REPETITIONS, Difference, Score, compare, score

_KEY = b"gristmill.predictions"


@dataclass(frozen=True)
class Predictions:
    """The predictions for n examples, with their gold if `labelled`.

    `outcomes` holds predictions and gold, before `threshold` is applied. `scores` is a flat float32 array;
    the scores of example i are `scores[score_offsets[i] : score_offsets[i + 1]]`. `threshold` is only set for
    questions that may have no answer: `decided` replaces an answer by an empty text if the score of "no
    answer" exceeds the score of the answer by more than `threshold`.
    """

    task: Task
    split: str
    model: str
    ids: list[str]
    outcomes: Outcomes
    labelled: bool
    scores: np.ndarray | None = None
    score_offsets: np.ndarray | None = None
    threshold: float | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def no_answer_scores(self) -> np.ndarray:
        """For a `span` task, the score of "no answer" minus the score of the predicted answer, float64 [n]."""
        assert self.scores is not None
        pairs = self.scores.reshape(-1, 2).astype(np.float64)
        return pairs[:, 1] - pairs[:, 0]

    @property
    def decided(self) -> Outcomes:
        """The outcomes, with `threshold` applied if there is one."""
        if self.threshold is None:
            return self.outcomes
        assert self.outcomes.texts is not None
        answers = zip(self.outcomes.texts, self.no_answer_scores > self.threshold, strict=True)
        return replace(self.outcomes, texts=["" if none else text for text, none in answers])


def predictions_of(
    examples: Examples,
    predicted: np.ndarray | list[str] | None,
    model: str,
    scores: Sequence[np.ndarray] | np.ndarray | None = None,
    nats: np.ndarray | None = None,
    tokens: np.ndarray | None = None,
) -> Predictions:
    """Return the predictions for the examples of a split. All arrays and lists are in the order of
    `examples`.

    `predicted` holds label indices for classify, the tag indices of all words for tag, candidate indices for
    choose, numbers for regress, and texts for span and generate, where it may be None. `scores` holds an
    array per example; `nats` and `tokens` are as in `Outcomes`. Raises UserError if a predicted number is not
    finite.
    """
    task, kind = examples.task, examples.task.kind
    expected = len(examples.tags) if examples.tags is not None else len(examples)
    assert predicted is None or len(predicted) == expected, f"{len(predicted)} predictions of {expected}"
    outcomes = Outcomes(
        labels=task.label_names,
        positive=task.positive_label if kind == "classify" else 1,
        groups=examples.groups,
        no_answer=task.no_answer,
        nats=nats,
        tokens=tokens,
    )
    if kind in ("span", "generate"):
        outcomes = replace(outcomes, references=examples.targets, texts=None if predicted is None else list(predicted))
    else:
        gold = {"regress": examples.values, "tag": examples.tags}.get(kind, examples.labels)
        dtype = np.float64 if kind == "regress" else np.int64
        numbers = np.asarray(predicted, dtype)
        if not np.isfinite(numbers).all():
            raise UserError(
                f"{task.name}: {examples.split}: {(~np.isfinite(numbers)).sum():,} predictions are not finite; "
                f"the model has diverged: train with a lower learning rate"
            )
        outcomes = replace(outcomes, gold=gold, predicted=numbers, offsets=examples.word_offsets)
    if kind == "choose":
        assert examples.candidates is not None
        assert examples.candidate_offsets is not None
        chosen = examples.candidates.take(pa.array(examples.candidate_offsets[:-1] + np.asarray(predicted, np.int64)))
        outcomes = replace(outcomes, references=examples.targets, texts=chosen.to_pylist())
    flat, offsets = _flat(scores)
    return Predictions(task, examples.split, model, examples.ids, outcomes, examples.labelled, flat, offsets)


def _flat(scores: Sequence[np.ndarray] | np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
    if scores is None:
        return None, None
    counts = [len(row) for row in scores]
    flat = np.concatenate([np.asarray(row, np.float32) for row in scores])
    return flat, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def score_predictions(
    predictions: Predictions, metrics: Sequence[str] | None = None, repetitions: int = REPETITIONS, seed: int = 0
) -> dict[str, Score]:
    """Return the scores of predictions, each with its interval, keyed by metric. `metrics` defaults to the
    task's metrics. Raises UserError if the gold is hidden, or if a metric does not apply to the task.
    """
    if not predictions.labelled:
        raise UserError(
            f"{predictions.task.name}: {predictions.split}: its gold is hidden, so it cannot be scored; score another split"
        )
    names = predictions.task.metrics if metrics is None else metrics
    return {name: score(_metric(name, predictions.task), predictions.decided, repetitions, seed) for name in names}


def _metric(name: str, task: Task) -> TaskMetric:
    if name not in METRICS:
        raise UserError(f"metric: got {name!r}{near_match(name, list(METRICS))}")
    bio = name != "entity_f1" or all(label == "O" or label[:2] in ("B-", "I-") for label in task.label_names)
    if task.kind not in METRIC_KINDS[name] or not bio:
        allowed = ", ".join(metric for metric, kinds in METRIC_KINDS.items() if task.kind in kinds)
        raise UserError(
            f"metric: {name} does not measure {task.name}, a task of kind {task.kind}, which allows {allowed}"
        )
    return METRICS[name]


def tune_threshold(predictions: Predictions) -> Predictions:
    """Return the predictions of a `span` task with a no-answer threshold tuned on them. The threshold
    maximises exact match if that is the task's first metric, otherwise token F1. The task must have
    `no_answer`, and the predictions must have gold and `scores`.
    """
    outcomes = predictions.outcomes
    assert outcomes.references is not None
    assert outcomes.texts is not None
    values = (exact_matches if predictions.task.metrics[0] == "exact_match" else token_f1s)(outcomes)
    answerable = np.array([bool(references) for references in outcomes.references])
    answered = np.array([bool(text) for text in outcomes.texts])
    threshold = best_threshold(values, answerable, answered, predictions.no_answer_scores)
    return replace(predictions, threshold=threshold)


def compare_predictions(
    a: Predictions, b: Predictions, metric: str | None = None, repetitions: int = REPETITIONS, seed: int = 0
) -> Difference:
    """Return the difference in a metric, `b` minus `a`, between two runs on the same examples. `metric`
    defaults to the task's first metric. Raises UserError if the runs did not predict the same examples in the
    same order, if the gold is hidden, or if the metric does not apply to the task.
    """
    if (a.task.name, a.split, a.ids) != (b.task.name, b.split, b.ids):
        first, second = (f"{p.task.name} {p.split} ({len(p):,})" for p in (a, b))
        raise UserError(
            f"compare: got {first} and {second}, expected predictions of the same examples in the same order"
        )
    for predictions in (a, b):
        if not predictions.labelled:
            raise UserError(
                f"{predictions.task.name}: {predictions.split}: its gold is hidden; compare on another split"
            )
    return compare(_metric(metric or a.task.metrics[0], a.task), a.decided, b.decided, repetitions, seed)


def write_predictions(predictions: Predictions, path: Location) -> None:
    """Write predictions to a Parquet file, atomically."""
    described = {
        "version": 1,
        "task": plain(predictions.task),
        "split": predictions.split,
        "model": predictions.model,
        "labelled": predictions.labelled,
        "threshold": predictions.threshold,
    }
    table = pa.table(_columns(predictions)).replace_schema_metadata({_KEY: json.dumps(described).encode()})

    def write(sink: BinaryIO) -> None:
        pq.write_table(table, sink, compression="zstd")

    path.write_atomic(write)


def write_rows(predictions: Predictions, path: Location) -> None:
    """Write predictions, with the threshold applied, as JSON lines with the fields `id`, `prediction` and, if
    there are scores, `score`. The write is atomic.
    """
    decided = replace(predictions, outcomes=predictions.decided)
    columns = {name: column for name, column in _columns(decided).items() if name in ("id", "prediction", "score")}
    rows = pa.table(columns).to_pylist()
    path.write_atomic("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def _columns(predictions: Predictions) -> dict[str, pa.Array]:
    outcomes, kind = predictions.outcomes, predictions.task.kind
    columns = {"id": pa.array(predictions.ids, pa.string())}
    if kind in ("span", "generate"):
        columns["gold"] = _texts(outcomes.references, predictions, pa.list_(pa.string()))
        columns["prediction"] = _texts(outcomes.texts, predictions, pa.string())
    else:
        columns["gold"] = _values(outcomes.gold, outcomes, kind)
        columns["prediction"] = _values(outcomes.predicted, outcomes, kind)
    if predictions.scores is not None:
        columns["score"] = pa.ListArray.from_arrays(
            pa.array(predictions.score_offsets, pa.int32()), pa.array(predictions.scores, pa.float32())
        )
    if kind == "choose":
        columns["accepted"] = _texts(outcomes.references, predictions, pa.list_(pa.string()))
        columns["text"] = _texts(outcomes.texts, predictions, pa.string())
    for name, numbers in (("group", outcomes.groups), ("nats", outcomes.nats), ("tokens", outcomes.tokens)):
        if numbers is not None:
            columns[name] = pa.array(numbers)
    return columns


def _texts(texts: list | None, predictions: Predictions, kind: pa.DataType) -> pa.Array:
    return pa.nulls(len(predictions), kind) if texts is None else pa.array(texts, kind)


def _values(values: np.ndarray | None, outcomes: Outcomes, kind: str) -> pa.Array:
    """Return gold or predictions as an Arrow array, with names instead of indices for labels and tags. NaN
    and -100 become null.
    """
    assert values is not None
    if kind in ("regress", "choose"):
        hidden = np.isnan(values) if kind == "regress" else values == HIDDEN
        return pa.array(values, mask=hidden)
    names = pa.array(outcomes.labels, pa.string()).take(pa.array(values, mask=values == HIDDEN))
    return pa.ListArray.from_arrays(pa.array(outcomes.offsets, pa.int32()), names) if kind == "tag" else names


def read_predictions(path: Location) -> Predictions:
    """Read a file that `write_predictions` wrote. Raises UserError for any other file."""
    try:
        table = pq.read_table(pa.BufferReader(path.read_bytes()))
        described = json.loads((table.schema.metadata or {})[_KEY])
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected predictions of a run") from None
    except (pa.ArrowException, KeyError, ValueError):
        raise UserError(
            f"{path}: not a file of predictions that gristmill wrote; give one that a fine-tuning run has written"
        ) from None
    if described["version"] != 1:
        raise UserError(f"{path}: version {described['version']} of predictions, expected 1; evaluate the run again")
    task: Task = parse(Task, described["task"], str(path))
    outcomes = _outcomes(table, task, labelled=described["labelled"])
    scores = offsets = None
    if "score" in table.column_names:
        column = table["score"].combine_chunks()
        scores, offsets = column.flatten().to_numpy(), column.offsets.to_numpy().astype(np.int64)
    ids: list[str] = table["id"].to_pylist()
    split, model, threshold = described["split"], described["model"], described["threshold"]
    return Predictions(task, split, model, ids, outcomes, described["labelled"], scores, offsets, threshold)


def _outcomes(table: pa.Table, task: Task, labelled: bool) -> Outcomes:
    kind = task.kind
    numbers = {
        name: table[column].to_numpy() if column in table.column_names else None
        for name, column in (("groups", "group"), ("nats", "nats"), ("tokens", "tokens"))
    }
    positive = task.positive_label if kind == "classify" else 1
    outcomes = Outcomes(labels=task.label_names, positive=positive, no_answer=task.no_answer, **numbers)
    if kind in ("span", "generate", "choose"):
        accepted, text = ("accepted", "text") if kind == "choose" else ("gold", "prediction")
        references = table[accepted].to_pylist() if labelled else None
        texts = table[text].to_pylist() if table[text].null_count < len(table) else None
        outcomes = replace(outcomes, references=references, texts=texts)
    if kind in ("span", "generate"):
        return outcomes
    offsets = table["prediction"].combine_chunks().offsets.to_numpy().astype(np.int64) if kind == "tag" else None
    gold = _numbers(table["gold"].combine_chunks(), task)
    return replace(outcomes, gold=gold, predicted=_numbers(table["prediction"].combine_chunks(), task), offsets=offsets)


def _numbers(column: pa.Array, task: Task) -> np.ndarray:
    """Return a column of gold or predictions as numbers: labels and tags become their indices, and null
    becomes -100 or NaN.
    """
    if task.kind == "regress":
        return column.to_numpy(zero_copy_only=False)
    if task.kind == "choose":
        return column.fill_null(HIDDEN).to_numpy(zero_copy_only=False)
    names = column.flatten() if task.kind == "tag" else column
    indices = pc.index_in(names, value_set=pa.array(task.label_names, pa.string()))
    return indices.fill_null(HIDDEN).to_numpy(zero_copy_only=False).astype(np.int64)
