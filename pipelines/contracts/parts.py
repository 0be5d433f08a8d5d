"""A part with its annotations: the one way to read documents and the columns that steps added to them, row by row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.store import FileRecord
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.edits import apply_edits, compose, edited_lengths, find_emptied, map_back
from pipelines.contracts.manifest import read_table

DOCUMENT_COLUMNS = ("id", "text", "source", "url", "meta")


@dataclass(frozen=True)
class Annotation:
    """One step's columns of one part: a file, or in a fused task a table still in memory."""

    step: str
    directory: Path
    file: FileRecord | None
    schema: dict[str, str]
    table: pa.Table | None = None

    def column(self, name: str) -> pa.ChunkedArray:
        """One column, from memory or from the file."""
        return self.columns([name])[name]

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Some columns, from memory or with one read of the file."""
        if self.table is not None:
            return self.table.select(names)
        assert self.file is not None
        return read_table(self.directory, self.file, names, self.schema)


@dataclass(frozen=True)
class Part:
    """A document part and the annotations visible to one reader, in the order of the steps.

    `table` resolves column names as pipelines.contracts.stage says. `types` holds the type of every column of the build,
    `order` the names of its steps, `loaded` the document columns where a task has read them already.
    """

    source: str
    index: int
    rows: int
    text_bytes: int
    directory: Path
    documents: FileRecord
    schema: dict[str, str]
    types: pa.Schema
    order: tuple[str, ...]
    annotations: tuple[Annotation, ...] = ()
    tokenizer_share: float = 1.0
    loaded: pa.Table | None = None

    @property
    def name(self) -> str:
        """`source/00000`: how the part is called in messages and counts."""
        return f"{self.source}/{self.index:05d}"

    def table(self, columns: Iterable[str]) -> pa.Table:
        """The named columns, one chunk each. One that no step wrote for this source is null, or left out if named `column?`."""
        optional = {name.rstrip("?"): name.endswith("?") for name in columns}
        wanted = [name for name, may_lack in optional.items() if not may_lack or self.has(name)]
        stored = [name for name in wanted if name in DOCUMENT_COLUMNS]
        if any(name == "edited_text" or name.startswith("text@") for name in wanted) and "text" not in stored:
            stored.append("text")
        documents = self.loaded
        if documents is None and stored:
            documents = read_table(self.directory, self.documents, stored, self.schema)
        annotated = self._annotated([name for name in wanted if not self._is_computed(name)])
        result = {}
        for name in wanted:
            if name in annotated:
                result[name] = annotated[name]
            elif name in DOCUMENT_COLUMNS:
                assert documents is not None
                result[name] = documents[name]
            elif name == DROP:
                result[name] = self.drop()
            else:
                assert documents is not None
                result[name] = self._edited(documents["text"], name.partition("@")[2] or None)
        return pa.table(result).combine_chunks()

    def drop(self, upto: str | None = None) -> pa.Array:
        """Per row the first non-null `drop` of the steps (up to and with step `upto`): the rule that removed it, or null."""
        columns = [a.column(DROP).combine_chunks() for a in self._upto(upto) if DROP in a.schema]
        return pc.coalesce(*columns) if columns else pa.nulls(self.rows, pa.string())

    def edits(self, upto: str | None = None) -> pa.Array | None:
        """The composed edits of the steps (up to and with step `upto`); None where no step edits."""
        columns = self.edit_columns(upto)
        return compose(columns) if columns else None

    def edit_columns(self, upto: str | None = None) -> list[pa.Array]:
        """The `edits` of each step that edits (up to and with step `upto`), in order."""
        return [_chunk(a.column(EDITS_COLUMN)) for a in self._upto(upto) if EDITS_COLUMN in a.schema]

    def in_stored_text(self, edits: pa.Array, text: str, rows: Any = None) -> pa.Array:
        """Edits found in one text of the documents (`text`, `text@STEP` or `edited_text`), as edits of the stored text.

        `rows` are those of the documents that `edits` is about, where these are not all.
        """
        applied = None if text == "text" else self.edits(text.partition("@")[2] or None)
        if applied is None:
            return edits
        return map_back(applied if rows is None else applied.take(rows), edits)

    def emptied(self, edits: pa.Array) -> np.ndarray:
        """Documents of which a step's edits, after those of all steps before it, leave nothing, bool [rows]."""
        if not len(edits.flatten()):
            return np.zeros(self.rows, bool)
        return find_emptied(_chunk(self.table(("text",))["text"]), [*self.edit_columns(), edits])

    def has(self, column: str) -> bool:
        """Whether some step wrote this annotation column for this part."""
        return any(column in annotation.schema for annotation in self.annotations)

    def kept_text_bytes(self) -> int:
        """UTF-8 bytes of the edited text of all documents without a `drop`."""
        lengths = pc.binary_length(_chunk(self.table(("text",))["text"])).to_numpy()
        edits = self.edits()
        lengths = lengths if edits is None else edited_lengths(lengths, edits)
        return int(lengths[pc.is_null(self.drop()).to_numpy(zero_copy_only=False)].sum())

    def _edited(self, text: pa.ChunkedArray, upto: str | None) -> pa.Array:
        edits = self.edits(upto)
        return _chunk(text) if edits is None else apply_edits(_chunk(text), edits)

    def _upto(self, step: str | None) -> Sequence[Annotation]:
        if step is None:
            return self.annotations
        allowed = self.order[: self.order.index(step) + 1]
        return [annotation for annotation in self.annotations if annotation.step in allowed]

    @staticmethod
    def _is_computed(name: str) -> bool:
        """Whether a column is of the document, or derived from several steps, instead of one step's own."""
        return name in (*DOCUMENT_COLUMNS, DROP, "edited_text") or name.startswith("text@")

    def _annotated(self, names: Sequence[str]) -> dict[str, pa.ChunkedArray | pa.Array]:
        """Columns of steps, each from the first step that wrote it, with one read per file; null where none did."""
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
