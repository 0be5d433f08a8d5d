"""Convert fields of records to typed values, for the columns of a source and of the stage `record_fields`."""

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
"""The Arrow type of the column for each type. Dates are times in UTC."""

_INT = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class RecordField:
    """A field of a record, and the type of its column."""

    field: str
    """Name of the field; `a.b` is the field `b` in the object `a`, unless the record has a field named `a.b`."""
    type: ColumnType = "string"
    """string; int (up to 64 bits); float; bool; or date (a date or time in ISO 8601, taken as UTC if it names no zone). A text
    that holds such a value has its type, so `7` and `"7"` are both ints. An empty text is null, unless the type is string."""
    first: int | None = None
    """Keep only this many characters from the start of a text: with 4, `2021-03-05` becomes the year."""

    def check(self) -> None:
        """Raise ValueError if `first` is below 1, or is set for a type other than string."""
        if self.first is not None and (self.first < 1 or self.type != "string"):
            raise ValueError(f"first: got {self.first} for the type {self.type}, expected 1 or more, for a string")

    def read(self, record: Any) -> Any:
        """Return the field of a record, converted to its type as `typed_value` does. A string is cut to
        `first` characters. Return None if the field is missing or null, or is a blank text and the type is
        not string. Raises ValueError if the value cannot be converted.
        """
        found = self._find(record)
        if found is None:
            return None
        value = typed_value(found, self.type)
        return value[: self.first] if isinstance(value, str) else value

    def read_or_null(self, record: Any) -> Any:
        """Return what `read` returns, or None where it raises ValueError. If the type is string, a value that
        is not a string is returned as JSON text.
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
    """Convert a JSON value other than null to the column type `kind`. A text that spells a value of that type
    is converted to it. If `kind` is float, ints are accepted too. An empty or blank text becomes None, unless
    `kind` is string.

    Raises ValueError for every other value that is not of the type, for a number out of range, and for a text
    with a lone surrogate.
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
    """Parse an ISO 8601 date, with or without a time of day, and return it as a naive datetime in UTC. A time
    without a zone is taken as UTC. Raises ValueError for any other text.
    """
    found = datetime.fromisoformat(text.strip())
    try:
        return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:  # at the ends of the calendar
        raise ValueError("not a date") from None


def load_meta(meta: str | bytes | None) -> Any:
    """Parse the `meta` of a document; None gives None. JSON with a lone surrogate, which orjson rejects, is
    parsed too.
    """
    if meta is None:
        return None
    try:
        return orjson.loads(meta)
    except orjson.JSONDecodeError:
        return json.loads(meta)


def check_columns(columns: Mapping[str, Any]) -> None:
    """Raise ValueError if there are no columns, or if a name is reserved or is not an identifier."""
    if not columns:
        raise ValueError("columns: got an empty mapping, expected {COLUMN: {field: FIELD}}")
    for name in columns:
        if not name.isidentifier() or name in (*DOCUMENT_COLUMNS, DROP, EDITS_COLUMN):
            raise ValueError(f"columns.{name}: expected letters, digits and underscores, and no column of a document")


assert set(ARROW_TYPES) == set(get_args(ColumnType))
