"""Find out from page headers how much memory the pages of a Parquet row group claim, before Arrow allocates
it.

A page is decompressed whole, and its size and encoding may differ from what the footer says. Headers are
structs of Thrift's compact protocol (thrift-compact-protocol.md) with the fields of PageHeader in
parquet.thrift.
"""

from typing import Any, NamedTuple

_FIRST_READ = 1 << 12  # enough for most headers; statistics make some longer
_HEADER_BYTES = 1 << 24  # Arrow's limit
_NESTED = 16  # levels of structs and lists; PageHeader has three
_UNCOMPRESSED, _COMPRESSED = 2, 3
_ENCODINGS = ((5, 2), (8, 4))  # (field of the data page header, field of the encoding in it) for versions 1 and 2
_DELTA_BYTE_ARRAY = 7


class Pages(NamedTuple):
    """The decompressed sizes, in bytes, of the largest pages of a row group. `largest` is the maximum over
    all columns. `shared` maps the name of each column whose values share prefixes (DELTA_BYTE_ARRAY) to the
    size of its largest page, because each value of such a column may be as long as a page.
    """

    largest: int
    shared: dict[str, int]


def scan_pages(handle: Any, group: Any) -> Pages:
    """Return the sizes of the largest pages of a row group, read from its page headers. `handle` is the file,
    open for reading, and `group` is the metadata of the row group.

    A column is scanned up to the first unreadable header; Arrow gets no further either.
    """
    every, shared = 0, {}
    for number in range(group.num_columns):
        column = group.column(number)
        at = column.data_page_offset
        if column.has_dictionary_page and 0 < (column.dictionary_page_offset or 0) < at:
            at = column.dictionary_page_offset
        end = at + column.total_compressed_size
        largest, delta = 0, False
        while 0 <= at < end and (found := _header(handle, at)):
            header, length = found
            largest = max(largest, header[_UNCOMPRESSED])
            delta |= any(_inner(header, outer).get(inner) == _DELTA_BYTE_ARRAY for outer, inner in _ENCODINGS)
            at += length + header[_COMPRESSED]
        every = max(every, largest)
        if delta:
            shared[column.path_in_schema] = largest
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
        fields: dict[int, Any] = {}
        number = 0
        while byte := self._byte():
            number = number + (byte >> 4) if byte >> 4 else self._zigzag()
            kind = byte & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth == 0:
            raise ValueError("nested too deeply")
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind in (1, 2, 3):  # a byte, or a boolean in a list
            return self._byte()
        if kind in (7, 8):
            return self._skip(8 if kind == 7 else self._varint())
        if kind in (9, 10):
            byte = self._byte()
            size = byte >> 4 if byte >> 4 < 15 else self._varint()
            for _ in range(size):
                self._value(byte & 15, depth - 1)
            return None
        if kind == 11:
            size = self._varint()
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._value(kinds >> 4, depth - 1)
                self._value(kinds & 15, depth - 1)
            return None
        if kind == 12:
            return self.struct(depth - 1)
        raise ValueError(f"type {kind}")

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self._data):
            raise IndexError(self.at)

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
