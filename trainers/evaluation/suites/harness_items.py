"""Convert tasks in the format of lm-evaluation-harness to items or texts, and compute the scores that the
tasks name.
"""

import re
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gristmill.errors import UserError
from gristmill.storage.location import Location
from trainers.evaluation.suites.items import Items
from trainers.evaluation.suites.task_result import Measured, TaskResult
from trainers.tasks.examples import Examples
from trainers.tasks.harness_format.harness_docs import RenderedRow, render_rows
from trainers.tasks.harness_format.harness_task import HarnessTask
from trainers.tasks.schema.task import AnyKind, Task
from trainers.tasks.schema.task_prompt import Normalisation, Prompt
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.outcomes import Outcomes

# {metric of the library: (our score, the normalisation behind it)}
_CHOICE: dict[str, tuple[str, Normalisation]] = {
    "acc": ("accuracy", "none"),
    "acc_norm": ("accuracy_per_character", "character"),
    "acc_bytes": ("accuracy_per_byte", "byte"),
    "acc_mutual_info": ("accuracy_unconditional", "unconditional"),
}
_KINDS: dict[str, AnyKind] = {"multiple_choice": "choose", "loglikelihood_rolling": "text"}


@dataclass(frozen=True)
class HarnessItems:
    """A task of lm-evaluation-harness and what a model is scored on: items or, for a task of type
    `loglikelihood_rolling`, whole texts (`Examples`).
    """

    task: HarnessTask
    asked: Items | Examples

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the items that were left out."""
        return self.asked.notes if isinstance(self.asked, Items) else ()


def read_harness_items(task: HarnessTask, data: Location | None, seed: int, limit: int | None) -> HarnessItems:
    """Read the split on which a task is scored. Items with equal choices are left out. Raises UserError for
    missing files and invalid rows, and if no item is left.
    """
    rows, files = render_rows(task, data, seed, limit)
    ours = _task(task)
    if task.output_type == "loglikelihood_rolling":
        texts = pa.array([row.continuations[0] for row in rows], pa.large_string())
        ids = [str(number) for number in range(len(rows))]
        return HarnessItems(task, Examples(ours, task.split, ids, (texts,), labelled=True, files=files))
    kept = [n for n, row in enumerate(rows) if len(set(_pairs(row))) == len(row.contexts)]
    notes: tuple[str, ...] = ()
    if len(kept) < len(rows):
        first = next(row.place for row in rows if len(set(_pairs(row))) < len(row.contexts))
        notes = (
            f"{task.name}: {len(rows) - len(kept):,} of {len(rows):,} items left out: choices are equal, first {first}",
        )
    if not kept:
        raise UserError(f"{task.path}: no item is left; {notes[0] if notes else 'raise limit'}")
    chosen = [rows[number] for number in kept]
    items = Items(
        task=ours,
        split=task.split,
        ids=[str(number) for number in kept],
        contexts=[context for row in chosen for context in row.contexts],
        continuations=[text for row in chosen for text in row.continuations],
        offsets=np.cumsum([0, *(len(row.contexts) for row in chosen)]).astype(np.int64),
        gold=np.array([row.gold for row in chosen], np.int64),
        subtasks=None,
        fields=None,
        notes=notes,
        references=[row.references for row in chosen] if task.output_type == "generate_until" else None,
    )
    return HarnessItems(task, items)


def _pairs(row: RenderedRow) -> list[tuple[str, str]]:
    return list(zip(row.contexts, row.continuations, strict=True))


def _task(task: HarnessTask) -> Task:
    kind = _KINDS.get(task.output_type, "generate")
    metric = "bits_per_byte" if kind == "text" else "exact_match" if task.generation is not None else "accuracy"
    made = Task(kind=kind, name=task.name, files={task.split: task.files[task.split]}, columns={}, metrics=(metric,))
    if kind == "text":
        return made
    normalise = _CHOICE[task.metrics[0]][1] if kind == "choose" else "none"
    bare = "" if "acc_mutual_info" in task.metrics else None
    answer = " {candidate}" if kind == "choose" else "{target}"
    return replace(made, prompt=Prompt("{text}", answer, None, normalise, bare, generation=task.generation))


def harness_result(asked: HarnessItems, result: TaskResult) -> TaskResult:
    """Return `result` with the version of the harness task and only the scores that the task names."""
    measured: dict[str, Measured] = {}
    for name in asked.task.metrics:
        measured |= _measured(asked, name, result)
    return replace(result, measured=measured, version=asked.task.version)


def _measured(asked: HarnessItems, name: str, result: TaskResult) -> dict[str, Measured]:
    task = asked.task
    if task.output_type == "multiple_choice":
        ours = _CHOICE[name][0]
        return {ours: result.measured[ours]}
    if task.output_type == "loglikelihood":
        ours = "accuracy" if name == "acc" else name
        return {ours: result.measured[ours]}
    if task.output_type == "loglikelihood_rolling":
        assert isinstance(asked.asked, Examples)
        return {name: _text_measured(name, result, asked.asked.texts[0].to_pylist())}
    return {_filtered_name(name, task, number): _matched(task, number, result) for number in range(len(task.filters))}


def _text_measured(name: str, result: TaskResult, texts: list[str]) -> Measured:
    metric, outcomes = result.measured["bits_per_byte"]
    if name == "bits_per_byte":
        return metric, outcomes
    lengths = outcomes.text_bytes
    if name == "word_perplexity":  # the library also counts the empty pieces before and after white space
        lengths = np.array([len(re.split(r"\s+", text)) for text in texts], np.float64)
    return METRICS["perplexity"], Outcomes(nats=outcomes.nats, tokens=lengths)


def _filtered_name(name: str, task: HarnessTask, number: int) -> str:
    return name if len(task.filters) == 1 else f"{name}_{re.sub(r'[^0-9A-Za-z]+', '_', task.filters[number].name)}"


def _matched(task: HarnessTask, number: int, result: TaskResult) -> Measured:
    _, outcomes = next(iter(result.measured.values()))
    assert outcomes.texts is not None
    assert outcomes.references is not None
    plain, chosen = task.comparison.plain, task.filters[number]
    right = [
        plain(chosen.apply(text)) in {plain(reference) for reference in references}
        for text, references in zip(outcomes.texts, outcomes.references, strict=True)
    ]
    return METRICS["accuracy"], Outcomes(gold=np.ones(len(right), np.int64), predicted=np.array(right, np.int64))
