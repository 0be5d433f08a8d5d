"""JSON Lines: one record per line, read in bounded memory."""

import codecs
import re
from collections.abc import Callable, Iterator
from typing import Any

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.decompress import rechunk
from pipelines.reading.entries.records import BOM, Bad, TextRecord, composed_record, to_json
from pipelines.reading.formats.split_json import EXACT, split_record
from pipelines.reading.sources.source import Source


class LongRecord:
    """A record over the size limit, as a stream of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def drain(self) -> int:
        """Read what remains of the record and return the number of bytes read."""
        return sum(len(piece) for piece in self._pieces)


class _LongLine(LongRecord):
    """A long line, without its line feed."""

    def __init__(self, pieces: list[bytes], chunks: Iterator[bytes]) -> None:
        super().__init__(self._stream(pieces, chunks))
        self.rest = b""  # bytes after the line in the last chunk; valid once the line is drained

    def _stream(self, pieces: list[bytes], chunks: Iterator[bytes]) -> Iterator[bytes]:
        yield from pieces
        for chunk in chunks:
            piece, newline, rest = chunk.partition(b"\n")
            yield piece
            if newline:
                self.rest = rest
                return


def lines(chunks: Iterator[bytes], limit: int) -> Iterator[bytes | LongRecord]:
    """Yield the lines of a stream without their line feeds, each as bytes or, if longer than `limit` bytes,
    as a LongRecord.
    """
    chunks = rechunk(chunks)  # a one-byte line takes 50 bytes of memory
    held: list[bytes] = []  # pieces of the line that has not ended yet
    size = 0
    rest = b""
    while chunk := rest or next(chunks, b""):
        rest = b""
        whole = chunk.split(b"\n")
        held.append(whole[0])
        size += len(whole[0])
        if len(whole) == 1:
            if size > limit:
                long = _LongLine(held, chunks)
                yield long
                long.drain()
                held, size, rest = [], 0, long.rest
            continue
        whole[0] = b"".join(held)
        held, size = [whole[-1]], len(whole[-1])
        for line in whole[:-1]:
            yield line if len(line) <= limit else LongRecord(iter([line]))
    if size:
        yield b"".join(held) if size <= limit else LongRecord(iter(held))


_MOST_VALUES = 1 << 20  # per record; 45 MB of empty lists would be 15 million objects, more than 800 MB
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BLANK_BYTES = 8
_BLANK = re.compile(rb"\n(?:\n+|[ \t\r\v\f]{1,%d}\n)+" % _BLANK_BYTES)


def _drop_blank_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Return the stream without most of its blank lines, which would be slow to handle one by one."""
    return (_BLANK.sub(b"\n", chunk) for chunk in rechunk(chunks))


def read_jsonl(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield one record per non-blank line. The text is the field named by `text_field`, or the fields that
    `text` selects. The field named by `url_field` is the URL if it is a string. All other fields are kept as
    JSON in `meta`; NaN, Infinity and floating-point numbers too large for a double become null there.

    A line over `max_document_bytes` is set aside as `oversized` or, with `oversized: split`, divided by
    `split_record`.
    """
    chunks = entry.chunks if source.max_document_bytes < _BLANK_BYTES else _drop_blank_lines(entry.chunks)
    yield from json_records(lines(chunks, source.max_document_bytes), source)


def json_records(texts: Iterator[bytes | LongRecord], source: Source) -> Iterator[TextRecord | Bad]:
    """Yield a record for each JSON text that is not blank, or a Bad with the reason if the text is set aside.
    `source.oversized` says whether a LongRecord is set aside as `oversized` or divided into documents by
    `split_record`.

    A text with more than about _MOST_VALUES values is set aside as `too_many_values`, because its values
    would take far more memory than the text, and orjson crashes when an allocation fails.
    """
    import orjson

    loads, dumps = orjson.loads, orjson.dumps
    encoding = codecs.lookup(source.encoding).name
    utf8 = encoding == "utf-8"
    first = True
    for text in texts:
        if isinstance(text, LongRecord):
            if source.oversized == "split":
                yield from split_record(iter(text), source)
            else:
                yield Bad("oversized", text.drain())
        else:
            if first and utf8:
                text = text.removeprefix(BOM)
            if len(text) > _MOST_VALUES and _count_values(text, encoding) > _MOST_VALUES:
                yield Bad("too_many_values", len(text))
            elif text and not text.isspace():
                try:
                    value = loads(text if utf8 else text.decode(source.encoding))
                    record = None if _may_have_lost_digits(value) else _record(value, len(text), source, dumps)
                except (ValueError, TypeError, RecursionError):  # orjson does not write deeply nested values
                    record = None
                yield record or _read_exactly(text, source)
        first = False


def _count_values(text: bytes, encoding: str) -> int:
    """Return roughly how many values a JSON text has: the number of its commas and opening brackets outside
    strings.
    """
    if encoding != "utf-8":
        text = text.decode(encoding, "replace").encode(errors="replace")
    outside = _STRING.sub(b"", text)
    return sum(outside.count(mark) for mark in (b",", b"[", b"{"))


def _read_exactly(line: bytes, source: Source) -> TextRecord | Bad:
    """Parse one JSON text with the standard library, which is slower than orjson but exact for large integers
    and specific about errors.
    """
    try:
        return _record(EXACT.decode(line.decode(source.encoding)), len(line), source, to_json)
    except UnicodeError:
        return Bad("undecodable", len(line))
    except (ValueError, RecursionError):
        return Bad("not_json", len(line))


def _record(value: Any, size: int, source: Source, write: Callable[[Any], bytes]) -> TextRecord | Bad:
    if type(value) is not dict:
        return Bad("not_object", size)
    if source.text is not None:
        return composed_record(value, size, source)
    text = value.get(source.text_field)
    if type(text) is not str:
        return Bad("no_text" if text is None else "text_not_string", size, tuple(value))
    del value[source.text_field]
    url = value.pop(source.url_field, None)
    if url is not None and type(url) is not str:
        value[source.url_field], url = url, None
    return TextRecord(text, size, url, write(value) if value else None)


def _may_have_lost_digits(value: Any) -> bool:
    """Return whether a number in `value` may have lost digits in orjson, which turns integers beyond 64 bits
    into floats.
    """
    kind = type(value)
    if kind is float:
        return not -(2**63) < value < 2**63
    if kind is dict:
        value = value.values()
    elif kind is not list:
        return False
    for item in value:
        kind = type(item)
        if kind is not str and kind is not int and _may_have_lost_digits(item):
            return True
    return False
