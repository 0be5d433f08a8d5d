"""Read the files of a harness task, and render its rows as contexts, continuations and right answers."""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from gristmill.errors import UserError
from gristmill.storage.location import FileRecord, Location
from gristmill.storage.parsing import parse_location
from trainers.tasks.formats.json_rows import check_text
from trainers.tasks.harness_format.doc_templates import RowTemplates, render_text
from trainers.tasks.harness_format.harness_task import HarnessTask
from trainers.tasks.task_files import decode, match_files, read_content


@dataclass(frozen=True)
class RenderedRow:
    """A row of a task, rendered as the texts that the model is given and scored on. For multiple choice,
    `contexts` and `continuations` contain one text per choice, and `gold` is the index of the right choice;
    otherwise both contain one text. `references` holds the accepted texts for `generate_until` and
    `loglikelihood`. `place` locates the row in error messages.
    """

    place: str
    contexts: list[str]
    continuations: list[str]
    gold: int
    references: list[str]


def render_rows(
    task: HarnessTask, data: Location | None, seed: int, limit: int | None
) -> tuple[list[RenderedRow], tuple[FileRecord, ...]]:
    """Render the first `limit` rows of the scored split, or all rows if `limit` is None. Return the rendered
    rows and the records of the split's files.

    The shots come from the task's `samples` if it has any, otherwise from its `shots_split`. They are the
    first rows there if the task sets `first_shots`; otherwise they are drawn for each row with `seed`. A row
    is never its own shot. Raises UserError if a file is missing or malformed, a row does not fit the
    templates, or there are too few rows to take the shots from.
    """
    rows, files = _read(task, task.split, data)
    templates = RowTemplates(task)
    pool = rows
    if task.shots:
        pool = (
            _samples(task)
            if task.samples
            else rows
            if task.shots_split == task.split
            else _read(task, task.shots_split, data)[0]
        )
    made = []
    for number, (place, row) in enumerate(rows[:limit]):
        before = render_text(f"{place}: description", task.description, row) if task.description else ""
        prefix = _prefix(task, place, row)
        for shot in _shots(task, pool, pool is rows, seed, number):
            before += _solved(task, templates, prefix, *pool[shot])
        made.append(_rendered(task, templates, place, row, before, prefix))
    return made, files


def _prefix(task: HarnessTask, place: str, row: Mapping[str, Any]) -> str | None:
    if task.prefix is None:
        return None
    return str(row[task.prefix]) if task.prefix in row else render_text(f"{place}: gen_prefix", task.prefix, row)


def _rendered(
    task: HarnessTask, templates: RowTemplates, place: str, row: Mapping[str, Any], before: str, prefix: str | None
) -> RenderedRow:
    begun = "" if prefix is None else f"{task.target_delimiter}{prefix}"
    if task.output_type == "loglikelihood_rolling":
        return RenderedRow(place, [""], [_one_text(place, templates.target(place, row))], 0, [])
    text = templates.text(place, row)
    if task.output_type != "multiple_choice":
        target = templates.target(place, row)
        if isinstance(target, int) and task.choices is not None:
            target = _choice(templates, place, row, target)
        several = [str(each) for each in target] if isinstance(target, list) else [str(target)]
        if not several or not all(each.strip() for each in several):
            raise UserError(f"{place}: doc_to_target: is empty; correct the row")
        # The library gives a target as it is; only solved examples have the delimiter before it.
        return RenderedRow(place, [f"{before}{text}{begun}"], [several[0]], 0, several)
    choices, delimiter = templates.choices(place, row), task.target_delimiter
    if isinstance(text, int):  # the choices are contexts, and the target follows them
        continuation = f"{delimiter}{templates.target(place, row)}"
        contexts = [f"{before}{choice}" for choice in choices]
        return RenderedRow(place, contexts, [continuation] * len(choices), _number(place, text, choices), [])
    gold = _number(place, templates.target(place, row), choices)
    return RenderedRow(
        place, [f"{before}{text}{begun}"] * len(choices), [delimiter + each for each in choices], gold, []
    )


def _solved(
    task: HarnessTask, templates: RowTemplates, prefix: str | None, place: str, row: Mapping[str, Any]
) -> str:  # fmt: skip
    text, target = templates.text(place, row), templates.target(place, row)
    if isinstance(text, int):
        text = _choice(templates, place, row, text)
    elif isinstance(target, list):
        if not target:
            raise UserError(f"{place}: doc_to_target: is empty; correct the row")
        target = target[0]
    elif isinstance(target, int) and task.choices is not None:
        target = _choice(templates, place, row, target)
    begun = f"{prefix} " if prefix else ""
    return f"{text}{task.target_delimiter}{begun}{target}{task.shot_delimiter}"


def _choice(templates: RowTemplates, place: str, row: Mapping[str, Any], number: int) -> str:
    choices = templates.choices(place, row)
    return choices[_number(place, number, choices)]


def _number(place: str, gold: Any, choices: list[str]) -> int:
    if isinstance(gold, str) and gold in choices:
        return choices.index(gold)
    if isinstance(gold, int) and not isinstance(gold, bool) and 0 <= gold < len(choices):
        return gold
    raise UserError(
        f"{place}: got {str(gold)[:40]!r} as the right choice, expected one of {len(choices)} choices or its number from 0; "
        f"correct the row"
    )


def _one_text(place: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{place}: doc_to_target: expected a text that is not empty; correct the row")
    return value


def _shots(task: HarnessTask, pool: list[Any], own: bool, seed: int, number: int) -> list[int]:
    """Return the indices, in `pool`, of the shots for row `number`. With `own`, the row itself is in `pool`
    and is excluded.
    """
    if not task.shots:
        return []
    if len(pool) < task.shots + own:
        raise UserError(f"{task.path}: num_fewshot: got {task.shots}, the split has {len(pool):,} rows; lower it")
    drawn = np.arange(task.shots + own)
    if not task.first_shots:
        drawn = np.random.default_rng([seed, number]).choice(len(pool), task.shots + own, replace=False)
    return [each for each in drawn.tolist() if not (own and each == number)][: task.shots]


def _samples(task: HarnessTask) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{task.path}: fewshot_config.samples[{n}]", row) for n, row in enumerate(task.samples)]


def _read(
    task: HarnessTask, split: str, data: Location | None
) -> tuple[list[tuple[str, dict[str, Any]]], tuple[FileRecord, ...]]:
    """Return every row of a split with its place, and the records of the files. A column that a row lacks is
    None, as in `datasets`.
    """
    found, records = [], []
    for name in task.files[split]:
        for path in _find(task.path, name, data):
            content, record = read_content(path)
            records.append(record)
            found += [(f"{path}: row {number}", row) for number, row in enumerate(_rows(task.loader, content, path), 1)]
    names = dict.fromkeys(name for _, row in found for name in row)
    if not found:
        raise UserError(f"{task.path}: data_files.{split}: holds no row")
    return [(place, {name: row.get(name) for name in names}) for place, row in found], tuple(records)


def _find(task: Path, name: str, data: Location | None) -> tuple[Location, ...]:
    if name.startswith(("/", "~")) or "://" in name:
        folder, _, last = name.rpartition("/")
        roots = [(parse_location(folder or "/", field="data_files"), last)]
    else:
        own = parse_location(str(task.absolute().parent), field="data_files")
        roots = [(root, name) for root in (own, data) if root is not None]
    for root, pattern in roots:
        if matched := match_files(root, pattern):
            return matched
    looked = ", ".join(str(root / pattern) for root, pattern in roots)
    raise UserError(f"{task}: data_files: no file; looked for {looked}, each also with .gz; give data=DIR")


def _rows(loader: str, content: bytes, path: Location) -> Iterator[dict[str, Any]]:
    if loader != "json":
        try:
            table = (
                pq.read_table(pa.BufferReader(content))
                if loader == "parquet"
                else arrow_csv.read_csv(io.BytesIO(content))
            )
        except pa.ArrowException as error:
            raise UserError(f"{path}: not intact {loader}: {' '.join(str(error).split())}") from None
        yield from table.to_pylist()
        return
    text = decode(content, "utf-8", path)
    lines = [(0, text)] if text.lstrip()[:1] == "[" else enumerate(text.split("\n"), 1)
    for number, line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}: {f'line {number}: ' if number else ''}not JSON: {error}; correct it") from None
        check_text(line, value, f"{path}: line {number}" if number else str(path))
        for row in value if isinstance(value, list) else [value]:
            if not isinstance(row, dict):
                raise UserError(f"{path}: {f'line {number}: ' if number else ''}expected objects; correct it")
            yield row
