"""Read the files of a source into document parts. This is the first step of every source.

`FORMATS` in `sources/registry.py` says for each format what a record is. Records are numbered from 0 in the
order in which they occur in their file or archive member. Every number belongs to exactly one document or
quarantined record. Bytes that cannot be divided into records (the rest of a truncated file, an encrypted
member) count as one quarantined record. A split document yields one record per piece. When a name occurs
twice in an archive, the second occurrence continues the numbering of the first.
"""

import json
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from gristmill.errors import PoisonError, StorageError, TaskMemoryError, UserError
from pipelines.contracts.document import NOT_SAMPLED, file_key
from pipelines.reading.entries.archives import Entry, open_entries
from pipelines.reading.entries.files import SourceFile
from pipelines.reading.entries.reasons import REASONS, BrokenInput
from pipelines.reading.entries.record_sample import RecordSample
from pipelines.reading.entries.records import Bad, RawRecord, TextRecord
from pipelines.reading.entries.typed_columns import check_types
from pipelines.reading.part_writer import PartBuilder, ReadPart
from pipelines.reading.sources.registry import format_of
from pipelines.reading.sources.source import Source
from pipelines.reading.web.page_process import Extractor

VERSION = 10
"""Increment when a change makes the same files yield different documents."""

_FREE_RECORDS = 1 << 20  # records allowed in a file of any size
_RECORDS_PER_BYTE = 4  # allowed in larger files; near-empty records (`1` per line, Parquet nulls) reach 30,000 and more


def depends() -> dict[str, str]:
    """Return the version of Unicode, on which the normalisation of text depends."""
    return {"unicode": unicodedata.unidata_version}


def read_documents(
    source: Source,
    files: Sequence[SourceFile],
    part_bytes: int,
    poison: Collection[str] = (),
    forgotten: Collection[str] = (),
) -> Iterator[ReadPart]:
    """Read the files of a source in the given order, and yield its documents in parts. There is at least one
    part, and the last may have no documents.

    A part holds at most about `part_bytes` bytes of text, URLs, `meta` and bookkeeping, or a single larger
    document. The same arguments and files give the same parts.

    `poison` and `forgotten` list records to set aside, as `path#record`. Poison records crash their parser;
    forgotten records were removed from the corpus by the user.

    Raises UserError if a file cannot be opened, SourceError if the columns of a table do not fit the source,
    StorageError for an I/O error, PoisonError for a record that crashes its parser and is not in `poison`,
    and TaskMemoryError if memory runs out. Any other fault in the bytes gives a quarantined record with a
    reason from REASONS.
    """
    builder = PartBuilder(source, part_bytes, forgotten)
    share = format_of(source.format).load_shared()(source)
    with Extractor(source) as extractor:
        for file in files:
            next_record: dict[int, int] = {}
            left = max(_FREE_RECORDS, _RECORDS_PER_BYTE * file.size)
            for entry in open_entries(file, source):
                key = file_key(source.name, entry.path)
                first = next_record.get(key, 0)
                shared = replace(entry, shared=share(file, entry.path))
                records = _bounded(read_records(shared, source, first, poison), left)
                if source.text_is != "text":
                    records = _as_html(records, source.max_html_bytes)
                if source.sample < 1:
                    records = _unparsed(records, RecordSample(source.sample), key, first, source)
                records = extractor.extract(entry.path, first, records, poison)
                typed = check_types(records, source)
                try:
                    yield from builder.extend(entry.path, first, typed)
                except MemoryError as error:
                    position = f"record {source.name}/{entry.path}#{builder.next_record} or soon after"
                    raise TaskMemoryError(position) from error
                next_record[key] = builder.next_record
                left = max(0, left - (builder.next_record - first))
            if not next_record:
                yield from builder.extend(file.path, 0, iter(()))
        yield from builder.finish()


def read_records(
    entry: Entry, source: Source, first: int = 0, poison: Collection[str] = ()
) -> Iterator[TextRecord | Bad | RawRecord]:
    """Yield the records of an entry; the first has the number `first`. If the stream breaks, the records
    before the break are kept and one Bad follows them. Raises PoisonError if the reader of an installed
    package fails at a record that is not in `poison`.
    """
    kind = format_of(source.format)
    try:
        if callable(kind.reader):
            yield from _foreign_records(kind.reader, entry, source, first, poison)
        else:
            yield from kind.load_reader()(entry, source)
    except BrokenInput as broken:
        yield Bad(broken.reason)


def _unparsed(
    records: Iterator[TextRecord | Bad | RawRecord], sample: RecordSample, key: int, first: int, source: Source
) -> Iterator[TextRecord | Bad | RawRecord]:
    """Yield `records`, with raw records outside the sample set aside, so that they are not parsed. Nothing is
    set aside here if the source splits documents, because only parsing then gives the record numbers.
    """
    for number, record in enumerate(records, first):
        if isinstance(record, RawRecord) and source.oversized == "quarantine" and not sample.has(key, number):
            record = Bad(NOT_SAMPLED, record.size)
        yield record


def _as_html(records: Iterator[TextRecord | Bad | RawRecord], most: int) -> Iterator[TextRecord | Bad | RawRecord]:
    for record in records:
        if isinstance(record, TextRecord):
            try:
                content = record.text.encode()
            except UnicodeEncodeError:  # a lone surrogate, which is set aside later
                yield record
                continue
            if len(content) > most:
                yield Bad("html_bytes", record.size)
                continue
            meta = {} if record.meta is None else json.loads(record.meta)  # orjson rounds integers beyond 64 bits
            yield RawRecord(content, "", record.size, record.url, meta)
        else:
            yield record


def _foreign_records(
    reader: Callable[..., Any], entry: Entry, source: Source, first: int, poison: Collection[str]
) -> Iterator[TextRecord | Bad]:
    """Yield the records of an installed package's reader. If the reader fails at a record, or yields
    something that is not a record, raise PoisonError with the record's number; if that record is in `poison`,
    yield Bad("poison") instead and end.
    """
    number, reason = first, ""
    try:
        for record in reader(entry, source):
            if not _is_record(record):
                reason = f"yields a wrong {type(record).__name__}"
                break
            yield record
            number += 1
    except (BrokenInput, UserError, StorageError, OSError, MemoryError, ImportError):  # not caused by the record
        raise
    except Exception as error:
        reason = f"fails with {type(error).__name__}"
    if reason:
        place = f"{entry.path}#{number}"
        if place not in poison:
            raise PoisonError(
                f"read: the format {source.format} {reason} at {source.name}/{place}; fix it, or set the rest of the file aside "
                "with build --quarantine-poison",
                "read", source.name, place, reason,
            )  # fmt: skip
        yield Bad("poison")


def _is_record(record: Any) -> bool:
    if isinstance(record, Bad):
        return record.reason in REASONS
    if not isinstance(record, TextRecord) or not isinstance(record.text, str) or not isinstance(record.size, int):
        return False
    if record.url is not None and not isinstance(record.url, str):
        return False
    try:
        return record.meta is None or (isinstance(record.meta, bytes) and isinstance(json.loads(record.meta), dict))
    except ValueError:
        return False


def _bounded(records: Iterator[Any], left: int) -> Iterator[Any]:
    return chain(islice(records, left), (Bad("record_limit") for _ in islice(records, 1)))
