"""Exact deduplication: of documents with the same normalised text, one stays.

The keep rule: the source that stands first in `prefer`, then the lowest document id (file, then record). Lee et al. 2022,
"Deduplicating Training Data Makes Language Models Better", section 4, describes why exact copies must go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.clustering import members, settle
from pipelines.contracts.annotations import Part
from pipelines.contracts.document import ID
from pipelines.contracts.manifest import StepOutput, records_of
from pipelines.contracts.stage import DROP, Cluster, CorpusStage, in_order
from pipelines.contracts.store import FileRecord
from pipelines.shuffle import partitions_for, scattered


@dataclass(frozen=True)
class DedupExact(CorpusStage):
    """Drop copies by `text_hash`. Only documents that no earlier step dropped compete."""

    prefer: tuple[str, ...] = ()
    """Sources in order of preference; sources not named come last and are equal."""

    version: ClassVar[int] = 1

    def reads(self) -> tuple[str, ...]:
        """The hash and the drops so far."""
        return ("text_hash", DROP)

    def writes(self) -> pa.Schema:
        """`exact_cluster` is the id of the kept copy, null where a text is unique; `exact_cluster_size` counts all copies."""
        return pa.schema([(DROP, pa.string()), ("exact_cluster", ID), ("exact_cluster_size", pa.int32())])

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Shuffle by hash, keep one of each."""
        partitions = partitions_for(sum(part.rows for part in parts))
        tasks = [_HashTask(out, part, number, partitions, self.prefer) for number, part in enumerate(parts)]
        files = in_order(
            cluster.map(scatter_hashes, tasks, lambda task: f"dedup_exact: part {task.part.name}"), len(tasks)
        )
        return settle(out, parts, files, partitions, "dedup_exact", self.writes(), cluster)


@dataclass(frozen=True)
class _HashTask:
    out: StepOutput
    part: Part
    number: int
    partitions: int
    prefer: tuple[str, ...]


def scatter_hashes(task: _HashTask) -> FileRecord:
    """Commit the competing documents of a part by hash partition."""
    unit = f"hashes-{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        table = task.part.table(("id", "text_hash", DROP))
        rows = np.flatnonzero(pc.is_null(table[DROP]).to_numpy() & pc.is_valid(table["text_hash"]).to_numpy())
        table = table.take(pa.array(rows)).combine_chunks()
        hashes = table["text_hash"].combine_chunks()
        found = members(task.part, task.number, table["id"], rows, hashes, task.prefer)
        first = np.frombuffer(hashes.buffers()[1] or b"", np.uint64, 2 * len(hashes), hashes.offset * 16)[::2]
        partition = (first % np.uint64(task.partitions)).astype(np.int64)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": scattered(found, partition, task.partitions)}, {})
    return records_of(receipt)[0]
