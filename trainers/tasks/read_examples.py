"""Read a split of a task: locate its files, select the columns and validate every row."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from gristmill.storage.location import FileRecord, Location
from trainers.tasks.examples import HIDDEN, Examples
from trainers.tasks.formats.row_set import MISSING, RowSet, shown
from trainers.tasks.gold_columns import (
    read_answers,
    read_choices,
    read_labels,
    read_tags,
    read_targets,
    read_values,
)
from trainers.tasks.read_rows import label_text, read_rows
from trainers.tasks.schema.task import GOLD, Layout, Role, Task
from trainers.tasks.task_files import SplitFiles, find_split

_Fields = dict[str, Any]
_TEXTS = ("text", "text_b", "words", "question", "passage", "candidates", "good", "bad", "subject")
_GOLDS = ("label", "tags", "target", "accepted")


def read_examples(task: Task, split: str, data: Location | None) -> Examples:
    """Read and validate the examples of a split. Relative file names are looked up in `data`, then in the
    folder of the task file. Raises UserError for missing files and invalid rows.
    """
    files = find_split(task, split, data)
    layout, labelled = files.layout, split not in files.layout.unlabelled
    sets, records = _row_sets(files, labelled)
    parts = [_READERS[task.kind](rows, layout, task, labelled) for rows in sets]
    fields = {name: _join(name, [part[name] for part in parts]) for name in parts[0]}
    ids = _ids(sets, layout, task)
    if fields.get("groups") is not None:
        fields["groups"] = _numbers(fields["groups"])
    if not labelled:
        fields |= _hidden(task, len(ids), fields)
    skipped = sum(rows.skipped for rows in sets)
    fields |= {"own_ids": "id" in layout.roles, "skipped": skipped}
    return Examples(task=task, split=split, ids=ids, labelled=labelled, files=records, **fields)


def locate_example(task: Task, split: str, data: Location | None, number: int) -> str:
    """Return the file and the row of the example with index `number`, for an error message. Reads the split
    again.
    """
    files = find_split(task, split, data)
    for rows in _row_sets(files, split not in files.layout.unlabelled)[0]:
        if number < len(rows):
            return rows.at(number)
        number -= len(rows)
    raise AssertionError("the files have fewer examples than before")


def _row_sets(files: SplitFiles, labelled: bool) -> tuple[list[RowSet], tuple[FileRecord, ...]]:
    sets, records = read_rows(files)
    if files.layout.incomplete_rows == "skip":
        sets = [rows for rows in (_without_empty(rows, files.layout, labelled) for rows in sets) if len(rows)]
        if not sets:
            raise UserError(f"{files.paths[0]}: holds no complete row")
    return sets, records


def _texts(rows: RowSet, layout: Layout, *roles: str, strip: bool = True) -> tuple[pa.Array, ...]:
    """Return the texts of those `roles` that the layout has. Use `strip=False` for texts that offsets refer
    to.
    """
    return tuple(_text(rows, layout.roles[role], role, strip) for role in roles if role in layout.roles)


def _text(rows: RowSet, column: Role, role: str, strip: bool) -> pa.Array:
    values = rows.column(column, role)
    try:
        texts = pa.array(values, pa.large_string())
    except (pa.ArrowException, UnicodeEncodeError):
        row = next(i for i, value in enumerate(values) if not _is_text(value))
        kind = type(values[row]).__name__
        raise UserError(f"{rows.at(row)}: {role}: got a value of type {kind}, expected text; correct the row") from None
    trimmed = pc.utf8_trim_whitespace(texts)
    empty = pc.fill_null(pc.equal(trimmed, ""), True)
    if (row := pc.index(empty, True).as_py()) >= 0:
        raise UserError(f"{rows.at(row)}: {role}: empty; remove the row, or fill it")
    return trimmed if strip else texts


def _is_text(value: Any) -> bool:
    try:
        pa.array([value], pa.large_string())
    except (pa.ArrowException, UnicodeEncodeError):
        return False
    return True


def _without_empty(rows: RowSet, layout: Layout, labelled: bool) -> RowSet:
    def column(role: str) -> list[Any]:
        return rows.column(layout.roles[role], role, complete=False)

    roles = ("id", "group", *_TEXTS, *(_GOLDS if labelled else ()))
    columns = [[*map(_is_filled, column(role))] for role in roles if role in layout.roles]
    if labelled and "answers" in layout.roles:  # which may be empty
        columns.append([value is not None and value is not MISSING for value in column("answers")])
    whole = [row for row, filled in enumerate(zip(*columns, strict=True)) if all(filled)]
    return replace(rows.keep(whole), skipped=rows.skipped + len(rows) - len(whole))


def _is_filled(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_filled, value))
    return value is not None and value is not MISSING and bool(label_text(value))


def _classify(rows: RowSet, layout: Layout, task: Task, labelled: bool) -> _Fields:
    fields: _Fields = {"texts": _texts(rows, layout, "text", "text_b")}
    if "group" in layout.roles:
        fields["groups"] = [label_text(value) for value in rows.column(layout.roles["group"], "group")]
    return fields | ({"labels": read_labels(rows, layout, task)} if labelled else {})


def _regress(rows: RowSet, layout: Layout, task: Task, labelled: bool) -> _Fields:
    fields: _Fields = {"texts": _texts(rows, layout, "text", "text_b")}
    return fields | ({"values": read_values(rows, layout, task)} if labelled else {})


def _tag(rows: RowSet, layout: Layout, task: Task, labelled: bool) -> _Fields:
    words = rows.column(layout.roles["words"], "words")
    for row, sentence in enumerate(words):
        if not isinstance(sentence, list) or not sentence or not all(isinstance(word, str) for word in sentence):
            raise UserError(f"{rows.at(row)}: words: expected a list of texts, at least one; correct the row")
        if not all(word.strip() for word in sentence):
            word = next(i for i, word in enumerate(sentence, start=1) if not word.strip())
            raise UserError(f"{rows.at(row)}: word {word}: empty; remove it and its tag")
    counts = [len(sentence) for sentence in words]
    flat = pa.array([word for sentence in words for word in sentence], pa.large_string())
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    lengths = pc.binary_length(flat).to_numpy().astype(np.int64)
    ends = np.cumsum(lengths + 1) - 1  # offsets in one text of all words, each followed by a space
    ends -= np.repeat(np.concatenate([[0], ends[offsets[1:-1] - 1] + 1]), counts)
    texts = pa.array([" ".join(sentence) for sentence in words], pa.large_string())
    fields: _Fields = {"texts": (texts,), "word_starts": ends - lengths, "word_ends": ends, "word_offsets": offsets}
    return fields | ({"tags": read_tags(rows, layout, task, counts)} if labelled else {})


def _span(rows: RowSet, layout: Layout, task: Task, labelled: bool) -> _Fields:
    question = _texts(rows, layout, "question")
    passage = _texts(rows, layout, "passage", strip=False)
    fields: _Fields = {"texts": (*question, *passage)}
    if labelled:
        fields["spans"], fields["targets"] = read_answers(rows, layout, task, passage[0].to_pylist())
    return fields


def _choose(rows: RowSet, layout: Layout, task: Task, labelled: bool) -> _Fields:
    lists = rows.column(layout.roles["candidates"], "candidates")
    for row, texts in enumerate(lists):
        if not isinstance(texts, list) or len(texts) < 2 or not all(isinstance(t, str) and t.strip() for t in texts):
            raise UserError(f"{rows.at(row)}: candidates: expected two texts or more, none empty; correct the row")
    counts = [len(texts) for texts in lists]
    fields: _Fields = {
        "texts": _texts(rows, layout, "text", "passage"),
        "candidates": pa.array([text.strip() for texts in lists for text in texts], pa.large_string()),
        "candidate_offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    }
    if labelled:
        fields["labels"] = read_choices(rows, layout, task, counts)
        if "accepted" in layout.roles:
            fields["targets"] = read_targets(rows, layout, task, "accepted")
        else:
            fields["targets"] = [[texts[label].strip()] for texts, label in zip(lists, fields["labels"], strict=True)]
    return fields


def _generate(rows: RowSet, layout: Layout, task: Task, labelled: bool) -> _Fields:
    fields: _Fields = {"texts": _texts(rows, layout, "text", "text_b")}
    return fields | ({"targets": read_targets(rows, layout, task, "target")} if labelled else {})


def _minimal_pairs(rows: RowSet, layout: Layout, task: Task, labelled: bool) -> _Fields:
    pairs = [_text(rows, layout.roles[role], role, True) for role in ("good", "bad")]
    count = len(rows)
    fields: _Fields = {
        "texts": (),
        "candidates": pa.concat_arrays(pairs).take(pa.array(np.arange(2 * count).reshape(2, -1).T.ravel())),
        "candidate_offsets": np.arange(0, 2 * count + 1, 2),
        "labels": np.zeros(count, np.int64),
    }
    for role, name in (("subtask", "subtasks"), ("field", "fields")):
        if role in layout.roles:
            texts = [label_text(value) for value in rows.column(layout.roles[role], role)]
            fields[name] = [(layout.rename or {}).get(text, text) for text in texts]
    return fields


def _facts(rows: RowSet, layout: Layout, task: Task, labelled: bool) -> _Fields:
    name = PurePath(rows.path).name.partition(".")[0]
    targets = read_targets(rows, layout, task, "target")
    return {"texts": _texts(rows, layout, "subject"), "targets": targets, "subtasks": [name] * len(rows)}


def _whole_text(rows: RowSet, layout: Layout, task: Task, labelled: bool) -> _Fields:
    return {"texts": _texts(rows, layout, "text", strip=False)}


_READERS: dict[str, Callable[[RowSet, Layout, Task, bool], _Fields]] = {
    "classify": _classify,
    "regress": _regress,
    "tag": _tag,
    "span": _span,
    "choose": _choose,
    "generate": _generate,
    "minimal_pairs": _minimal_pairs,
    "facts": _facts,
    "text": _whole_text,
}


def _join(name: str, parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if name == "texts":
        return tuple(pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True))
    if name == "candidates":
        return pa.concat_arrays(parts)
    if name.endswith("_offsets"):
        ends = np.cumsum([0, *(part[-1] for part in parts)])
        return np.concatenate([[0], *(part[1:] + end for part, end in zip(parts, ends, strict=False))])
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [entry for part in parts for entry in part]


def _ids(sets: list[RowSet], layout: Layout, task: Task) -> list[str]:
    column = layout.roles.get("id")
    if column is None:
        return [str(number) for number in range(sum(len(rows) for rows in sets))]
    ids = [label_text(value) for rows in sets for value in rows.column(column, "id")]
    if len(set(ids)) < len(ids):
        places = [rows.at(row) for rows in sets for row in range(len(rows))]
        seen: dict[str, int] = {}
        for row, name in enumerate(ids):
            if name in seen:
                first = places[seen[name]].removeprefix(f"{sets[0].path}: ")
                raise UserError(
                    f"{places[row]}: id: {shown(name)} is also that of {first}; give each example its own id, "
                    f"or leave columns.id out"
                )
            seen[name] = row
    return ids


def _numbers(names: list[str]) -> np.ndarray:
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names], np.int64)


def _hidden(task: Task, count: int, fields: _Fields) -> _Fields:
    """Return placeholders for the hidden gold of a split. Only gold fields that are arrays need them."""
    gold = GOLD.get(task.kind)
    if gold == "tags":
        return {"tags": np.full(len(fields["word_starts"]), HIDDEN, np.int64)}
    if task.kind == "regress":
        return {"values": np.full(count, np.nan)}
    return {"labels": np.full(count, HIDDEN, np.int64)} if gold == "label" else {}
