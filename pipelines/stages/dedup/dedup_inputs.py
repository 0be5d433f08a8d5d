"""The documents that compete in a deduplication: those of the build's parts and those of finished corpora.
The text of a finished corpus is not read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import ConfigError, CorruptFileError, UserError
from gristmill.storage.location import FileRecord, Location
from gristmill.storage.parsing import parse_location
from pipelines.contracts.document import FILE_INDEX, ID, QUARANTINE
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import StepManifest, load_corpus, load_step, read_table, schema_facts
from pipelines.contracts.parts import Part

Indexes = dict[str, tuple[FileRecord, ...]]
"""File records of the file index and then of the quarantine that each unit of work of a read step wrote, by the unit's
number.
"""
KEPT_BEFORE, DROPPED_BEFORE, NEW = range(3)
"""Priority of a document in its cluster: documents of finished corpora come before new ones."""


@dataclass(frozen=True)
class Candidates:
    """A part whose documents compete. `number` is its index among all competing parts. Rows are numbered
    across all these parts, and `first` is the number of this part's first row.

    `rank` is the position of the part's source in the order of sources; sources of finished corpora come
    last. `index` holds the records of two files written when the part was read, the file index and the
    quarantine; it is empty if the read step is not published. `finished` is true for a part of a finished
    corpus.
    """

    part: Part
    number: int
    first: int
    rank: int
    index: tuple[FileRecord, ...]
    finished: bool = False

    def ids(self) -> pa.Array:
        """Return the ids of all rows, derived from the file index if there is one. Raises CorruptFileError if
        the file index does not match the documents.
        """
        if not self.index:
            return self.part.table(("id",))["id"].combine_chunks()
        index = read_table(self.part.directory, self.index[0], FILE_INDEX.names, schema_facts(FILE_INDEX))
        index = index.filter(pc.equal(index["part"], Path(self.part.documents.path).stem)).sort_by("first_row")
        quarantine = self._quarantine(index)
        identifiers: np.ndarray = np.empty((self.part.rows, 2), dtype=">u8")
        filled = 0
        for share in index.to_pylist():
            records = np.arange(share["first_record"], share["first_record"] + share["records"], dtype=np.uint64)
            if share["quarantined"]:
                aside = quarantine.filter(pc.equal(quarantine["path"], share["path"]))["record"]
                records = records[~np.isin(records, aside.to_numpy().astype(np.uint64))]
            after = filled + share["rows"]
            if len(records) != share["rows"] or after > self.part.rows:
                raise self._index_error()
            identifiers[filled:after, 0], identifiers[filled:after, 1] = share["key"], records
            filled = after
        if filled != self.part.rows:
            raise self._index_error()
        return pa.FixedSizeBinaryArray.from_buffers(ID, self.part.rows, [None, pa.py_buffer(identifiers)])

    def _quarantine(self, index: pa.Table) -> pa.Table:
        """Return a table with the columns `path` and `record` of the quarantined records in the part's files.
        `index` holds the part's rows of the file index. Each quarantine file is filtered as it is read,
        because most of its rows may belong to other parts.
        """
        shares = index.filter(pc.greater(index["quarantined"], 0))
        found = [QUARANTINE.empty_table().select(["path", "record"])]
        for record in self.index[1:] if shares.num_rows else ():
            aside = read_table(self.part.directory, record, ["path", "record"], schema_facts(QUARANTINE))
            aside = aside.filter(pc.is_in(aside["path"], value_set=shares["path"].combine_chunks()))
            if shares.num_rows == 1:  # a part holds a range of the records of a large file
                first, count = shares["first_record"][0].as_py(), shares["records"][0].as_py()
                numbers = aside["record"]
                aside = aside.filter(pc.and_(pc.greater_equal(numbers, first), pc.less(numbers, first + count)))
            found.append(aside)
        return pa.concat_tables(found)

    def _index_error(self) -> CorruptFileError:
        return CorruptFileError(
            f"{self.part.directory}: its file index does not match the documents of {self.part.name}; build it again"
        )

    def competing(self, column: str, cluster: str) -> tuple[np.ndarray, pa.Array]:
        """Return the rows of the competing documents and their values of `column`. A document competes if it
        has a value and no earlier step dropped it. In the corpus that is being built, documents that their
        source assigns to validation or test do not compete.

        In a finished corpus, the earlier steps are those before the step that wrote the column `cluster`, so
        documents dropped by that step itself do compete.
        """
        alive = pc.is_null(self._drop(cluster)[0])
        values = self.part.table((column,))[column].combine_chunks()
        competes = pc.and_(alive, pc.is_valid(values)).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(competes if self.finished else competes & ~self.part.held_out())
        return rows, values.take(pa.array(rows))

    def priority(self, rows: np.ndarray, cluster: str) -> np.ndarray:
        """Return the priority of each of `rows`, int8: NEW for a document of the build; for a document of a
        finished corpus, DROPPED_BEFORE if the step that wrote `cluster` or an earlier step dropped it,
        otherwise KEPT_BEFORE.
        """
        if not self.finished:
            return np.full(len(rows), NEW, np.int8)
        kept = pc.is_null(self._drop(cluster)[1]).to_numpy(zero_copy_only=False)[rows]
        return np.where(kept, KEPT_BEFORE, DROPPED_BEFORE).astype(np.int8)

    def _drop(self, cluster: str) -> tuple[pa.Array, pa.Array]:
        """Return the merged `drop` of all steps before the step that wrote the column `cluster`, and the
        merged `drop` including that step. If the part is new or no step wrote the column, both are the merged
        `drop` of all steps.
        """
        names = [annotation.schema for annotation in self.part.annotations]
        position = next((i for i, schema in enumerate(names) if self.finished and cluster in schema), None)
        if position is None:
            return (self.part.drop(),) * 2
        before, after = (
            replace(self.part, annotations=self.part.annotations[:end]).drop() for end in (position, position + 1)
        )
        return before, after


def check_against(against: Sequence[str]) -> None:
    """Raise ValueError if `parse_location` rejects one of the locations."""
    for directory in against:
        try:
            parse_location(directory, field="against")
        except ConfigError as error:
            raise ValueError(str(error)) from None


def candidates(parts: Sequence[Part], against: Sequence[str], column: str) -> list[Candidates]:
    """Return the parts of a build, followed by the parts of the finished corpora `against`. Raises UserError
    if the values of `column` are missing in a finished corpus or were not all computed in the same way.
    """
    inputs: list[Candidates] = []
    ranks: dict[tuple[str, str], int] = {}
    indexes: dict[tuple[str, str], Indexes] = {}
    first = 0

    def add(part: Part, corpus: str, read: StepManifest | None) -> None:
        nonlocal first
        rank = ranks.setdefault((corpus, part.source), len(ranks))
        key = (corpus, part.source)
        if key not in indexes:
            indexes[key] = {} if read is None else _indexes(read)
        index = indexes[key].get(_unit(part.documents), ())
        inputs.append(Candidates(part, len(inputs), first, rank, index, finished=bool(corpus)))
        first += part.rows

    for part in parts:
        add(
            part,
            "",
            load_step(part.directory.parent, part.directory.name) if ("", part.source) not in indexes else None,
        )
    places = {_place(parts[0].directory.parent)} if parts else set()
    for directory in against:
        corpus = open_corpus(parse_location(directory))
        if (place := _place(corpus.directory)) in places:
            raise UserError(f"against: {directory}: is the corpus that is being built, or occurs twice; remove it")
        places.add(place)
        for part in corpus.parts():
            if not part.has(column):
                raise UserError(
                    f"against: {directory}: its source {part.source!r} has no column {column!r}; corpora are compared by columns "
                    "that their own steps wrote, so build it with the step that writes this one"
                )
            if parts and part.types.field(column).type != parts[0].types.field(column).type:
                raise UserError(
                    f"against: {directory}: its column {column!r} is {part.types.field(column).type}, but here it is "
                    f"{parts[0].types.field(column).type}; give that step the same knobs in both"
                )
            add(part, directory, corpus.read_step(part.source).manifest)
    _refuse_mixtures(inputs, column)
    return inputs


def _place(directory: Location) -> str:
    return str(directory if directory.local is None else Path(directory.local).resolve())


def _indexes(read: StepManifest) -> Indexes:
    found: dict[str, tuple[FileRecord, ...]] = {}
    for folder in ("files", "quarantine"):
        for record in read.files:
            if record.path.startswith(f"{folder}/"):
                found[_unit(record)] = (*found.get(_unit(record), ()), record)
    return found


def _unit(record: FileRecord) -> str:
    """Return the digits at the beginning of a file's name, which number the unit of work that wrote the file."""
    number = re.match(r"\d+", Path(record.path).name)
    return "" if number is None else number[0]


def fingerprints(against: Sequence[str]) -> dict[str, str]:
    """Return the fingerprints of the finished corpora, for `depends()`. They do not depend on where the
    corpora are stored.
    """
    return {f"against[{i}]": load_corpus(parse_location(directory)).fingerprint for i, directory in enumerate(against)}


def writer(part: Part, column: str) -> dict[str, object] | None:
    """Return the stage, version, knobs and dependencies of the step that wrote a column of a part, or None if
    no published step wrote it.
    """
    annotation = next((a for a in part.annotations if column in a.schema), None)
    step = None if annotation is None else load_step(annotation.directory.parent, annotation.directory.name)
    return None if step is None else {name: step.identity[name] for name in ("stage", "version", "knobs", "depends")}


def _refuse_mixtures(inputs: Sequence[Candidates], column: str) -> None:
    by_step: dict[Location | None, Part] = {}
    for one in inputs:
        directory = next((a.directory for a in one.part.annotations if column in a.schema), None)
        by_step.setdefault(directory, one.part)
    written = [(directory, writer(part, column)) for directory, part in by_step.items()]
    known = [(directory, how) for directory, how in written if how is not None]
    for directory, how in known[1:]:
        if how != known[0][1]:
            raise UserError(
                f"the values of {column!r} in {directory} and {known[0][0]} were not computed in the same way and cannot be "
                "compared; give the steps the same knobs, and build both with the same version"
            )
