"""Manifests describe published steps and published corpora. A step without a manifest is not published.

A step's directory holds `manifest.json` (written last), the step's files and, while the step is being built,
`units/` with one receipt per finished unit of work. Times, hosts and rates go to `run.json`, never into a
manifest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa

from gristmill.budget import READING, spend
from gristmill.config import plain
from gristmill.errors import AccountingError, ConflictError, CorruptFileError, UserError
from gristmill.host import lent
from gristmill.storage.location import Check, Content, FileRecord, Location, missing_file
from gristmill.storage.retries import retry
from gristmill.storage.store import digest, read_json, write_json, write_new_json
from pipelines.contracts.document_counts import Counts, parse_counts
from pipelines.contracts.shard_set import ShardSet, shard_set_of
from pipelines.contracts.tombstone import FORGOTTEN, REWRITTEN, current_mark, is_current

STEP_FORMAT = "gristmill-step/1"
CORPUS_FORMAT = "gristmill-corpus/1"
EARLIER = "earlier-"
"""Prefix of the file names of manifests that later builds have replaced (`pipelines.building.earlier_builds`)."""
_VARIANT = "variant-"
_LARGE = 1 << 20  # bytes; below, several threads take a third longer than one, and few columns longer than all bytes
_SMALL = 1 << 16  # bytes; a zstd frame per buffer then takes ten times the time of the rest, to write and to read
Place = TypeVar("Place", bound=Location)
Value = TypeVar("Value")


@dataclass(frozen=True)
class PartRecord:
    """One part of a step: its source, its index in the source, its size and its file. `text_bytes` is the
    size of its texts; it is 0 for annotation parts.
    """

    source: str
    index: int
    rows: int
    text_bytes: int
    file: FileRecord


@dataclass(frozen=True)
class StepManifest:
    """The manifest of a published step: what the step was built from, its parts and files, and its counts by
    source. `fingerprint` is the digest of `identity`: the stage, its version and knobs, the libraries and
    models that it depends on, and the fingerprints of its inputs. `facts` holds what the stage publishes in
    addition to its columns and files.
    """

    step: str
    source: str | None
    fingerprint: str
    identity: dict[str, Any]
    schema: dict[str, str]
    parts: tuple[PartRecord, ...] = ()
    files: tuple[FileRecord, ...] = ()
    counts: dict[str, Counts] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def facts_on_disk(self) -> dict[str, Any]:
        """Return the content of the manifest's file without `format` and `checksum`. The result shares
        dictionaries with this object.
        """
        stored: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return stored | {
            "parts": [asdict(part) for part in self.parts],
            "files": [asdict(file) for file in self.files],
            "counts": {source: counts.facts() for source, counts in self.counts.items()},
        }

    @cached_property
    def part_files(self) -> dict[tuple[str, int], FileRecord]:
        """Return the file of each part, keyed by (source, index)."""
        return {(part.source, part.index): part.file for part in self.parts}


@dataclass(frozen=True)
class Receipt:
    """Proof that a unit of work is finished: the files it wrote and its counts."""

    unit: str
    files: tuple[FileRecord, ...]
    counts: dict[str, Any]


@dataclass(frozen=True)
class StepOutput:
    """A step's directory while the step is being built. It is picklable, so that tasks can commit their own
    units.

    `inputs` contains the directories of the steps whose files or facts this step needs, keyed by step name.
    These are the steps of the `StepFiles` in the stage's `reads()`, and its `derived_steps()`.

    `mark` is the mark that the corpus's tombstone had when the build began. Receipts with another mark are
    ignored. If documents are forgotten during the build, the mark changes, and writing raises ConflictError.
    """

    root: Location
    name: str
    inputs: Mapping[str, Location] = field(default_factory=dict)
    mark: str = ""

    @property
    def directory(self) -> Location:
        """The directory of the step."""
        return self.root / self.name

    def receipt(self, unit: str) -> Receipt | None:
        """Return the receipt of a unit, or None if the unit is not finished. A receipt is ignored if it was
        written with a tombstone mark other than `self.mark`, or if any of its files is missing from a local
        disk.
        """
        try:
            value = read_json(self.directory / "units" / f"{unit}.json")
        except FileNotFoundError:
            return None
        files = tuple(FileRecord(**record) for record in value["files"])
        if value.get(FORGOTTEN, "") != self.mark or self.missing(files):
            return None
        return Receipt(value["unit"], files, value["counts"])

    def missing(self, files: Iterable[FileRecord]) -> list[str]:
        """Return the paths of the given files that no longer exist. Files in an object store are not checked."""
        if self.directory.local is None:
            return []
        return [record.path for record in files if not (self.directory / record.path).exists()]

    def write(self, relative: str, content: Content) -> FileRecord:
        """Write one file of the step atomically and return its record. Raises ConflictError if documents were
        forgotten since the build began, or if another command removes the step.
        """
        try:
            return self.directory.write_file(relative, content, self.check_forgotten)
        except FileNotFoundError as error:
            if not str(error.filename).startswith(str(self.directory)):
                raise
            raise ConflictError(
                f"{self.directory / relative}: was removed by another command while the step was built; run the command again"
            ) from None

    def check_forgotten(self) -> None:
        """Raise ConflictError if documents have been forgotten since the build began."""
        check_mark(self.root, self.mark)

    def finish_unit(self, unit: str, files: Iterable[FileRecord], counts: Mapping[str, Any]) -> Receipt:
        """Write a unit's receipt and return it. If the step has been published meanwhile, also clean up its
        directory (`finish`). Raises ConflictError if documents were forgotten since the build began.
        """
        receipt = Receipt(unit, tuple(files), dict(counts))
        mark = {FORGOTTEN: self.mark} if self.mark else {}
        write_json(self.directory / "units" / f"{unit}.json", {**asdict(receipt), **mark}, self.check_forgotten)
        with suppress(FileNotFoundError):  # it is not published
            self.finish(_load_step(self.root, self.name))
        return receipt

    def commit(self, unit: str, files: Mapping[str, Content], counts: Mapping[str, Any]) -> Receipt:
        """Write a unit's files and then its receipt. Return the receipt."""
        return self.finish_unit(unit, [self.write(relative, content) for relative, content in files.items()], counts)

    def finish(self, published: StepManifest) -> None:
        """Remove the files and folders in a published step's directory, except `manifest.json`, `run.json`,
        the files that the manifest names, the folders that contain them, and files that `forget` has
        rewritten.
        """
        named = {record.path.partition("/")[0] for record in (*published.files, *published.part_files.values())}
        named |= {"manifest.json", "run.json"}
        with suppress(FileNotFoundError):  # another command has removed the step
            for path in list(self.directory.iterdir()):
                if path.name in named or REWRITTEN in path.name:
                    continue
                if path.is_dir():
                    path.remove_tree()
                else:
                    path.unlink(missing_ok=True)
        self.directory.remove_temporaries()


def check_mark(root: Location, mark: str) -> None:
    """Raise ConflictError if documents have been forgotten since `mark` was read."""
    if current_mark(root) != mark:
        raise ConflictError(
            f"{root}: documents were forgotten while this command ran, and its work may hold them; run the command again"
        )


def schema_facts(schema: pa.Schema) -> dict[str, str]:
    """Return the type of each column as text, keyed by column name, as manifests record it."""
    return {name: str(schema.field(name).type) for name in schema.names}


def write_table(table: pa.Table) -> Callable[[BinaryIO], None]:
    """Return a function that writes `table` to a sink as one Arrow IPC file, the format of all parts."""

    def write(sink: BinaryIO) -> None:
        # One thread: a task has one core, and for small buffers several take twice as long.
        compression = "zstd" if table.nbytes > _SMALL else None
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)

    return write


def read_table(
    directory: Location, record: FileRecord, columns: Iterable[str], expected: Mapping[str, str]
) -> pa.Table:
    """Read some columns of a step's Arrow file, each as at most one chunk, after verifying the file's
    checksum. Raises CorruptFileError unless the file's columns and types are exactly those in `expected`.
    """
    wanted = list(columns)
    return _read(directory, record, lambda path: _columns(path, wanted, expected))


def read_schema(directory: Location, record: FileRecord) -> pa.Schema:
    """Return the schema of a step's Arrow file, after verifying the file's checksum."""
    return _read(directory, record, _schema)


def _read(directory: Location, record: FileRecord, read: Callable[[Path], Value]) -> Value:
    with spend(READING):
        path = directory.verify(record)
        try:
            return retry(path, lambda: read(path))
        except FileNotFoundError:  # the file was removed after it had been verified
            raise missing_file(directory / record.path, directory) from None


def open_table(path: Path) -> pa.NativeFile:
    """Open an Arrow file. A file of at most 1 MiB is read into memory, because Arrow hands every read from a
    file to another thread.
    """
    source = pa.OSFile(lent(path))
    if source.size() > _LARGE:
        return source
    with source:
        return pa.BufferReader(source.read_buffer())


def _schema(path: Path) -> pa.Schema:
    with open_table(path) as source:
        return pa.ipc.open_file(source).schema


def _columns(path: Path, wanted: Sequence[str], expected: Mapping[str, str]) -> pa.Table:
    with open_table(path) as source:
        options = pa.ipc.IpcReadOptions(use_threads=source.size() > _LARGE)
        reader = pa.ipc.open_file(source, options=options)
        if schema_facts(reader.schema) != dict(expected):
            raise CorruptFileError(
                f"{path}: its columns are {schema_facts(reader.schema)}, its manifest recorded {dict(expected)}"
            )
        if len(wanted) < len(expected):
            options.included_fields = sorted(reader.schema.get_field_index(name) for name in wanted)
            source.seek(0)
            reader = pa.ipc.open_file(source, options=options)
        table = reader.read_all()
    return table.select(wanted).combine_chunks()


def check_accounting(
    manifest: StepManifest, rows_expected: Mapping[tuple[str, int], int], counts: Mapping[str, Counts]
) -> None:
    """Raise AccountingError unless every document of every part is kept, dropped or quarantined, and the
    parts and their document counts match `rows_expected`, which is keyed by (source, index). `counts` is
    keyed by part name, such as `source/00000`.
    """
    where = f"step {manifest.step}"
    for part in manifest.parts:
        name = f"{part.source}/{part.index:05d}"
        count = counts.get(name)
        if count is None:
            raise AccountingError(f"{where}, part {name}: no counts were recorded; the step is not published")
        if count.arrived != count.left:
            raise AccountingError(
                f"{where}, part {name}: {count.arrived} documents came in, {count.left} are accounted for; the step is not "
                "published"
            )
        expected = rows_expected.get((part.source, part.index), count.arrived)
        if count.arrived != expected:
            raise AccountingError(
                f"{where}, part {name}: {count.arrived} documents came in, its input holds {expected}; the step is not published"
            )
    if {(p.source, p.index) for p in manifest.parts} != set(rows_expected):
        raise AccountingError(f"{where}: its parts are not those of its input; the step is not published")


def publish(root: Location, name: str, manifest: StepManifest, check: Check) -> None:
    """Publish a step: write its manifest, the last of its files, then remove the files that only unfinished
    steps need.

    `check` raises an error if the step must not be published, for example because files are missing or may
    hold forgotten documents. If another command removes the step's local directory after `check`, the
    temporary manifest disappears with it, and `check` is called again (`Location.set_aside`).
    """
    write_json(root / name / "manifest.json", {"format": STEP_FORMAT, **manifest.facts_on_disk()}, check)
    StepOutput(root, name).finish(manifest)


def publish_first(root: Location, name: str, manifest: StepManifest, check: Check) -> StepManifest:
    """Publish a step that is not reproducible. If several builds make it, the manifest of the first to finish
    is published. Return the published manifest.
    """
    facts = {"format": STEP_FORMAT, **manifest.facts_on_disk()}
    while not write_new_json(root / name / "manifest.json", facts, check):
        if (published := load_step(root, name)) is not None:
            manifest = published
            break
        if current_mark(root):  # a build that began before documents were forgotten has published this
            (root / name / "manifest.json").unlink(missing_ok=True)
    StepOutput(root, name).finish(manifest)
    return manifest


def remove_step(directory: Location) -> None:
    """Remove a step's directory. On a local disk, it disappears all at once; in an object store, the manifest
    is removed first.
    """
    if directory.local is None:  # object stores cannot rename; a step without a manifest does not exist
        (directory / "manifest.json").unlink(missing_ok=True)
        directory.remove_tree()
    else:
        aside = directory.set_aside()
        aside.remove_tree()
        aside.parent.fsync()


def sweep(root: Location) -> None:
    """Remove the leftovers of killed commands at the top level of an output directory: temporary files, and
    steps whose removal had begun.
    """
    for left in root.glob(".*.tmp"):
        if left.is_dir():
            left.remove_tree()
        else:
            left.unlink(missing_ok=True)


def load_step(root: Location, name: str) -> StepManifest | None:
    """Load and verify the manifest in a step's directory. Return None if the step is not published, or may
    hold a document that was forgotten. A local manifest is cached, so treat the result as read-only.
    """
    path = root / name / "manifest.json"
    try:
        version = path.version()
        manifest = _load_step(root, name) if version is None else _load_once(root, name, version)
    except FileNotFoundError:
        return None
    return manifest if is_current(root, manifest.facts.get(FORGOTTEN, "")) else None


@lru_cache(maxsize=256)
def _load_once(root: Location, name: str, version: tuple[int, ...]) -> StepManifest:
    return _load_step(root, name)


def _load_step(root: Location, name: str) -> StepManifest:
    value = read_json(root / name / "manifest.json")
    if value.pop("format") != STEP_FORMAT:
        raise CorruptFileError(f"{root / name}: not a manifest of this version; remove the directory and build again")
    value.pop("checksum")
    value["parts"] = tuple(PartRecord(**{**part, "file": FileRecord(**part["file"])}) for part in value["parts"])
    value["files"] = tuple(FileRecord(**record) for record in value["files"])
    value["counts"] = {source: parse_counts(counts) for source, counts in value["counts"].items()}
    if digest(value["identity"]) != value["fingerprint"]:
        raise CorruptFileError(f"{root / name}: its identity does not match its fingerprint; remove the directory")
    return StepManifest(**value)


@dataclass(frozen=True)
class CorpusManifest:
    """The manifest of a published corpus: its configuration, sources, shard sets, steps, funnel and mixtures.
    It names all files that a trainer needs.
    """

    corpus: str
    fingerprint: str
    config: dict[str, Any]
    sources: dict[str, dict[str, Any]]
    shard_sets: dict[str, ShardSet]
    steps: tuple[dict[str, Any], ...]
    funnel: tuple[dict[str, Any], ...]
    mixtures: dict[str, dict[str, float]]


def save_corpus(directory: Location, manifest: CorpusManifest, check: Check, name: str = "manifest.json") -> None:
    """Write the manifest of a corpus to the file `name` in its directory. `check` raises an error if the
    corpus must not be published. Raises ConflictError if another command keeps removing the unfinished file.
    """
    try:
        write_json(directory / name, {"format": CORPUS_FORMAT, **plain(manifest)}, check)
    except FileNotFoundError:
        raise ConflictError(
            f"{directory / name}: was removed by another command while it was written; run the command again"
        ) from None


def variant_file(name: str) -> str:
    """Return the file name of a variant's manifest. A variant is a corpus that is built in the directory of
    another corpus and shares identical steps with it.
    """
    return f"{_VARIANT}{name}.json"


def variants_in(directory: Place) -> list[Place]:
    """Return the paths of all manifests of variants in a corpus directory, sorted."""
    return [directory / path.name for path in sorted(directory.glob(f"{_VARIANT}*.json"), key=str)]


def load_corpus(directory: Location) -> CorpusManifest:
    """Load the manifest of a corpus, given its directory or the path of the manifest. Raises UserError if
    there is no manifest or if it has another format version.
    """
    path = directory if directory.suffix == ".json" else directory / "manifest.json"
    try:
        value = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{path}: no corpus here; build one with: python -m pipelines build CONFIG{path.missing_hint()}"
        ) from None
    if value.pop("format", None) != CORPUS_FORMAT:
        raise UserError(f"{path}: not a corpus manifest of this version ({CORPUS_FORMAT})")
    value.pop("checksum")
    value["shard_sets"] = {name: shard_set_of(entry) for name, entry in value["shard_sets"].items()}
    value["steps"], value["funnel"] = tuple(value["steps"]), tuple(value["funnel"])
    return CorpusManifest(**value)


def bytes_per_token(manifest: CorpusManifest) -> dict[str, float]:
    """Return the average number of UTF-8 bytes of text per token of each source, according to the first shard
    set. Sources without tokens are left out.
    """
    if not manifest.shard_sets:
        return {}
    shards = next(iter(manifest.shard_sets.values())).shards
    result = {}
    for source in manifest.sources:
        tokens = sum(shard.tokens for shard in shards if shard.source == source)
        if tokens:
            result[source] = sum(shard.text_bytes for shard in shards if shard.source == source) / tokens
    return result


def without_validation(manifest: CorpusManifest) -> dict[str, list[str]]:
    """Map each shard set to its domains without a validation shard, ignoring sources that come with a split
    of their own. Shard sets without such domains are left out.
    """
    given = {source for source, facts in manifest.sources.items() if "splits" in facts}
    missing_in = {}
    for name, shards in manifest.shard_sets.items():
        held_out = {shard.domain for shard in shards.shards if shard.split == "validation"}
        missing = sorted({shard.domain for shard in shards.shards if shard.source not in given} - held_out)
        if missing:
            missing_in[name] = missing
    return missing_in
