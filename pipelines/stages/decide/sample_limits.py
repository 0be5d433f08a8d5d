"""Keep a random sample of the documents of each group, up to the group's limit.

    parts -> ranges of the random number -> groups -> ranges -> parts

Every part sends each of its kept documents to the task of the range that contains the document's random
number. This task sends the total of each group to the group's partition, which returns two totals of the
group: over all lower ranges, and over all ranges. From these, the range's task finds which of its documents
are beyond the limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.errors import UserError
from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, partitions_for, scatter_rows, write_list
from pipelines.contracts.columns import DROP
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.manifest import StepOutput, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.stage import Cluster, gather
from pipelines.stages.decide.rules import values_of
from pipelines.stages.decide.uniform_numbers import drop_column, hash_ids

ROWS_PER_RANGE = 4_000_000
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Limits:
    """How much of each group a sample may keep. Documents with equal values in the columns `per` form a
    group; `seed` determines their random order. The limit of a group is `share` of the group's total, rounded
    up, or `most` if `share` is None. Limits and totals are sums of the column `of`, or numbers of documents
    if `of` is empty.
    """

    share: float | None
    most: int
    per: tuple[str, ...]
    of: str
    seed: int

    def of_groups(self, totals: np.ndarray) -> np.ndarray:
        """Return the limit of each group, int64 [groups], given the groups' totals."""
        if self.share is None:
            return np.full(len(totals), self.most, np.int64)
        share = Fraction(repr(self.share))  # as written: 0.1 of 30 documents are 3
        limits = [-(-share.numerator * total // share.denominator) for total in totals.tolist()]
        return np.array(limits, np.int64)


@dataclass(frozen=True)
class _Task:
    """One task of any phase. `number` is the index of the part, range or partition of groups that the task
    works on.
    """

    limits: Limits
    reason: str
    out: StepOutput
    number: int
    ranges: int
    parts: int
    part: Part | None = None
    files: FileList | None = None
    before: FileList | None = None

    def rows(self) -> pa.Table:
        assert self.files is not None
        return self.files.gather_rows(self.number)

    def commit(self, phase: str, table: pa.Table, partition: np.ndarray, partitions: int) -> FileRecord:
        unit = f"{phase}.{self.number:05d}"
        content = scatter_rows(table, partition.astype(np.int64), partitions)
        return self.out.commit(unit, {f"work/{unit}.arrow": content}, {}).files[0]

    def done(self, phase: str) -> FileRecord | None:
        receipt = self.out.receipt(f"{phase}.{self.number:05d}")
        return None if receipt is None else receipt.files[0]


def limit_parts(
    parts: Sequence[Part], limits: Limits, reason: str, out: StepOutput, cluster: Cluster
) -> list[dict[str, Any]]:
    """Commit the `drop` of all documents: `reason` for those beyond the limit of their group, otherwise null.
    Returns the document counts of each part.
    """
    if not parts:
        return []
    ranges = partitions_for(sum(part.rows for part in parts), ROWS_PER_RANGE)

    def task(number: int, part: Part | None = None, files: Any = None, before: Any = None) -> _Task:
        return _Task(limits, reason, out, number, ranges, len(parts), part, files, before)

    tasks = [task(number, part) for number, part in enumerate(parts)]
    sent = gather(cluster, send_documents, tasks, lambda task: f"{out.name}: part {task.number}")
    documents, before = write_list(out, "documents", sent), None
    if ranges > 1:
        tasks = [task(number, files=documents) for number in range(ranges)]
        sums = write_list(
            out, "sums", gather(cluster, sum_groups, tasks, lambda task: f"{out.name}: range {task.number}")
        )
        tasks = [task(number, files=sums) for number in range(ranges)]
        added = gather(cluster, add_sums, tasks, lambda task: f"{out.name}: groups {task.number}")
        before = write_list(out, "before", added)
    tasks = [task(number, files=documents, before=before) for number in range(ranges)]
    beyond = gather(cluster, find_beyond, tasks, lambda task: f"{out.name}: range {task.number}")
    listed = write_list(out, "beyond", beyond)
    tasks = [task(number, part, listed) for number, part in enumerate(parts)]
    return gather(cluster, write_drops, tasks, lambda task: f"{out.name}: part {task.number}")


def send_documents(task: _Task) -> FileRecord:
    """Commit the kept documents of a part, grouped by the range of their random number. Raises UserError if a
    kept document has a negative value in the column `limits.of`.
    """
    if done := task.done("documents"):
        return done
    part, limits = task.part, task.limits
    assert part is not None
    rows = part.kept_rows()
    table = part.table(dict.fromkeys(["id", *limits.per, *([limits.of] if limits.of else [])]), rows)
    numbers = hash_ids(table["id"], limits.seed, task.reason.encode())
    weights: Any = np.ones(len(rows), np.int64)
    if limits.of:
        weights = pc.fill_null(values_of(table[limits.of]).cast(pa.int64()), 0)
        if (pc.min(weights).as_py() or 0) < 0:
            raise UserError(
                f"sample: total.{limits.of}: a document of part {part.name} has a negative number; use another column"
            )
    sent = {
        "id": table["id"],
        "group": _groups([values_of(table[name]) for name in limits.per], len(rows)),
        "number": numbers,
        "weight": weights,
        "part": np.full(len(rows), task.number, np.int32),
        "row": rows.cast(pa.int32()),
    }
    ranges = (numbers >> _HALF) * np.uint64(task.ranges) >> _HALF
    return task.commit("documents", pa.table(sent), ranges, task.ranges)


def _groups(columns: Sequence[pa.Array], rows: int) -> np.ndarray:
    """Return a hash of each row's values, uint64 [rows]. A missing value equals only another missing value."""
    groups: np.ndarray = np.zeros(rows, np.uint64)
    for column in columns if rows else ():
        encoded = column.dictionary_encode(null_encoding="encode")
        texts = encoded.dictionary.cast(pa.large_string()).to_pylist()
        hashes = [xxhash.xxh3_64_intdigest(b"" if text is None else b"=" + text.encode()) for text in texts]
        own = np.array(hashes, np.uint64)[encoded.indices.to_numpy()]
        # Hash pairs, so that neither the order of values nor equal values in two columns are lost.
        pairs, inverse = np.unique(np.stack([groups, own], 1), axis=0, return_inverse=True)
        groups = np.array([xxhash.xxh3_64_intdigest(pair.tobytes()) for pair in pairs], np.uint64)[inverse.ravel()]
    return groups


def _sums(groups: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    different, inverse = np.unique(groups, return_inverse=True)
    sums: np.ndarray = np.zeros(len(different), np.int64)
    np.add.at(sums, inverse, weights)
    return different, inverse, sums


def sum_groups(task: _Task) -> FileRecord:
    """Commit the sum of the weights of each group in a range, grouped by the partition to which the group
    belongs. Returns the file.
    """
    if done := task.done("sums"):
        return done
    table = task.rows()
    groups, _, sums = _sums(table["group"].to_numpy(), table["weight"].to_numpy())
    sent = pa.table({"group": groups, "range": np.full(len(groups), task.number, np.int32), "sum": sums})
    return task.commit("sums", sent, groups % np.uint64(task.ranges), task.ranges)


def add_sums(task: _Task) -> FileRecord:
    """Commit a file with the sums of the weights of each group in a partition, for `find_beyond`, and return
    the file's record.

    The file has a row for each group and each range that contains documents of the group: the group, the sum
    of its weights over all lower ranges (`before`), and the sum over all ranges (`total`). Rows are grouped
    by range.
    """
    if done := task.done("before"):
        return done
    table = task.rows()
    table = table.take(
        pc.sort_indices(table, sort_keys=[("group", "ascending"), ("range", "ascending")])
    ).combine_chunks()
    sums = table["sum"].to_numpy()
    _, inverse, totals = _sums(table["group"].to_numpy(), sums)
    before = _before(inverse, sums)
    sent = pa.table({"group": table["group"], "before": before, "total": totals[inverse]})
    return task.commit("before", sent, table["range"].to_numpy(), task.ranges)


def _before(groups: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return, for each row, the sum of the weights of earlier rows of the same group. `groups` are indices in
    ascending order.
    """
    sums = np.cumsum(weights) - weights
    return sums - sums[np.searchsorted(groups, groups)]


def find_beyond(task: _Task) -> FileRecord:
    """Commit the row indices of the documents in a range that lie beyond their group's limit, grouped by
    part.
    """
    if done := task.done("beyond"):
        return done
    table = task.rows()
    keys = [(name, "ascending") for name in ("group", "number", "id")]
    table = table.take(pc.sort_indices(table, sort_keys=keys)).combine_chunks()
    weights = table["weight"].to_numpy()
    groups, inverse, totals = _sums(table["group"].to_numpy(), weights)
    before = _before(inverse, weights)
    if task.before is not None:
        lower = task.before.gather_rows(task.number)
        order = np.argsort(lower["group"].to_numpy())  # each group is there once
        at = order[np.searchsorted(lower["group"].to_numpy(), groups, sorter=order)]
        before, totals = before + lower["before"].to_numpy()[at][inverse], lower["total"].to_numpy()[at]
    beyond = before + weights > task.limits.of_groups(totals)[inverse]  # true of all later documents of the group, too
    sent = table.filter(pa.array(beyond)).combine_chunks()
    return task.commit("beyond", sent.select(["row"]), sent["part"].to_numpy(), task.parts)


def write_drops(task: _Task) -> dict[str, Any]:
    """Commit the column `drop` of a part and return the part's document counts."""
    part = task.part
    assert part is not None
    receipt = task.out.receipt(part.unit)
    if receipt is None:
        keep = np.ones(part.rows, bool)
        keep[task.rows()["row"].to_numpy()] = False
        table = pa.table([drop_column(keep, task.reason)], [DROP])
        receipt = task.out.commit(
            part.unit, {f"parts/{part.unit}.arrow": write_table(table)}, count_drops(table).facts()
        )
    return dict(receipt.counts)
