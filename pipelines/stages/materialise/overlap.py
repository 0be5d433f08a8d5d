"""Count, by MinHash bands, the held-out documents that have a near-copy in the training split.

A held-out document counts if it shares at least one band with a training document. There are 14 bands of 8
MinHash values, so two documents share a band with probability 0.56 at Jaccard similarity 0.7, 0.92 at 0.8,
and 0.9996 at 0.9.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, partitions_for, scatter_rows, write_list
from pipelines.contracts.given_split import SPLITS
from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.parts import Part
from pipelines.contracts.stage import Cluster, gather
from pipelines.stages.dedup.lsh import band_keys, signatures_of
from pipelines.stages.materialise.validation_split import ValidationSplit

_BANDS, _ROWS = 14, 8


def measure_overlap(split: ValidationSplit, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
    """Return, for each source, the numbers of kept validation and test documents, and how many of each have a
    near-copy in the training split of any source. If overlap cannot be measured, return only the reason, as
    `not_measured`.
    """
    if not parts:
        return {}
    if not all(part.has("minhash") for part in parts):
        return {"not_measured": "the column minhash is missing for some source; add minhash_signatures before shards"}
    if parts[0].types.field("minhash").type.list_size < _BANDS * _ROWS:
        return {"not_measured": f"the signatures hold fewer than {_BANDS * _ROWS} values; raise num_perm"}
    result = {
        source: {"validation": 0, "near_copies_in_training": 0} for source in dict.fromkeys(p.source for p in parts)
    }
    if not split.validation_share and all(part.given is None for part in parts):
        return result
    partitions = partitions_for(sum(part.rows for part in parts) * _BANDS)
    tasks = [_BandTask(split, out, part, number, len(parts), partitions) for number, part in enumerate(parts)]
    files = gather(cluster, scatter_split_bands, tasks, lambda task: f"shards: overlap of {task.part.name}")
    listed = write_list(out, "split", files)
    matches = [_MatchTask(listed, partition) for partition in range(partitions)]
    shared: set[tuple[int, int]] = set()
    for matched in gather(cluster, match_bands, matches, lambda task: f"shards: overlap {task.partition}"):
        shared.update(matched)
    for number, part in enumerate(parts):
        receipt = out.receipt(f"split.{number:05d}")
        assert receipt is not None
        result[part.source]["validation"] += receipt.counts["validation"]
        if receipt.counts["test"]:
            own = result[part.source]
            own["test"] = own.get("test", 0) + receipt.counts["test"]
            own.setdefault("test_near_copies_in_training", 0)
    for number, _ in shared:
        test, place = divmod(number, len(parts))
        result[parts[place].source]["test_near_copies_in_training" if test else "near_copies_in_training"] += 1
    return result


@dataclass(frozen=True)
class _BandTask:
    split: ValidationSplit
    out: StepOutput
    part: Part
    number: int
    parts: int
    partitions: int


def scatter_split_bands(task: _BandTask) -> FileRecord:
    """Commit the band keys of a part's kept documents, grouped by the partition of each key. Returns the
    file.

    Each key is stored with two numbers, `part` and `row`, both -1 for a training document. For a held-out
    document, `part` is the index of its part, plus the total number of parts if it is a test document. `row`
    is its index among the part's kept documents that have a signature.
    """
    unit = f"split.{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        rows, labels = task.part.kept_rows(), task.part.splits()
        table = task.part.table(dict.fromkeys((*task.split.columns(task.part), "minhash")), rows)
        split = task.split.assign(table, None if labels is None else labels.take(rows))
        held = {name: int((split == number).sum()) for number, name in enumerate(SPLITS) if number}
        measured = pc.is_valid(table["minhash"])
        # A document without words has no signature and cannot overlap.
        table, split = table.filter(measured).combine_chunks(), split[measured.to_numpy()]
        signatures = signatures_of(table["minhash"].combine_chunks())
        bands = _BANDS
        keys = band_keys(signatures, bands, _ROWS) if table.num_rows else np.zeros((0, bands), np.uint64)
        places = np.where(split > 0, np.arange(table.num_rows), -1)
        numbers = np.where(split > 0, task.number + (split - 1) * task.parts, -1)
        entries = pa.table(
            {
                "band": pa.array(keys.ravel()),
                "part": pa.array(np.repeat(numbers, bands).astype(np.int32)),
                "row": pa.array(np.repeat(places, bands)),
            }
        )
        partition = ((keys.ravel() >> np.uint64(32)) % np.uint64(task.partitions)).astype(np.int64)
        content = scatter_rows(entries, partition, task.partitions)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, held)
    return receipt.files[0]


@dataclass(frozen=True)
class _MatchTask:
    files: FileList
    partition: int


def match_bands(task: _MatchTask) -> list[tuple[int, int]]:
    """Return the held-out documents that share a band key with a training document in one partition of the
    keys, as (part, row) in the numbering of `scatter_split_bands`.
    """
    table = task.files.gather_rows(task.partition)
    band, part, row = (table[name].to_numpy() for name in ("band", "part", "row"))
    held = part >= 0
    hits = held & np.isin(band, band[~held])
    return sorted(set(zip(part[hits].tolist(), row[hits].tolist(), strict=True)))
