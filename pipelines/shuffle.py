"""Disk-partitioned shuffles: a map task scatters its rows into one batch per partition, a reduce task gathers one partition.

A scattered file is an Arrow IPC file with exactly one record batch per partition, so a reduce task reads only its own rows and
the driver holds none.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from pipelines.contracts.manifest import Content
from pipelines.contracts.store import FileRecord, verify


def partitions_for(rows: int, rows_per_partition: int = 4_000_000) -> int:
    """How many partitions keep a reduce task's share near `rows_per_partition` rows."""
    return max(1, -(-rows // rows_per_partition))


def scattered(table: pa.Table, partition: np.ndarray, partitions: int) -> Content:
    """The content of a file with the rows of `table` by partition number (int array [rows]); order within one is kept."""
    order = np.argsort(partition, kind="stable")
    bounds = np.searchsorted(partition[order], np.arange(partitions + 1))
    ordered = table.take(pa.array(order)).combine_chunks()

    def write(sink: BinaryIO) -> None:
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            for low, high in pairwise(bounds.tolist()):
                rows = ordered.slice(low, high - low).to_batches()
                writer.write_batch(rows[0] if rows else pa.RecordBatch.from_pylist([], schema=table.schema))

    return write


def gathered(directory: Path, files: Sequence[FileRecord], partition: int) -> pa.Table:
    """The rows of one partition of all scattered files, in the order of the files, one chunk per column."""
    batches = []
    for record in files:
        with pa.memory_map(str(verify(directory, record))) as source:
            batches.append(pa.ipc.open_file(source).get_batch(partition))
    return pa.Table.from_batches(batches).combine_chunks()
