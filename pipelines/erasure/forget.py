"""Forget documents: remove them from all files of a corpus directory, and keep them out.

Forgetting is not a rebuild: files that hold a forgotten document are rewritten and the funnel is counted
again, but no step's fingerprint changes. The record of the document becomes a quarantined record of its read
step, with the reason `forgotten`, so every count still adds up. The tombstone (`forgotten.json`) is written
first, so the same command resumes after a kill, and later builds in this directory do not read the records
that the tombstone lists.

Variants of the corpus are removed; the command that built a variant builds it again. Earlier builds, and
steps that the corpus does not use, are removed as well. So is the search index of each part that held a
forgotten document; the command `index` writes it again.

Three things remain: decisions about other documents (a copy that was dropped in favour of a forgotten
document stays dropped), what was learned from many documents (the tokenizer), and ids, which consist of a
hash of the file's name and the record's number.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.config import plain
from gristmill.errors import ConfigError, ConflictError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import FileRecord, Location
from gristmill.storage.store import digest
from pipelines.building.earlier_builds import earlier_builds
from pipelines.building.publish import corpus_fingerprint, suggested_mixtures
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.document import FILE_INDEX, ID, QUARANTINE, format_id
from pipelines.contracts.document_counts import Counts, count_drops
from pipelines.contracts.lineage import Corpus, Located, PublishedStep, Quarantined, open_corpus
from pipelines.contracts.manifest import (
    StepManifest,
    StepOutput,
    check_mark,
    open_table,
    publish,
    read_schema,
    read_table,
    save_corpus,
    schema_facts,
    sweep,
    variants_in,
    write_table,
)
from pipelines.contracts.search_index.index_units import INDEX_FOLDER
from pipelines.contracts.shard_set import ShardRecord, open_shard, shard_set_of, write_shard
from pipelines.contracts.tombstone import FORGOTTEN, REWRITTEN, read_tombstone, write_tombstone
from pipelines.erasure.gc import list_stale_indexes, list_unreached, remove_steps
from pipelines.stages.materialise.funnel import SAMPLE, Funnel


@dataclass(frozen=True)
class _Doc:
    """A document to forget. `part` and `row` are its part index and its row in that part when the tombstone
    was written.
    """

    source: str
    path: str
    record: int
    id: str
    part: int
    row: int


def find_documents(corpus: Corpus, identifiers: Iterable[str], urls: Iterable[str]) -> tuple[list[Located], list[str]]:
    """Return (documents, missing URLs): the documents with these ids or URLs, each once, and the URLs that no
    document has. Quarantined records are skipped.

    Ids are in printed form or hexadecimal. A URL must be spelled as stored or, if a step wrote `url_normal`,
    may be in normal form; all documents with it are returned. Raises UserError for a malformed or unknown id.
    """
    documents = {}
    known: set[str] = set()
    for identifier in identifiers:
        located = corpus.find(identifier)
        if not isinstance(located, Quarantined):
            documents[located.id] = located
    wanted = pa.array(sorted(set(urls)), pa.string())
    for part in corpus.parts() if len(wanted) else ():
        names = ["url", *(["url_normal"] if part.has("url_normal") else [])]
        table = part.table(("id", *names))
        hit = pa.array([False] * part.rows, pa.bool_())
        for name in names:
            having = pc.is_in(table[name].combine_chunks(), value_set=wanted)
            known.update(table[name].filter(having).to_pylist())
            hit = pc.or_(hit, having)
        for identifier in table.filter(hit)["id"].to_pylist():
            located = corpus.find(identifier.hex())
            assert isinstance(located, Located)
            documents[identifier] = located
    return list(documents.values()), [url for url in wanted.to_pylist() if url not in known]


def forget(
    directory: LocalPath, identifiers: Sequence[str], urls: Sequence[str], check: Callable[[], None] = lambda: None
) -> tuple[list[str], int]:
    """Remove documents from all files of a corpus directory, and keep later builds from reading them. Without
    ids or URLs, finish an interrupted run. Return the printed ids of the documents, and the number of files
    rewritten.

    `check` must raise an error if this process has lost its lease on the directory. Raises UserError for an
    unknown id, if a run for other documents was interrupted, or if there is nothing to forget, and
    ConflictError if another corpus is published meanwhile.
    """
    tombstone = _begin(directory, identifiers, urls, check)
    docs, mark = [_Doc(**entry) for entry in tombstone["pending"]], digest(tombstone["records"])
    for variant in variants_in(directory):  # the command that built one builds it again, without these documents
        variant.unlink(missing_ok=True)
    for build in earlier_builds(directory):
        build.file.unlink(missing_ok=True)
    remove_steps(list_unreached(directory, {step.directory.name for step in open_corpus(directory).steps}), check)
    written = _rewrite_steps(directory, docs, mark)
    _publish_corpus(open_corpus(directory), tombstone["records"], mark)
    check()
    _remove_old_files(directory, open_corpus(directory))
    remove_steps(list_stale_indexes(directory), check)
    write_tombstone(directory, {**tombstone, "pending": [], "asked": ""}, check)
    return [format_id(doc.source, doc.path, doc.record) for doc in docs], written


def _begin(
    directory: LocalPath, identifiers: Sequence[str], urls: Sequence[str], check: Callable[[], None]
) -> dict[str, Any]:
    """Write the tombstone, and return it. A build that began earlier fails when it next checks the tombstone."""
    corpus = open_corpus(directory)
    tombstone = read_tombstone(directory)
    before = deepcopy(tombstone)
    request = digest([sorted(set(identifiers)), sorted(set(urls))])
    begun = bool(tombstone["pending"])
    if begun and (identifiers or urls) and tombstone["asked"] != request:
        raise UserError(
            f"{directory}: forgetting was interrupted; finish it first: python -m pipelines forget {directory}"
        )
    for found in () if begun else find_documents(corpus, identifiers, urls)[0]:
        tombstone["asked"] = request
        doc = _Doc(found.source, found.path, found.record, found.id.hex(), found.part.index, found.row)
        tombstone["pending"].append(asdict(doc))
        tombstone["records"].setdefault(found.source, []).append(f"{found.path}#{found.record}")
    for records in tombstone["records"].values():
        records.sort()
    if tombstone["pending"] and not begun and corpus.manifest.fingerprint not in tombstone["before"]:
        tombstone["before"].append(corpus.manifest.fingerprint)
    if not tombstone["pending"]:
        raise UserError(f"{directory}: none of these documents is in the corpus, and no run was interrupted")
    write_tombstone(directory, tombstone, check)
    sweep(directory)
    sweep(directory / INDEX_FOLDER)
    if not begun and _reads(open_corpus(directory)) != _reads(corpus):  # their positions are those in `corpus`
        write_tombstone(directory, before, check)
        raise ConflictError(f"{directory}: another corpus was published meanwhile; run the command again")
    return tombstone


def _reads(corpus: Corpus) -> set[str]:
    return {step.directory.name for step in corpus.steps if step.name == "read"}


def _rewrite_steps(directory: LocalPath, docs: Sequence[_Doc], mark: str) -> int:
    """Rewrite the steps of the corpus until all of them carry `mark`, because a build that began earlier may
    still publish a step with an old mark. Return the number of files rewritten.
    """
    written = 0
    while steps := [step for step in open_corpus(directory).steps if step.manifest.facts.get(FORGOTTEN) != mark]:
        written += sum(_rewrite(step, docs, mark) for step in steps)
        corpus = open_corpus(directory)
        # A step that was published once more has rows that the others no longer have: nothing can be counted.
        if all(step.label == "funnel" or step.manifest.facts.get(FORGOTTEN) == mark for step in corpus.steps):
            _recount(corpus, mark)
    return written


def _rewrite(step: PublishedStep, docs: Sequence[_Doc], mark: str) -> int:
    if step.label == "funnel":
        return 0
    manifest = step.manifest
    out = StepOutput(step.directory.parent, step.directory.name, mark=mark)
    gone: dict[tuple[str, int], list[int]] = {}
    for doc in docs:
        gone.setdefault((doc.source, doc.part), []).append(doc.row)
    parts, counts, renamed = [], manifest.counts, {}
    for part in manifest.parts:
        rows = gone.get((part.source, part.index))
        if rows is None:
            parts.append(part)
            continue
        table = read_table(step.directory, part.file, list(manifest.schema), manifest.schema)
        left = table.take(pa.array(np.delete(np.arange(part.rows), rows)))
        file = out.write(_new_name(part.file.path, mark), write_table(left.combine_chunks()))
        renamed[Path(part.file.path).stem] = Path(file.path).stem
        size = (
            int(pc.sum(pc.binary_length(left["text"])).as_py() or 0) if "text" in left.column_names else part.text_bytes
        )
        parts.append(replace(part, rows=left.num_rows, text_bytes=size, file=file))
        counts = _subtract(counts, part.source, table.take(pa.array(rows)), step.stage)
    files = [_rewrite_file(out, record, docs, renamed, mark) for record in manifest.files]
    facts = {**manifest.facts, FORGOTTEN: mark}
    if "shards" in facts:
        facts, files = _rewrite_shards(out, facts, files, docs, mark)
    changed = replace(manifest, parts=tuple(parts), files=tuple(files), counts=counts, facts=facts)
    publish(step.directory.parent, step.directory.name, changed, out.check_forgotten)
    return len(renamed) + sum(a != b for a, b in zip(files, manifest.files, strict=True))


def _new_name(path: str, mark: str) -> str:
    """Return a new path, in the same directory, for a rewritten file. The old file must stay until the
    manifest no longer names it.
    """
    directory, slash, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    return f"{directory}{slash}{stem.partition(REWRITTEN)[0]}{REWRITTEN}{mark[:12]}{dot}{suffix}"


def _subtract(counts: dict[str, Counts], source: str, rows: pa.Table, stage: str) -> dict[str, Counts]:
    before = counts[source]
    if stage == "read":
        quarantined = {**before.quarantined, FORGOTTEN: before.quarantined.get(FORGOTTEN, 0) + rows.num_rows}
        return {**counts, source: replace(before, kept=before.kept - rows.num_rows, quarantined=quarantined)}
    gone = count_drops(rows)
    dropped = {rule: number - gone.dropped.get(rule, 0) for rule, number in before.dropped.items()}
    left = replace(
        before,
        arrived=before.arrived - gone.arrived,
        kept=before.kept - gone.kept,
        dropped={rule: number for rule, number in dropped.items() if number},
    )
    return {**counts, source: left}


def _rewrite_file(
    out: StepOutput, record: FileRecord, docs: Sequence[_Doc], renamed: dict[str, str], mark: str
) -> FileRecord:
    """Rewrite a file that is neither a part nor a shard, if one of `docs` affects it. Return the record of
    the new file, or `record` if the file is unchanged.
    """
    if not record.path.endswith(".arrow"):
        return record
    schema = read_schema(out.directory, record)
    name = next((field.name for field in schema if field.type == ID and field.name == "id"), None)
    kind = record.path.partition("/")[0]
    if name is None and kind not in ("files", "quarantine"):
        return record
    if kind == "quarantine" and "-" in Path(record.path).stem:
        # Earlier rows of a unit; its last file gets the new ones.
        return record
    table = read_table(out.directory, record, schema.names, schema_facts(schema))
    if kind in ("files", "quarantine"):  # index and last quarantine file of one unit have the same name
        held = _documents_of_unit(out.directory / "files" / Path(record.path).name, docs)
        after = _update_index(table, held, renamed) if kind == "files" else _extend_quarantine(table, held)
        touched = bool(held)
    else:
        ids = pa.array([bytes.fromhex(doc.id) for doc in docs], ID)
        after = table.filter(pc.invert(pc.is_in(table[name].combine_chunks(), value_set=ids)))
        touched = after.num_rows != table.num_rows
    if not touched:
        return record
    return out.write(_new_name(record.path, mark), write_table(after.combine_chunks()))


def _documents_of_unit(index: Location, docs: Sequence[_Doc]) -> list[_Doc]:
    """Return those of `docs` whose records are covered by `index`, the index of files of one read task."""
    assert index.local is not None, "documents are forgotten on a local disk only"
    with open_table(index.local) as source:
        table = pa.ipc.open_file(source).read_all().select(["key", "first_record", "records"])
    ranges: dict[int, list[tuple[int, int]]] = {}
    for row in table.to_pylist():
        ranges.setdefault(row["key"], []).append((row["first_record"], row["first_record"] + row["records"]))
    return [
        doc for doc in docs if any(first <= doc.record < after for first, after in ranges.get(int(doc.id[:16], 16), ()))
    ]


def _update_index(table: pa.Table, held: Sequence[_Doc], renamed: dict[str, str]) -> pa.Table:
    """Return the index of files with the documents counted as quarantined and the parts renamed."""
    by_key: dict[int, list[int]] = {}
    for doc in held:
        by_key.setdefault(int(doc.id[:16], 16), []).append(doc.record)
    rows = table.to_pylist()
    removed: dict[str, int] = {}  # documents removed so far, by part
    for row in sorted(rows, key=lambda row: row["first_row"]):
        after = row["first_record"] + row["records"]
        gone = sum(row["first_record"] <= record < after for record in by_key.get(row["key"], ()))
        part = row["part"]
        row["first_row"] -= removed.get(part, 0)
        row["rows"] -= gone
        row["quarantined"] += gone
        row["part"] = renamed.get(part, part)
        removed[part] = removed.get(part, 0) + gone
    return pa.Table.from_pylist(rows, schema=FILE_INDEX)


def _extend_quarantine(table: pa.Table, held: Sequence[_Doc]) -> pa.Table:
    new = [{"path": doc.path, "record": doc.record, "reason": FORGOTTEN, "bytes": None} for doc in held]
    return pa.concat_tables([table, pa.Table.from_pylist(new, schema=QUARANTINE)])


def _rewrite_shards(
    out: StepOutput, facts: dict[str, Any], files: Sequence[FileRecord], docs: Sequence[_Doc], mark: str
) -> tuple[dict[str, Any], list[FileRecord]]:
    ids = pa.array([bytes.fromhex(doc.id) for doc in docs], ID)
    shards, changed = [], {}
    for entry in facts["shards"]:
        record = ShardRecord(**entry)
        shard = open_shard(out.root, record.file)
        hit = pc.is_in(shard.doc_ids, value_set=ids).to_numpy(zero_copy_only=False)
        if not hit.any():
            shards.append(entry)
            continue
        left = np.flatnonzero(~hit)
        tokens, offsets = _take_lists(shard.tokens, shard.offsets, left)
        sentences = spans = None
        if shard.sentences is not None and shard.sentence_offsets is not None:
            sentences = _take_lists(shard.sentences, shard.sentence_offsets, left)
        if shard.spans is not None and shard.span_offsets is not None:
            spans = _take_lists(shard.spans, shard.span_offsets, left)
        targets = None if shard.targets is None else shard.targets[left]
        identifiers, n_bytes = shard.doc_ids.take(pa.array(left)), shard.n_bytes[left]
        own = {name: value for name, value in shard.facts.items() if name != "format"}
        old = record.path.removeprefix(f"{out.name}/")
        write = partial(
            write_shard,
            tokens=tokens,
            offsets=offsets,
            doc_ids=identifiers,
            n_bytes=n_bytes,
            facts=own,
            sentences=sentences,
            spans=spans,
            targets=targets,
        )
        file = out.write(_new_name(old, mark), write)
        changed[old] = file
        shards.append(
            plain(
                replace(
                    record, path=f"{out.name}/{file.path}", bytes=file.bytes, xxh3_128=file.xxh3_128,
                    documents=len(left), tokens=len(tokens), text_bytes=int(n_bytes.sum()),
                    pairs=0 if targets is None else int((targets >= 0).sum()),
                )
            )
        )  # fmt: skip
    return {**facts, "shards": shards}, [changed.get(record.path, record) for record in files]


def _take_lists(values: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Select the lists at `rows` from a list array. Return them as (values, offsets)."""
    pieces = [values[offsets[row] : offsets[row + 1]] for row in rows.tolist()]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return np.concatenate([values[:0], *pieces]), np.concatenate([np.zeros(1, np.int64), ends])


def _recount(corpus: Corpus, mark: str) -> None:
    step = next(step for step in corpus.steps if step.label == "funnel")
    knobs = step.manifest.identity["knobs"]
    stage = Funnel(tuple(knobs["steps"]), tuple(knobs["columns"]), knobs.get("moments", False))
    parts = list(corpus.parts())
    try:
        facts, sample = stage.count(parts, LocalCluster())
    except ConfigError:  # lists of ids of a split that are not on this machine must not stop a takedown
        facts, sample = stage.count([replace(part, given=None) for part in parts], LocalCluster())
    out = StepOutput(corpus.directory, step.directory.name, mark=mark)
    file = out.write(_new_name(SAMPLE, mark), write_table(sample))
    manifest = replace(step.manifest, files=(file,), facts={**facts, FORGOTTEN: mark})
    publish(corpus.directory, step.directory.name, manifest, out.check_forgotten)


def _publish_corpus(corpus: Corpus, records: dict[str, list[str]], mark: str) -> None:
    """Publish a corpus manifest for the rewritten steps, and remove the report, which the next build writes
    again.
    """
    by_label: dict[str, StepManifest] = {step.label: step.manifest for step in corpus.steps}
    manifest = corpus.manifest
    given = by_label["funnel"].facts.get("splits", {})
    sources = {
        name: {
            **{key: value for key, value in facts.items() if key != "splits"},
            **by_label[f"read.{name}"].counts[name].facts(),
            **({"splits": given[name]} if name in given else {}),
        }
        for name, facts in manifest.sources.items()
    }
    sets = {name: shard_set_of(by_label[name].facts) for name in manifest.shard_sets}
    save_corpus(
        corpus.directory,
        replace(
            manifest, fingerprint=corpus_fingerprint(manifest.steps, records), sources=sources, shard_sets=sets,
            funnel=tuple(by_label["funnel"].facts["rows"]), mixtures=suggested_mixtures(sets),
        ),
        partial(check_mark, corpus.directory, mark),
    )  # fmt: skip
    for name in ("report.html", "report.json"):
        (corpus.directory / name).unlink(missing_ok=True)


def _remove_old_files(directory: LocalPath, corpus: Corpus) -> None:
    """Remove from each step's directory the files that its manifest does not name, and sync the directories,
    so that a power failure cannot bring the files back.
    """
    for step in corpus.steps:
        known = {"manifest.json", "run.json", *(part.file.path for part in step.manifest.parts)}
        known |= {record.path for record in step.manifest.files}
        root = directory / step.directory.name
        surplus: list[LocalPath] | None = None
        while surplus is None or surplus:
            files = [path for path in sorted(root.rglob("*")) if not path.is_dir()]
            surplus = [path for path in files if path.relative_to(root).as_posix() not in known]
            for path in surplus:
                path.unlink(missing_ok=True)
        for place in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            place.fsync()
