"""Find out from page headers how much memory the pages of a Parquet row group claim, before Arrow allocates
it.

A page is decompressed whole, and its size and encoding may differ from what the footer says. The footer and
page headers are structs of Thrift's compact protocol (thrift-compact-protocol.md) with the fields of
FileMetaData and PageHeader in parquet.thrift.

The footer is parsed here, because pyarrow's `RowGroupMetaData.column` ends the process if the metadata of a
column contradict its type.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pipelines.reading.entries.reasons import BrokenInput

_FIRST_READ = 1 << 12  # enough for most headers; statistics make some longer
_HEADER_BYTES = 1 << 24  # Arrow's limit
_NESTED = 16  # levels of structs and lists; PageHeader has three, a row group has six
_ROW_GROUPS, _COLUMNS, _COLUMN, _LIST = 4, 1, 3, 9  # fields of FileMetaData, RowGroup, ColumnChunk; a type of Thrift
_PATH, _CHUNK_BYTES, _DATA_PAGE, _DICTIONARY_PAGE = 3, 7, 9, 11  # fields of ColumnMetaData
_UNCOMPRESSED, _COMPRESSED = 2, 3
_ENCODINGS = ((5, 2), (8, 4))  # (field of the data page header, field of the encoding in it) for versions 1 and 2
_DELTA_BYTE_ARRAY = 7


class ColumnChunk(NamedTuple):
    """The path of a column, with dots, and the range [start, end) of the file in which its pages of a row
    group are.
    """

    path: str
    start: int
    end: int


class Pages(NamedTuple):
    """The decompressed sizes, in bytes, of the largest pages of a row group. `largest` is the maximum over
    all columns. `shared` maps the name of each column whose values share prefixes (DELTA_BYTE_ARRAY) to the
    size of its largest page, because each value of such a column may be as long as a page.
    """

    largest: int
    shared: dict[str, int]


def row_groups(handle: Any) -> Iterator[list[ColumnChunk]]:
    """Yield the columns of each row group, read from the footer. `handle` is the file, open for reading.
    Raises BrokenInput at a row group that cannot be understood or lies beyond the end of the file.
    """
    whole = handle.seek(-8, os.SEEK_END) + 8
    size = int.from_bytes(handle.read(4), "little")
    handle.seek(-8 - size, os.SEEK_END)
    reader = _Compact(handle.read(size))
    try:
        for number, kind in reader.fields():
            if (number, kind) != (_ROW_GROUPS, _LIST):
                reader.field(kind, _NESTED)
                continue
            for inner in reader.elements():
                chunks = [_column_chunk(chunk[_COLUMN]) for chunk in reader.value(inner, _NESTED)[_COLUMNS]]
                if any(chunk.end > whole for chunk in chunks):
                    raise BrokenInput("corrupt")
                yield chunks
    except (AttributeError, LookupError, TypeError, ValueError):  # the last: also a name that is not UTF-8
        raise BrokenInput("corrupt") from None


def _column_chunk(facts: dict[int, Any]) -> ColumnChunk:
    start, dictionary = facts[_DATA_PAGE], facts.get(_DICTIONARY_PAGE, 0)
    if 0 < dictionary < start:
        start = dictionary
    return ColumnChunk(b".".join(facts[_PATH]).decode(), start, start + facts[_CHUNK_BYTES])


def scan_pages(handle: Any, chunks: Sequence[ColumnChunk]) -> Pages:
    """Return the sizes of the largest pages of a row group, read from its page headers. `handle` is the file,
    open for reading, and `chunks` are the columns of the row group.

    A column is scanned up to the first unreadable header; Arrow gets no further either.
    """
    every, shared = 0, {}
    for path, start, end in chunks:
        at, largest, delta = start, 0, False
        while 0 <= at < end and (found := _header(handle, at)):
            header, length = found
            largest = max(largest, header[_UNCOMPRESSED])
            delta |= any(_inner(header, outer).get(inner) == _DELTA_BYTE_ARRAY for outer, inner in _ENCODINGS)
            at += length + header[_COMPRESSED]
        every = max(every, largest)
        if delta:
            shared[path] = largest
    return Pages(every, shared)


def _inner(header: dict[int, Any], field: int) -> dict[int, Any]:
    value = header.get(field)
    return value if isinstance(value, dict) else {}


def _header(handle: Any, at: int) -> tuple[dict[int, Any], int] | None:
    size = _FIRST_READ
    while size <= _HEADER_BYTES:
        handle.seek(at)
        data = handle.read(size)
        reader = _Compact(data)
        try:
            header = reader.struct(_NESTED)
        except IndexError:
            if len(data) < size:
                return None
            size *= 8
            continue
        except ValueError:
            return None
        sizes = (header.get(_UNCOMPRESSED), header.get(_COMPRESSED))
        valid = all(isinstance(value, int) and 0 <= value < 1 << 31 for value in sizes)
        return (header, reader.at) if valid else None
    return None


class _Compact:
    """A reader for structs in Thrift's compact protocol. It raises IndexError if the bytes end early, and
    ValueError if they are not a struct.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int) -> dict[int, Any]:
        return {number: self.field(kind, depth) for number, kind in self.fields()}

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield (number, type) of each field of a struct. The caller must read its value."""
        number = 0
        while byte := self._byte():
            number = number + (byte >> 4) if byte >> 4 else self._zigzag()
            yield number, byte & 15

    def elements(self) -> Iterator[int]:
        """Yield the type of each element of a list. The caller must read the element."""
        byte = self._byte()
        for _ in range(byte >> 4 if byte >> 4 < 15 else self._varint()):
            yield byte & 15

    def field(self, kind: int, depth: int) -> Any:
        return kind == 1 if kind in (1, 2) else self.value(kind, depth)

    def value(self, kind: int, depth: int) -> Any:
        if depth == 0:
            raise ValueError("nested too deeply")
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind in (1, 2, 3):  # a byte, or a boolean in a list
            return self._byte()
        if kind in (7, 8):
            return self._bytes(8 if kind == 7 else self._varint())
        if kind in (9, 10):
            return [self.value(inner, depth - 1) for inner in self.elements()]
        if kind == 11:
            size = self._varint()
            kinds = self._byte() if size else 0
            for _ in range(size):
                self.value(kinds >> 4, depth - 1)
                self.value(kinds & 15, depth - 1)
            return None
        if kind == 12:
            return self.struct(depth - 1)
        raise ValueError(f"type {kind}")

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _bytes(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self._data):
            raise IndexError(self.at)
        return self._data[self.at - size : self.at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
