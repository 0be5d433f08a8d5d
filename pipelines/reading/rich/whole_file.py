"""Read formats in which each file is one document, such as PDF. A child process extracts the text."""

from collections.abc import Iterator

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, RawRecord
from pipelines.reading.sources.source import Source


def read_whole(entry: Entry, source: Source) -> Iterator[Bad | RawRecord]:
    """Yield the whole stream as one record, or a Bad if it is empty or has more than `max_file_bytes` bytes."""
    held = entry.read(source.max_file_bytes)
    if held is None:
        yield Bad("file_bytes", entry.size)
        return
    yield RawRecord(held, "", len(held), None, {}) if held else Bad("empty", 0)
