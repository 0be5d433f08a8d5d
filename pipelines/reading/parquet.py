"""Parquet: one record per row, read row group by row group in batches of bounded size."""

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipelines.contracts.errors import SourceError
from pipelines.reading.archives import Entry
from pipelines.reading.records import Bad, Found, to_json
from pipelines.reading.source import BrokenInput, SourceSpec

_BATCH_BYTES = 8 << 20
_EXPANDED_BYTES = 64 << 20
_BATCH_ROWS = 1 << 13


def read_parquet(entry: Entry, source: SourceSpec) -> Iterator[Found | Bad]:
    """One record per row; `text_field` and `url_field` as in jsonl, all other columns as JSON in `meta`.

    Values JSON does not have are written as Python prints them (dates in ISO form), NaN as null. Only a plain file can
    be read, for Parquet is read from its end; in an archive or under gzip it is `not_parquet`. It ends as
    `decoded_limit` where its footer announces more than `max_decoded_bytes`, or its records add up to more. Text that
    is stored dictionary-encoded is expanded a batch at a time. SourceError where the text column is missing or is
    neither string nor binary.
    """
    import pyarrow.parquet as pq

    next(entry.chunks, b"")  # a stream that is broken from the start has a better reason to give
    if entry.location is None:
        yield Bad("not_parquet", entry.size)
        return
    options = {"buffer_size": 1 << 20, "pre_buffer": False, "page_checksum_verification": True}
    try:
        schema = pq.read_schema(entry.location)
        names = [field.name for field in schema if _is_text(field.type)]
        file = pq.ParquetFile(entry.location, **options)
        probe = pq.ParquetFile(entry.location, read_dictionary=names, **options)
    except (pa.ArrowException, OSError, ValueError):
        yield Bad("encrypted" if _encrypted(entry.location) else "not_parquet", entry.size)
        return
    with file, probe:
        _check_text_column(schema, entry, source)
        yield from _rows(file, probe, source)


def _rows(file: Any, probe: Any, source: SourceSpec) -> Iterator[Found | Bad]:
    announced = expanded = 0
    for group in range(file.metadata.num_row_groups):
        announced += file.metadata.row_group(group).total_byte_size
        if announced > source.max_decoded_bytes:
            raise BrokenInput("decoded_limit")
        try:
            for batch in file.iter_batches(batch_size=_batch_rows(file, probe, group), row_groups=[group]):
                for record in _records(batch, source):
                    expanded += (record.size or 0) + (len(record.meta or b"") if isinstance(record, Found) else 0)
                    if expanded > source.max_decoded_bytes:
                        raise BrokenInput("decoded_limit")
                    yield record
        except (pa.ArrowException, OSError):
            raise BrokenInput("corrupt") from None


def _batch_rows(file: Any, probe: Any, group: int) -> int:
    """How many rows of a row group to read at once, so that a batch stays small.

    Two measures: the mean size of a row, and the longest value in the dictionaries of the row group's columns, which
    every row might repeat. Reading one row as a dictionary shows the dictionaries whole.
    """
    import pyarrow.compute as pc

    facts = file.metadata.row_group(group)
    mean = max(1, facts.total_byte_size // max(1, facts.num_rows))
    longest = 1
    for batch in probe.iter_batches(batch_size=1, row_groups=[group]):
        for column in batch.columns:
            if isinstance(column, pa.DictionaryArray) and len(column.dictionary):
                longest += pc.max(pc.binary_length(column.dictionary)).as_py() or 0
        break
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // mean, _EXPANDED_BYTES // longest))


def _records(batch: pa.RecordBatch, source: SourceSpec) -> Iterator[Found | Bad]:
    columns = {name: _values(batch.column(name)) for name in batch.schema.names}
    texts = columns.pop(source.text_field)
    urls = columns.pop(source.url_field, None)
    if urls is not None and any(url is not None and type(url) is not bytes for url in urls):
        columns[source.url_field], urls = urls, None
    for row, text in enumerate(texts):
        if text is None or (source.oversized == "quarantine" and len(text) > source.max_document_bytes):
            yield Bad("no_text") if text is None else Bad("oversized", len(text))
            continue
        try:
            decoded = text.decode(source.encoding)
            url = urls[row].decode("utf-8") if urls is not None and urls[row] is not None else None
            meta = {name: _plain(values[row]) for name, values in columns.items()}
        except (ValueError, OverflowError):  # a string that is not UTF-8, a nested time that Python cannot hold
            yield Bad("undecodable", len(text))
            continue
        yield Found(decoded, len(text), url, to_json(meta) if meta else None)


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; those of strings as bytes, for Parquet files do not always hold valid UTF-8."""
    if isinstance(column, pa.DictionaryArray):
        # The dictionary holds the values of the whole row group, so only those of this batch are turned into objects.
        used = column.indices.unique().drop_null()
        words = dict(
            zip(used.to_pylist(), column.dictionary.take(used).cast(pa.large_binary()).to_pylist(), strict=True)
        )
        return [words.get(index) for index in column.indices.to_pylist()]
    if _is_text(column.type):
        return column.cast(pa.large_binary()).to_pylist()
    if pa.types.is_timestamp(column.type):  # Arrow writes every year there is; Python stops at 9999
        return column.cast(pa.string()).to_pylist()
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):  # in a nested value; the scalars are looked at one by one
        return list(column)


def _plain(value: Any) -> Any:
    """A value as JSON has it. UnicodeDecodeError for a scalar with a string that is not UTF-8."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _check_text_column(schema: pa.Schema, entry: Entry, source: SourceSpec) -> None:
    name = source.text_field
    if name not in schema.names:
        raise SourceError(
            f"source {source.name!r}: {entry.path} has no column {name!r}; its columns are {', '.join(schema.names)}; "
            "name the one that holds the text in `text_field`"
        )
    kind = schema.field(name).type
    if not _is_text(kind):
        raise SourceError(
            f"source {source.name!r}: column {name!r} of {entry.path} is of type {kind}, expected string or binary; "
            "name the one that holds the text in `text_field`"
        )


def _encrypted(location: str) -> bool:
    with open(location, "rb") as file:
        return file.read(4) == b"PARE"
