"""Rank the values of columns exactly over a whole corpus. The ranks do not depend on how the corpus is
divided into parts or partitions.

The values of each column are divided into ranges, and each range is a partition. Every part sends its
distinct values, with their counts, to the partitions. A partition merges the values of all parts, and sends
each part the ranks of its values. So no task holds more than a part or a partition in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import UserError
from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, partitions_for, scatter_rows, write_list
from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.parts import Part
from pipelines.contracts.stage import Cluster, gather
from pipelines.stages.score.column_values import column_values

_COARSE = np.uint64(40)  # bits dropped where ranges are chosen: a bin holds values with equal upper 24 bits
_SIGN = np.uint64(1 << 63)
ROWS_PER_PARTITION = 4_000_000


@dataclass(frozen=True)
class Ranked:
    """The ranks of the values in each column, over all parts. `counts` holds the number of values in each
    column, without missing ones. `files` holds the output of `rank_values`, by part.
    """

    counts: tuple[int, ...]
    files: FileList

    def ranks_of(self, number: int, values: np.ndarray) -> np.ndarray:
        """Return the ranks, from 0 to 1, of the values of the part with index `number`, float64 [n, columns].
        `values` must hold the values of the whole part. A missing value (NaN) has the rank 0.5.
        """
        twice = self.files.gather_rows(number)["rank"].to_numpy()
        ranks, first = np.full(values.shape, 0.5), 0
        for column, count in enumerate(self.counts):
            rows = np.flatnonzero(~np.isnan(values[:, column]))
            different, inverse = np.unique(values[rows, column], return_inverse=True)
            ranks[rows, column] = twice[first : first + len(different)][inverse] / (2 * count)
            first += len(different)
        return ranks


def rank_parts(parts: Sequence[Part], names: Sequence[str], out: StepOutput, cluster: Cluster) -> Ranked | None:
    """Return the ranks of the values in the columns `names` over all parts, or None if there are no parts.
    Raises UserError if a column has fewer than two distinct values.
    """
    if not parts:
        return None
    columns = tuple(names)
    partitions = partitions_for(sum(part.rows for part in parts), ROWS_PER_PARTITION)
    ranges = _choose_ranges(parts, columns, out, partitions, cluster)
    tasks = [_PartTask(out, part, number, columns, ranges) for number, part in enumerate(parts)]
    sent = gather(cluster, scatter_values, tasks, lambda task: f"{out.name}: values of part {task.part.name}")
    extremes = [[seen[number] for _, seen in sent] for number in range(len(columns))]
    for name, seen in zip(columns, extremes, strict=True):
        _check_values(out, name, seen)
    listed = write_list(out, "values", [record for record, _ in sent])
    below = [lower for each in ranges for lower in each.below]
    merges = [_RangeTask(out, listed, number, lower, len(parts)) for number, lower in enumerate(below)]
    files = gather(cluster, rank_values, merges, lambda task: f"{out.name}: ranks of range {task.number}")
    return Ranked(tuple(sum(each[0] for each in seen) for seen in extremes), write_list(out, "ranks", files))


def _check_values(out: StepOutput, name: str, seen: Sequence[Sequence[Any]]) -> None:
    """Raise UserError unless a column has at least two distinct values. `seen` holds (number of values,
    lowest, highest) for each part.
    """
    known = [each for each in seen if each[0]]
    if not known:
        raise UserError(f"{out.name}: the column {name} has no value in any document; remove it from `columns`")
    low, high = min(each[1] for each in known), max(each[2] for each in known)
    if low == high:
        count = sum(each[0] for each in known)
        raise UserError(
            f"{out.name}: the column {name} is {low:g} in all {count:,} documents that have it, so it ranks nothing; "
            "remove it from `columns`"
        )


@dataclass(frozen=True)
class _Ranges:
    """The ranges into which the values of one column are divided. `cuts` holds the first bin of each range
    except the lowest, and `below` the number of values below each range.
    """

    cuts: tuple[int, ...] = ()
    below: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class _PartTask:
    out: StepOutput
    part: Part
    number: int
    columns: tuple[str, ...]
    ranges: tuple[_Ranges, ...] = ()


def _choose_ranges(
    parts: Sequence[Part], columns: tuple[str, ...], out: StepOutput, partitions: int, cluster: Cluster
) -> tuple[_Ranges, ...]:
    if partitions == 1:
        return (_Ranges(),) * len(columns)
    tasks = [_PartTask(out, part, number, columns) for number, part in enumerate(parts)]
    merged: list[dict[int, int]] = [{} for _ in columns]
    for _, counted in cluster.map(count_bins, tasks, lambda task: f"{out.name}: bins of part {task.part.name}"):
        for counts, (bins, numbers) in zip(merged, counted, strict=True):
            for each, number in zip(bins.tolist(), numbers.tolist(), strict=True):
                counts[each] = counts.get(each, 0) + number
    return tuple(_cut(counts, partitions) for counts in merged)


def _cut(counts: dict[int, int], partitions: int) -> _Ranges:
    """Divide the bins into at most `partitions` ranges with about equal numbers of values. `counts` maps each
    bin to its number of values.
    """
    bins = np.array(sorted(counts), np.uint64)
    lower = np.cumsum([0, *(counts[each] for each in bins.tolist())])
    targets = lower[-1] * np.arange(1, partitions) / partitions
    first = np.unique(np.searchsorted(lower, targets))  # the bins that begin a range
    first = first[(first > 0) & (first < len(bins))]
    return _Ranges(tuple(bins[first].tolist()), (0, *lower[first].tolist()))


def count_bins(task: _PartTask) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, for each column of a part, the bins that its values fall in and the number of values in each
    bin. NaN is not counted.
    """
    values = column_values(task.part, task.columns)
    return [np.unique(_bins(column[~np.isnan(column)]), return_counts=True) for column in values.T]


def _bins(values: np.ndarray) -> np.ndarray:
    """Return the bin of each value, uint64. A greater value never has a lower bin. No value may be -0.0."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN) >> _COARSE


def scatter_values(task: _PartTask) -> tuple[FileRecord, list[list[Any]]]:
    """Commit a file with the distinct values of each column of a part and their counts, grouped by the range
    that they fall in. Return the file's record and, for each column, (number of values, lowest, highest). The
    number includes repeated values but not NaN; a column without values gives (0, 0, 0).
    """
    unit = f"values.{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        tables, partition, seen, first = [], [np.zeros(0, np.int64)], [], 0
        for column, ranges in zip(column_values(task.part, task.columns).T, task.ranges, strict=True):
            values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
            seen.append([int(counts.sum()), *map(float, values[[0, -1]])] if len(values) else [0, 0.0, 0.0])
            tables.append(
                pa.table({"value": values, "count": counts, "part": np.full(len(values), task.number, np.int32)})
            )
            partition.append(first + np.searchsorted(np.array(ranges.cuts, np.uint64), _bins(values), "right"))
            first += len(ranges.below)
        content = scatter_rows(pa.concat_tables(tables), np.concatenate(partition), first)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {"columns": seen})
    return receipt.files[0], receipt.counts["columns"]


@dataclass(frozen=True)
class _RangeTask:
    out: StepOutput
    files: FileList
    number: int
    below: int
    parts: int


def rank_values(task: _RangeTask) -> FileRecord:
    """Rank the distinct values that each part has in a range. Commit a file of doubled ranks, which are
    integers, grouped by part, and return its record. A value's rank is the number of values below it plus
    half the number of values equal to it, over all parts.
    """
    unit = f"ranks.{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        table = task.files.gather_rows(task.number)
        different, inverse = np.unique(table["value"].to_numpy(), return_inverse=True)
        equal = np.zeros(len(different), np.int64)
        np.add.at(equal, inverse, table["count"].to_numpy())
        twice = 2 * (task.below + np.cumsum(equal) - equal) + equal
        content = scatter_rows(
            pa.table({"rank": twice[inverse]}), table["part"].to_numpy().astype(np.int64), task.parts
        )
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {})
    return receipt.files[0]
