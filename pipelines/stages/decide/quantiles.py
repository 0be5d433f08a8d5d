"""Compute exact quantiles of columns over a whole corpus, as thresholds for rules.

The columns are read twice: first to count the documents in coarse bins, then to count each value in the bins
that contain a quantile.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import Drop, Input, column_named
from pipelines.contracts.stage import Cluster, CorpusStage
from pipelines.stages.decide.rules import Quantile, group_names

_COARSE = np.uint64(40)  # bits dropped in the first pass: a bin holds values with equal upper 24 bits
_SIGN = np.uint64(1 << 63)
Counted = dict[tuple[int, str], dict[int, int]]  # (request, group) -> key or bin -> documents


@dataclass(frozen=True)
class Quantiles(CorpusStage):
    """Compute the requested quantiles of columns, over the documents that no earlier step dropped. A request
    with `per` gets a quantile for each group. Nulls and NaN are ignored.

    Let x[0] ... x[n-1] be the values in ascending order. For `at_least`, quantile q is x[min(floor(q n), n -
    1)], which keeps the upper share 1 - q. For `at_most`, it is x[max(ceil(q n) - 1, 0)], which keeps the
    lower share q. If several values equal the quantile, all of them are kept.
    """

    requests: tuple[Quantile, ...]

    version: ClassVar[int] = 2

    def reads(self) -> tuple[Input, ...]:
        names = (name for request in self.requests for name in (request.signal, request.per) if name)
        return tuple(dict.fromkeys([Drop(), *map(column_named, names)]))

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Return the facts: for each request and each group that has values, the threshold and the number of
        documents with a value.
        """
        coarse = _count(parts, self.requests, None, cluster)
        targets = {at: _find(counts, self.requests[at[0]]) for at, counts in coarse.items()}
        ranks = {at: (key, rank - before) for at, (key, before, rank) in targets.items()}
        fine = _count(parts, self.requests, {at: key for at, (key, _) in ranks.items()}, cluster)
        thresholds = []
        for number, request in enumerate(self.requests):
            groups = {}
            for at in sorted(at for at in fine if at[0] == number):
                kind = parts[0].types.field(request.signal).type
                groups[at[1]] = {
                    "value": _value(_at_rank(fine[at], ranks[at][1])[0], kind),
                    "documents": sum(coarse[at].values()),
                }
            thresholds.append({**request.facts(), "groups": groups})
        return {"thresholds": thresholds}


def _find(counts: Mapping[int, int], request: Quantile) -> tuple[int, int, int]:
    """Return the bin that contains the quantile, the number of documents in lower bins, and the quantile's
    rank.
    """
    rank = request.rank(sum(counts.values()))
    key, before = _at_rank(counts, rank)
    return key, before, rank


def _at_rank(counts: Mapping[int, int], rank: int) -> tuple[int, int]:
    """Return the key of the value at `rank`, counted from 0, and the number of values with lower keys.
    `counts` maps each key to its number of values.
    """
    before = 0
    for key in sorted(counts):
        if rank < before + counts[key]:
            return key, before
        before += counts[key]
    raise AssertionError("the rank is below the number of values")


@dataclass(frozen=True)
class _Task:
    part: Part
    requests: tuple[Quantile, ...]
    bins: dict[tuple[int, str], int] | None


def _count(
    parts: Sequence[Part],
    requests: tuple[Quantile, ...],
    bins: dict[tuple[int, str], int] | None,
    cluster: Cluster,
) -> Counted:
    merged: Counted = {}
    tasks = [_Task(part, requests, bins) for part in parts]
    for _, counted in cluster.map(count_values, tasks, lambda task: f"quantiles: part {task.part.name}"):
        for at, counts in counted.items():
            counts_of = merged.setdefault(at, {})
            for key, number in counts.items():
                counts_of[key] = counts_of.get(key, 0) + number
    return merged


def count_values(task: _Task) -> Counted:
    """Count the kept documents of a part that have a value, for each requested quantile and group. In the
    first pass (`task.bins` is None), they are counted per coarse bin. In the second, they are counted per
    value, in the bin that `task.bins` gives for the quantile and group.
    """
    result: Counted = {}
    alive = pc.is_null(task.part.drop()).to_numpy(zero_copy_only=False)
    column_and_groups: tuple[str, str] | None = None
    keys_of: list[tuple[str, np.ndarray]] = []
    coarse: dict[str, dict[int, int]] = {}
    for number, request in enumerate(task.requests):
        if column_and_groups != (request.signal, request.per):
            column_and_groups = request.signal, request.per
            column = task.part.table((request.signal,))[request.signal].combine_chunks()
            groups = _groups(task.part, request)
            keys_of = [(group, _keys(column.take(pa.array(rows[alive[rows]])))) for group, rows in groups]
            coarse = {group: _histogram(keys >> _COARSE) for group, keys in keys_of} if task.bins is None else {}
        for group, keys in keys_of:
            if task.bins is None:
                counts = coarse[group]
            else:
                requested = task.bins.get((number, group))
                counts = {} if requested is None else _histogram(keys[keys >> _COARSE == np.uint64(requested)])
            if counts:
                result[number, group] = counts
    return result


def _histogram(keys: np.ndarray) -> dict[int, int]:
    values, counts = np.unique(keys, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _groups(part: Part, request: Quantile) -> Iterator[tuple[str, np.ndarray]]:
    if not request.per:
        yield "", np.arange(part.rows)
        return
    names = group_names(part.table((request.per,))[request.per]).dictionary_encode()
    codes = names.indices.to_numpy()
    rows = np.split(
        np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=len(names.dictionary)))[:-1]
    )
    yield from zip(names.dictionary.to_pylist(), rows, strict=True)


def _keys(column: pa.Array) -> np.ndarray:
    """Return uint64 keys that sort like the values of a column of numbers or dates. Nulls and NaN are left
    out.
    """
    values = column.drop_null()
    if pa.types.is_uint64(values.type):
        return values.to_numpy(zero_copy_only=False)
    if pa.types.is_integer(values.type) or pa.types.is_timestamp(values.type):
        return values.cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64) ^ _SIGN
    numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # -0.0 is 0.0
    bits = numbers[~np.isnan(numbers)].view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _value(key: int, kind: pa.DataType) -> float | int:
    """Return the value of a column of type `kind` to which `_keys` gives `key`."""
    bits = np.uint64(key)
    if pa.types.is_uint64(kind):
        return key
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        return int((bits ^ _SIGN).view(np.int64))
    return float((bits ^ _SIGN if bits & _SIGN else ~bits).view(np.float64))
