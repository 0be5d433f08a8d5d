"""Lineage: find a document's history from its id, using only the published corpus directory.

The corpus manifest names its steps. The read step's file index leads from an id to the part and row of a
document, or to the quarantine. Each step's manifest names the file with the columns that the step wrote for
that part.
"""

import difflib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.config import near_match
from gristmill.errors import CorruptFileError, UserError
from gristmill.storage.location import FileRecord, Location
from pipelines.contracts.document import (
    FILE_INDEX,
    ID,
    NOT_SAMPLED,
    QUARANTINE,
    document_id,
    file_key,
    format_id,
    ids_as_integers,
    parse_id,
    split_id,
)
from pipelines.contracts.given_split import SPLITS, GivenSplit, IdSplit, PublishedIdSplit, parse_split
from pipelines.contracts.manifest import (
    EARLIER,
    CorpusManifest,
    PartRecord,
    StepManifest,
    load_corpus,
    load_step,
    read_schema,
    read_table,
    schema_facts,
)
from pipelines.contracts.parts import DOCUMENT_COLUMNS, Annotation, Part
from pipelines.contracts.shard_set import Shard, ShardRecord, open_shard

_SIMILAR_PATHS = 5000  # paths compared for a near match, a bound for sources with millions of files


@dataclass(frozen=True)
class PublishedStep:
    """A step of a published corpus: its label, its directory and its manifest."""

    label: str
    directory: Location
    manifest: StepManifest

    @property
    def name(self) -> str:
        """The name of the step without its source: `language` for the label `language.web`."""
        return self.label.partition(".")[0]

    @property
    def stage(self) -> str:
        """The YAML name of the step's stage."""
        return str(self.manifest.identity["stage"])


@dataclass(frozen=True)
class Origin:
    """Where a record comes from: its number `record`, counted from 0, in the file or archive member `path` of
    `source`. `id` is the binary form of the document id.
    """

    id: bytes
    source: str
    path: str
    record: int

    @property
    def printed(self) -> str:
        """The printed id, `source/path#record`."""
        return format_id(self.source, self.path, self.record)


@dataclass(frozen=True)
class Located(Origin):
    """A document and where it is stored: in row `row` of `part`, which carries the annotations of all steps."""

    part: Part
    row: int


@dataclass(frozen=True)
class Quarantined(Origin):
    """A record that was set aside when it was read, or whose document was forgotten later. `bytes` is its
    size, None if unknown.
    """

    reason: str
    bytes: int | None


@dataclass(frozen=True)
class ShardRow:
    """The location of a document in a shard set: its row in the shard `path`, a path relative to the corpus
    directory.
    """

    shard_set: str
    split: str
    path: str
    row: int
    tokens: int


def open_corpus(directory: Location) -> "Corpus":
    """Open a published corpus, given its directory or the path of its manifest. Raises UserError if the
    corpus manifest is missing or has another format version, and CorruptFileError if a step is missing,
    differs from what the manifest recorded, or may hold forgotten documents.
    """
    manifest = load_corpus(directory)
    root = directory.parent if directory.suffix == ".json" else directory
    steps = []
    if directory.name.startswith(EARLIER):
        advice = "`gc` or a build has removed steps of this earlier build, so it can no longer be read"
    else:
        advice = "build the corpus again"
    for entry in manifest.steps:
        step = load_step(root, entry["directory"])
        if step is None or step.fingerprint != entry["fingerprint"]:
            if step is None and (root / entry["directory"] / "manifest.json").exists():
                raise CorruptFileError(
                    f"{root / entry['directory']}: step {entry['step']} may hold documents that were forgotten; {advice}"
                )
            difference = "is missing" if step is None else f"is {step.fingerprint}"
            raise CorruptFileError(
                f"{root / entry['directory']}: step {entry['step']} {difference}, the corpus manifest recorded "
                f"{entry['fingerprint']}; {advice}"
            )
        steps.append(PublishedStep(entry["step"], root / entry["directory"], step))
    return Corpus(root, manifest, tuple(steps))


@dataclass(frozen=True)
class Corpus:
    """A published corpus. `steps` are in the order of the build; read steps come first."""

    directory: Location
    manifest: CorpusManifest
    steps: tuple[PublishedStep, ...]

    def check_source(self, source: str, where: str = "source") -> None:
        """Raise UserError unless the corpus has this source. The message begins with `where`."""
        if source not in self.manifest.sources:
            names = list(self.manifest.sources)
            raise UserError(
                f"{where}: the corpus {self.manifest.corpus!r} has no source {source!r}{near_match(source, names)}"
            )

    def choose_sources(self, names: Sequence[str] | None, where: str = "sources") -> list[str]:
        """Return the named sources without duplicates, or all sources if `names` is None. Raises UserError
        for an unknown name and for an empty list.
        """
        if names is None:
            return list(self.manifest.sources)
        if not names:
            raise UserError(f"{where}: names no source; there are: {', '.join(self.manifest.sources)}")
        for name in names:
            self.check_source(name, where)
        return list(dict.fromkeys(names))

    def read_step(self, source: str) -> PublishedStep:
        """Return the step that read `source`, which must be a source of the corpus."""
        return next(step for step in self.steps if step.label == f"read.{source}")

    def parts(self, source: str | None = None) -> Iterator[Part]:
        """Yield the parts of a source (default: all sources) with the annotations of all steps. Raises
        UserError for an unknown source, and CorruptFileError if a part's number of rows differs between steps
        because `forget` has not finished.
        """
        if source is not None:
            self.check_source(source)
        self._check_rows()
        for name in self.manifest.sources if source is None else (source,):
            for record in self.read_step(name).manifest.parts:
                yield self._part(name, record)

    def find(self, identifier: str) -> Located | Quarantined:
        """Return the record with this id, given in printed form (`source/path#record`) or as 32 hex digits.
        Raises UserError if the id is malformed or unknown.
        """
        raw = _from_hex(identifier)
        if raw is not None:
            return self._locate(raw, *self._file(raw))
        source, path, record = parse_id(identifier)
        self.check_source(source, identifier)
        if record >= 1 << 64:
            raise UserError(f"{identifier}: record numbers have at most 64 bits")
        key = file_key(source, path)
        shares = [share for share in self._shares(source, key) if share["path"] == path]
        if not shares:
            raise UserError(
                f"{identifier}: the source {source!r} has no file {path!r}{self._similar_path(source, path)}"
            )
        return self._locate(document_id(key, record), source, shares)

    def printed_id(self, identifier: bytes) -> str:
        """Return the printed form of a 16-byte id. Raises UserError if the corpus has no file for it."""
        source, shares = self._file(identifier)
        return format_id(source, shares[0]["path"], split_id(identifier)[1])

    def printed_ids(self, part: Part) -> list[str]:
        """Return the printed ids of all rows of a part of this corpus."""
        read = self.read_step(part.source)
        name = Path(part.documents.path).stem
        (file,) = _unit_files(read, "files", name.rpartition("-")[0])
        index = _index(read.directory, file)
        index = index.filter(pc.equal(index["part"], name)).sort_by("first_row")
        files = np.repeat(np.arange(index.num_rows), index["rows"].to_numpy())
        numbers = ids_as_integers(part.table(("id",))["id"].combine_chunks())["record"]
        if len(files) != len(numbers):
            raise CorruptFileError(f"{read.directory}: the index of files counts other rows than part {name}")
        heads = pc.binary_join_element_wise(part.source, index["path"].combine_chunks().cast(pa.string()), "/")
        texts = pa.array(numbers, pa.uint64()).cast(pa.string())
        printed: list[str] = pc.binary_join_element_wise(heads.take(pa.array(files)), texts, "#").to_pylist()
        return printed

    def quarantined(self, source: str) -> Iterator[Quarantined]:
        """Yield the quarantined records of a source, including those of forgotten documents but not those
        left out by sampling.
        """
        read = self.read_step(source)
        for record in read.manifest.files:
            if record.path.startswith("quarantine/"):
                table = read_table(read.directory, record, QUARANTINE.names, schema_facts(QUARANTINE))
                for row in table.filter(pc.not_equal(table["reason"], NOT_SAMPLED)).to_pylist():
                    identifier = document_id(file_key(source, row["path"]), row["record"])
                    yield Quarantined(identifier, source, row["path"], row["record"], row["reason"], row["bytes"])

    def shard_rows(self, identifier: bytes) -> list[ShardRow]:
        """Return the location of a document in each shard set that contains it. Raises UserError for an
        unknown id.
        """
        source, shares = self._file(identifier)
        document = self._locate(identifier, source, shares)
        rows = []
        for name, shard_set in self.manifest.shard_sets.items():
            by_share: dict[tuple[str, str], list[ShardRecord]] = {}
            for held in (each for each in shard_set.shards if each.documents and each.source == source):
                by_share.setdefault((held.split, held.group), []).append(held)
            for split, group in sorted(by_share, key=lambda share: (SPLITS.index(share[0]), share[1])):
                shards = by_share[split, group]
                if isinstance(document, Located):
                    position = (document.part.index, document.row)
                    record = shards[max(0, bisect_right(shards, position, key=self._first_place) - 1)]
                    shard = self._open(record)
                    row = pc.index(shard.doc_ids, pa.scalar(identifier, ID)).as_py()
                    if row >= 0:
                        tokens = int(shard.offsets[row + 1] - shard.offsets[row])
                        rows.append(ShardRow(name, split, record.path, row, tokens))
        return rows

    def _open(self, record: ShardRecord) -> Shard:
        return open_shard(self.directory, record.file)

    def _first_place(self, record: ShardRecord) -> tuple[int, int]:
        """Return the part index and the row of a shard's first document."""
        first = self._open(record).doc_ids[0].as_py()
        document = self._locate(first, *self._file(first))
        if isinstance(document, Quarantined):
            raise CorruptFileError(
                f"{record.path}: holds {document.printed}, which was set aside; build the corpus again"
            )
        return document.part.index, document.row

    def _part(self, source: str, record: PartRecord) -> Part:
        read = self.read_step(source)
        annotations = []
        for step in self.steps:
            file = step.manifest.part_files.get((source, record.index))
            if file is not None and step.stage != "read":
                annotations.append(Annotation(step.name, step.directory, file, step.manifest.schema))
        order = tuple(dict.fromkeys(step.name for step in self.steps if step.stage not in ("read", "funnel")))
        return Part(
            source, record.index, record.rows, record.text_bytes, read.directory, record.file, read.manifest.schema,
            self._types, order, tuple(annotations), given=self._given[source],
        )  # fmt: skip

    @cached_property
    def _given(self) -> dict[str, GivenSplit | None]:
        where = str(self.directory / "manifest.json")
        funnel = next(step.manifest for step in self.steps if step.label == "funnel")
        recorded = funnel.identity["inputs"].get("split", {})
        splits: dict[str, GivenSplit | None] = {}
        for source in self.manifest.config["sources"]:
            split = parse_split(source.get("split"), where)
            if isinstance(split, IdSplit):
                split = PublishedIdSplit(**vars(split), recorded=recorded[source["name"]])
            splits[source["name"]] = split
        return splits

    def _check_rows(self) -> None:
        rows: dict[tuple[str, int], int] = {}
        for step in self.steps:  # read steps come first
            for part in step.manifest.parts:
                if rows.setdefault((part.source, part.index), part.rows) != part.rows:
                    raise CorruptFileError(
                        f"{step.directory}: has {part.rows} rows for the {rows[part.source, part.index]} documents of part "
                        f"{part.source}/{part.index:05d}; `pipelines forget` is running here or was interrupted: let "
                        f"it finish, then run the command again"
                    )

    @cached_property
    def _types(self) -> pa.Schema:
        types: dict[str, pa.DataType] = {}
        for step in self.steps:
            if step.stage != "read":
                for name in step.manifest.schema:
                    types.setdefault(name, pa.null())
                if step.manifest.parts and step.manifest.schema:
                    schema = read_schema(step.directory, step.manifest.parts[0].file)
                    types.update({name: schema.field(name).type for name in schema.names})
        return pa.schema(list(types.items()))

    def _shares(self, source: str, key: int) -> list[dict[str, Any]]:
        """Return the rows of a source's file index for the file with this key, in the order of their records,
        each with the `unit` that read it.
        """
        read = self.read_step(source)
        shares = []
        for record in read.manifest.files:
            if record.path.startswith("files/"):
                index = _index(read.directory, record)
                rows = index.filter(pc.equal(index["key"], pa.scalar(key, pa.uint64()))).to_pylist()
                shares += [{**row, "unit": Path(record.path).stem} for row in rows]
        return sorted(shares, key=lambda share: share["first_record"])

    def _file(self, identifier: bytes) -> tuple[str, list[dict[str, Any]]]:
        key = split_id(identifier)[0]
        for source in self.manifest.sources:
            shares = self._shares(source, key)
            if shares:
                return source, shares
        raise UserError(f"{identifier.hex()}: no file of the corpus {self.manifest.corpus!r} has the key {key:016x}")

    def _locate(self, identifier: bytes, source: str, shares: Sequence[dict[str, Any]]) -> Located | Quarantined:
        record, path = split_id(identifier)[1], shares[0]["path"]
        share = next((s for s in shares if s["first_record"] <= record < s["first_record"] + s["records"]), None)
        if share is None:
            count = max(s["first_record"] + s["records"] for s in shares)
            held = f"{count:,} records, 0 to {count - 1}" if count else "no record"
            raise UserError(f"{format_id(source, path, record)!r}: the file holds {held}")
        read = self.read_step(source)
        if share["rows"]:
            file = f"parts/{share['part']}.arrow"
            part = self._part(source, next(p for p in read.manifest.parts if p.file.path == file))
            row = share["first_row"] + record - share["first_record"]
            if share["quarantined"]:
                ids = part.table(("id",))["id"].combine_chunks().slice(share["first_row"], share["rows"])
                position = pc.index(ids, pa.scalar(identifier, ID)).as_py()
                row = share["first_row"] + position if position >= 0 else -1
            if row >= 0:
                return Located(identifier, source, path, record, part, row)
        for quarantine in _unit_files(read, "quarantine", share["unit"]):
            aside = read_table(read.directory, quarantine, QUARANTINE.names, schema_facts(QUARANTINE))
            aside = aside.filter(pc.and_(pc.equal(aside["path"], path), pc.equal(aside["record"], record)))
            if aside.num_rows:
                found = aside.to_pylist()[0]
                return Quarantined(identifier, source, path, record, found["reason"], found["bytes"])
        name = format_id(source, path, record)
        raise CorruptFileError(f"{name!r}: indexed by {read.directory}, but neither a document nor quarantined")

    def _similar_path(self, source: str, path: str) -> str:
        read = self.read_step(source)
        paths: dict[str, None] = {}
        for record in read.manifest.files:
            if record.path.startswith("files/"):
                index = _index(read.directory, record)["path"]
                tail = path.rpartition("!")[2].rpartition("/")[2]
                same_name = index.filter(pc.ends_with(index, tail)).to_pylist()
                if same_name:
                    return f"; did you mean {same_name[0]!r}?"
                paths.update(dict.fromkeys(index.slice(0, _SIMILAR_PATHS - len(paths)).to_pylist()))
        nearest = difflib.get_close_matches(path, list(paths), n=1, cutoff=0.6)
        if nearest:
            return f"; did you mean {nearest[0]!r}?"
        return f"; its first file is {next(iter(paths))!r}" if paths else ""


def select_rows(part: Part, rows: Sequence[int], columns: Collection[str] | None = None) -> Part:
    """Return an in-memory copy of the given rows of a part, with all columns or only those in `columns`,
    which must include `text`.
    """

    def wanted(names: Iterable[str]) -> list[str]:
        return [name for name in names if columns is None or name in columns]

    taken = pa.array(rows, pa.int64())
    stored = DOCUMENT_COLUMNS if part.loaded is None else part.loaded.column_names
    documents = part.table(wanted(stored)).take(taken).combine_chunks()
    annotations = []
    for annotation in part.annotations:
        names = wanted(annotation.schema)
        schema = {name: annotation.schema[name] for name in names}
        table = annotation.columns(names).take(taken).combine_chunks() if names else None
        annotations.append(replace(annotation, table=table, schema=schema))
    text_bytes = sum(pc.binary_length(documents["text"]).to_pylist())
    return replace(part, rows=len(rows), text_bytes=text_bytes, loaded=documents, annotations=tuple(annotations))


def _from_hex(identifier: str) -> bytes | None:
    if len(identifier) != 32:
        return None
    try:
        raw = bytes.fromhex(identifier)
    except ValueError:
        return None
    return raw if len(raw) == 16 else None


def _unit_files(read: PublishedStep, folder: str, unit: str) -> list[FileRecord]:
    """Return the records of a unit's files in a folder, `files` or `quarantine`. The main file is
    `UNIT.arrow`; the earlier rows of a long quarantine are in files `UNIT-PART.arrow`. Files that `forget`
    has rewritten have a `~` and a suffix after these names, and are included.
    """

    def unit_of(name: str) -> str:
        return name.partition("~")[0].partition("-")[0]

    paths = ((record, Path(record.path)) for record in read.manifest.files)
    return [r for r, path in paths if path.parent.name == folder and unit_of(path.stem) == unit_of(unit)]


@lru_cache(maxsize=64)
def _index(directory: Location, record: FileRecord) -> pa.Table:
    return read_table(directory, record, FILE_INDEX.names, schema_facts(FILE_INDEX))
