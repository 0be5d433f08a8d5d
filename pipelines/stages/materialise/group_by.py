"""Domains: the groups into which `shards` divides the documents of a source, by columns that earlier steps
wrote.

The name of a group joins its levels, one for each column, with `:`. Levels are percent-encoded as in RFC
3986, so each is a valid directory name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import ConfigError, UserError
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.parts import DOCUMENT_COLUMNS, Part
from pipelines.contracts.shard_set import LEVEL
from pipelines.contracts.stage import Cluster, gather
from pipelines.stages.decide.rules import Quantile, values_of

MAX_GROUPS = 1000
"""The maximum number of groups of a source. Each has its own shard files and its own validation loss."""
_LONGEST = 64  # characters of a level, which is a directory's name
_MAX_QUANTILES = 100
NULL, EMPTY = "null", "empty"  # the levels of a missing value and of an empty text
Bounds = Mapping[str, Mapping[str, tuple[float, ...]]]
"""The bounds of the quantiles by column and source, ascending: the lowest value of each quantile except the
first.
"""


@dataclass(frozen=True)
class GroupBy:
    """A column by which `shards` groups the documents of each source. `{column: COLUMN, quantiles: 5}` makes
    five groups, q1 (lowest) to q5, each with a fifth of the source's kept documents that have a value.
    Documents without a value form the group `null`.

    Bounds are exact and equal those of `filter` rules: q5 holds the documents that `at_least_quantile: 0.8,
    per: source` keeps. Equal values share a group, so the groups of a column with few values differ in size.
    With 10 or more quantiles, names have leading zeros (q01).
    """

    column: str
    """A column that an earlier step writes."""
    quantiles: int | None = None
    """Number of groups, 2 to 100, for a column of numbers. Without it, every distinct value is a group."""

    def check(self) -> None:
        """Raise ValueError if `column` cannot divide a source or `quantiles` is out of range."""
        if self.column in (*DOCUMENT_COLUMNS, DROP, EDITS_COLUMN):
            raise ValueError(
                f"column: got {self.column!r}, expected a column that a step writes: record_fields writes fields of "
                "records, url_rules writes url_host and url_domain"
            )
        if self.quantiles is not None and not 2 <= self.quantiles <= _MAX_QUANTILES:
            raise ValueError(f"quantiles: got {self.quantiles}, expected 2 to {_MAX_QUANTILES}")

    def requests(self) -> tuple[Quantile, ...]:
        """Return the quantiles to compute as bounds of the groups, ascending; empty without `quantiles`."""
        count = self.quantiles or 1
        return tuple(Quantile(self.column, "at_least", number / count, "source") for number in range(1, count))

    def check_type(self, kind: pa.DataType) -> None:
        """Raise ConfigError if a column of this type cannot be grouped as configured."""
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if self.quantiles is not None and not number:
            raise ConfigError(f"shards: group_by: {self.column}: quantiles need numbers, the column holds {kind}")
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if self.quantiles is None and not (text or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            hint = "add `quantiles`" if number else "name a column of texts, whole numbers or booleans"
            raise ConfigError(
                f"shards: group_by: {self.column}: a column of {kind} has no groups of equal values; {hint}"
            )

    def names(self, column: pa.ChunkedArray, bounds: Sequence[float]) -> pa.Array:
        """Return the level of each value, string [n]. `bounds` are the bounds of the quantiles in the source.
        Raises UserError if a level would be too long.
        """
        values = values_of(column)
        if self.quantiles is None:
            encoded = values.dictionary_encode()
            levels = [self._level(value) for value in encoded.dictionary.to_pylist()]
            return pc.fill_null(pa.array(levels, pa.string()).take(encoded.indices), NULL)
        numbers: np.ndarray = np.zeros(len(values), np.int32)
        for bound in bounds:
            above = pc.greater_equal(values, pa.scalar(bound, values.type))
            numbers += pc.fill_null(above, False).to_numpy(zero_copy_only=False)
        missing = pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False)
        width = len(str(self.quantiles))
        levels = [f"q{number:0{width}}" for number in range(1, self.quantiles + 1)]
        return pc.fill_null(pa.array(levels).take(pa.array(numbers, mask=missing)), NULL)

    def _level(self, value: str | int | bool) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        name = quote(str(value), safe="")
        if name in (NULL, EMPTY) or name.startswith("."):
            name = f"%{ord(name[0]):02X}{name[1:]}"
        if len(name) > _LONGEST:
            raise UserError(
                f"group_by: {self.column}: a value has {len(name):,} characters, percent-encoded, and a group's name at most "
                f"{_LONGEST}; group by a column of short values"
            )
        return name or EMPTY


@dataclass(frozen=True)
class DomainGroups:
    """The columns of `group_by`, in order, and the bounds of their quantiles."""

    columns: tuple[GroupBy, ...]
    bounds: Bounds

    def levels(self, part: Part) -> tuple[GroupBy, ...]:
        """Return the columns of `group_by` that exist for the part's source."""
        return tuple(each for each in self.columns if part.has(each.column))

    def assign(self, docs: pa.Table, part: Part) -> pa.Array:
        """Return the group of each document, string [n], or "" if no column divides the source."""
        names = [
            each.names(docs[each.column], self.bounds.get(each.column, {}).get(part.source, ()))
            for each in self.levels(part)
        ]
        return pc.binary_join_element_wise(*names, LEVEL) if names else pa.array([""] * docs.num_rows, pa.string())

    def facts(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the fact `groups` of the step: for each source, the columns that divide it, with the bounds
        of their quantiles.
        """
        first = {part.source: part for part in parts}
        return {
            source: [
                {"column": each.column}
                | ({"bounds": list(self.bounds.get(each.column, {}).get(source, ()))} if each.quantiles else {})
                for each in self.levels(first[source])
            ]
            for source in sorted(first)
        }


def bounds_of(columns: Sequence[GroupBy], thresholds: Sequence[Mapping[str, Any]]) -> Bounds:
    """Return the bounds of quantiles by column and source, taken from the facts of a `quantiles` step."""
    groups = {(entry["signal"], entry["quantile"]): entry["groups"] for entry in thresholds}
    bounds: dict[str, dict[str, tuple[float, ...]]] = {}
    for request in (request for each in columns for request in each.requests()):
        of_source = bounds.setdefault(request.signal, {})
        for source, facts in groups[request.signal, request.q].items():
            of_source[source] = (*of_source.get(source, ()), facts["value"])
    return bounds


@dataclass(frozen=True)
class _CountTask:
    grouping: DomainGroups
    part: Part


def refuse_many_groups(grouping: DomainGroups, parts: Sequence[Part], cluster: Cluster, step: str) -> None:
    """Raise UserError if the kept documents of a source form more than MAX_GROUPS groups."""
    tasks = [_CountTask(grouping, part) for part in parts]
    groups: dict[str, set[str]] = {}
    for part, names in zip(
        parts, gather(cluster, find_groups, tasks, lambda task: f"{step}: groups of {task.part.name}"), strict=True
    ):
        groups.setdefault(part.source, set()).update(names)
    for part in parts:
        if len(groups[part.source]) > MAX_GROUPS:
            values = list(zip(*(name.split(LEVEL) for name in groups[part.source]), strict=True))
            levels = zip(grouping.levels(part), values, strict=True)
            widest = max(levels, key=lambda level: len(set(level[1])))[0]
            raise UserError(
                f"{step}: group_by: source {part.source} has more than {MAX_GROUPS:,} groups, most of them by "
                f"{widest.column}; group by columns of fewer values, or limit the step that writes it to other `sources`"
            )


def find_groups(task: _CountTask) -> list[str]:
    """Return the sorted names of the groups that the kept documents of a part form, or the first MAX_GROUPS +
    1 of them if there are more.
    """
    columns = dict.fromkeys([DROP, *(each.column for each in task.grouping.levels(task.part))])
    table = task.part.table(columns)
    kept = table.filter(pc.is_null(table[DROP])).combine_chunks()
    try:
        names = task.grouping.assign(kept, task.part)
    except UserError as error:
        raise UserError(f"source {task.part.source}: {error}") from None
    return sorted(names.unique().to_pylist())[: MAX_GROUPS + 1]
