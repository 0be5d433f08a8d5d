"""Exact deduplication: of documents with the same normalised text, or the same normalised URL, one stays.

The keep rule: the source that stands first in `prefer`, then the lowest document id (file, then record). Lee et al. 2022,
"Deduplicating Training Data Makes Language Models Better", section 4, describes why exact copies must go; Penedo et al.
2023 (RefinedWeb, arXiv 2306.01116), section 3.3, drop URLs that other parts of the crawl have visited already.
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
    rule: ClassVar[str] = "dedup_exact"
    compared: ClassVar[str] = "text_hash"
    cluster: ClassVar[str] = "exact_cluster"

    def reads(self) -> tuple[str, ...]:
        """What is compared, and the drops so far."""
        return (self.compared, DROP)

    def writes(self) -> pa.Schema:
        """The id of the kept copy, null where a document has no copy, and the number of all copies, the kept one included."""
        return pa.schema([(DROP, pa.string()), (self.cluster, ID), (f"{self.cluster}_size", pa.int32())])

    def hashes(self, values: pa.Array) -> pa.FixedSizeBinaryArray:
        """16 bytes for each value, equal where the values mean the same."""
        return values

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Shuffle by hash, keep one of each."""
        partitions = partitions_for(sum(part.rows for part in parts))
        tasks = [_HashTask(out, part, number, partitions, self) for number, part in enumerate(parts)]
        files = in_order(
            cluster.map(scatter_hashes, tasks, lambda task: f"{self.rule}: part {task.part.name}"), len(tasks)
        )
        return settle(out, parts, files, partitions, self.rule, self.writes(), cluster)


@dataclass(frozen=True)
class DedupUrl(DedupExact):
    """Drop documents that were fetched from the same place, by `url_normal` without `http://` or `https://` and `www.`.

    Only documents that no earlier step dropped compete; one without a URL is kept. Every crawl index compares URLs
    without these prefixes, because sites move from one form to the other and serve the same pages under both. Text is
    not looked at: a page that changed between two visits is kept as it was in the preferred source, or the lowest id.
    """

    prefer: tuple[str, ...] = ()
    """Sources in order of preference; sources not named come last and are equal."""

    rule: ClassVar[str] = "dedup_url"
    compared: ClassVar[str] = "url_normal"
    cluster: ClassVar[str] = "url_cluster"

    def hashes(self, values: pa.Array) -> pa.FixedSizeBinaryArray:
        """xxh3_128 of each URL without the prefixes."""
        from xxhash import xxh3_128_digest

        bare = pc.replace_substring_regex(values, "^https?://(www\\.)?", "")
        return pa.array([xxh3_128_digest(url.encode()) for url in bare.to_pylist()], pa.binary(16))


@dataclass(frozen=True)
class _HashTask:
    out: StepOutput
    part: Part
    number: int
    partitions: int
    stage: DedupExact


def scatter_hashes(task: _HashTask) -> FileRecord:
    """Commit the competing documents of a part by hash partition."""
    unit = f"hashes-{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        compared = task.stage.compared
        table = task.part.table(("id", compared, DROP))
        rows = np.flatnonzero(pc.is_null(table[DROP]).to_numpy() & pc.is_valid(table[compared]).to_numpy())
        table = table.take(pa.array(rows)).combine_chunks()
        hashes = task.stage.hashes(table[compared].combine_chunks())
        found = members(task.part, task.number, table["id"], rows, hashes, task.stage.prefer)
        first = np.frombuffer(hashes.buffers()[1] or b"", np.uint64, 2 * len(hashes), hashes.offset * 16)[::2]
        partition = (first % np.uint64(task.partitions)).astype(np.int64)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": scattered(found, partition, task.partitions)}, {})
    return records_of(receipt)[0]
