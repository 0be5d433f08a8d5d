"""The rows of task files as columns, with the position of each row for error messages."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.config import near_match
from gristmill.errors import UserError
from gristmill.terminal import printable
from trainers.tasks.schema.task import Layout
from trainers.tasks.schema.task_prompt import fields_of

MISSING = object()
"""Stands for the value of a field that a record lacks."""
_PART = re.compile(r"\{([^{}]+)\}")
_SHOWN = 40
_GOLD = ("label", "tags", "answers", "target")


def used_columns(layout: Layout) -> set[str | int]:
    """Return the names and numbers of the columns that a layout refers to. For a path `a.b`, they include
    both `a.b` and `a`.
    """
    used: set[str | int] = set()
    for spec in (*layout.roles.values(), *(layout.where or {})):
        for name in spec if isinstance(spec, tuple) else (spec,):
            parts = list(map(_key, fields_of(name))) if isinstance(name, str) and fields_of(name) else [name]
            used |= {part for whole in parts for part in (whole, str(whole).partition(".")[0])}
    return used


def _key(name: str) -> str | int:
    return int(name) if name.isdecimal() else name


@dataclass(frozen=True)
class RowSet:
    """Rows of a split, usually those of one file. `columns` maps each column name or number to a list of
    values; a column that the task does not use may have an empty list. `places` holds the position of each
    row in the file, counted from 1 in the unit that `unit` names (such as line or row). `skipped` is the
    number of incomplete rows that were left out.
    """

    path: str
    columns: dict[str | int, list[Any]]
    places: Sequence[int]
    unit: str = "line"
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.places)

    def at(self, row: int) -> str:
        """Return the position of a row as messages show it, such as `train.tsv: line 17`."""
        return f"{self.path}: {self.unit} {self.places[row]}"

    def column(self, spec: str | int | tuple[str | int, ...], role: str, *, complete: bool = True) -> list[Any]:
        """Return the values of a column, one per row. `spec` is a name, a number, a path `a.b`, a template
        that combines columns, or a tuple of these. For a tuple, the value of each row is a list with one
        value per entry. `role` is what the task uses the column for, as error messages show it.

        Raises UserError if the file lacks the column or, with `complete`, if a row lacks the field. Without
        `complete`, a missing value is MISSING.
        """
        if isinstance(spec, tuple):
            each = [self.column(name, role, complete=complete) for name in spec]
            return [[*values] for values in zip(*each, strict=True)]
        if isinstance(spec, str) and fields_of(spec):
            return self._composed(spec, role, complete)
        if spec in self.columns:
            return self._checked(self.columns[spec], spec, role, complete)
        head, _, rest = str(spec).partition(".")
        if not rest or head not in self.columns:
            names = [str(name) for name in self.columns]
            hidden = "; if the gold is hidden, list the split under `unlabelled`" if role in _GOLD else ""
            raise UserError(f"{self.path}: columns.{role}: no column {spec!r}{near_match(str(spec), names)}{hidden}")
        path = rest.split(".")
        return self._checked([_descend(value, path) for value in self.columns[head]], spec, role, complete)

    def _checked(self, values: list[Any], spec: str | int, role: str, complete: bool) -> list[Any]:
        if complete and MISSING in values:
            row = next(i for i, value in enumerate(values) if value is MISSING)
            raise UserError(
                f"{self.at(row)}: columns.{role}: no field {spec!r}; correct the row, or name another column"
            )
        return values

    def _composed(self, template: str, role: str, complete: bool) -> list[Any]:
        pieces = _PART.split(template)
        columns = [self.column(_key(name), role, complete=complete) for name in pieces[1::2]]
        texts = pieces[0::2]
        return [
            MISSING
            if MISSING in row
            else texts[0] + "".join(f"{value}{text}" for value, text in zip(row, texts[1:], strict=True))
            for row in zip(*columns, strict=True)
        ]

    def keep(self, rows: Sequence[int]) -> "RowSet":
        """Return a RowSet of only the rows with the given indices, in the given order."""
        columns = {name: [values[i] for i in rows] if values else [] for name, values in self.columns.items()}
        return RowSet(self.path, columns, [self.places[i] for i in rows], self.unit, self.skipped)


def _descend(value: Any, path: list[str]) -> Any:
    for number, name in enumerate(path):
        if isinstance(value, list):
            inner = [_descend(entry, path[number:]) for entry in value]
            return MISSING if MISSING in inner else inner
        if not isinstance(value, dict) or name not in value:
            return MISSING
        value = value[name]
    return value


def shown(value: Any) -> str:
    """Quote a value for an error message, cut after 40 characters and with control characters escaped."""
    text = printable(value if isinstance(value, str) else repr(value))
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
