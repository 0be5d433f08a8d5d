"""Stream a JSON record that is too long to hold in memory, and cut its text into documents."""

import codecs
import json
import math
import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]  # there, but not in the stubs
from typing import Any

from pipelines.reading.entries.normalise import cut
from pipelines.reading.entries.records import Bad, TextRecord, to_json
from pipelines.reading.sources.source import Source

# Complete contents of a JSON string: no partial escape, no half of a surrogate pair, no character that JSON
# forbids.
_WHOLE = re.compile(
    r'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+"
)
_BLOCKS = 16  # in `max_document_bytes`: how much of a record is decoded at a time
_LONGEST_ESCAPE = len(r"\ud83d\ude00")
_SPACE = re.compile(r"[ \t\r\n]*")


def _parse_float(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


EXACT = json.JSONDecoder(parse_constant=lambda name: None, parse_float=_parse_float)
"""Keeps all digits of integers. NaN, infinities and numbers too large for a double become null."""


def split_record(pieces: Iterator[bytes], source: Source) -> Iterator[TextRecord | Bad]:
    """Yield the text of one record as documents of at most `max_document_bytes` bytes of UTF-8, cut at line
    ends where possible. All documents carry the fields before the text; the last document also carries the
    fields after it.

    A record whose text is not a string, or does not begin within about `max_document_bytes`, is set aside as
    `oversized`. If the rest of the record is broken or too long, the documents so far are kept and the rest
    is set aside as one more record.
    """
    try:
        yield from _split(_blocks(pieces, max(1, source.max_document_bytes // _BLOCKS)), source)
    except UnicodeError:
        yield Bad("undecodable")
    except (ValueError, IndexError, RecursionError):
        yield Bad("not_json")


def _blocks(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)


def _split(pieces: Iterator[bytes], source: Source) -> Iterator[TextRecord | Bad]:
    limit = source.max_document_bytes
    decode = codecs.getincrementaldecoder(source.encoding)("strict").decode
    raw, size = "", 0
    while size <= limit and (piece := next(pieces, b"")):
        raw += decode(piece)
        size += len(piece)
    fields, start = _before_text(raw.removeprefix("\ufeff"), source.text_field)
    if start < 0:
        yield Bad("oversized", size + sum(len(piece) for piece in pieces))
        return
    raw = raw.removeprefix("\ufeff")[start:]
    held: list[bytes] = []  # UTF-8 of text not yielded yet
    while True:
        end = _WHOLE.match(raw).end()  # type: ignore[union-attr]  # it matches the empty string
        held.append(json.loads(f'"{raw[:end]}"').encode())
        if sum(map(len, held)) > limit:
            *documents, rest = cut(b"".join(held), limit)
            held = [rest]
            for document in documents:
                yield _document(document, fields, source)
        raw = raw[end:]
        if raw.startswith('"'):
            break
        piece = next(pieces, b"")
        if len(raw) > _LONGEST_ESCAPE or not piece:
            yield Bad("lone_surrogate" if re.match(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}", raw) else "not_json")
            return
        raw += decode(piece)
    tail = raw[1:]
    while len(tail) <= limit and (piece := next(pieces, b"")):
        tail += decode(piece)
    if len(tail) > limit:
        yield Bad("oversized")
        return
    tail += decode(b"", True)
    yield _document(b"".join(held), fields | _after_text(tail), source)


def _document(text: bytes, fields: dict[str, Any], source: Source) -> TextRecord:
    url = fields.get(source.url_field)
    meta = {
        name: value for name, value in fields.items() if name != source.url_field or not isinstance(url, str | None)
    }
    return TextRecord(text.decode(), len(text), url if isinstance(url, str) else None, to_json(meta) if meta else None)


def _before_text(line: str, text_field: str) -> tuple[dict[str, Any], int]:
    """Return the fields before `text_field`, and the position in `line` after the opening quote of its value.
    The position is -1 if the value does not begin in `line` or is not a string.
    """
    fields: dict[str, Any] = {}
    position = _skip(line, 0, "{")
    try:
        while True:
            name, position = scanstring(line, _skip(line, position, '"'))
            position = _space(line, _skip(line, position, ":"))
            if name == text_field:
                return fields, position + 1 if line[position] == '"' else -1
            fields[name], position = EXACT.raw_decode(line, position)
            position = _skip(line, position, ",")
    except (json.JSONDecodeError, IndexError):  # `line` ends before the text
        return fields, -1


def _after_text(tail: str) -> dict[str, Any]:
    """Return the fields that follow the text in a JSON object. `tail` begins after the text's closing quote."""
    position = _space(tail, 0)
    if tail[position] == "}":
        return dict(EXACT.decode("{" + tail[position:]))
    _skip(tail, position, ",")
    fields: dict[str, Any] = EXACT.decode("{" + tail[position + 1 :])
    if not fields:
        raise ValueError("a comma before the end")
    return fields


def _space(line: str, position: int) -> int:
    return _SPACE.match(line, position).end()  # type: ignore[union-attr]  # it matches the empty string


def _skip(line: str, position: int, expected: str) -> int:
    position = _space(line, position)
    if line[position] != expected:
        raise ValueError(f"no {expected}")
    return position + 1
