"""The parts of a corpus. A part is a file of documents of one source. The columns that steps add to these
documents are stored in separate files, which `Part` aligns by row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.location import FileRecord, Location
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.edits import apply_edits, compose, edited_lengths, find_emptied, map_back
from pipelines.contracts.given_split import GivenSplit, is_held_out
from pipelines.contracts.manifest import read_table
from pipelines.contracts.reads import Column, Drop, TableInput, Text, column_named

DOCUMENT_COLUMNS = ("id", "text", "source", "url", "meta")


@dataclass(frozen=True)
class Annotation:
    """The columns that one step wrote for one part, stored in `file` or held in memory as `table`."""

    step: str
    directory: Location
    file: FileRecord | None
    schema: dict[str, str]
    table: pa.Table | None = None

    def column(self, name: str) -> pa.ChunkedArray:
        """Read one column, from memory or from the file."""
        return self.columns([name])[name]

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Read the named columns, from memory or from the file."""
        if self.table is not None:
            return self.table.select(names)
        assert self.file is not None
        return read_table(self.directory, self.file, names, self.schema)


@dataclass(frozen=True)
class Part:
    """A document part with some or all of its annotations, in the order of the steps.

    `documents` is the file of the document columns in `directory`, and `schema` gives their types. `types`
    gives the type of every annotation column of the build, and `order` the names of its steps. `loaded` holds
    the document columns if a task has already read them. `given` is the configured split of the source, if
    any.
    """

    source: str
    index: int
    rows: int
    text_bytes: int
    directory: Location
    documents: FileRecord
    schema: dict[str, str]
    types: pa.Schema
    order: tuple[str, ...]
    annotations: tuple[Annotation, ...] = ()
    tokenizer_share: float = 1.0
    loaded: pa.Table | None = None
    given: GivenSplit | None = None

    @property
    def name(self) -> str:
        """The name of the part in messages and counts, such as `web/00000`."""
        return f"{self.source}/{self.index:05d}"

    @property
    def unit(self) -> str:
        """The name under which a step commits its columns for the part, such as `web-00000`."""
        return f"{self.source}-{self.index:05d}"

    def table(self, columns: Iterable[str | TableInput], rows: pa.Array | None = None) -> pa.Table:
        """Read some columns, each as at most one chunk. A string is short for `column_named(string)`. `rows`
        are the indices of the rows to return; None returns all. A column that no step wrote for this part is
        null, or left out if it is optional.
        """
        inputs = dict.fromkeys(column_named(each) if isinstance(each, str) else each for each in columns)
        wanted = [
            each for each in inputs if not (isinstance(each, Column) and each.optional and not self.has(each.name))
        ]
        needed = dict.fromkeys("text" if isinstance(each, Text) else each.name for each in wanted)
        stored = [name for name in needed if name in DOCUMENT_COLUMNS]
        documents = self.loaded
        if documents is None and stored:
            documents = read_table(self.directory, self.documents, stored, self.schema)
        names = [each.name for each in wanted if isinstance(each, Column) and each.name not in DOCUMENT_COLUMNS]
        annotated = self._annotated(names)
        result = {}
        for each in wanted:
            if isinstance(each, Drop):
                column = self.drop()
            elif each.name in annotated:
                column = annotated[each.name]
            else:
                assert documents is not None
                column = documents[each.name if isinstance(each, Column) else "text"]
            column = column if rows is None else column.take(rows)
            result[each.name] = self._edited(column, each, rows) if isinstance(each, Text) else column
        return pa.table(result).combine_chunks()

    def kept_rows(self) -> pa.Array:
        """Return the row indices of the documents that are not dropped, ascending."""
        return pc.indices_nonzero(pc.is_null(self.drop()))

    def drop(self, upto: str | None = None) -> pa.Array:
        """Return the rule that dropped each document, or null: the first non-null `drop` of the steps up to
        and including `upto` (default: all steps).
        """
        columns = [a.column(DROP).combine_chunks() for a in self._upto(upto) if DROP in a.schema]
        return pc.coalesce(*columns) if columns else pa.nulls(self.rows, pa.string())

    def edits(self, upto: str | None = None, rows: pa.Array | None = None) -> pa.Array | None:
        """Return the composed edits of the steps up to and including `upto` (default: all steps), or None if
        none of them has an `edits` column. `rows` are the indices of the rows to return; None returns all.
        """
        columns = self.edit_columns(upto)
        columns = columns if rows is None else [column.take(rows) for column in columns]
        return compose(columns) if columns else None

    def edit_columns(self, upto: str | None = None) -> list[pa.Array]:
        """Return the `edits` columns of the steps up to and including `upto` (default: all steps), in step
        order.
        """
        return [_chunk(a.column(EDITS_COLUMN)) for a in self._upto(upto) if EDITS_COLUMN in a.schema]

    def edits_of(self, text: Text, rows: pa.Array | None = None) -> pa.Array | None:
        """Return the composed edits that turn the stored text into `text`; None if no step contributes edits
        to `text`.
        """
        return self.edits(text.upto, rows) if text.edited else None

    def in_stored_text(self, edits: pa.Array, text: Text, rows: pa.Array | None = None) -> pa.Array:
        """Convert edits of `text` to edits of the stored text. `rows` are the rows that `edits` covers; None
        means all.
        """
        applied = self.edits_of(text, rows)
        return edits if applied is None else map_back(applied, edits)

    def emptied(self, edits: pa.Array) -> np.ndarray:
        """Return whether the `edits` of a further step, combined with those of all earlier steps, leave each
        document without visible characters, bool [rows]. False for documents that the further step does not
        edit.
        """
        if not len(edits.flatten()):
            return np.zeros(self.rows, bool)
        return find_emptied(_chunk(self.table(("text",))["text"]), [*self.edit_columns(), edits])

    def splits(self) -> pa.Array | None:
        """Return the split (`train`, `validation` or `test`) that the source assigns to each document, string
        [rows]; None if the source comes without a split.
        """
        if self.given is None:
            return None
        columns = self.given.read_columns()
        docs = self.table(columns) if columns else pa.table({"row": pa.nulls(self.rows)})
        return self.given.label(docs, self.source)

    def held_out(self) -> np.ndarray:
        """Return, for each document, whether the source assigns it to validation or test, bool [rows]."""
        labels = self.splits()
        return np.zeros(self.rows, bool) if labels is None else is_held_out(labels)

    def has(self, column: str) -> bool:
        """Return whether a step wrote this annotation column for this part."""
        return any(column in annotation.schema for annotation in self.annotations)

    def kept_text_bytes(self, training: bool = False) -> int:
        """Return the total size, in UTF-8 bytes, of the edited texts of all documents without a `drop`. With
        `training`, held-out documents are not counted.
        """
        kept = pc.is_null(self.drop()).to_numpy(zero_copy_only=False)
        rows = pa.array(np.flatnonzero(kept & ~self.held_out() if training else kept))
        lengths = pc.binary_length(_chunk(self.table(("text",))["text"])).take(rows).to_numpy()
        edits = self.edits(rows=rows)
        return int((lengths if edits is None else edited_lengths(lengths, edits)).sum())

    def _edited(self, stored: pa.ChunkedArray, text: Text, rows: pa.Array | None) -> pa.Array:
        edits = self.edits_of(text, rows)
        return _chunk(stored) if edits is None else apply_edits(_chunk(stored), edits)

    def _upto(self, step: str | None) -> Sequence[Annotation]:
        if step is None:
            return self.annotations
        allowed = self.order[: self.order.index(step) + 1]
        return [annotation for annotation in self.annotations if annotation.step in allowed]

    def _annotated(self, names: Sequence[str]) -> dict[str, pa.ChunkedArray | pa.Array]:
        missing, result = dict.fromkeys(names), {}
        for annotation in self.annotations:
            found = [n for n in missing if n in annotation.schema and n not in (DROP, EDITS_COLUMN)]
            if found:
                table = annotation.columns(found)
                result.update({name: table[name] for name in found})
                for name in found:
                    del missing[name]
        for name in missing:
            assert name in self.types.names, f"part {self.name}: no step writes the column {name!r}"
            result[name] = pa.nulls(self.rows, self.types.field(name).type)
        return result


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) and combined.num_chunks else combined
