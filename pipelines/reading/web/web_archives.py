"""Divide a WARC (ISO 28500) or ARC stream into records, and report malformed bytes and truncation.

FastWARC stops at the first unreadable header, returns a truncated last record as if it were whole, and does
not support ARC. Here bytes that form no record become one malformed record, and reading resumes at the next
record header.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.web.http_payload import read_fields

_LINE_BYTES = 1 << 16  # a longer line is not a header line
_HEADER_BYTES = 1 << 18
_REREAD_BYTES = 1 << 28  # per stream: blocks read twice because no record followed them
_WARC = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n")
# Version 1 has 5 fields, version 2 has 10. The first date counts; the atomic group keeps matching linear.
_ARC = re.compile(rb"(?>([A-Za-z][\w+.-]*:\S.*?) (\S++) (\d{8,17}) (\S++))(?: .*)? (\d+)\r?\n")
_BLANK = (b"\r\n", b"\n")
_LENGTH = re.compile(r"\d{1,18}")


class Malformed(NamedTuple):
    """Bytes that are not a record, up to the next record header or the end of the stream."""

    size: int


class Cut(NamedTuple):
    """A record cut short by the end of the stream. `size` is the number of its bytes that are present."""

    size: int


@dataclass(frozen=True)
class Record:
    """A record of an archive.

    `fields` holds the WARC header, with names in lower case; for an ARC record, it is derived from the header
    line. `block` is the whole block if `whole` is true, otherwise its beginning; `rest` yields the remaining
    bytes. `size` is the length of header and block in bytes.
    """

    fields: dict[str, str]
    block: bytes
    size: int
    whole: bool
    rest: "_Rest"


class _Stream:
    """A stream of chunks, read by line or by count. Damage looks like the end of the stream; `failure` then
    holds the error.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""
        self._at = 0
        self.failure: BrokenInput | None = None

    def _more(self) -> bool:
        try:
            chunk = b"" if self.failure else next(self._chunks, b"")
        except BrokenInput as failure:
            self.failure, chunk = failure, b""
        self._held, self._at = self._held[self._at :] + chunk, 0
        return bool(chunk)

    def line(self) -> bytes:
        """Return the next line with its line feed, or its first _LINE_BYTES bytes if it is longer. At the end
        of the stream, return empty bytes.
        """
        searched = 0
        while (end := self._held.find(b"\n", self._at + searched, self._at + _LINE_BYTES)) < 0:
            searched = len(self._held) - self._at
            if searched >= _LINE_BYTES or not self._more():
                end = min(len(self._held), self._at + _LINE_BYTES) - 1
                break
        line = self._held[self._at : end + 1]
        self._at += len(line)
        return line

    def pieces(self, size: int) -> Iterator[memoryview]:
        while size and (self._at < len(self._held) or self._more()):
            piece = memoryview(self._held)[self._at : self._at + size]
            self._at += len(piece)
            size -= len(piece)
            yield piece

    def unread(self, data: bytes) -> None:
        if self._held[max(self._at - len(data), 0) : self._at] == data:  # still in the buffer: no copy needed
            self._at -= len(data)
        else:
            self._held, self._at = data + self._held[self._at :], 0

    def next_line(self) -> tuple[bytes, int]:
        """Skip blank lines. Return the next line without consuming it (empty at the end), and the number of
        lines skipped.
        """
        blank = 0
        while (line := self.line()) in _BLANK:
            blank += 1
        self._at -= len(line)
        return line, blank


class _Rest:
    """The bytes of a block that are not in `Record.block`. `left` is the number of bytes not read yet."""

    def __init__(self, stream: _Stream, size: int) -> None:
        self._pieces = stream.pieces(size)
        self.left = size

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        piece = next(self._pieces)
        self.left -= len(piece)
        return bytes(piece)


def read_archive(chunks: Iterator[bytes], bound: Callable[[dict[str, str]], int]) -> Iterator[Record | Malformed | Cut]:
    """Yield the records of a WARC or ARC stream in order. The first line that is not blank determines the
    format.

    `bound(fields)` returns the maximum size of a record's `block` in bytes. The record's `rest` yields the
    remaining bytes; they are skipped unless the caller reads them before the next record.

    Bytes that form no record are yielded as a Malformed. If the stream ends inside the block of a record, a
    Cut is yielded for that record. If the stream contains at least the first `bound(fields)` bytes of the
    block, the Record is yielded too, before the Cut.

    A block that fits in `block` must be followed by another record, the end of the stream or, in a WARC, two
    blank lines. Otherwise the length in the record's header is taken to be wrong: the header counts as
    malformed, and reading resumes at the start of the block. At most _REREAD_BYTES of each stream are read
    again; beyond that, such blocks count as malformed too.

    Raises BrokenInput at damage, after yielding the records before it. No Cut is yielded for a damaged
    record, and no Malformed for malformed bytes directly before the damage.
    """
    stream = _Stream(chunks)
    pattern, parse = (_ARC, _arc_header) if _ARC.fullmatch(stream.next_line()[0]) else (_WARC, _warc_header)
    skipped = reread = 0
    while line := stream.line():
        if not skipped and line in _BLANK:
            continue
        header = parse(stream, line) if pattern.fullmatch(line) else None
        if header is None:
            skipped += len(line)
            continue
        fields, length, size = header
        wanted = min(length, bound(fields))
        held = b"".join(stream.pieces(wanted))
        left = length - len(held)
        if not left and not _record_can_end(stream, pattern):
            reread += length
            if reread <= _REREAD_BYTES:
                stream.unread(held)
                length = 0
            skipped += size + length
            continue
        if skipped:
            yield Malformed(skipped)
            skipped = 0
        rest = _Rest(stream, left)
        if len(held) == wanted:
            yield Record(fields, held, size + length, not left, rest)
            for _ in rest:
                pass
        if rest.left and not stream.failure:
            yield Cut(size + length - rest.left)
    if stream.failure:
        raise stream.failure
    if skipped:
        yield Malformed(skipped)


def _record_can_end(stream: _Stream, pattern: re.Pattern[bytes]) -> bool:
    line, blank = stream.next_line()
    return not line or pattern.fullmatch(line) is not None or (pattern is _WARC and blank >= 2)


def _warc_header(stream: _Stream, first: bytes) -> tuple[dict[str, str], int, int] | None:
    """Return (fields, block size, header size), with sizes in bytes. If the header is malformed, return None
    with only its first line consumed.
    """
    lines: list[bytes] = []
    size = 0
    while (line := stream.line()) not in _BLANK:
        lines.append(line)
        size += len(line)
        if not line or size > _HEADER_BYTES or _WARC.fullmatch(line):
            stream.unread(b"".join(lines))
            return None
    fields = read_fields(b"".join(lines))
    length = fields.get("content-length", "")
    if not _LENGTH.fullmatch(length):
        stream.unread(b"".join([*lines, line]))
        return None
    return fields, int(length), len(first) + size + len(line)


def _arc_header(stream: _Stream, first: bytes) -> tuple[dict[str, str], int, int] | None:
    match = _ARC.fullmatch(first)
    if match is None:
        return None
    url, _, date, content_type, length = (group.decode("utf-8", "replace") for group in match.groups())
    scheme = url.partition(":")[0].lower()
    fields = {
        "warc-type": {"filedesc": "warcinfo", "http": "response", "https": "response"}.get(scheme, "resource"),
        "warc-target-uri": url,
        "content-type": "application/http" if scheme in ("http", "https") else content_type,
    }
    if len(date) == 14:
        fields["warc-date"] = "{}{}{}{}-{}{}-{}{}T{}{}:{}{}:{}{}Z".format(*date)
    return fields, int(length), len(first)
