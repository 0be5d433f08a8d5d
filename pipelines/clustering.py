"""Clusters of duplicates: who is kept, and the annotation that tells everyone else in whose favour they were dropped.

Both deduplication stages end here. Members are shuffled by cluster, each cluster elects its winner (source preference, then
lowest id), and the verdicts are shuffled back to the parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.annotations import Part
from pipelines.contracts.document import ID
from pipelines.contracts.manifest import StepOutput, records_of, write_table
from pipelines.contracts.stage import DROP, Cluster, in_order
from pipelines.contracts.store import FileRecord
from pipelines.shuffle import gathered, scattered

_VERDICT = pa.schema(
    [("row", pa.int64()), ("winner", ID), ("size", pa.int64()), ("similarity", pa.float32()), ("kept", pa.bool_())]
)


def preference(source: str, prefer: Sequence[str]) -> int:
    """Rank of a source in the keep rule: its position in `prefer`, or after all of them."""
    return prefer.index(source) if source in prefer else len(prefer)


def members(
    part: Part, number: int, ids: pa.Array, rows: np.ndarray, clusters: pa.Array, prefer: Sequence[str]
) -> pa.Table:
    """The table to shuffle by cluster: one row per document at `rows` of part number `number`, with its cluster's key."""
    return pa.table(
        {
            "cluster": clusters,
            "preference": pa.array(np.full(len(rows), preference(part.source, prefer), np.int32)),
            "id": ids,
            "part": pa.array(np.full(len(rows), number, np.int32)),
            "row": pa.array(rows.astype(np.int64)),
        }
    )


@dataclass(frozen=True)
class _Election:
    out: StepOutput
    files: tuple[FileRecord, ...]
    partition: int
    parts: int


def elect_winners(task: _Election) -> FileRecord:
    """Order each cluster of a partition by (preference, id); the first is kept. Commits the verdicts by part."""
    unit = f"winners-{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        table = gathered(task.out.directory, task.files, task.partition)
        keys = [(name, "ascending") for name in ("cluster", "preference", "id")]
        table = table.take(pc.sort_indices(table, sort_keys=keys)).combine_chunks()
        starts = _run_starts(table["cluster"])
        sizes = np.diff(np.append(starts, table.num_rows))
        first = np.repeat(starts, sizes)
        verdicts = pa.table(
            {
                "row": table["row"],
                "winner": table["id"].take(pa.array(first)),
                "size": pa.array(np.repeat(sizes, sizes), pa.int64()),
                "similarity": _similarity(table, first),
                "kept": pa.array(first == np.arange(table.num_rows)),
            },
            schema=_VERDICT,
        )
        shared = np.repeat(sizes, sizes) > 1
        verdicts, owners = verdicts.filter(pa.array(shared)), table["part"].to_numpy()[shared]
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": scattered(verdicts, owners, task.parts)}, {})
    return records_of(receipt)[0]


def _run_starts(column: pa.ChunkedArray) -> np.ndarray:
    """Positions at which a sorted column changes."""
    values = column.combine_chunks()
    if not len(values):
        return np.zeros(0, np.int64)
    changed = pc.not_equal(values.slice(1), values.slice(0, len(values) - 1)).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(changed) + 1]).astype(np.int64)


def _similarity(table: pa.Table, winner: np.ndarray) -> pa.Array:
    """Share of equal MinHash values with the winner, an unbiased estimate of the Jaccard similarity; 1 for exact copies."""
    if "signature" not in table.column_names:
        return pa.array(np.ones(table.num_rows, np.float32))
    column = table["signature"].combine_chunks()
    width = column.type.list_size
    values = column.flatten().to_numpy().reshape(-1, width) if table.num_rows else np.zeros((0, width), np.uint32)
    return pa.array((values == values[winner]).mean(axis=1).astype(np.float32))


@dataclass(frozen=True)
class _Verdicts:
    out: StepOutput
    files: tuple[FileRecord, ...]
    part: Part
    number: int
    rule: str
    schema: pa.Schema


def write_verdicts(task: _Verdicts) -> dict[str, int]:
    """Write the cluster columns of one part: `drop`, winner, size, similarity, in the order of the schema."""
    unit = f"{task.part.source}-{task.part.index:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        verdicts = gathered(task.out.directory, task.files, task.number)
        positions = pc.index_in(pa.array(np.arange(task.part.rows)), value_set=verdicts["row"].combine_chunks())
        found = verdicts.take(positions)
        lost = pc.and_(pc.is_valid(found["kept"]), pc.invert(found["kept"]))
        drop = pc.if_else(pc.fill_null(lost, False), task.rule, pa.scalar(None, pa.string()))
        columns = [drop, found["winner"], found["size"], found["similarity"]][: len(task.schema)]
        table = pa.table(columns, names=task.schema.names).cast(task.schema).combine_chunks()
        dropped = task.part.rows - table[DROP].null_count
        counts = {
            "in": task.part.rows,
            "kept": task.part.rows - dropped,
            "dropped": {task.rule: dropped} if dropped else {},
            "quarantined": {},
        }
        receipt = task.out.commit(unit, {f"parts/{unit}.arrow": write_table(table)}, counts)
    return dict(receipt["counts"]["dropped"])


def settle(
    out: StepOutput,
    parts: Sequence[Part],
    files: Sequence[FileRecord],
    partitions: int,
    rule: str,
    schema: pa.Schema,
    cluster: Cluster,
) -> dict[str, Any]:
    """Elect winners in every partition of the scattered members and write each part's columns; returns the step's facts."""
    elections = [_Election(out, tuple(files), partition, len(parts)) for partition in range(partitions)]
    winners = in_order(
        cluster.map(elect_winners, elections, lambda task: f"{rule}: partition {task.partition}"), partitions
    )
    tasks = [_Verdicts(out, tuple(winners), part, number, rule, schema) for number, part in enumerate(parts)]
    dropped = in_order(cluster.map(write_verdicts, tasks, lambda task: f"{rule}: part {task.part.name}"), len(tasks))
    sizes: dict[int, int] = {}
    for record in winners:
        for number in range(len(parts)):
            verdicts = gathered(out.directory, [record], number)
            for entry in pc.value_counts(verdicts.filter(verdicts["kept"])["size"]).to_pylist():
                sizes[entry["values"]] = sizes.get(entry["values"], 0) + entry["counts"]
    return {
        "clusters": sum(sizes.values()),
        "dropped": sum(sum(counts.values()) for counts in dropped),
        "cluster_sizes": {str(size): sizes[size] for size in sorted(sizes)},
    }
