"""Drop training documents that are near-copies of documents in a source's own validation or test split. The
comparison by MinHash follows Lee et al. 2022, "Deduplicating Training Data Makes Language Models Better",
section 4.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, partitions_for, scatter_rows, write_list
from pipelines.contracts.columns import DROP
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.manifest import StepOutput, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import Column, Drop, GivenSplits, Input
from pipelines.contracts.stage import Cluster, CorpusStage, gather
from pipelines.stages.dedup.lsh import band_keys, signatures_of

_RULE = "dedup_held_out"


@dataclass(frozen=True)
class DedupHeldOut(CorpusStage):
    """Drop every training document that shares a MinHash band with a held-out document. Held-out documents
    are those in the validation or test split that a source comes with.

    Held-out documents are never dropped. Without this stage, near-copies of them remain in training; if the
    corpus has MinHash signatures and shards, `plan` and the report show how many held-out documents have such
    a copy. Documents dropped by earlier steps are not compared. The stage must come before other
    deduplication stages.
    """

    bands: int = 14
    """Number of bands; a pair of Jaccard similarity s shares a band with probability 1 - (1 - s^rows)^bands."""
    rows: int = 8
    """Values per band, which must all agree. With 14 x 8 the probability is 0.56 at s = 0.7, 0.92 at 0.8, 0.9996 at 0.9."""

    version: ClassVar[int] = 1

    def check(self) -> None:
        for name in ("bands", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 1 or more")

    def reads(self) -> tuple[Input, ...]:
        return (Column("minhash"), Drop(), GivenSplits(required=True))

    def writes(self) -> pa.Schema:
        return pa.schema([(DROP, pa.string())])

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Drop the near-copies of held-out documents. Raises UserError if bands x rows exceeds the number of
        values in a signature.
        """
        size = parts[0].types.field("minhash").type.list_size
        if self.bands * self.rows > size:
            raise UserError(
                f"{out.name}: bands x rows is {self.bands * self.rows}, the signatures hold {size} values; lower bands or "
                "rows, or raise num_perm of minhash_signatures"
            )
        partitions = partitions_for(sum(part.rows for part in parts) * self.bands)
        tasks = [_PartTask(self, out, part, number, partitions, len(parts)) for number, part in enumerate(parts)]
        sent = gather(cluster, scatter_kept_bands, tasks, lambda task: f"{_RULE}: part {task.part.name}")
        listed = write_list(out, "held", sent)
        matches = [_MatchTask(out, listed, partition, len(parts)) for partition in range(partitions)]
        matched = gather(cluster, match_training, matches, lambda task: f"{_RULE}: partition {task.partition}")
        copies = write_list(out, "copies", matched)
        writes = [_WriteTask(out, part, number, copies) for number, part in enumerate(parts)]
        return {"dropped": sum(gather(cluster, write_drops, writes, lambda task: f"{_RULE}: part {task.part.name}"))}


@dataclass(frozen=True)
class _PartTask:
    stage: DedupHeldOut
    out: StepOutput
    part: Part
    number: int
    partitions: int
    parts: int


def scatter_kept_bands(task: _PartTask) -> FileRecord:
    """Commit the band keys of a part's documents, grouped by partition of keys. Documents without a signature
    and documents that an earlier step dropped are left out.
    """
    unit = f"held.{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        bands = task.stage.bands
        table = task.part.table(("minhash", DROP))
        measured = pc.and_(pc.is_null(table[DROP]), pc.is_valid(table["minhash"])).to_numpy()
        rows, held = np.flatnonzero(measured), task.part.held_out()
        signatures = signatures_of(table["minhash"].combine_chunks().take(pa.array(rows)))
        keys = band_keys(signatures, bands, task.stage.rows) if len(rows) else np.zeros((0, bands), np.uint64)
        entries = pa.table(
            {
                "band": keys.ravel(),
                "part": np.full(keys.size, task.number, np.int32),
                "row": np.repeat(rows, bands),
                "held": np.repeat(held[rows], bands),
            }
        )
        partition = ((keys.ravel() >> np.uint64(32)) % np.uint64(task.partitions)).astype(np.int64)
        content = scatter_rows(entries, partition, task.partitions)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {})
    return receipt.files[0]


@dataclass(frozen=True)
class _MatchTask:
    out: StepOutput
    files: FileList
    partition: int
    parts: int


def match_training(task: _MatchTask) -> FileRecord:
    """Find the training documents that share a band key with a held-out document, and commit their row
    numbers, grouped by part. Each task covers one partition of the band keys. Returns the file.
    """
    unit = f"copies.{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        table = task.files.gather_rows(task.partition)
        band, held = table["band"].to_numpy(), table["held"].to_numpy()
        copies = table.filter(pa.array(~held & np.isin(band, band[held]))).select(["part", "row"]).combine_chunks()
        content = scatter_rows(copies.select(["row"]), copies["part"].to_numpy().astype(np.int64), task.parts)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {})
    return receipt.files[0]


@dataclass(frozen=True)
class _WriteTask:
    out: StepOutput
    part: Part
    number: int
    copies: FileList


def write_drops(task: _WriteTask) -> int:
    """Commit the `drop` column of a part, and return the number of documents that it drops."""
    part = task.part
    receipt = task.out.receipt(part.unit)
    if receipt is None:
        gone: np.ndarray = np.zeros(part.rows, bool)
        gone[task.copies.gather_rows(task.number)["row"].to_numpy()] = True
        drop = pc.if_else(pa.array(gone), pa.scalar(_RULE, pa.string()), pa.scalar(None, pa.string()))
        table = pa.table({DROP: drop})
        receipt = task.out.commit(
            part.unit, {f"parts/{part.unit}.arrow": write_table(table)}, count_drops(table).facts()
        )
    return sum(receipt.counts["dropped"].values())
