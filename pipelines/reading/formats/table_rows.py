"""Turn rows of Arrow record batches into records, for Parquet and Arrow files, after checking the text
columns.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from gristmill.errors import SourceError
from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, TextRecord, composed_record, to_json
from pipelines.reading.sources.source import Source


def batch_records(batch: pa.RecordBatch, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield one record per row of a batch whose schema has passed `check_text_column`. `text_field` and
    `url_field` are used as in jsonl, and all other columns are kept as JSON in `meta`.

    In `meta`, values that JSON lacks are written as text (a date and time as `2021-01-02 03:04:05`), invalid
    UTF-8 outside nested values is escaped, and NaN and infinities are null.
    """
    columns = {name: _values(batch.column(name)) for name in batch.schema.names}
    if source.text is not None:
        yield from _composed_rows(columns, batch.num_rows, source)
        return
    texts = columns.pop(source.text_field)
    urls = columns.pop(source.url_field, None)
    if urls is not None and any(url is not None and type(url) is not bytes for url in urls):
        columns[source.url_field], urls = urls, None
    for row, text in enumerate(texts):
        if text is None or (source.oversized == "quarantine" and len(text) > source.max_document_bytes):
            names = tuple(batch.schema.names)
            yield Bad("no_text", fields=names) if text is None else Bad("oversized", len(text))
            continue
        try:
            decoded = text.decode(source.encoding)
            url = urls[row].decode("utf-8") if urls is not None and urls[row] is not None else None
            meta = {name: _plain(values[row]) for name, values in columns.items()}
        except (ValueError, OverflowError):  # invalid UTF-8, or a nested time that Python cannot represent
            yield Bad("undecodable", len(text))
            continue
        yield TextRecord(decoded, len(text), url, to_json(meta) if meta else None)


def _composed_rows(columns: dict[str, Sequence[Any]], rows: int, source: Source) -> Iterator[TextRecord | Bad]:
    assert source.text is not None
    strict = {source.url_field, *(name for field in source.text.names() for name in (field, field.partition(".")[0]))}
    for row in range(rows):
        size = sum(len(values[row]) for values in columns.values() if isinstance(values[row], bytes))
        try:
            record = {
                name: values[row].decode(source.encoding)
                if name in strict and isinstance(values[row], bytes)
                else _plain(values[row])
                for name, values in columns.items()
            }
            yield composed_record(record, size, source)
        except (ValueError, OverflowError):  # as in `batch_records`
            yield Bad("undecodable", size)


def record_bytes(record: TextRecord | Bad) -> int:
    """Return the size in bytes of a record including its `meta`, as counted against `max_decoded_bytes`."""
    return (record.size or 0) + (len(record.meta or b"") if isinstance(record, TextRecord) else 0)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds strings or bytes of variable length, dictionary-encoded or
    not.
    """
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def check_text_column(schema: pa.Schema, entry: Entry, source: Source) -> None:
    """Raise SourceError if a text column is missing, if the column `text_field` is neither string nor binary,
    or if a column name occurs twice.
    """
    name = source.text_field
    if source.text is not None:
        first = [field for field in source.text.names() if not {field, field.partition(".")[0]} & set(schema.names)]
        if first:
            raise SourceError(
                f"source {source.name!r}: {entry.path} has no column {first[0]!r}, which `text` names; its columns are "
                f"{', '.join(schema.names)}"
            )
    elif name not in schema.names:
        raise SourceError(
            f"source {source.name!r}: {entry.path} has no column {name!r}; its columns are {', '.join(schema.names)}; "
            "name the one that holds the text in `text_field`"
        )
    twice = sorted({column for column in schema.names if schema.names.count(column) > 1})
    if twice:
        raise SourceError(
            f"source {source.name!r}: {entry.path} has columns of the same name: {', '.join(twice)}; rename them"
        )
    kind = schema.field(name).type if source.text is None else pa.string()
    if not is_text(kind):
        raise SourceError(
            f"source {source.name!r}: column {name!r} of {entry.path} is of type {kind}, expected string or binary; "
            "name the one that holds the text in `text_field`"
        )


def _values(column: pa.Array) -> Sequence[Any]:
    """Return the values of a column as Python objects. Strings become bytes, because files may contain
    invalid UTF-8, and timestamps become strings, because Python has no years after 9999. Nested values, and a
    column with values that Python cannot represent, stay Arrow scalars.
    """
    if isinstance(column, pa.DictionaryArray):
        # The dictionary holds the values of the whole row group; convert only those of this batch.
        used = column.indices.unique().drop_null()
        values = column.dictionary.take(used)
        words = dict(zip(used.to_pylist(), _values(values), strict=True))
        return [words.get(index) for index in column.indices.to_pylist()]
    if is_text(column.type):
        return column.cast(pa.large_binary()).to_pylist()
    if pa.types.is_timestamp(column.type):  # Arrow formats any year; Python stops at 9999
        try:
            return column.cast(pa.string()).to_pylist()
        except pa.ArrowInvalid:  # a time zone that this machine does not know
            return column.cast(pa.timestamp(column.type.unit, "UTC")).cast(pa.string()).to_pylist()
    if pa.types.is_nested(column.type):
        return column  # converted row by row: rows may share values, and a single one may not be representable
    try:
        return column.to_pylist()
    except (ValueError, OverflowError, KeyError):  # KeyError: as in `_object`
        return list(column)


def _plain(value: Any) -> Any:
    """Convert a value to JSON types; values such as dates are returned unchanged. Raises ValueError or
    OverflowError for an Arrow scalar with invalid UTF-8 or a time that Python cannot represent.
    """
    if isinstance(value, pa.Scalar):
        value = _object(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _object(value: pa.Scalar) -> Any:
    """Return an Arrow scalar as a Python object. A time in a zone that this machine does not know is
    converted to UTC. A nested value that contains such a time becomes a list or dict of Arrow scalars. Raises
    ValueError or OverflowError for a value that Python cannot represent.
    """
    try:
        return value.as_py()
    except KeyError:  # pytz and zoneinfo raise it for an unknown zone
        pass
    except ValueError:  # a struct turns the KeyError into this
        if not pa.types.is_nested(value.type):
            raise
    if isinstance(value, pa.TimestampScalar):
        return value.cast(pa.timestamp(value.type.unit, "UTC")).as_py()
    if isinstance(value, pa.StructScalar):
        fields = dict(value.items())
        if len(fields) < value.type.num_fields:
            raise ValueError("fields of the same name")
        return fields
    if isinstance(value, pa.MapScalar):
        return [list(pair.values()) for pair in value.values]
    # Maps and views are lists. Scalars of dictionaries, runs, unions and extensions each wrap one value.
    return list(value.values) if isinstance(value, pa.ListScalar) else _object(value.value)
