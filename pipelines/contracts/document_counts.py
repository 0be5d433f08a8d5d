"""Counts of documents: every one that comes in is kept, dropped by a rule, or quarantined for a reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.columns import DROP

_JSON_NAMES = {"arrived": "in"}  # `in` is a keyword


@dataclass(frozen=True)
class Counts:
    """What became of the documents of a part or of a source: those dropped by rule, those quarantined by reason."""

    arrived: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, facts: Mapping[str, Any]) -> Self:
        """The counts of a receipt or a manifest; what else a receipt holds is left out."""
        return cls(**{each.name: facts[_JSON_NAMES.get(each.name, each.name)] for each in fields(cls)})

    def facts(self) -> dict[str, Any]:
        """What a receipt or a manifest holds: `in`, `kept`, `dropped`, `quarantined`."""
        return {_JSON_NAMES.get(each.name, each.name): getattr(self, each.name) for each in fields(self)}

    def __add__(self, other: Self) -> Self:
        return type(self)(**{e.name: _sum(getattr(self, e.name), getattr(other, e.name)) for e in fields(self)})

    @property
    def left(self) -> int:
        """Documents that are accounted for; as many as `arrived` unless one was lost."""
        return self.kept + sum(self.dropped.values()) + sum(self.quarantined.values())


@dataclass(frozen=True)
class ReadCounts(Counts):
    """Counts of a read step, of records; with the bytes that its files decode to and the control characters removed."""

    decoded_bytes: int = 0
    control_characters: int = 0


def parse_counts(facts: Mapping[str, Any]) -> Counts:
    """The counts of a source in a manifest, `ReadCounts` for those of a read step."""
    return (ReadCounts if "decoded_bytes" in facts else Counts).parse(facts)


def count_drops(table: pa.Table) -> Counts:
    """The counts of a part, from the columns that a step wrote for it."""
    dropped: dict[str, int] = {}
    if DROP in table.column_names:
        counted = pc.value_counts(table[DROP].drop_null()).to_pylist()
        dropped = {entry["values"]: entry["counts"] for entry in sorted(counted, key=str)}
    return Counts(table.num_rows, table.num_rows - sum(dropped.values()), dropped)


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
    return one + other
