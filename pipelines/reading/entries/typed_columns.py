"""Set aside records whose fields do not have the types that the source's `columns` gives them."""

from collections.abc import Iterator
from typing import TypeVar

from pipelines.reading.entries.records import Bad, RawRecord, TextRecord
from pipelines.reading.sources.record_field import load_meta
from pipelines.reading.sources.source import Source

Record = TypeVar("Record", TextRecord | Bad, TextRecord | Bad | RawRecord)


def check_types(records: Iterator[Record], source: Source) -> Iterator[Record | Bad]:
    """Yield the records, with Bad("wrong_type") in place of each record that has a field of the wrong type
    for its column.
    """
    fields = [field for _, field in source.typed_fields()]
    if not fields:
        yield from records
        return
    for record in records:
        if not isinstance(record, Bad):
            meta = record.meta if isinstance(record, RawRecord) else load_meta(record.meta)
            try:
                for field in fields:
                    field.read(meta)
            except ValueError:
                yield Bad("wrong_type", record.size)
                continue
        yield record
