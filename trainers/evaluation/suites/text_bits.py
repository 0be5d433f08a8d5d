"""Measure the bits per byte of texts, document by document."""

import numpy as np
import pyarrow as pa

from gristmill.storage.location import Location
from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.task_result import TaskResult
from trainers.tasks.examples import Examples
from trainers.tasks.schema.task import Format, Task
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.outcomes import Outcomes

SPLIT = "text"


def text_task(file: Location) -> Task:
    """Return the task that measures the bits per byte of a file. JSONL, CSV, TSV and Parquet files need a
    column `text`; any other file is one text.
    """
    name = str(file if file.local is None else file.local.absolute())
    known = name.removesuffix(".gz").endswith((".jsonl", ".csv", ".tsv", ".parquet"))
    form: Format | None = None if known else "documents"
    columns: dict[str, str | int | tuple[str | int, ...]] = {"text": "text"}
    if not known:
        columns["id"] = "{folder}/{name}"
    return Task(
        kind="text", files={SPLIT: name}, format=form, columns=columns, metrics=("bits_per_byte",), name=file.name
    )


def text_result(model: str, scorer: Scorer, texts: Examples, limit: int | None, window: int | None) -> TaskResult:
    """Return the result of a model on the first `limit` texts, or on all if `limit` is None."""
    documents: list[str] = texts.texts[0].to_pylist()[:limit]
    found, window = scorer.score_texts(documents, window)
    sizes = np.array([len(text.encode()) for text in documents], np.int64)
    outcomes = Outcomes(nats=-found.log_likelihood, text_bytes=sizes.astype(np.float64))
    unknown = scorer.count_unknown(documents)
    columns = {
        "id": pa.array(texts.ids[: len(documents)], pa.string()),
        "log_likelihood": found.log_likelihood,
        "tokens": found.tokens,
        "unknown": unknown,
        "bytes": sizes,
        "characters": np.array([len(text) for text in documents], np.int64),
        "bits_per_byte": -found.log_likelihood / np.log(2) / sizes,
    }
    form = f"{scorer.form.described}, windows of {window} that overlap by half"
    measured = {"bits_per_byte": (METRICS["bits_per_byte"], outcomes)}
    notes: tuple[str, ...] = ()
    if unknown.any():
        notes = (
            f"{texts.task.name}: {int(unknown.sum()):,} of {int(found.tokens.sum()):,} tokens are unknown to the "
            f"tokenizer of {model}; the text behind an unknown token costs no bits, so the bits per byte are too low",
        )
    subtasks = None if texts.subtasks is None else texts.subtasks[: len(documents)]
    if subtasks is not None:
        columns["subtask"] = pa.array(subtasks, pa.string())
    return TaskResult(
        model, form, texts.task.name, texts.split, measured, None, pa.table(columns), subtasks, notes=notes,
        version=str(texts.task.version),
    )  # fmt: skip
