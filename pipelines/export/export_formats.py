"""Formats of exported texts: Parquet, gzipped JSON lines, WebDataset and MDS.

Readers that infer types from the first rows need the same keys in all rows. JSON lines therefore include
every key, with null for a missing value, and `meta` is a JSON string in every format.
"""

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128_hexdigest

from pipelines.export import mds_shards

_GROUP_BYTES = 32 << 20  # text per Parquet row group, unless a single document is longer
_GROUP_ROWS = 1 << 16  # documents per Parquet row group


def write_parquet(schema: pa.Schema, sink: BinaryIO, tables: Iterator[pa.Table]) -> None:
    """Write tables of `schema` as one Parquet file, with zstd compression and page checksums."""
    import pyarrow.parquet as pq

    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for table in tables:
            for group in _row_groups(table):
                writer.write_table(group, row_group_size=_GROUP_ROWS)


def _row_groups(table: pa.Table) -> Iterator[pa.Table]:
    ends = np.cumsum(pc.binary_length(table["text"]).to_numpy())
    first = 0
    while first < table.num_rows:
        before = ends[first - 1] if first else 0
        last = int(np.searchsorted(ends, before + _GROUP_BYTES, side="right"))
        last = min(max(last, first + 1), first + _GROUP_ROWS)
        yield table.slice(first, last - first)
        first = last


def write_jsonl(schema: pa.Schema, sink: BinaryIO, tables: Iterator[pa.Table]) -> None:
    """Write tables of `schema` as gzipped JSON lines. Dates are written as ISO 8601 text. In a column
    of dates, those outside the years 1 to 9999, the range of Python's dates, become null (with a time
    zone other than UTC, also those within a day of its ends), as do NaN and infinities in a column of numbers, which
    JSON lacks.
    """
    # The header has no time and no name, so that the same documents give the same bytes.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=sink, mtime=0) as packed:
        packed.writelines(_json(row) + b"\n" for row in _rows(schema, tables))


def write_webdataset(schema: pa.Schema, sink: BinaryIO, tables: Iterator[pa.Table]) -> None:
    """Write tables of `schema` as a tar file in the layout of WebDataset: for each document, a KEY.txt with
    its text and a KEY.json with the other columns. KEY is a digest of the id, because readers end the key at
    the first dot, and ids may contain dots.
    """
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.USTAR_FORMAT) as archive:
        for row in _rows(schema, tables):
            key, text = xxh3_128_hexdigest(row["id"].encode()), row.pop("text")
            for suffix, data in (("txt", text.encode()), ("json", _json(row) + b"\n")):
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_mds(schema: pa.Schema, sink: BinaryIO, tables: Iterator[pa.Table]) -> None:
    """Write tables of `schema` as a shard of MosaicML Streaming. Dates, NaN and infinities are written as in
    JSON lines.
    """
    mds_shards.write_shard_file(schema, sink, _rows(schema, tables), _json)


def _rows(schema: pa.Schema, tables: Iterator[pa.Table]) -> Iterator[dict[str, Any]]:
    for table in tables:
        for batch in _finite(table.select(schema.names)).to_batches(max_chunksize=1024):
            yield from batch.to_pylist()


def _finite(table: pa.Table) -> pa.Table:
    for number, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            column = table.column(number)
            table = table.set_column(number, field, pc.if_else(pc.is_finite(column), column, None))
        elif pa.types.is_timestamp(field.type) and field.type.unit == "ns":  # Python's times have microseconds
            exact = pa.timestamp("us", field.type.tz)
            table = table.set_column(number, field.name, table.column(number).cast(exact, safe=False))
        elif pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
            column, kind = table.column(number), field.type
            # In another time zone than UTC, Python's range ends up to a day earlier or later.
            margin = timedelta(days=0 if getattr(kind, "tz", None) in (None, "UTC") else 1)
            first, last = (pa.scalar(end, kind) for end in (datetime.min + margin, datetime.max - margin))
            has_year = pc.and_(pc.greater_equal(column, first), pc.less_equal(column, last))
            table = table.set_column(number, field, pc.if_else(has_year, column, None))
    return table


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_in_json).encode()


def _in_json(value: Any) -> str:
    return value.isoformat() if isinstance(value, date | time) else str(value)


@dataclass(frozen=True)
class TextExportFormat:
    """A format of exported texts. `is_table` says whether Hugging Face and Croissant can read its files as
    tables. `file_bytes` is the approximate number of bytes of stored text per file.
    """

    write: Callable[[pa.Schema, BinaryIO, Iterator[pa.Table]], None]
    suffix: str
    is_table: bool = True
    file_bytes: int = 1 << 30


TEXT_FORMATS = {
    "parquet": TextExportFormat(write_parquet, ".parquet"),
    "jsonl": TextExportFormat(write_jsonl, ".jsonl.gz"),
    "webdataset": TextExportFormat(write_webdataset, ".tar", is_table=False),
    "mds": TextExportFormat(write_mds, ".mds", is_table=False, file_bytes=mds_shards.FILE_BYTES),
}
