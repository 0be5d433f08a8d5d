"""Treat a task as text to text: render inputs and targets from its templates, and parse generated texts into
predictions.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from string import ascii_uppercase
from typing import Any

import numpy as np

from trainers.tasks.examples import HIDDEN, Examples
from trainers.tasks.schema.task import Task, Templates
from trainers.tasks.scores.answer_scores import normalise_answer, token_f1

_FIELD = re.compile(r"\{([^{}]+)\}")
_INPUTS = {
    "classify": ("text", "text_b"),
    "regress": ("text", "text_b"),
    "tag": ("words",),
    "span": ("question", "passage"),
    "choose": ("text", "passage", "candidates"),
    "generate": ("text", "text_b"),
}
KINDS = tuple(_INPUTS)
"""The kinds of task that have an input and a target."""
_TARGETS = {"classify": "label", "regress": "score", "tag": "tags", "span": "answer", "choose": "candidate"}


def templates_of(task: Task) -> Templates:
    """Return the task's templates. By default, the input is the task's name followed by its texts and
    candidates, each preceded by the name of its role, and the target is the gold alone.
    """
    if task.templates is not None:
        return task.templates
    roles = [role for role in _INPUTS[task.kind] if role in task.roles]
    fields = " ".join(f"{role}: {{{role}}}" for role in roles)
    return Templates(input=f"{task.name} {fields}", target=f"{{{_TARGETS.get(task.kind, 'target')}}}")


def render_inputs(examples: Examples) -> list[str]:
    """Render the input text of each example."""
    return _filled(templates_of(examples.task).input, _input_fields(examples), len(examples))


def render_targets(examples: Examples) -> list[list[str]]:
    """Render the accepted target texts of each example; the model is trained on the first. The gold must not
    be hidden.
    """
    assert examples.labelled
    templates = templates_of(examples.task)
    before, _, after = _around(templates)
    return [[f"{before}{text}{after}" for text in texts] for texts in _gold_texts(examples, templates)]


def _input_fields(examples: Examples) -> dict[str, Sequence[str]]:
    names = {"span": ("question", "passage"), "choose": ("text", "passage"), "tag": ("words",)}
    roles = names.get(examples.task.kind, ("text", "text_b"))
    fields: dict[str, Sequence[str]] = dict(zip(roles, (texts.to_pylist() for texts in examples.texts), strict=False))
    if examples.candidates is not None:
        fields["candidates"] = [_lettered(examples.candidates_of(i)) for i in range(len(examples))]
    return fields


def _lettered(candidates: list[str]) -> str:
    marks = [*ascii_uppercase, *map(str, range(27, len(candidates) + 1))]
    return " ".join(f"({mark}) {text}" for mark, text in zip(marks, candidates, strict=False))


def _filled(template: str, fields: dict[str, Sequence[str]], count: int) -> list[str]:
    pieces = _FIELD.split(template)
    empty = [""] * count  # for an optional text that the layout lacks
    columns = [fields.get(name, empty) for name in pieces[1::2]]
    return [
        pieces[0] + "".join(text + after for text, after in zip(row, pieces[2::2], strict=True))
        for row in zip(*columns, strict=True)
    ]


def _around(templates: Templates) -> tuple[str, str, str]:
    before, name, after = _FIELD.split(templates.target, maxsplit=1)
    return before, name, after


def _gold_texts(examples: Examples, templates: Templates) -> list[list[str]]:
    task = examples.task
    if task.kind == "classify":
        words = _words(task, templates)
        return [[words[label]] for label in _array(examples.labels)]
    if task.kind == "regress":
        return [[_rounded(value, templates.step)] for value in _array(examples.values)]
    if task.kind == "tag":
        names = [task.label_names[tag] for tag in _array(examples.tags)]
        bounds = _array(examples.word_offsets)
        return [[" ".join(names[first:last])] for first, last in pairwise(bounds)]
    assert examples.targets is not None
    if task.kind == "span":
        return [texts or [templates.no_answer] for texts in examples.targets]
    return examples.targets


def _array(values: np.ndarray | None) -> list[Any]:
    assert values is not None
    return list(values.tolist())


def _words(task: Task, templates: Templates) -> list[str]:
    return [(templates.words or {}).get(name, name) for name in task.label_names]


def _rounded(value: float, step: float) -> str:
    """Return a number as text, rounded to the nearest multiple of `step` (Raffel et al., 2020, section 2.4)."""
    decimals = len(f"{step:.10g}".partition(".")[2])
    return f"{round(value / step) * step:.{decimals}f}"


def parse_outputs(examples: Examples, texts: Sequence[str]) -> np.ndarray | list[str]:
    """Parse generated texts into predictions, in the form that `predictions_of` takes. The text that the
    target template has around the gold is removed first.

    For classify, a text that is not the word of a label becomes -100, which counts as wrong; case is ignored,
    except between words that differ only in case. For regress, numbers are clipped to the task's range; a
    text that is not a number becomes the lowest number of the range, or 0 if the task has no range. For tag,
    unknown and missing tags become the first label, and tags beyond the last word are ignored. For choose, a
    text that is not a candidate becomes the candidate with the highest token F1. For span with `no_answer`,
    the text for no answer becomes the empty text.
    """
    task, templates = examples.task, templates_of(examples.task)
    before, _, after = (piece.strip() for piece in _around(templates))
    bare = [text.strip().removeprefix(before).removesuffix(after).strip() for text in texts]
    if task.kind == "classify":
        exact = {word.strip(): number for number, word in enumerate(_words(task, templates))}
        numbers = {word.lower(): number for word, number in exact.items()} | exact
        return np.array([numbers.get(text, numbers.get(text.lower(), HIDDEN)) for text in bare], np.int64)
    if task.kind == "regress":
        return np.array([_number(text, task) for text in bare])
    if task.kind == "tag":
        return _parse_tags(examples, bare)
    if task.kind == "choose":
        chosen = [_nearest(text, examples.candidates_of(i)) for i, text in enumerate(bare)]
        return np.array(chosen, np.int64)
    if task.kind == "span" and task.no_answer:
        none = normalise_answer(templates.no_answer)
        return ["" if normalise_answer(text) == none else text for text in bare]
    return bare


def _number(text: str, task: Task) -> float:
    low, high = task.range or (-math.inf, math.inf)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return min(max(value, low), high)
    return low if task.range else 0.0


def _parse_tags(examples: Examples, texts: list[str]) -> np.ndarray:
    numbers = {name: number for number, name in enumerate(examples.task.label_names)}
    bounds = _array(examples.word_offsets)
    found = np.zeros(bounds[-1], np.int64)
    for (first, last), text in zip(pairwise(bounds), texts, strict=True):
        tags = [numbers.get(name, 0) for name in text.split()[: last - first]]
        found[first : first + len(tags)] = tags
    return found


def _nearest(text: str, candidates: list[str]) -> int:
    if text in candidates:
        return candidates.index(text)
    return max(range(len(candidates)), key=lambda number: token_f1(text, candidates[number], True))
