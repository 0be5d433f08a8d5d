"""Read and validate the gold of examples. Invalid gold raises UserError, which names the file and the row."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.config import near_match
from gristmill.errors import UserError
from trainers.tasks.examples import HIDDEN
from trainers.tasks.formats.row_set import RowSet, shown
from trainers.tasks.read_rows import label_text
from trainers.tasks.schema.task import Layout, Task


def read_labels(rows: RowSet, layout: Layout, task: Task) -> np.ndarray:
    """Return the index of each row's label among the task's labels, int64 [rows]."""
    values = rows.column(layout.roles["label"], "label")
    return label_numbers(rows, [label_text(value) for value in values], layout, task)


def label_numbers(rows: RowSet, texts: list[str], layout: Layout, task: Task) -> np.ndarray:
    """Return the index of each of `texts` in the task's labels, int64 [texts], after the layout's `rename` is
    applied. Raises UserError for a text that is not a label.
    """
    rename = layout.rename or {}
    texts = [rename.get(text, text) for text in texts] if rename else texts
    names = task.label_names
    numbers = pc.index_in(pa.array(texts, pa.large_string()), value_set=pa.array(names, pa.large_string()))
    if numbers.null_count:
        row = numbers.is_null().to_pylist().index(True)
        raise UserError(
            f"{rows.at(row)}: label: got {shown(texts[row])}, expected one of {', '.join(names)}"
            f"{_near(texts[row], names)}; add it to `labels`, or map it with `rename`; hidden labels: `unlabelled`"
        )
    return numbers.to_numpy().astype(np.int64)


def read_values(rows: RowSet, layout: Layout, task: Task) -> np.ndarray:
    """Read the gold numbers of a regression task, float64 [rows]. Raises UserError for a value that is not a
    finite number in the task's range.
    """
    values = np.empty(len(rows))
    low, high = task.range or (-math.inf, math.inf)
    for row, value in enumerate(rows.column(layout.roles["label"], "label")):
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or not low <= number <= high:
            bounds = f" from {low:g} to {high:g}" if task.range else ""
            raise UserError(f"{rows.at(row)}: label: got {shown(value)}, expected a number{bounds}; correct the row")
        values[row] = number
    return values


def read_choices(rows: RowSet, layout: Layout, task: Task, counts: list[int]) -> np.ndarray:
    """Read the index of the correct candidate of each row, int64 [rows]. The label -1, allowed only with a
    column `accepted`, means that no candidate is correct and becomes -100.
    """
    rename = layout.rename or {}
    found = np.empty(len(rows), np.int64)
    for row, value in enumerate(rows.column(layout.roles["label"], "label")):
        text = rename.get(label_text(value), label_text(value))
        number = int(text) if text.removeprefix("-").isdecimal() else -2
        lowest = -1 if "accepted" in layout.roles else 0
        if not lowest <= number < counts[row]:
            raise UserError(
                f"{rows.at(row)}: label: got {shown(value)}, expected the number of a candidate, 0 to {counts[row] - 1}; "
                f"correct it, or map letters with `rename`"
            )
        found[row] = HIDDEN if number < 0 else number
    return found


def read_tags(rows: RowSet, layout: Layout, task: Task, counts: list[int]) -> np.ndarray:
    """Read the tags of all words, row after row, as indices into the task's labels, int64 [words]. Entity
    tags are converted to BIO if the layout has a `scheme` or the task measures `entity_f1`.
    """
    column = rows.column(layout.roles["tags"], "tags")
    scheme = layout.scheme or ("bio" if "entity_f1" in task.metrics else None)
    flat: list[str] = []
    owners: list[int] = []
    for row, tags in enumerate(column):
        if not isinstance(tags, list) or len(tags) != counts[row]:
            got = f"{len(tags)} tags" if isinstance(tags, list) else "no list"
            raise UserError(f"{rows.at(row)}: tags: got {got}, expected {counts[row]}, one for each word")
        texts = [label_text(tag) for tag in tags]
        if scheme is not None:
            texts = _as_bio(texts, scheme, rows, row)
        flat += texts
        owners += [row] * len(texts)
    try:
        return label_numbers(RowSet(rows.path, {}, [rows.places[row] for row in owners], rows.unit), flat, layout, task)
    except UserError as error:
        raise UserError(str(error).replace(": label: ", ": tags: ", 1)) from None


def _as_bio(tags: list[str], scheme: str, rows: RowSet, row: int) -> list[str]:
    bio: list[str] = []
    previous = "O"
    for word, tag in enumerate(tags, start=1):
        prefix, dash, kind = tag.partition("-")
        allowed = "BIES" if scheme == "bioes" else "BI"
        if tag != "O" and not (dash and kind and len(prefix) == 1 and prefix in allowed):
            shape = ", ".join(f"{letter}-TYPE" for letter in allowed)
            raise UserError(
                f"{rows.at(row)}: word {word}: tag: got {shown(tag)}, expected O, {shape} (scheme: {scheme})"
            )
        continues = prefix in ("I", "E") and tag != "O" and previous[:1] in ("B", "I") and previous[2:] == kind
        if prefix in ("I", "E") and tag != "O" and not continues and scheme != "iob1":
            raise UserError(
                f"{rows.at(row)}: word {word}: tag: got {shown(tag)} after {shown(previous)}, expected B-{kind}; "
                f"correct it, or set scheme: iob1 if entities begin with I"
            )
        bio.append("O" if tag == "O" else f"{'I' if continues else 'B'}-{kind}")
        previous = tag
    return bio


def read_answers(rows: RowSet, layout: Layout, task: Task, passages: list[str]) -> tuple[list, list[list[str]]]:
    """Return two lists with one entry per question: the distinct spans of its accepted answers, as pairs of
    UTF-8 byte offsets [start, end) in the passage, and the texts of these answers.
    """
    spans: list[list[tuple[int, int]]] = []
    texts: list[list[str]] = []
    for row, answers in enumerate(rows.column(layout.roles["answers"], "answers")):
        accepted = _answer_list(answers, rows, row)
        if not accepted and not task.no_answer:
            raise UserError(f"{rows.at(row)}: answers: got none; set no_answer: true if a question may have none")
        for text, start in accepted:
            if not text.strip() or start < 0 or passages[row][start : start + len(text)] != text:
                raise UserError(
                    f"{rows.at(row)}: answers: the passage of {len(passages[row]):,} characters does not have the answer "
                    f"of {len(text)} characters at answer_start {start}; offsets count characters from 0; correct the row"
                )
        texts.append([text for text, _ in accepted])
        spans.append([*dict.fromkeys(_in_bytes(passages[row], start, len(text)) for text, start in accepted)])
    return spans, texts


def _answer_list(answers: Any, rows: RowSet, row: int) -> list[tuple[str, int]]:
    """Return (text, start) pairs from a list of objects or an object of lists."""
    try:
        if isinstance(answers, dict):
            pairs = list(zip(answers["text"], answers["answer_start"], strict=True))
        else:
            pairs = [(answer["text"], answer["answer_start"]) for answer in answers]
        if all(isinstance(text, str) and isinstance(start, int) for text, start in pairs):
            return pairs
    except (KeyError, TypeError, ValueError):
        pass
    raise UserError(f"{rows.at(row)}: answers: expected a list of {{text, answer_start}}; correct the row")


def _in_bytes(passage: str, start: int, length: int) -> tuple[int, int]:
    first = len(passage[:start].encode())
    return first, first + len(passage[start : start + length].encode())


def read_targets(rows: RowSet, layout: Layout, task: Task, role: str) -> list[list[str]]:
    """Return the texts that are accepted as correct for each example, without leading and trailing white
    space. Raises UserError if an example has none or an empty one.
    """
    targets = []
    for row, value in enumerate(rows.column(layout.roles[role], role)):
        values = value if isinstance(value, list) else [value]
        texts = [text for inner in values for text in (inner if isinstance(inner, list) else [inner])]
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise UserError(f"{rows.at(row)}: {role}: expected a text, or a list of texts, none empty; correct the row")
        targets.append([text.strip() for text in texts])
    return targets


def _near(value: str, names: tuple[str, ...]) -> str:
    near = near_match(value, names)
    return near if "did you mean" in near else ""
