"""Export the kept, edited text of a published corpus as Parquet, gzipped JSON lines or WebDataset, for use by other
software.

An export is a directory or URL prefix with

- `data/`: one or more files per source, `00000-SOURCE.parquet`, `.jsonl.gz` or `.tar`, numbered over the
  whole export and written atomically. Columns: `id` (printed), `text`, `source`, `url`, `meta`, `split` if a
  source gives one, and requested annotations. If a source gives a split, each file holds documents of one split,
  `00000-SOURCE.SPLIT.parquet`; documents without a given split are for training.
- `README.md`: a dataset card with which `datasets.load_dataset` reads the directory, its splits and each source.
- `croissant.json`: the same for readers of Croissant; not of WebDataset, whose files are no tables.
- `export.json`, written last: the files with their checksums, and what was left out and why, as in README.md.
- `unfinished.json`, only until the export is complete: the request, so that the same command can start over.

The same corpus gives the same bytes.
"""

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.config import near_match
from gristmill.console import ProgressDisplay
from gristmill.errors import AccountingError, CorruptFileError, UserError
from gristmill.storage.location import Location
from gristmill.storage.store import write_json
from gristmill.terminal import human_bytes
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.given_split import SPLITS, TRAIN
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.contracts.parts import Part
from pipelines.export.croissant import croissant
from pipelines.export.export_card import dataset_card
from pipelines.export.export_directory import FORMAT, ExportedFile, check_unchanged, finish_output, prepare_output
from pipelines.export.export_formats import WRITERS
from pipelines.export.left_out import OPTIONAL_COLUMNS, find_left_out

EXPORT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("meta", pa.string(), nullable=False),
    ]
)
"""Columns before annotations. `meta` is a JSON object as a string, `{}` if a record had no other fields."""
_SPLIT = pa.field("split", pa.string())  # written only if a source has a given split; null for other sources
_FILE_BYTES = 1 << 30  # stored text per file


def export_corpus(
    corpus: Location,
    output: Location,
    format: str,  # noqa: A002
    sources: Sequence[str] | None,
    columns: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[ExportedFile]:
    """Write the kept, edited text of a corpus into the directory or prefix `output`, and `export.json` last.

    `format` is parquet (zstd, page checksums), jsonl (gzip) or webdataset (tar). `sources` None means all. `columns` are
    annotations to add, null in sources that the step does not apply to; `without` leaves out `url` or `meta`.
    One part is held in memory.

    Raises ConflictError if `output` holds anything but an unfinished run of the same export, or the corpus
    changes meanwhile. Raises UserError for an unknown source, column or format. Raises AccountingError if the
    number of documents differs from that of the corpus manifest.
    """
    if format not in WRITERS:
        raise UserError(f"--format: got {format!r}, expected one of {', '.join(WRITERS)}")
    opened = open_corpus(corpus)
    names = opened.choose_sources(sources, "--sources")
    schema = export_schema(opened, columns, without)
    manifest = opened.manifest
    header = {"format": FORMAT, "corpus": manifest.corpus, "fingerprint": manifest.fingerprint, "written_as": format}
    prepare_output(output, opened, header | {"sources": names, "columns": schema.names})
    with ProgressDisplay() as display:
        try:
            files = _write_files(opened, output, format, _sort_by_nulls(opened, names, schema), schema, display)
            totals = {name: _total(opened, name, files) for name in names}
            left_out = find_left_out(opened, names, schema, without)
        except (AccountingError, CorruptFileError):
            check_unchanged(opened, output)
            raise
        check_unchanged(opened, output)
        is_table = format != "webdataset"
        card = dataset_card(manifest, schema, totals, files, left_out, with_columns=is_table)
        (output / "README.md").write_atomic(card.encode())
        if is_table:
            (output / "croissant.json").write_atomic(croissant(manifest, schema, totals, files, format).encode())
        receipt = {"sources": totals, "left_out": asdict(left_out), "files": [asdict(file) for file in files]}
        write_json(output / "export.json", header | receipt)
        finish_output(output)
        documents, size = sum(file.documents for file in files), sum(file.bytes for file in files)
        display.say(f"{documents:,} documents in {len(files)} files, {human_bytes(size)}: {output / 'export.json'}")
        for line in _warnings(opened, names, schema):
            display.say(line)
    return files


def _warnings(corpus: Corpus, sources: Sequence[str], schema: pa.Schema) -> Iterator[str]:
    """Yield a warning for exported `url` and `meta` that no pii step searched, although a pii step searched
    the text.
    """
    fields = [name for name in OPTIONAL_COLUMNS if name in schema.names]
    for field in fields:
        bare = [
            name for name in sources if _pii_columns(corpus, name) and f"pii_{field}" not in _pii_columns(corpus, name)
        ]
        if bare:
            yield (
                f"{field} of {', '.join(bare)}: not redacted, may hold personal data; name it in `fields` of the pii step, or "
                f"leave it out with --without {field}"
            )


def _pii_columns(corpus: Corpus, source: str) -> frozenset[str]:
    """Return the columns that pii steps wrote for a source."""
    steps = [step for step in corpus.steps if step.stage == "pii" and step.manifest.source in (None, source)]
    return frozenset(name for step in steps for name in step.manifest.schema)


def export_schema(
    corpus: Corpus, columns: Sequence[str], without: Sequence[str], where: str = "--columns"
) -> pa.Schema:
    """Return EXPORT_SCHEMA without the columns `without` and with the annotations `columns`.

    Raises UserError for a column that no step writes or that holds no scalar value.
    """
    for name in without:
        if name not in OPTIONAL_COLUMNS:
            raise UserError(f"--without: got {name!r}, expected some of {', '.join(OPTIONAL_COLUMNS)}")
    fields = chosen_columns(corpus, columns, where)
    given = [_SPLIT] if any(part.given is not None for part in corpus.parts()) else []
    return pa.schema([*(field for field in EXPORT_SCHEMA if field.name not in without), *given, *fields])


def scalar_columns(corpus: Corpus) -> pa.Schema:
    """Return the annotations that hold scalar values."""
    first = next(corpus.parts(), None)
    written = [field for field in first.types if not pa.types.is_nested(field.type)] if first is not None else []
    reserved = (DROP, EDITS_COLUMN, _SPLIT.name, *EXPORT_SCHEMA.names)
    return pa.schema(
        field for field in written if field.name not in reserved and not pa.types.is_fixed_size_binary(field.type)
    )


def chosen_columns(corpus: Corpus, names: Sequence[str], where: str) -> list[pa.Field]:
    """Return some of the `scalar_columns`, each once. Raises UserError for a name that is not among them."""
    columns = scalar_columns(corpus)
    for name in names:
        if name not in columns.names:
            raise UserError(
                f"{where}: no step of this corpus writes a value {name!r}{near_match(name, columns.names)}; there are: "
                f"{', '.join(sorted(columns.names)) or 'none'}"
            )
    return [columns.field(name) for name in dict.fromkeys(names)]


def kept_documents(corpus: Corpus, part: Part, schema: pa.Schema) -> pa.Table:
    """Return the documents of a part that no step dropped, with edited text, as a table of `schema`."""
    names = [name for name in schema.names if name not in ("id", "text", _SPLIT.name)]
    docs = part.table((DROP, "edited_text", *names, *(["id"] if "id" in schema.names else [])))
    kept = pc.is_null(docs[DROP])
    ids = pa.array(corpus.printed_ids(part), pa.string()).filter(kept.combine_chunks())
    docs = redact_fields(part, docs).filter(kept).combine_chunks()
    columns: dict[str, Any] = {name: docs[name] for name in names} | {"id": ids, "text": docs["edited_text"]}
    columns["source"] = docs["source"].cast(pa.string())
    splits = part.splits()
    columns["split"] = (pa.nulls(part.rows, pa.string()) if splits is None else splits).filter(kept.combine_chunks())
    if "meta" in columns:
        columns["meta"] = pc.fill_null(columns["meta"], "{}")
    return pa.table([columns[name] for name in schema.names], schema=schema)


def redact_fields(part: Part, docs: pa.Table) -> pa.Table:
    """Replace `url` and `meta` with the redacted forms that pii steps wrote; columns derived from redacted
    URLs become null.
    """
    for name in OPTIONAL_COLUMNS:
        if not part.has(f"pii_{name}"):
            continue
        new = part.table((f"pii_{name}",))[f"pii_{name}"]
        if name in docs.column_names:
            docs = docs.set_column(docs.column_names.index(name), name, pc.coalesce(new, docs[name]))
        for derived in docs.column_names if name == "url" else ():
            if derived.startswith("url_"):
                value = pc.if_else(pc.is_valid(new), pa.scalar(None, docs[derived].type), docs[derived])
                docs = docs.set_column(docs.column_names.index(derived), derived, value)
    return docs


def _sort_by_nulls(corpus: Corpus, sources: Sequence[str], schema: pa.Schema) -> list[str]:
    """Sort sources by the columns that are null in their first part: readers of JSON lines infer types from
    the first file.
    """

    def nulls(source: str) -> int:
        part = next((part for part in corpus.parts(source) if part.drop().null_count), None)
        if part is None:
            return len(schema)
        kept = part.table((DROP, *(field.name for field in schema if field.nullable and field.name != _SPLIT.name)))
        kept = kept.filter(pc.is_null(kept[DROP])).drop([DROP])
        without_split = _SPLIT.name in schema.names and part.given is None
        return without_split + sum(column.null_count == kept.num_rows for column in kept.columns)

    return sorted(sources, key=nulls)


class _HashingSink(io.RawIOBase):
    """Passes bytes on to a sink, which it does not close, and computes their SHA-256."""

    def __init__(self, sink: BinaryIO) -> None:
        self.sink, self.sha256, self.size = sink, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        self.sink.write(data)
        written = memoryview(data).nbytes
        self.size += written
        return written


@dataclass(frozen=True)
class _FileToWrite:
    """The parts whose kept documents of a split make up a file; `suffix` tells the split, if the export has several."""

    source: str
    split: str
    suffix: str
    parts: Sequence[Part]

    def tables(self, corpus: Corpus, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the documents of each part."""
        for part in self.parts:
            table = kept_documents(corpus, part, schema)
            yield table.filter(pc.equal(pc.fill_null(table["split"], TRAIN), self.split)) if self.suffix else table


def _write_files(
    corpus: Corpus, output: Location, kind: str, sources: Sequence[str], schema: pa.Schema, display: ProgressDisplay
) -> list[ExportedFile]:
    write, extension = WRITERS[kind]
    wanted = [file for source in sources for file in _files(corpus, source, _SPLIT.name in schema.names)]
    total, done = sum(len(file.parts) for file in wanted), 0
    files: list[ExportedFile] = []
    for number, file in enumerate(wanted):
        documents = text_bytes = 0
        sha256 = ""

        def tables(file: _FileToWrite = file) -> Iterator[pa.Table]:
            nonlocal documents, text_bytes, done
            for table in file.tables(corpus, schema):
                documents += table.num_rows
                text_bytes += pc.sum(pc.binary_length(table["text"])).as_py()
                yield table
                done += 1
                display.progress("export", done, total)

        def content(sink: BinaryIO, tables: Callable[[], Iterator[pa.Table]] = tables) -> None:
            nonlocal sha256
            hashing = _HashingSink(sink)
            write(schema, cast("BinaryIO", hashing), tables())
            sha256 = hashing.sha256.hexdigest()

        name = f"data/{number:05d}-{file.source}{file.suffix}{extension}"
        record = output.write_file(name, content)
        display.say(f"{name}: {documents:,} documents")
        files.append(
            ExportedFile(**asdict(record), sha256=sha256, source=file.source, split=file.split, documents=documents,
                text_bytes=text_bytes)
        )  # fmt: skip
    return files


def _files(corpus: Corpus, source: str, by_split: bool) -> Iterator[_FileToWrite]:
    """Yield the files of a source: of consecutive parts, and of one split if `by_split`."""
    for parts in _groups(corpus, source):
        if not by_split:
            yield _FileToWrite(source, TRAIN, "", parts)
            continue
        held = [_kept_splits(part) for part in parts]
        for split in SPLITS:
            if chosen := [part for part, splits in zip(parts, held, strict=True) if split in splits]:
                yield _FileToWrite(source, split, f".{split}", chosen)


def _kept_splits(part: Part) -> set[str]:
    """Return the splits of the kept documents of a part that has some."""
    splits = part.splits()
    return {TRAIN} if splits is None else set(pc.unique(splits.filter(pc.is_null(part.drop()))).to_pylist())


def _groups(corpus: Corpus, source: str) -> Iterator[list[Part]]:
    """Yield the consecutive parts that make up each file. Parts without a kept document are left out."""
    filled = 0

    def number(part: Part) -> int:
        nonlocal filled
        filled += part.text_bytes
        return (filled - part.text_bytes) // _FILE_BYTES

    kept = (part for part in corpus.parts(source) if part.drop().null_count)
    for _, group in groupby(kept, key=number):
        yield list(group)


def _total(corpus: Corpus, source: str, files: Sequence[ExportedFile]) -> dict[str, Any]:
    """Return the totals written for a source. Raises AccountingError unless the number of documents equals
    the corpus's count of kept documents.
    """
    facts = corpus.manifest.sources[source]
    documents = sum(file.documents for file in files if file.source == source)
    rows = [row for row in corpus.manifest.funnel if row["source"] == source]
    expected = rows[-1]["documents_out"] if rows else facts["kept"]
    if documents != expected:
        raise AccountingError(
            f"export of {source}: {documents} documents were written, the corpus manifest counts {expected} kept; "
            "remove the output and export again, and build the corpus again if that does not help"
        )
    text_bytes = sum(file.text_bytes for file in files if file.source == source)
    return {"documents": documents, "text_bytes": text_bytes, "licence": facts["licence"], "origin": facts["origin"]}
