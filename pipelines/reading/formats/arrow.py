"""Read Arrow IPC files and streams, one record per row. Both are read as streams, message by message, so they
may be compressed or inside an archive, and a truncated file still yields its first batches.
"""

import io
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.decompress import peek
from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.entries.records import Bad, TextRecord
from pipelines.reading.formats.table_rows import batch_records, check_text_column, record_bytes
from pipelines.reading.sources.source import Source

_MAGIC = b"ARROW1\0\0"
_CONTINUATION = b"\xff\xff\xff\xff"
_METADATA_BYTES = 64 << 20
_BATCH_BYTES = 512 << 20  # of one batch in memory; writers' default batches are 64 MiB or smaller
_SLICE_ROWS = 1 << 10  # rows converted to Python objects at a time

# Field numbers in the tables of Message.fbs and Schema.fbs of the Arrow format.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
_DICTIONARY_DATA = 1
_BUFFERS, _COMPRESSION = 2, 3


def read_arrow(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield one record per row of an Arrow IPC file or stream. `read_parquet` says how columns are used and
    when SourceError is raised.

    Each record batch is held in memory whole. Reading stops with the reason `large_batch` at a batch over 512
    MiB, and with `decoded_limit` when the records exceed `max_decoded_bytes` in total.
    """
    head, chunks = peek(entry.chunks, len(_MAGIC))
    if not head.startswith((_MAGIC, _CONTINUATION)):
        yield Bad("not_arrow", sum(map(len, chunks)))
        return
    file = _Bytes(chunks)
    if head.startswith(_MAGIC):
        file.take(len(_MAGIC))
    messages = _Messages(file)
    try:
        reader = pa.ipc.open_stream(messages)
        schema = reader.schema
        schema.names  # noqa: B018  ValueError for a name that is not UTF-8
    except (pa.ArrowException, OSError, ValueError):
        raise BrokenInput(messages.failure or "not_arrow") from None
    check_text_column(schema, entry, source)
    expanded = 0
    while (batch := _next(reader, messages)) is not None:  # one without rows is false
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            for record in batch_records(batch.slice(start, _SLICE_ROWS), source):
                expanded += record_bytes(record)
                if expanded > source.max_decoded_bytes:
                    raise BrokenInput("decoded_limit")
                yield record
    file.drain()


def _next(reader: Any, messages: "_Messages") -> pa.RecordBatch | None:
    try:
        batch = reader.read_next_batch()
        # Strings as bytes, so that invalid UTF-8 costs only its row.
        columns = [column.cast(_bytes_type(column.type)) for column in batch.columns]
        batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        batch.validate(full=True)
    except StopIteration:
        if messages.failure:
            raise BrokenInput(messages.failure) from None
        return None
    except (pa.ArrowException, OSError, ValueError):
        raise BrokenInput(messages.failure or "corrupt") from None
    if sum(map(_view_bytes, batch.columns)) > _BATCH_BYTES:
        raise BrokenInput("large_batch")
    return batch


def _view_bytes(column: pa.Array) -> int:
    """Return the total size in bytes of the values of a string or binary view column, 0 for any other column.
    Values may share bytes in the file, but not once they are read.
    """
    if column.type not in (pa.string_view(), pa.binary_view()):
        return 0
    lengths = np.frombuffer(column.buffers()[1], np.int32)[::4]  # the first of the four numbers of a view
    return int(lengths[column.offset : column.offset + len(column)].sum(dtype=np.int64))


def _bytes_type(kind: pa.DataType) -> pa.DataType:
    return {
        pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view(),
    }.get(kind, kind)  # fmt: skip


class _Bytes:
    """A stream of bytes that can be read in amounts independent of its chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""
        self._at = 0

    def take(self, size: int) -> bytes:
        pieces = [self._held[self._at : self._at + size]]
        self._at += len(pieces[0])
        left = size - len(pieces[0])
        while left and (chunk := next(self._chunks, b"")):
            self._held, self._at = chunk, min(left, len(chunk))
            pieces.append(chunk[: self._at])
            left -= self._at
        return b"".join(pieces)

    def drain(self) -> None:
        """Read to the end, where the checksum of a compressed stream is verified."""
        for _ in self._chunks:
            pass


class _Messages(io.RawIOBase):
    """The file object that Arrow reads from. It delivers whole messages, each checked before Arrow allocates
    the memory that the message claims to need.

    A broken stream appears to end normally; `failure` then holds the reason.
    """

    def __init__(self, file: _Bytes) -> None:
        self._file = file
        self._held = memoryview(b"")
        self._ended = False
        self.failure: str | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._held and not self._ended:
            try:
                self._held = memoryview(self._message())
            except BrokenInput as error:
                self.failure = error.reason
            except (struct.error, IndexError):
                self.failure = "corrupt"
            self._ended = not self._held
        size = min(len(buffer), len(self._held))
        buffer[:size], self._held = self._held[:size], self._held[size:]
        return size

    def _message(self) -> bytes:
        """Return the next message, in the format of Arrow 0.15 and later, or b"" at the end of the stream."""
        mark = self._file.take(4)
        if not mark:
            return b""
        length = self._file.take(4) if mark == _CONTINUATION else mark  # Arrow before 0.15 wrote no mark
        size = struct.unpack("<i", length)[0] if len(length) == 4 else -1
        if size == 0:
            return b""
        if not 0 < size <= _METADATA_BYTES:
            raise BrokenInput("truncated" if len(length) < 4 else "corrupt")
        metadata = self._file.take(size)
        if len(metadata) < size:
            raise BrokenInput("truncated")
        message = _table(metadata, 0)
        length_at = _field(metadata, message, _BODY_LENGTH)
        body_size = struct.unpack_from("<q", metadata, length_at)[0] if length_at else 0
        if body_size > _BATCH_BYTES or body_size < 0:
            raise BrokenInput("large_batch" if body_size > 0 else "corrupt")
        body = self._file.take(body_size)
        if len(body) < body_size:
            raise BrokenInput("truncated")
        if _decompressed_bytes(metadata, message, body) > _BATCH_BYTES:
            raise BrokenInput("large_batch")
        return b"".join([_CONTINUATION, length, metadata, body])


def _decompressed_bytes(metadata: bytes, message: int, body: bytes) -> int:
    """Return the total size in bytes of a batch's buffers after decompression, or 0 for a message that is not
    a batch. Each compressed buffer begins with its decompressed size. Raises BrokenInput for an invalid size.
    """
    kind_at, header_at = _field(metadata, message, _HEADER_TYPE), _field(metadata, message, _HEADER)
    kind = metadata[kind_at] if kind_at else 0
    if kind not in (_RECORD_BATCH, _DICTIONARY_BATCH) or not header_at:
        return 0
    batch = _table(metadata, header_at)
    if kind == _DICTIONARY_BATCH:
        batch = _table(metadata, _field(metadata, batch, _DICTIONARY_DATA))
    buffers_at = _field(metadata, batch, _BUFFERS)
    if not buffers_at or not _field(metadata, batch, _COMPRESSION):
        return len(body)
    vector = _table(metadata, buffers_at)
    total = 0
    for number in range(struct.unpack_from("<I", metadata, vector)[0]):
        offset, length = struct.unpack_from("<qq", metadata, vector + 4 + 16 * number)
        if length:
            claimed = struct.unpack_from("<q", body, offset)[0]  # -1: this buffer is not compressed
            total += length if claimed == -1 else claimed
            if claimed < -1 or offset < 0:
                raise BrokenInput("corrupt")
    return int(total)


def _table(data: bytes, at: int) -> int:
    """Return the position of the flatbuffer object that the offset at `at` points to."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a flatbuffer table; 0 if the field is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0 or 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return table + int(offset) if offset else 0
