"""The format `code`: files from checkouts, archives and git repositories, each a document with its language
and licence. Licence files and binary files are set aside.
"""

from collections.abc import Iterator, Mapping

from pipelines.reading.code.licence_text import licence_of_header
from pipelines.reading.code.marked_files import head_of, is_generated, is_vendored
from pipelines.reading.code.programming_language import language_of
from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.licence_names import is_licence_name, nearest
from pipelines.reading.entries.records import Bad, TextRecord, to_json
from pipelines.reading.formats.plain import read_text
from pipelines.reading.sources.source import Source

_BINARY_BYTES = 8000  # git takes a file with a NUL in this many bytes as binary (buffer_is_binary, xdiff-interface.c)
_HEAD_LINES = 60


def read_code(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield the file as `read_text` does, normally as one document. Licence files are set aside as `licence`,
    and files with a NUL in their first 8,000 bytes as `binary`, except in UTF-16 and UTF-32.

    `meta` gets `language`, `licence`, `generated` and `vendored`. `licence` is the SPDX expression that the
    first 60 lines of the file state or, if they state none, that of the nearest licence files above the file.
    A language or licence that is not found is left out.
    """
    chunks = iter(entry.chunks)
    first = b""
    while len(first) < _BINARY_BYTES and (chunk := next(chunks, b"")):
        first += chunk
    name = entry.path if entry.member is None else entry.member
    if is_licence_name(name):
        yield Bad("licence", entry.size)
        return
    if b"\0" in first[:_BINARY_BYTES] and b"\0" not in "a".encode(source.encoding):
        yield Bad("binary", entry.size)
        return
    meta: bytes | None = None  # of a document that is cut, that of its first piece
    for record in read_text(Entry(entry.path, _chained(first, chunks), entry.file, entry.size), source):
        if isinstance(record, TextRecord):
            meta = meta or _meta(entry.path, name, record.text, entry.shared or {})
            record = record._replace(meta=meta)
        yield record


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _meta(path: str, name: str, text: str, licences: Mapping[str, str]) -> bytes:
    named = {
        "language": language_of(name, text),
        "licence": licence_of_header(head_of(text, _HEAD_LINES)) or nearest(name, licences) or licences.get(""),
    }
    marks = {"generated": is_generated(name, text), "vendored": is_vendored(path) or is_vendored(name)}
    return to_json({name: value for name, value in named.items() if value} | marks)
