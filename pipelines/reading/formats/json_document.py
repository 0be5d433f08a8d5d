"""JSON files that hold an array of objects or a single object, divided into records as a stream."""

import re
from collections.abc import Iterator

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.decompress import peek
from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.entries.records import BOM, Bad, TextRecord
from pipelines.reading.formats.json_lines import LongRecord, json_records
from pipelines.reading.sources.source import Source

_SPACE = b" \t\r\n"
_BEGINNINGS = (b"[", b"{")
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
# Bytes that divide nothing: between elements, where a comma ends one, and inside an element.
_OUTER = re.compile(rb'(?:[^"\[\]{},]++|' + _STRING + rb")*+", re.DOTALL)
_INNER = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+", re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


def read_json(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield one record per element of a JSON array, or one record for a file that is a single object. Fields,
    limits and reasons are as in the format `jsonl`. At most about `max_document_bytes` of an element are held
    in memory.

    If the JSON text does not end, the rest is set aside as `truncated`. Bytes other than white space after
    its end count as one more record, set aside as `trailing_bytes`.
    """
    begin, chunks = skip_to_json(entry.chunks)
    if begin in _BEGINNINGS:
        yield from json_records(elements(chunks, source.max_document_bytes), source)
    elif begin:
        yield Bad("not_json", sum(map(len, chunks)))


def skip_to_json(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Skip a byte order mark, if there is one, and white space. Return the next byte and the stream from this
    byte on. At the end of the stream, the byte is empty.
    """
    head, chunks = peek(chunks, len(BOM))
    mark = BOM
    while not (start := head.removeprefix(mark).lstrip(_SPACE)):
        mark = b""  # a file has at most one byte order mark
        head, chunks = peek(_skip_bytes(chunks, len(head)), 1)
        if not head:
            return b"", chunks
    return start[:1], _skip_bytes(chunks, len(head) - len(start))


def _skip_bytes(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the stream without its first `size` bytes, which are all in its first chunk."""
    yield next(chunks, b"")[size:]
    yield from chunks


def elements(chunks: Iterator[bytes], limit: int) -> Iterator[bytes | LongRecord]:
    """Yield the elements of a JSON array, or a single object, each as bytes or, if longer than `limit` bytes,
    as a LongRecord. The stream must begin with `[` or `{`. A LongRecord must be read before the next element
    is requested; what is left of it is then skipped.

    Raises BrokenInput if the array or object does not end, if an element is empty, or if anything but white
    space follows.
    """
    divider = _Divider(chunks)
    held: list[bytes] = []
    size = count = 0
    for piece in divider:
        held.append(piece)
        size += len(piece)
        if divider.between:
            element = b"".join(held)
            held, size = [], 0
            if not element.isspace() and element:
                count += 1
                yield element if len(element) <= limit else LongRecord(iter([element]))
            elif not (divider.ended and not count):  # nothing between two commas; the empty array `[]` is allowed
                raise BrokenInput("not_json")
        elif size > limit:
            long = LongRecord(_rest(held, divider))
            yield long
            long.drain()
            held, size, count = [], 0, count + 1


def _rest(held: list[bytes], divider: "_Divider") -> Iterator[bytes]:
    yield from held
    for piece in divider:
        yield piece
        if divider.between:
            return


class _Divider:
    """Divides a JSON array, or a single object, into pieces such that no piece spans two elements. `between`
    is true after a piece that ends its element, and `ended` is true after the last piece.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.between = self.ended = False
        self._pieces = self._divide(chunks)

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def _divide(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        first = next(chunks)
        base = 1 if first[:1] == b"[" else 0  # bracket depth of the elements
        depth, in_string, rest = base, False, first[base:]
        while not self.ended:
            position = begin = 0
            while position < len(rest) and not self.ended:
                if in_string:
                    position = _end(_REST_OF_STRING, rest, position)
                    if rest[position : position + 1] != b'"':
                        break  # the chunk ends within or just before an escape
                    position, in_string = position + 1, False
                position = _end(_OUTER if depth == base == 1 else _INNER, rest, position)
                mark = rest[position : position + 1]
                if mark == b'"':
                    position, in_string = position + 1, True
                elif mark == b",":
                    self.between = True
                    yield rest[begin:position]
                    self.between = False
                    position = begin = position + 1
                elif mark:
                    depth += 1 if mark in b"[{" else -1
                    position += 1
                    self.ended = depth == 0
            if self.ended:
                self.between = True
                yield rest[begin : position - base]
                rest = rest[position:]
            else:
                if position > begin:
                    yield rest[begin:position]
                chunk = next(chunks, b"")
                if not chunk:
                    raise BrokenInput("truncated")
                rest = rest[position:] + chunk
        while not rest.strip(_SPACE):
            rest = next(chunks, b"")
            if not rest:
                return
        raise BrokenInput("trailing_bytes")


def _end(pattern: re.Pattern[bytes], data: bytes, position: int) -> int:
    return pattern.match(data, position).end()  # type: ignore[union-attr]  # it matches the empty string
