"""Reading: from the files of a source to document parts. The first step of every source.

A record is a file (text, message, markdown, html), a line that is not blank (jsonl), a row (csv, parquet, arrow,
hf_dataset), an element (json), a page (mediawiki) or a record of a web archive (warc). Records are numbered from 0 in
the order they stand in their file, or archive member; every number is a document or a quarantined record, and nothing
else is. What no record could be told from (the rest of a truncated file, an encrypted member) counts as one quarantined
record. A document that is split gives one record per piece. A name that stands twice in an archive goes on counting
where it left off.
"""

import unicodedata
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from gristmill.errors import TaskMemoryError
from pipelines.contracts.document import FILES, QUARANTINE, file_key
from pipelines.reading.entries.archives import open_entries
from pipelines.reading.entries.files import SourceFile, checksum_of, has_changed, read_units
from pipelines.reading.entries.listing import list_files
from pipelines.reading.entries.records import Bad
from pipelines.reading.entries.source import REASONS, SourceSpec
from pipelines.reading.part_writer import PartBuilder, ReadPart
from pipelines.reading.registry import FORMATS, check_format, read_records
from pipelines.reading.web.extraction import Extractor

__all__ = [
    "FILES",
    "FORMATS",
    "QUARANTINE",
    "REASONS",
    "VERSION",
    "ReadPart",
    "SourceFile",
    "check_format",
    "checksum_of",
    "depends",
    "has_changed",
    "list_files",
    "read_documents",
    "read_units",
]

VERSION = 4
"""Raise it whenever the same files would give other documents."""

_FREE_RECORDS = 1 << 20  # of a file, whatever its size
_RECORDS_PER_BYTE = 4  # beyond; records that cost next to nothing (`1` a line, nulls in Parquet) reach 30,000 and more


def depends() -> dict[str, str]:
    """What the documents depend on beside the source's fields and files: the Unicode version that normalises them."""
    return {"unicode": unicodedata.unidata_version}


def read_documents(
    source: SourceSpec,
    files: Sequence[SourceFile],
    part_bytes: int,
    poison: Collection[str] = (),
    forgotten: Collection[str] = (),
) -> Iterator[ReadPart]:
    """Read files of a source, in the order given, as a stream of parts; at least one, the last possibly without
    documents.

    A part holds at most `part_bytes` bytes of text, URLs, `meta` and bookkeeping, or one larger document. Memory is
    bounded by `part_bytes` and a few times `max_document_bytes`, whatever the files hold. The parts are a function of
    (source, the bytes of the files, `part_bytes`).

    SourceError where a file cannot be opened or a Parquet file lacks the text column; everything else that is wrong
    with the bytes is a quarantined record with a reason of REASONS. A record that is listed in `poison`, as
    `path#record`, is set aside without being parsed; PoisonError names one that its parser does not survive. What is listed in
    `forgotten`, likewise, is set aside too: the user has had it taken out of the corpus. TaskMemoryError says at which record
    memory ran out.
    """
    builder = PartBuilder(source, part_bytes, forgotten)
    with Extractor(source) as extractor:
        for file in files:
            next_record: dict[int, int] = {}
            left = max(_FREE_RECORDS, _RECORDS_PER_BYTE * file.size)
            for entry in open_entries(file, source):
                key = file_key(source.name, entry.path)
                first = next_record.get(key, 0)
                records = extractor.extracted(entry.path, first, _bounded(read_records(entry, source), left), poison)
                try:
                    yield from builder.extend(entry.path, first, records)
                except MemoryError as error:
                    place = f"record {source.name}/{entry.path}#{builder.next_record} or soon after"
                    raise TaskMemoryError(place) from error
                next_record[key] = builder.next_record
                left = max(0, left - (builder.next_record - first))
            if not next_record:
                yield from builder.extend(file.path, 0, iter(()))
        yield from builder.finish()


def _bounded(records: Iterator[Any], left: int) -> Iterator[Any]:
    """At most `left` records; where there are more, what is beyond counts as one."""
    return chain(islice(records, left), (Bad("record_limit") for _ in islice(records, 1)))
