"""The targets of a task's head in the rows of a batch: the positions that the head reads, and the correct
outputs.
"""

from collections.abc import Sequence

import numpy as np

from trainers.data.examples.row_places import Places
from trainers.data.examples.task_inputs import Rendered, TaskInputs
from trainers.rows.batch import IGNORED, TaskTargets


def targets_of(
    tasks: Sequence[TaskInputs], numbers: Sequence[np.ndarray], texts: Rendered, places: Places, skip: int
) -> TaskTargets:
    """Return the head's targets for the inputs `numbers[k]` of each task `tasks[k]`. All tasks must have the
    same kind. `texts` holds the rendered segments; each begins `skip` positions after its place in `places`.
    """
    kind, reads_last = tasks[0].kind, tasks[0].format.reads_last
    begins = places.base + skip
    at = begins + (np.diff(texts.offsets) - 1 if reads_last else 0)
    shape = (places.count, places.width)
    owner: np.ndarray = np.full(shape, -1, np.int64)
    positions, _ = places.of_tokens(texts.offsets, skip)
    segment = np.repeat(np.arange(len(at)), np.diff(texts.offsets))
    owner.ravel()[positions] = np.where(texts.part > 0, segment, -1)
    gold: dict[str, np.ndarray] = {}
    for name, dtype in (("labels", np.int64), ("values", np.float32)):
        if getattr(tasks[0], name) is not None:
            gold[name] = _gathered(tasks, numbers, name).astype(dtype)
    if kind == "choose":
        counts = np.concatenate([np.diff(task.offsets)[chosen] for task, chosen in zip(tasks, numbers, strict=True)])
        gold["choice"] = np.repeat(np.arange(len(counts)), counts)
    if kind == "tag":
        gold["tags"] = _tags(tasks, numbers, begins, shape)
    if kind == "span":
        answerable = np.zeros(shape, bool)
        answerable.ravel()[positions[texts.part == 2]] = True
        answerable.ravel()[at] = True
        gold["answerable"] = answerable
        if tasks[0].answers is None:  # the gold is hidden
            gold["starts"] = gold["ends"] = np.full(len(at), IGNORED)
        else:
            answers = _gathered(tasks, numbers, "answers").T
            gold["starts"], gold["ends"] = np.where(answers < 0, at, begins + answers)
    return TaskTargets(np.concatenate(list(numbers)), at, owner, **gold)


def _gathered(tasks: Sequence[TaskInputs], numbers: Sequence[np.ndarray], name: str) -> np.ndarray:
    return np.concatenate([getattr(task, name)[chosen] for task, chosen in zip(tasks, numbers, strict=True)])


def _tags(
    tasks: Sequence[TaskInputs], numbers: Sequence[np.ndarray], begins: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    tags: np.ndarray = np.full(shape, IGNORED, np.int64)
    before = 0
    for task, chosen in zip(tasks, numbers, strict=True):
        assert task.word_offsets is not None
        assert task.word_tokens is not None
        assert task.tags is not None
        counts = np.diff(task.word_offsets)[chosen]
        segment = np.repeat(np.arange(len(chosen)), counts)
        words = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts - task.word_offsets[chosen], counts)
        tags.ravel()[begins[before + segment] + task.word_tokens[words]] = task.tags[words]
        before += len(chosen)
    return tags
