"""Disk-partitioned shuffles: a map task writes a file with one byte range per partition, and a reduce task
reads one partition of all files.

A partitioned file begins with an Arrow IPC stream without its end marker: an empty record batch, then one
batch for each partition that has rows. The stream is followed by an entry (offset, length, xxh3_64) for every
partition, then by the length of the stream's head (the schema and the empty batch) and the number of
partitions.
"""

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import pairwise
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.errors import CorruptFileError
from gristmill.storage.location import Content, FileRecord, Location
from gristmill.storage.store import digest
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table

_ENTRY = struct.Struct("<QQQ")
_TAIL = struct.Struct("<QQ")
_FILES = 256  # files whose ranges are requested together
_NEAR = 1 << 14  # up to this many bytes between entry and tail, both are read with one request
_RECORDS = pa.schema([("path", pa.string()), ("bytes", pa.int64()), ("xxh3_128", pa.string())])


@dataclass(frozen=True)
class FileList:
    """The files that one phase of a step wrote, in order. `record` is the file that stores the list itself."""

    directory: Location
    record: FileRecord

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The record of each file, in the order of the list."""
        return _records(self.directory, self.record)

    def gather_rows(self, partition: int) -> pa.Table:
        """Return the rows of one partition from all files, in file order, with at most one chunk per column."""
        return gather_rows(self.directory, self.files, partition)


def write_list(out: StepOutput, phase: str, files: Sequence[FileRecord]) -> FileList:
    """Commit a list of the files that a phase wrote, and return it. `phase` names the list and must be unique
    within the step.
    """
    unit, content = f"list-of.{phase}", digest([astuple(file) for file in files])
    receipt = out.receipt(unit)
    if receipt is None or receipt.counts["content"] != content:
        columns = [[getattr(file, name) for file in files] for name in _RECORDS.names]
        table = pa.table(columns, schema=_RECORDS)
        receipt = out.commit(unit, {f"work/{unit}.arrow": write_table(table)}, {"content": content})
    return FileList(out.directory, receipt.files[0])


@lru_cache(maxsize=16)
def _records(directory: Location, record: FileRecord) -> tuple[FileRecord, ...]:
    table = read_table(directory, record, _RECORDS.names, schema_facts(_RECORDS))
    return tuple(map(FileRecord, *(table[name].to_pylist() for name in _RECORDS.names)))


def partitions_for(rows: int, rows_per_partition: int = 4_000_000) -> int:
    """Return the number of partitions to divide `rows` rows into, so that each holds at most about
    `rows_per_partition` rows.
    """
    return max(1, -(-rows // rows_per_partition))


def scatter_rows(table: pa.Table, partition: np.ndarray, partitions: int) -> Content:
    """Return the content of a partitioned file: the rows of `table`, grouped by partition and otherwise in
    their order. `partition`, int [rows], gives the partition of each row, from 0 to `partitions` - 1.
    """
    narrow = (
        partition.astype(np.uint16) if partitions <= 1 << 16 else partition
    )  # an integer type that numpy sorts by radix, twelve times as fast
    order = np.argsort(narrow, kind="stable")
    bounds = np.searchsorted(partition[order], np.arange(partitions + 1))
    ordered = table.take(pa.array(order)).combine_chunks()

    def write(sink: BinaryIO) -> None:
        stream = pa.BufferOutputStream()
        entries = []
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        with pa.ipc.new_stream(stream, table.schema, options=options) as writer:
            writer.write_batch(
                pa.RecordBatch.from_pylist([], schema=table.schema)
            )  # the schema is written only with a batch
            head = at = stream.tell()
            for low, high in pairwise(bounds.tolist()):
                if high > low:
                    writer.write_batch(ordered.slice(low, high - low).to_batches()[0])
                entries.append((at, stream.tell() - at))
                at = stream.tell()
        data = memoryview(stream.getvalue())
        sink.write(data[:at])
        for offset, length in entries:
            sink.write(_ENTRY.pack(offset, length, _checksum(data[:head], data[offset : offset + length])))
        sink.write(_TAIL.pack(head, partitions))

    return write


class _Rows(NamedTuple):
    """One partition of a file. `head` is the head of the file's stream, which holds the schema; `data` is the
    partition's record batch, empty if the partition has no rows; `partitions` is the number of partitions in
    the file.
    """

    head: bytes
    data: bytes
    partitions: int


def gather_rows(directory: Location, files: Sequence[FileRecord], partition: int) -> pa.Table:
    """Return the rows of one partition from all `files`, in file order, with at most one chunk per column.
    `files` must not be empty.

    Raises CorruptFileError if a file is missing or the bytes read from it are not what was written.
    """
    first = _read(directory, files[0], partition)
    partition_rows = [first]
    for start in range(1, len(files), _FILES):
        partition_rows += _read_alike(directory, files[start : start + _FILES], partition, first)
    schema = pa.ipc.read_schema(pa.py_buffer(first.head))
    batches = []
    for rows in partition_rows:
        if rows.data:
            own = schema if rows.head == first.head else pa.ipc.read_schema(pa.py_buffer(rows.head))
            batches.append(pa.ipc.read_record_batch(pa.py_buffer(rows.data), own))
    return pa.Table.from_batches(batches, schema).combine_chunks()


def _checksum(head: bytes | memoryview, data: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(head)
    digest.update(data)
    return digest.intdigest()


def _read(directory: Location, record: FileRecord, partition: int) -> _Rows:
    size = record.bytes
    try:
        [tail] = directory.read_ranges([(record, max(0, size - _TAIL.size), size)])
        head, partitions = _TAIL.unpack(tail)
        at = max(0, size - _TAIL.size - _ENTRY.size * (partitions - partition))
        [entry] = directory.read_ranges([(record, at, at + _ENTRY.size)])
        offset, length, checksum = _ENTRY.unpack(entry)
        if max(head, offset + length) <= size:
            schema, data = directory.read_ranges([(record, 0, head), (record, offset, offset + length)])
            if _checksum(schema, data) == checksum:
                return _Rows(schema, data, partitions)
    except (FileNotFoundError, struct.error, ValueError, OverflowError):
        pass  # the file is truncated, or its tail points outside it
    raise CorruptFileError(f"{directory / record.path}: is not what was written; remove {directory} and build again")


def _read_alike(directory: Location, files: Sequence[FileRecord], partition: int, first: _Rows) -> list[_Rows]:
    """Read one partition from several files in two rounds of requests, expecting the schema and the number of
    partitions of `first`. Files that differ or are damaged are then read one by one.
    """
    after = _ENTRY.size * (first.partitions - partition)  # bytes from the entry to the tail
    expected = _TAIL.pack(len(first.head), first.partitions)
    verified: list[_Rows | None] = [None] * len(files)
    try:
        entries = _entries(directory, files, after)
        wanted, ranges = [], []
        for number, (record, (entry, tail)) in enumerate(zip(files, entries, strict=True)):
            if tail == expected and len(entry) == _ENTRY.size:
                offset, length, checksum = _ENTRY.unpack(entry)
                if offset + length <= record.bytes:
                    wanted.append((number, checksum))
                    ranges.append((record, offset, offset + length))
        for (number, checksum), data in zip(wanted, directory.read_ranges(ranges), strict=True):
            if _checksum(first.head, data) == checksum:
                verified[number] = first._replace(data=data)
    except FileNotFoundError:
        pass
    return [rows or _read(directory, record, partition) for record, rows in zip(files, verified, strict=True)]


def _entries(directory: Location, files: Sequence[FileRecord], after: int) -> list[tuple[bytes, bytes]]:
    """Return two pieces of each partitioned file: the entry of one partition, which begins `after` bytes
    before the tail, and the tail.
    """
    ranges = []
    for record in files:
        tail = max(0, record.bytes - _TAIL.size)
        at = max(0, tail - after)
        if after <= _NEAR:
            ranges.append((record, at, record.bytes))
        else:
            ranges += [(record, at, at + _ENTRY.size), (record, tail, record.bytes)]
    pieces = directory.read_ranges(ranges)
    if after <= _NEAR:
        return [(data[: _ENTRY.size], data[-_TAIL.size :]) for data in pieces]
    return list(zip(pieces[::2], pieces[1::2], strict=True))
