"""Write fields of records as columns, such as a published score, a date or a topic. Rules can test these
columns, and `shards` can group by them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipelines.contracts.reads import Column, Input
from pipelines.contracts.stage import PartStage
from pipelines.reading.sources.record_field import ARROW_TYPES, RecordField, check_columns, load_meta


@dataclass(frozen=True)
class RecordFields(PartStage):
    """Write fields of the source's records, which are stored in `meta`, as columns.

    A value is null if the record lacks the field or its value is not of the column's type. (By contrast,
    `columns` of a source sets aside records whose value is not of the type.) For the type string, any value
    that is not a string is written as JSON. Values are not redacted: `pii` finds personal data in `meta`, but
    does not change these columns.
    """

    columns: Mapping[str, RecordField]
    """Fields by the name of their column: `{year: {field: date, first: 4}, edu: {field: score, type: float}}`."""

    def reads(self) -> tuple[Input, ...]:
        return (Column("meta"),)

    def writes(self) -> pa.Schema:
        return pa.schema([(name, ARROW_TYPES[each.type]) for name, each in self.columns.items()])

    def check(self) -> None:
        check_columns(self.columns)

    def annotate(self, docs: pa.Table) -> pa.Table:
        records = (load_meta(text.as_py()) for text in docs["meta"])
        rows = [[each.read_or_null(record) for each in self.columns.values()] for record in records]
        values = zip(*rows, strict=True) if rows else ([] for _ in self.columns)
        arrays = [pa.array(column, field.type) for column, field in zip(values, self.writes(), strict=True)]
        return pa.table(arrays, schema=self.writes())
