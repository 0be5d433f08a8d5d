"""Run the read steps of a build. Each group of files is read by one task, which writes each part as soon as
it is full.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from gristmill.errors import AccountingError, ChangedSourceError, SourceError
from gristmill.libraries.provenance import check_code
from gristmill.storage.location import FileRecord, Location
from pipelines.building.build_metrics import counted
from pipelines.building.state import Build
from pipelines.contracts.document import DOCUMENT, FILE_INDEX, QUARANTINE
from pipelines.contracts.document_counts import ReadCounts
from pipelines.contracts.manifest import (
    PartRecord,
    Receipt,
    StepManifest,
    StepOutput,
    read_table,
    schema_facts,
    write_table,
)
from pipelines.contracts.stage import in_order
from pipelines.contracts.tombstone import REWRITTEN
from pipelines.planning.inventory import forget_checksums
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.files import SourceFile, has_changed
from pipelines.reading.part_writer import ReadPart
from pipelines.reading.sources.registry import format_code, format_of
from pipelines.reading.sources.source import Source

_HELD_ROWS = 1 << 20  # quarantine rows held in memory before they are written
_SMALL = 8 << 20  # bytes of files that one worker reads before others are ready


@dataclass(frozen=True)
class _ReadTask:
    out: StepOutput
    source: Source
    files: tuple[SourceFile, ...]
    checksums: tuple[str, ...]
    number: int
    poison: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    code: dict[str, str] = field(default_factory=dict)  # of the format, if an installed package has it

    @property
    def unit(self) -> str:
        return f"{self.number:05d}"

    @property
    def label(self) -> str:
        first, last = self.files[0].path, self.files[-1].path
        return f"read {self.source.name}: files {self.unit} ({first if first == last else f'{first} to {last}'})"


def read_files(task: _ReadTask) -> tuple[Receipt, float]:
    """Read one group of files and commit the results as one unit, unless that is already done. Return
    (receipt, seconds).
    """
    started = time.perf_counter()
    receipt = task.out.receipt(task.unit) or _read_unit(task)
    return receipt, time.perf_counter() - started


def _read_unit(task: _ReadTask) -> Receipt:
    if task.code:
        check_code(f"read.{task.source.name}", format_of(task.source.format).reader, task.code)
    records, parts, indexes, aside = [], [], [], QUARANTINE.empty_table()
    reasons: Counter[str] = Counter()
    replaced: Counter[str] = Counter()
    for number, part in enumerate(
        read_documents(task.source, task.files, task.source.part_bytes, task.poison, task.forgotten)
    ):
        name = f"{task.unit}-{number:03d}"
        indexes.append(_index(part, name))
        reasons.update(_counted(part.quarantine["reason"]))
        replaced.update(part.replaced)
        aside = _join((aside, part.quarantine))
        if aside.num_rows > _HELD_ROWS:
            records.append(task.out.write(f"quarantine/{name}.arrow", write_table(aside)))
            aside = QUARANTINE.empty_table()
        if part.documents.num_rows:
            text_bytes = _text_bytes(part.documents)
            records.append(task.out.write(f"parts/{name}.arrow", write_table(part.documents)))
            parts.append({"name": name, "rows": part.documents.num_rows, "text_bytes": text_bytes})
    _refuse_changes(task)
    index = _join(tuple(indexes))
    records.append(task.out.write(f"files/{task.unit}.arrow", write_table(index)))
    records.append(task.out.write(f"quarantine/{task.unit}.arrow", write_table(aside)))
    records_in, decoded_bytes, control_characters = _totals(index)
    kept, quarantined = sum(part["rows"] for part in parts), dict(sorted(reasons.items()))
    counts = ReadCounts(records_in, kept, {}, quarantined, decoded_bytes, control_characters, dict(replaced))
    return task.out.finish_unit(task.unit, records, {**counts.facts(), "parts": parts})


def _index(part: ReadPart, name: str) -> pa.Table:
    names = pa.array([name] * part.files.num_rows, pa.string())
    return part.files.append_column("part", names).cast(FILE_INDEX)


def _join(tables: tuple[pa.Table, ...]) -> pa.Table:
    return pa.concat_tables(tables)


def _text_bytes(documents: pa.Table) -> int:
    return int(pa.compute.sum(pa.compute.binary_length(documents["text"])).as_py())


def _totals(index: pa.Table) -> tuple[int, ...]:
    return tuple(
        pa.compute.sum(index[name]).as_py() or 0 for name in ("records", "decoded_bytes", "control_characters")
    )


def _counted(values: pa.ChunkedArray) -> dict[str, int]:
    return {pair["values"]: pair["counts"] for pair in pa.compute.value_counts(values).to_pylist()}


def _refuse_changes(task: _ReadTask) -> None:
    pairs = zip(task.files, task.checksums, strict=True)
    changed = [file for file, checksum in pairs if has_changed(file, checksum)]
    if changed:
        more = f" (and {len(changed) - 1} others)" if len(changed) > 1 else ""
        raise ChangedSourceError(
            f"source {task.source.name!r}: {changed[0].path}{more} changed while it was being read; run the command again "
            "to plan with the new content",
            tuple(file.location for file in changed),
        )


def run_reads(state: Build) -> None:
    """Run and publish every unpublished read step, then check that no two files of the corpus have the same
    key (the hash of the file's source and path).

    Raises SourceError if two files have the same key, or if a source has no records and does not set
    `allow_empty`. Raises ChangedSourceError if a file has changed since the build was planned.
    """
    sources = [source for source in state.plan.config.sources if f"read.{source.name}" not in state.published]
    tasks: list[_ReadTask] = []
    for source in sources:
        inventory = state.plan.inventories[source.name]
        poison = state.plan.poison.get(("read", source.name), ())
        code = format_code(source.format)
        out, gone = state.output(state.plan.step(f"read.{source.name}")), tuple(state.gone.get(source.name, ()))
        for number, unit in enumerate(inventory.units(source.part_bytes)):
            files = tuple(inventory.files[i] for i in unit)
            checksums = tuple(inventory.checksums[i] for i in unit)
            tasks.append(_ReadTask(out, source, files, checksums, number, poison, gone, code))
    state.cluster.usage.purpose = "read"
    if not sources:
        if "funnel" not in state.published:  # a killed build may have published its reads before this check
            _refuse_collisions(state)
        return
    state.say("read: " + ", ".join(source.name for source in sources))
    _advise_more_units(tasks, state)
    started = time.perf_counter()
    state.cluster.peak_bytes = 0

    def count(position: int, result: tuple[Receipt, float]) -> None:
        counts = result[0].counts
        text_bytes = sum(part["text_bytes"] for part in counts["parts"])
        state.metrics.task("read", tasks[position].source.name, ReadCounts.parse(counts), text_bytes, result[1])

    try:
        finished = state.cluster.map(read_files, tasks, lambda task: task.label)
        results = in_order(counted(finished, count), len(tasks))
    except ChangedSourceError as error:
        forget_checksums(state.root, error.locations)
        raise
    elapsed = time.perf_counter() - started
    for source in sources:
        own = [result for result, task in zip(results, tasks, strict=True) if task.source is source]
        decoded = _publish_read(source, [receipt for receipt, _ in own], state).decoded_bytes
        seconds, stored = sum(seconds for _, seconds in own), state.plan.inventories[source.name].bytes
        state.record_run(state.plan.step(f"read.{source.name}"), seconds, decoded, elapsed, input_bytes=stored)
    _refuse_collisions(state)


def _advise_more_units(tasks: Sequence[_ReadTask], state: Build) -> None:
    workers = state.cluster.workers
    if len(tasks) >= workers:
        return
    for name, units in Counter(task.source.name for task in tasks).items():
        inventory = state.plan.inventories[name]
        if len(inventory.files) > units and inventory.bytes > _SMALL:
            state.say(
                f"  {name}: {units} of {workers} workers can read its {len(inventory.files):,} files at a time; for more, set "
                f"`part_bytes` of the source to about {inventory.bytes // (2 * workers):,}"
            )


def _publish_read(source: Source, receipts: Sequence[Receipt], state: Build) -> ReadCounts:
    """Check the accounting of a read step, publish it, and return its counts."""
    step = state.plan.step(f"read.{source.name}")
    parts: list[PartRecord] = []
    files: list[FileRecord] = []
    total = ReadCounts()
    for receipt in receipts:
        counts, records = ReadCounts.parse(receipt.counts), {record.path: record for record in receipt.files}
        rows = sum(part["rows"] for part in receipt.counts["parts"])
        if counts.arrived != counts.left or counts.kept != rows:
            raise AccountingError(
                f"step {step.label}, files {receipt.unit}: {counts.arrived} records came in, {counts.left} are accounted for "
                f"({rows} documents in parts); the step is not published"
            )
        for part in receipt.counts["parts"]:
            record = records[f"parts/{part['name']}.arrow"]
            parts.append(PartRecord(source.name, len(parts), part["rows"], part["text_bytes"], record))
        files.extend(record for path, record in records.items() if not path.startswith("parts/"))
        total += counts
    if not total.arrived and not source.allow_empty:
        raise SourceError(
            f"source {source.name!r}: its {len(state.plan.inventories[source.name].files)} files hold no record; "
            "check `format`, and `members` if they are archives"
        )
    manifest = StepManifest(
        step.label, source.name, step.fingerprint, step.identity, schema_facts(DOCUMENT), tuple(parts), tuple(files),
        {source.name: total},
    )  # fmt: skip
    _remove_others(state.root / step.directory, files + [part.file for part in parts])
    state.publish(step, manifest)
    return total


def _remove_others(directory: Location, records: Sequence[FileRecord]) -> None:
    """Remove the parts that are not in `records`, except those that `forget` rewrote. An earlier attempt can
    leave surplus parts behind if the source's files have changed since then.
    """
    known = {record.path for record in records}
    for path in directory.glob("parts/*"):
        if f"parts/{path.name}" not in known and REWRITTEN not in path.name:
            path.unlink(missing_ok=True)


def file_indexes(directory: Location, manifest: StepManifest) -> list[pa.Table]:
    """Return the file indexes of a published read step, one table with the columns of FILE_INDEX for each
    group of files that a task read.
    """
    records = [record for record in manifest.files if record.path.startswith("files/")]
    return [read_table(directory, record, FILE_INDEX.names, schema_facts(FILE_INDEX)) for record in records]


def quarantined(directory: Location, manifest: StepManifest) -> pa.Table:
    """Return all quarantined records of a published read step, as a table with the columns of QUARANTINE."""
    records = [record for record in manifest.files if record.path.startswith("quarantine/")]
    tables = [read_table(directory, record, QUARANTINE.names, schema_facts(QUARANTINE)) for record in records]
    return pa.concat_tables(tables) if tables else QUARANTINE.empty_table()


def _refuse_collisions(state: Build) -> None:
    owners: dict[int, str] = {}
    for source in state.plan.config.sources:
        step = state.plan.step(f"read.{source.name}")
        for index in file_indexes(state.root / step.directory, state.published[step.label]):
            for key, path in zip(index["key"].to_pylist(), index["path"].to_pylist(), strict=True):
                name = f"{source.name}/{path}"
                if owners.setdefault(key, name) != name:
                    raise SourceError(f"{name} and {owners[key]} have the same 64-bit key; rename one of the files")
