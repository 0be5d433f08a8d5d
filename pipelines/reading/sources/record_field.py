"""Fields of records as values of a type: what a source and the stage `record_fields` make columns of."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import orjson
import pyarrow as pa

from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.parts import DOCUMENT_COLUMNS

ColumnType = Literal["string", "int", "float", "bool", "date"]
ARROW_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.timestamp("us"),
}
"""The type of the column of each type. Dates are times in UTC."""

_INT = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class RecordField:
    """A field of `meta`, and the type of its column."""

    field: str
    """Name of the field; `a.b` is the field `b` in the object `a`, unless the record has a field named `a.b`."""
    type: ColumnType = "string"
    """string; int, up to 64 bits; float; bool; date, a date or a time in ISO 8601, as UTC if it names no zone. Texts that hold
    such a value have its type, so that `7` and `"7"` are ints; an empty text is null, unless the type is string."""
    first: int | None = None
    """Keep only the first characters of a text: 4 of the date `2021-03-05` are the year."""

    def check(self) -> None:
        """Validate ranges."""
        if self.first is not None and (self.first < 1 or self.type != "string"):
            raise ValueError(f"first: got {self.first} for the type {self.type}, expected 1 or more, for a string")

    def read(self, record: Any) -> Any:
        """Return the field of a record as a value of the type; None if it is missing or null. Raises ValueError if it has
        another type.
        """
        found = self._find(record)
        if found is None:
            return None
        value = typed_value(found, self.type)
        return value[: self.first] if isinstance(value, str) else value

    def read_or_null(self, record: Any) -> Any:
        """Return the field of a record as a value of the type; None if it is missing, null, or of another type. Values that
        are no text are texts of JSON, if the type is string.
        """
        found = self._find(record)
        if self.type == "string" and found is not None and not isinstance(found, str):
            record = {self.field: json.dumps(found, ensure_ascii=False, separators=(",", ":"))}
        try:
            return self.read(record)
        except ValueError:
            return None

    def _find(self, record: Any) -> Any:
        found = record.get(self.field) if isinstance(record, dict) else None
        if found is None:
            found = record
            for key in self.field.split("."):
                found = found.get(key) if isinstance(found, dict) else None
        return found


def typed_value(value: Any, kind: ColumnType) -> Any:
    """Return a value of JSON, other than null, as one of a column type; None for an empty text, unless `kind` is string.
    Raises ValueError if it has another type.
    """
    if kind == "string":
        if not isinstance(value, str):
            raise ValueError("not a text")
        value.encode()  # half of a surrogate pair raises UnicodeEncodeError, a ValueError
        return value
    if isinstance(value, str) and not value.strip():
        return None
    match kind, value:
        case "bool", bool():
            return value
        case "bool", "true" | "false":
            return value == "true"
        case "date", str():
            return parse_date(value)
        case "int", int() if not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
            return value
        case "int", str() if _INT.fullmatch(value):
            return typed_value(int(value), kind)
        case "float", int() | float() if not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            return float(value)
        case "float", str() if _FLOAT.fullmatch(value):
            return typed_value(float(value), kind)
    raise ValueError(f"not of the type {kind}")


def parse_date(text: str) -> datetime:
    """Parse a date or a time in ISO 8601: the time in UTC, without a zone. Raises ValueError for anything else."""
    found = datetime.fromisoformat(text.strip())
    try:
        return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:  # at the ends of the calendar
        raise ValueError("not a date") from None


def load_meta(meta: str | bytes | None) -> Any:
    """Parse the `meta` of a document. JSON with half of a surrogate pair, which orjson refuses, is parsed too."""
    if meta is None:
        return None
    try:
        return orjson.loads(meta)
    except orjson.JSONDecodeError:
        return json.loads(meta)


def check_columns(columns: Mapping[str, Any]) -> None:
    """Raise ValueError("columns...: what is wrong") for no column, or for a name that is not valid."""
    if not columns:
        raise ValueError("columns: got an empty mapping, expected {COLUMN: {field: FIELD}}")
    for name in columns:
        if not name.isidentifier() or name in (*DOCUMENT_COLUMNS, DROP, EDITS_COLUMN):
            raise ValueError(f"columns.{name}: expected letters, digits and underscores, and no column of a document")


assert set(ARROW_TYPES) == set(get_args(ColumnType))
