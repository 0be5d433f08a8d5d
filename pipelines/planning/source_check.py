"""Check that a source yields documents as expected, both before and after it is read.

With a wrong `format`, `text_field` or `encoding`, most or all records may be set aside.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import PoisonError, SourceError, StorageError
from gristmill.storage.location import Location
from pipelines.contracts.document import QUARANTINE, is_empty
from pipelines.contracts.manifest import StepManifest, read_table, schema_facts
from pipelines.reading.documents import read_records
from pipelines.reading.entries.archives import Entry, open_entries
from pipelines.reading.entries.files import SourceFile
from pipelines.reading.entries.reasons import REASONS, STRUCTURAL
from pipelines.reading.entries.records import Bad, RawRecord, TextRecord
from pipelines.reading.entries.typed_columns import check_types
from pipelines.reading.sources.registry import format_of
from pipelines.reading.sources.source import Source

_RECORDS = 1000
_FILES, _REMOTE_FILES = 64, 4  # files spread over the source; each costs an open, or several requests
_BYTES = 64 << 20  # bytes of records to sample, which takes half a second
_TEXT_BYTES = 16 << 20  # bytes of records whose texts are measured, which takes two seconds
_SHOWN_FIELDS = 20
_SHOWN_CHARACTERS = 40
_LACKS_TEXT = ("no_text", "text_not_string")
_CHECK = {
    "no_text": "text_field", "text_not_string": "text_field", "undecodable": "encoding", "oversized": "max_document_bytes",
    "html_bytes": "max_html_bytes", "html_nodes": "max_html_nodes", "html_depth": "max_html_depth",
    "no_text_extracted": "extract", "wrong_type": "columns",
    "file_bytes": "max_file_bytes", "decoded_limit": "max_decoded_bytes",
} | dict.fromkeys(
    ("bad_header", "bad_quotes", "field_count", "malformed_record", "trailing_bytes", "unclosed_quote", "wrong_suffix",
     *(reason for reason in REASONS if reason.startswith("not_") and reason not in STRUCTURAL)), "format",
)  # fmt: skip
"""For most reasons, the field of the source that is the most likely cause if the reason is frequent. For a file
that is not of its format (`not_...`), the field is `format`.
"""


@dataclass
class SampleTally:
    """Counts of the records of a source, or of a sample of them: those that became documents, and those set
    aside, by reason (`aside`).

    `fields` are the fields of the first record whose text is missing or not a string. `texts` are the texts
    of the first documents as the records hold them, up to about 16 MiB; there are none for formats whose text
    must be extracted. `text_bytes` is the size of the records with these texts.
    """

    documents: int = 0
    aside: Counter[str] = field(default_factory=Counter)
    fields: tuple[str, ...] = ()
    texts: list[str] = field(default_factory=list, repr=False)
    text_bytes: int = 0

    @property
    def unexpected(self) -> Counter[str]:
        """The number of records set aside for each reason, leaving out the expected reasons (STRUCTURAL)."""
        return Counter({reason: count for reason, count in self.aside.items() if reason not in STRUCTURAL})

    @property
    def share(self) -> float:
        """The records set aside for an unexpected reason, as a share of these records and the documents
        together.
        """
        aside = self.unexpected.total()
        return aside / (aside + self.documents) if aside else 0.0

    def is_too_much(self, source: Source) -> bool:
        """Return whether too many records were set aside: whether `share` exceeds `max_quarantined`.

        JSON Lines read as JSON gives one document and one record of trailing bytes per file, a share of 0.5.
        In that case a share equal to `max_quarantined` is already too much.
        """
        rest = source.format == "json" and self.aside["trailing_bytes"] >= max(1, self.documents)
        return self.share >= source.max_quarantined if rest else self.share > source.max_quarantined


def sample_source(source: Source, files: Sequence[SourceFile]) -> SampleTally:
    """Sample the first records of files spread evenly over a source, and return their counts and some of
    their texts. The sample holds up to about 1,000 records and 64 MiB, from at most 64 files, or 4 remote
    files.

    A record whose text would have to be extracted counts as a document. If the source selects `members`, only
    zip archives are sampled. Raises UserError as `read_documents` does.
    """
    tally = SampleTally()
    most = _REMOTE_FILES if files and files[0].remote is not None else _FILES
    chosen = [files[number * len(files) // min(most, len(files))] for number in range(min(most, len(files)))]
    quota = -(-_RECORDS // max(1, len(chosen)))
    left = _BYTES
    for file in chosen:
        if left > 0 and not _is_searched(file, source):
            with suppress(StorageError, OSError, MemoryError):
                left -= _sample_file(source, file, quota, left, tally)
    return tally


def _is_searched(file: SourceFile, source: Source) -> bool:
    return bool(source.members) and not file.path.lower().endswith((".zip", ".whl"))


def _sample_file(source: Source, file: SourceFile, quota: int, limit: int, tally: SampleTally) -> int:
    """Add up to `quota` records of one file to `tally`, stopping after `limit` bytes. Return their size in
    bytes.
    """
    size = 0
    joined = format_of(source.format).joined
    for entry in open_entries(file, source):
        records = _sampled(entry, source, limit) if joined else read_records(entry, source)
        for record in islice(check_types(_until_poison(records), source), quota):
            quota -= 1
            size += record.size or 0
            if isinstance(record, Bad):
                tally.aside[record.reason] += 1
                tally.fields = tally.fields or record.fields
            elif isinstance(record, TextRecord) and is_empty(record.text):
                tally.aside["empty"] += 1
            else:
                tally.documents += 1
                is_measured = source.text_is == "text" and tally.text_bytes < _TEXT_BYTES
                if is_measured and isinstance(record, TextRecord):
                    tally.text_bytes += record.size
                    tally.texts.append(record.text)
            if size > limit:
                return size
        if quota <= 0:
            break
    return size


def _until_poison(records: Iterator[TextRecord | Bad | RawRecord]) -> Iterator[TextRecord | Bad | RawRecord]:
    with suppress(PoisonError):
        yield from records


def _sampled(entry: Entry, source: Source, limit: int) -> Iterator[TextRecord | Bad | RawRecord]:
    """Yield the records in the first `limit` bytes of an entry, for formats in which no record is complete
    before the whole file has been read.
    """
    left = limit

    def head() -> Iterator[bytes]:
        nonlocal left
        for chunk in entry.chunks:
            left -= len(chunk)
            if left < 0:
                return
            yield chunk

    for record in read_records(replace(entry, chunks=head()), source):
        if left >= 0 or record != Bad("truncated"):
            yield record


def check_sample(source: Source, files: Sequence[SourceFile]) -> SampleTally:
    """Sample the records of a source and return their tally, as `sample_source` does. Raises SourceError if
    so many of them would be set aside that the source is probably misconfigured.
    """
    tally = sample_source(source, files)
    if not tally.documents and (source.allow_empty or not tally.unexpected):
        return tally  # no document is expected, or no record could have been one
    if tally.is_too_much(source):
        seen = tally.unexpected.total() + tally.documents
        have = f"; records have the fields {', '.join(_shown(tally.fields))}" if tally.fields else ""
        raise _refusal(source, f"of its first {seen:,} records", tally, have)
    return tally


def check_counts(source: Source, read: StepManifest, directory: Location, files: Sequence[SourceFile]) -> None:
    """Raise SourceError if the source has no documents, or if more of its records were set aside than
    `max_quarantined` allows. A source with `sample` below 1 is not checked. A source with `allow_empty` may
    have no documents.

    `read` and `directory` are the manifest and the directory of the source's published read step. `files` are
    the files of the source.
    """
    if source.sample < 1:
        return
    counts = read.counts[source.name]
    tally = SampleTally(counts.kept, Counter(counts.quarantined))
    if source.allow_empty and not tally.documents:
        return
    if tally.documents and not tally.is_too_much(source):
        return
    have = ""
    with suppress(SourceError, StorageError, OSError, MemoryError):
        have = _fields_of_first(source, read, directory, files)
    raise _refusal(source, f"of its {counts.arrived:,} records", tally, have)


def _fields_of_first(source: Source, read: StepManifest, directory: Location, files: Sequence[SourceFile]) -> str:
    for record in read.files:
        if record.path.startswith("quarantine/"):
            table = read_table(directory, record, QUARANTINE.names, schema_facts(QUARANTINE))
            lacking = table.filter(pc.is_in(table["reason"], value_set=pa.array(_LACKS_TEXT)))
            if lacking.num_rows:
                path, number = lacking["path"][0].as_py(), lacking["record"][0].as_py()
                if fields := _fields_at(source, files, path, number):
                    return f"; the first of these, {source.name}/{path}#{number}, has the fields {', '.join(_shown(fields))}"
                return ""
    return ""


def _fields_at(source: Source, files: Sequence[SourceFile], path: str, number: int) -> tuple[str, ...]:
    for file in files:
        if path == file.path or path.startswith(f"{file.path}!"):
            for entry in open_entries(file, source):
                if entry.path == path:
                    record = next(islice(_until_poison(read_records(entry, source)), number, None), None)
                    return record.fields if isinstance(record, Bad) else ()
    return ()


def _refusal(source: Source, of_what: str, tally: SampleTally, have: str) -> SourceError:
    reasons = (tally.unexpected or tally.aside).most_common(3)
    causes = "; ".join(f"{count:,} `{reason}` ({REASONS[reason]})" for reason, count in reasons)
    wrong = dict.fromkeys(_CHECK[reason] for reason, _ in reasons if reason in _CHECK)
    shown = [
        "`text`" if name == "text_field" and source.text else f"`{name}: {getattr(source, name)}`" for name in wrong
    ]
    check = f"; check {' and '.join(shown)}" if wrong else ""
    on = "set `allow_empty: true`"
    if tally.documents:
        enough = max(tally.share, source.max_quarantined + 0.01)
        on = f"raise `max_quarantined`, which is {source.max_quarantined:g} and would have to be {enough:.2f}"
    return SourceError(
        f"source {source.name!r}: {tally.documents or 'none'} {of_what} would be a document: {causes or 'it holds none'}"
        f"{have}{check}; to build anyway, {on}"
    )


def _shown(fields: Sequence[str]) -> list[str]:
    names = [name if len(name) <= _SHOWN_CHARACTERS else name[:_SHOWN_CHARACTERS] + "..." for name in fields]
    return names if len(names) <= _SHOWN_FIELDS else [*names[:_SHOWN_FIELDS], f"{len(names) - _SHOWN_FIELDS} more"]
