"""Extract the outputs of a task's head for each input of a batch, and join those of several batches in the
order of the inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainers.rows.batch import Batch


@dataclass(frozen=True)
class TaskOutputs:
    """The outputs of a task's head for n inputs, before any softmax. `numbers`, int64 [n], holds the
    `TaskTargets.number` of each input.

    The shape of `scores`, fp32, depends on the kind of task:

    - classify: [n, classes]
    - regress: [n]
    - choose: [m], one score per candidate
    - tag: [m, tags], one row per position of the text
    - span: [m, 2], the scores as start and as end of the answer, for each position that an answer may
      cover and for the position that means "no answer"

    For choose, tag and span, the rows `offsets[i]` to `offsets[i + 1] - 1` of `scores` belong to input i. For
    classify and regress, `offsets` is None.
    """

    numbers: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray | None = None


def outputs_of(kind: str, predicted: np.ndarray, batch: Batch) -> TaskOutputs:
    """Return the outputs of one batch for a task of this `kind`. `predicted` is what `TaskHead.forward`
    returned.
    """
    task = batch.task
    assert task is not None
    if kind in ("classify", "regress"):
        return TaskOutputs(task.number, predicted)
    if kind == "choose":
        assert task.choice is not None
        return _grouped(task.number, predicted, task.choice)
    owner = task.owner.flatten()
    chosen = owner >= 0
    if kind == "span":
        assert task.answerable is not None
        owner[task.at], chosen = np.arange(len(task.at)), task.answerable.flatten()
    return _grouped(task.number, predicted.reshape(len(owner), -1)[chosen], owner[chosen])


def join_outputs(parts: Sequence[TaskOutputs]) -> TaskOutputs:
    """Join the outputs of one or more batches, with the inputs in ascending order of `numbers`."""
    numbers = np.concatenate([part.numbers for part in parts])
    order = np.argsort(numbers, kind="stable")
    scores = np.concatenate([part.scores for part in parts])
    if parts[0].offsets is None:
        return TaskOutputs(numbers[order], scores[order])
    counts = np.concatenate([np.diff(part.offsets) for part in parts if part.offsets is not None])
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return _grouped(numbers[order], scores, np.repeat(rank, counts))


def _grouped(numbers: np.ndarray, scores: np.ndarray, group: np.ndarray) -> TaskOutputs:
    """Return the `TaskOutputs` of inputs, with the rows of `scores` grouped by input. `group` [m] holds the
    index in `numbers` of each row's input.
    """
    offsets = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=len(numbers)))])
    return TaskOutputs(numbers, scores[np.argsort(group, kind="stable")], offsets)
