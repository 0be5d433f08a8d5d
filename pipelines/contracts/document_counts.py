"""Count the documents of a part or a source, or the records of a read step: how many arrived, were kept, were
dropped and were quarantined.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.columns import DROP

_JSON_NAMES = {"arrived": "in"}  # `in` is a keyword


@dataclass(frozen=True)
class Counts:
    """How many documents of a part or a source arrived, were kept, were dropped (by rule) and were
    quarantined (by reason).
    """

    arrived: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, facts: Mapping[str, Any]) -> Self:
        """Parse the counts of a receipt or a manifest. Other entries are ignored."""
        return cls(**{each.name: facts[_JSON_NAMES.get(each.name, each.name)] for each in fields(cls)})

    def facts(self) -> dict[str, Any]:
        """Return the counts as receipts and manifests store them, keyed by `in`, `kept`, `dropped` and
        `quarantined`.
        """
        return {_JSON_NAMES.get(each.name, each.name): getattr(self, each.name) for each in fields(self)}

    def __add__(self, other: Self) -> Self:
        return type(self)(**{e.name: _sum(getattr(self, e.name), getattr(other, e.name)) for e in fields(self)})

    @property
    def left(self) -> int:
        """The number of documents kept, dropped or quarantined. It differs from `arrived` only if documents
        were lost or counted twice.
        """
        return self.kept + sum(self.dropped.values()) + sum(self.quarantined.values())


@dataclass(frozen=True)
class ReadCounts(Counts):
    """Counts of a read step, in records rather than documents. `replaced` counts the `user_names` and `urls`
    that were replaced in tweets. `control_characters` is the number of control characters that normalisation
    removed or replaced.
    """

    decoded_bytes: int = 0
    control_characters: int = 0
    replaced: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, facts: Mapping[str, Any]) -> Self:
        return super().parse({"replaced": {}, **facts})

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in super().facts().items() if value or name != "replaced"}


def parse_counts(facts: Mapping[str, Any]) -> Counts:
    """Parse the counts of a source in a manifest; those of a read step become `ReadCounts`."""
    return (ReadCounts if "decoded_bytes" in facts else Counts).parse(facts)


def count_drops(table: pa.Table) -> Counts:
    """Count the rows that are kept and those that each rule drops, according to the column `drop`. Without
    this column, all rows are kept.
    """
    dropped: dict[str, int] = {}
    if DROP in table.column_names:
        counted = pc.value_counts(table[DROP].drop_null()).to_pylist()
        dropped = {entry["values"]: entry["counts"] for entry in sorted(counted, key=str)}
    return Counts(table.num_rows, table.num_rows - sum(dropped.values()), dropped)


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
    return one + other
