"""Parquet: one record per row, read row group by row group in batches of bounded size."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from gristmill.errors import errno_of
from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.decompress import decoded_bound
from pipelines.reading.entries.files import SourceFile, attribute_os_errors, file_chunks
from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.entries.records import Bad, TextRecord
from pipelines.reading.formats.parquet_pages import ColumnChunk, row_groups, scan_pages
from pipelines.reading.formats.table_rows import batch_records, check_text_column, is_text, record_bytes
from pipelines.reading.sources.source import Source

_BATCH_BYTES = 8 << 20
_EXPANDED_BYTES = 64 << 20
_BATCH_ROWS = 1 << 13
_PAGE_BYTES = 256 << 20  # of one page, which Arrow holds up to four times; writers' default is 1 MiB


def read_parquet(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield one record per row. `text_field` and `url_field` are used as in jsonl, and all other columns are
    kept as JSON in `meta`. Values that JSON lacks are written there as text (a date and time as `2021-01-02
    03:04:05`), invalid UTF-8 outside nested values is escaped, and NaN and infinities are null.

    Parquet is read from its end, so a file inside an archive or compressed with gzip is set aside as
    `not_parquet`. Reading stops with the reason `decoded_limit` if the footer announces more bytes than
    `decoded_bound` allows, or if the records add up to more. A page is decompressed whole, so reading stops
    with `large_page` at a page over 256 MiB.

    Raises SourceError if a text column is missing, if the column `text_field` is neither string nor binary,
    or if a column name occurs twice.
    """
    import pyarrow.parquet as pq

    next(entry.chunks, b"")  # a stream that is broken from the start raises a more specific reason
    if entry.file is None:
        yield Bad("not_parquet", entry.size)
        return
    options = {"buffer_size": 1 << 20, "pre_buffer": False, "page_checksum_verification": True}
    try:
        with attribute_os_errors(entry.file):
            schema = pq.read_schema(entry.file.handle())
            names = [field.name for field in schema if is_text(field.type)]
            file = pq.ParquetFile(entry.file.handle(), **options)
            probe = pq.ParquetFile(entry.file.handle(), read_dictionary=names, **options)
    except (pa.ArrowException, OSError, ValueError):
        yield Bad("encrypted" if _encrypted(entry.file) else "not_parquet", entry.size)
        return
    with file, probe:
        check_text_column(schema, entry, source)
        with attribute_os_errors(entry.file), entry.file.open() as headers:
            yield from _rows(file, probe, headers, source, decoded_bound(entry.file.size, source.max_decoded_bytes))


def _rows(file: Any, probe: Any, headers: Any, source: Source, limit: int) -> Iterator[TextRecord | Bad]:
    announced = expanded = 0
    groups = row_groups(headers)
    for group in range(file.metadata.num_row_groups):
        announced += file.metadata.row_group(group).total_byte_size
        if announced > limit:
            raise BrokenInput("decoded_limit")
        try:
            chunks = next(groups, None)
            if chunks is None:
                raise BrokenInput("corrupt")
            pages = scan_pages(headers, chunks)
            if pages.largest > _PAGE_BYTES:
                raise BrokenInput("large_page")
            rows = _batch_rows(file, probe, group, chunks, pages.shared)
            for batch in file.iter_batches(batch_size=rows, row_groups=[group]):
                for record in batch_records(batch, source):
                    expanded += record_bytes(record)
                    if expanded > limit:
                        raise BrokenInput("decoded_limit")
                    yield record
        except (pa.ArrowException, OSError) as error:
            if errno_of(error) is not None:
                raise  # an error of the disk, not of the file
            raise BrokenInput("corrupt") from None


def _batch_rows(file: Any, probe: Any, group: int, chunks: Sequence[ColumnChunk], shared: Mapping[str, int]) -> int:
    """Return how many rows of a row group to read at once, so that a batch stays small even if every row has
    the longest value of each column's dictionary. `chunks` are the columns of the group, and `shared` is
    `Pages.shared`.
    """
    import pyarrow.compute as pc

    facts = file.metadata.row_group(group)
    mean = max(1, facts.total_byte_size // max(1, facts.num_rows))
    longest = 1 + sum(shared.values())
    columns = [chunk.path for chunk in chunks if chunk.path not in shared]
    for batch in probe.iter_batches(batch_size=1, row_groups=[group], columns=columns):
        for column in batch.columns:
            if isinstance(column, pa.DictionaryArray) and len(column.dictionary):
                longest += pc.max(pc.binary_length(column.dictionary)).as_py() or 0
        break
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // mean, _EXPANDED_BYTES // longest))


def _encrypted(file: SourceFile) -> bool:
    with closing(file_chunks(file)) as chunks:
        return next(chunks, b"").startswith(b"PARE")
