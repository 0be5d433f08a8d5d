"""Fields of records as columns, for rules to decide by and `shards` to group by: a published score, a date, a
topic.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
import pyarrow as pa

from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.parts import DOCUMENT_COLUMNS
from pipelines.contracts.reads import Column, Input
from pipelines.contracts.stage import PartStage

_TYPES = {"text": pa.string(), "number": pa.float64()}


@dataclass(frozen=True)
class RecordField:
    """A field of `meta`, and the type of its column."""

    field: str
    """Name of the field; `a.b` is the field `b` in the object `a`, unless the record has a field named `a.b`."""
    type: Literal["text", "number"] = "text"
    """text: values other than texts are written as JSON, so the number 2021 becomes `2021`. number: a float, or a text
    that holds one."""
    first: int | None = None
    """Keep only the first characters of a text: 4 of the date `2021-03-05` are the year."""

    def check(self) -> None:
        """Validate ranges."""
        if self.first is not None and (self.first < 1 or self.type == "number"):
            raise ValueError(f"first: got {self.first} for a {self.type}, expected 1 or more, for a text")

    def value(self, record: Any) -> str | float | None:
        """Return the field of a record; None if it is missing, null, or not of the type."""
        found = record.get(self.field) if isinstance(record, dict) else None
        if found is None:
            found = record
            for key in self.field.split("."):
                found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            return None
        if self.type == "number":
            return _number(found)
        return (found if isinstance(found, str) else orjson.dumps(found).decode())[: self.first]


@dataclass(frozen=True)
class RecordFields(PartStage):
    """Write fields of the records, which are in `meta`, as columns.

    A value is null if the record lacks the field or its value is not of the type. Values are written as
    stored: `pii` finds personal data in `meta`, but does not change these columns.
    """

    columns: Mapping[str, RecordField]
    """Fields by the name of their column: `{year: {field: date, first: 4}, edu: {field: score, type: number}}`."""

    def reads(self) -> tuple[Input, ...]:
        """Return `meta`, which holds the fields."""
        return (Column("meta"),)

    def writes(self) -> pa.Schema:
        """Return the columns."""
        return pa.schema([(name, _TYPES[each.type]) for name, each in self.columns.items()])

    def check(self) -> None:
        """Check that there is a column, and that names are valid."""
        if not self.columns:
            raise ValueError("columns: got an empty mapping, expected {COLUMN: {field: FIELD}}")
        for name in self.columns:
            if not name.isidentifier() or name in (*DOCUMENT_COLUMNS, DROP, EDITS_COLUMN):
                raise ValueError(
                    f"columns.{name}: expected letters, digits and underscores, and no column of a document"
                )

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Return the columns of each document."""
        rows = [[each.value(record) for each in self.columns.values()] for record in _records(docs["meta"])]
        values = zip(*rows, strict=True) if rows else ([] for _ in self.columns)
        arrays = [pa.array(column, field.type) for column, field in zip(values, self.writes(), strict=True)]
        return pa.table(arrays, schema=self.writes())


def _records(meta: pa.ChunkedArray) -> Iterator[Any]:
    for text in meta:
        yield orjson.loads(text.as_py()) if text.is_valid else None


def _number(value: Any) -> float | None:
    """Return a finite number, given as such or as text in JSON's notation; None for anything else."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
    finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if finite else None
