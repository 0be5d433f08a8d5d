"""The order of preference that decides which documents of a cluster are kept: documents of finished corpora
come first; new documents follow, ordered by the user's keys, then by source, then by id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from pipelines.contracts.document import DOCUMENT
from pipelines.contracts.parts import Part


@dataclass(frozen=True)
class KeepKey:
    """A criterion for preferring some documents of a cluster to others: an order of sources, or a column."""

    sources: tuple[str, ...] = ()
    """Sources, the preferred one first. Sources that are not listed come last, and none of them is preferred
    to another.
    """
    column: str | None = None
    """A column of numbers, times or text: one that an earlier step wrote, or `url`, `text` or `meta` of the
    document. `length` is the number of UTF-8 bytes of the stored text. Null comes last.
    """
    order: Literal["highest", "lowest"] = "highest"
    """Whether the highest or the lowest value of the column is preferred."""

    def check(self) -> None:
        """Raise ValueError if both or neither of `sources` and `column` are given, or if `column` is
        `source`.
        """
        if bool(self.sources) == (self.column is not None):
            raise ValueError("column: a key is either `sources` or `column`, got both or neither")
        if self.column == "source":
            raise ValueError("column: got 'source'; an order of sources is a key `sources: [...]`")


def columns_read(keys: Sequence[KeepKey]) -> tuple[str, ...]:
    """Return the columns that the keys need, without duplicates. The key `length` needs `text`."""
    named = [key.column for key in keys if key.column is not None]
    return tuple(dict.fromkeys("text" if name == "length" else name for name in named))


def key_types(types: pa.Schema, keys: Sequence[KeepKey]) -> tuple[pa.DataType, ...]:
    """Return the types of the columns that `key_columns` returns. Raises UserError for a column that does not
    contain numbers, times or text.
    """
    kinds = []
    for key in keys:
        if key.column is None:
            kinds.append(pa.int32())
        elif key.column == "length":
            kinds.append(pa.int64())
        else:
            kind = (DOCUMENT if key.column in DOCUMENT.names else types).field(key.column).type
            is_ordered = pa.types.is_primitive(kind) and not (pa.types.is_float16(kind) or pa.types.is_interval(kind))
            if not (is_ordered or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise UserError(f"keep: column {key.column!r} is {kind}, expected numbers, times or text")
            kinds.append(kind)
    return tuple(kinds)


def key_columns(part: Part, rows: np.ndarray, keys: Sequence[KeepKey]) -> dict[str, pa.Array]:
    """Return the values of the keys for the given rows of a part, as columns key0, key1, ..."""
    table = part.table(columns_read(keys)) if columns_read(keys) else None
    columns = {}
    for number, key in enumerate(keys):
        if key.column is None:
            rank = key.sources.index(part.source) if part.source in key.sources else len(key.sources)
            values = pa.array(np.full(len(rows), rank, np.int32))
        else:
            assert table is not None
            column = pc.binary_length(table["text"]) if key.column == "length" else table[key.column]
            values = column.take(pa.array(rows)).combine_chunks()
        columns[f"key{number}"] = values
    return columns


def absent_keys(kinds: Sequence[pa.DataType], rows: int) -> dict[str, pa.Array]:
    """Return columns named as those of `key_columns`, each with `rows` nulls, for documents of finished
    corpora, which the keys do not order. `kinds` are the types of the columns.
    """
    return {f"key{number}": pa.nulls(rows, kind) for number, kind in enumerate(kinds)}


def order_by_preference(table: pa.Table, keys: Sequence[KeepKey]) -> pa.Array:
    """Return the row indices that sort a table by cluster and, within a cluster, by preference: by
    `standing`, lowest first; then by each key in turn, with nulls last; then by the `rank` of the source;
    then by `id`.
    """
    order = [("cluster", "ascending"), ("standing", "ascending")]
    for number, key in enumerate(keys):
        highest = key.column is not None and key.order == "highest"
        order.append((f"key{number}", "descending" if highest else "ascending"))
    return pc.sort_indices(table, sort_keys=[*order, ("rank", "ascending"), ("id", "ascending")])
