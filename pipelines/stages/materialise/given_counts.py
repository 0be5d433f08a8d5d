"""Count the documents in each split that a source comes with, and how many of them are kept. Refuse a
held-out split without kept documents.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from pipelines.contracts.given_split import SPLITS
from pipelines.contracts.parts import Part
from pipelines.contracts.stage import Cluster, gather

SplitCounts = dict[str, dict[str, dict[str, int]]]
"""Counts by source and split: `documents`, the number that were read, and `kept`, the number that are kept."""


def count_given_splits(parts: Sequence[Part], cluster: Cluster, step: str) -> SplitCounts:
    """Return, for each source with a configured `split`, the number of documents in each split and how many
    of them are kept. Splits without documents are left out.
    """
    given = [part for part in parts if part.given is not None]
    counted = gather(cluster, count_part_splits, given, lambda part: f"{step}: splits of {part.name}") if given else []
    totals: SplitCounts = {}
    for part, counts in zip(given, counted, strict=True):
        total = totals.setdefault(part.source, {split: {"documents": 0, "kept": 0} for split in SPLITS})
        for split, (documents, kept) in counts.items():
            total[split]["documents"] += documents
            total[split]["kept"] += kept
    return {source: {split: n for split, n in total.items() if n["documents"]} for source, total in totals.items()}


def refuse_missing_splits(parts: Sequence[Part], cluster: Cluster, step: str) -> None:
    """Raise UserError if a held-out split that a source declares has no documents, or if all of its documents
    were dropped.
    """
    totals = count_given_splits(parts, cluster, step)
    for part in parts:
        for split in part.given.promised() if part.given is not None else ():
            count = totals[part.source].get(split)
            if count is None:
                raise UserError(
                    f"{step}: source {part.source}: no document is in its split {split}; correct `split` of the source"
                )
            if not count["kept"]:
                raise UserError(
                    f"{step}: source {part.source}: all {count['documents']:,} documents of its split {split} were dropped, so "
                    "nothing is left to measure on; limit the steps that drop them to other `sources`, or remove `split`"
                )


def count_part_splits(part: Part) -> dict[str, tuple[int, int]]:
    """Return, for each split, the number of documents of the part and how many of them are kept. The part's
    source must have a configured `split`.
    """
    labels = part.splits()
    assert labels is not None
    numbers = pc.index_in(labels, value_set=pa.array(SPLITS)).to_numpy()
    kept = pc.is_null(part.drop()).to_numpy(zero_copy_only=False)
    all_of, kept_of = np.bincount(numbers, minlength=len(SPLITS)), np.bincount(numbers[kept], minlength=len(SPLITS))
    return {split: (int(all_of[i]), int(kept_of[i])) for i, split in enumerate(SPLITS)}
