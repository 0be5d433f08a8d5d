"""Export: the kept, edited text of a published corpus as Parquet or gzipped JSON lines, for readers that are not ours.

One or more files per source, `SOURCE-00000.parquet` or `SOURCE-00000.jsonl.gz`, each written atomically, with the
columns `id` (printed), `text`, `source`, `url` and `meta`, and those annotations that are asked for; then `export.json`,
which lists them with checksums. Edits are of the text: `url` and `meta` are as they were read. The same corpus gives the
same bytes. Until it is complete `unfinished.json` says what is being exported, so that the same command can begin again.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.annotations import Part
from pipelines.contracts.config import near_match
from pipelines.contracts.errors import AccountingError, ConflictError, UserError
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.contracts.stage import DROP, EDITS_COLUMN
from pipelines.contracts.store import fsync_directory, read_json, record_file, write_atomic, write_json
from pipelines.show import ProgressDisplay, human_bytes

FORMAT = "gristmill-export/1"
EXPORTED = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("meta", pa.string()),
    ]
)
"""Columns of a Parquet file before annotations. In JSON lines `meta` is an object, and what is null is left out."""

_UNFINISHED = "unfinished.json"
_FILE_BYTES = 1 << 30  # stored text of the parts that share a file
_GROUP_BYTES = 32 << 20  # text of a Parquet row group, unless a single document holds more
_GROUP_ROWS = 1 << 16  # and its documents


@dataclass(frozen=True)
class ExportedFile:
    """A file of an export: its record, and the documents and UTF-8 bytes of text in it."""

    path: str
    bytes: int
    xxh3_128: str
    source: str
    documents: int
    text_bytes: int


def export_corpus(
    corpus: Path,
    output: Path,
    format: str,  # noqa: A002
    sources: Sequence[str] | None,
    columns: Sequence[str] = (),
) -> list[ExportedFile]:
    """Write the kept, edited text of a corpus into the directory `output`, and `export.json` last.

    `format` is parquet (zstd, page checksums) or jsonl (gzip). `sources` None means all. `columns` are annotations to write
    beside the text, null where a step did not look at a source. Memory is bounded by one part.
    ConflictError where `output` holds anything but what the same export has left unfinished, UserError for an unknown
    source, column or format, AccountingError where the documents written are not those that the corpus manifest counted.
    """
    if format not in _WRITERS:
        raise UserError(f"--format: got {format!r}, expected one of {', '.join(_WRITERS)}")
    opened = open_corpus(corpus)
    names = list(opened.manifest.sources) if sources is None else list(dict.fromkeys(sources))
    if not names:
        raise UserError(f"--sources: names no source; there are: {', '.join(opened.manifest.sources)}")
    for name in names:
        opened.check_source(name, "--sources")
    schema = _schema(opened, columns)
    manifest = opened.manifest
    header = {"format": FORMAT, "corpus": manifest.corpus, "fingerprint": manifest.fingerprint, "written_as": format}
    _claim(output, opened, header | {"sources": names, "columns": schema.names})
    with ProgressDisplay() as display:
        files = _write_files(opened, output, format, names, schema, display)
        totals = {name: _total(opened, name, files) for name in names}
        write_json(output / "export.json", header | {"sources": totals, "files": [asdict(file) for file in files]})
        (output / _UNFINISHED).unlink()
        fsync_directory(output)
        documents, size = sum(file.documents for file in files), sum(file.bytes for file in files)
        display.say(f"{documents:,} documents in {len(files)} files, {human_bytes(size)}: {output / 'export.json'}")
        if any(step.stage == "pii" for step in opened.steps):
            display.say("url and meta are as they were read, personal data included: pii steps edit the text")
    return files


def _schema(corpus: Corpus, columns: Sequence[str]) -> pa.Schema:
    """EXPORTED and the annotations `columns`; UserError for one that no step writes, or that is no value of a document."""
    first = next(corpus.parts(), None)
    written = first.types if first is not None else pa.schema([])
    allowed = [name for name in written.names if name not in (DROP, EDITS_COLUMN, *EXPORTED.names)]
    allowed = [name for name in allowed if not pa.types.is_nested(written.field(name).type)]
    allowed = [name for name in allowed if not pa.types.is_fixed_size_binary(written.field(name).type)]
    fields = []
    for name in dict.fromkeys(columns):
        if name not in allowed:
            raise UserError(
                f"--columns: no step of this corpus writes a value {name!r}{near_match(name, allowed)}; there are: "
                f"{', '.join(sorted(allowed)) or 'none'}"
            )
        fields.append(written.field(name))
    return pa.schema([*EXPORTED, *fields])


def kept_documents(corpus: Corpus, part: Part, schema: pa.Schema) -> pa.Table:
    """The documents of a part that no step dropped, edited: columns of `schema`, which begins with those of EXPORTED."""
    added = schema.names[len(EXPORTED) :]
    docs = part.table((DROP, "edited_text", "source", "url", "meta", *added))
    kept = pc.is_null(docs[DROP])
    docs = docs.filter(kept).combine_chunks()
    ids = pa.array(corpus.printed_ids(part), pa.string()).filter(kept.combine_chunks())
    columns = [ids, docs["edited_text"], docs["source"].cast(pa.string()), docs["url"], docs["meta"]]
    return pa.table([*columns, *(docs[name] for name in added)], schema=schema)


def _write_all(write: Callable[..., None], tables: Callable[[], Iterator[pa.Table]], sink: BinaryIO) -> None:
    write(sink, tables())


def _claim(output: Path, corpus: Corpus, request: dict[str, Any]) -> None:
    """Make the directory of an export, or take over what was left of the same one."""
    if output.exists() and not output.is_dir():
        raise ConflictError(f"{output}: is a file, expected a directory")
    if corpus.directory.resolve() in output.resolve().parents:
        raise ConflictError(f"{output}: lies inside the corpus; name a directory outside it")
    marker = output / _UNFINISHED
    if marker.exists():
        begun = {name: value for name, value in read_json(marker).items() if name != "checksum"}
        if begun != request:
            raise ConflictError(f"{output}: holds another export, unfinished; remove it, or name another directory")
    elif output.is_dir() and any(not path.match(f".{_UNFINISHED}.*.tmp") for path in output.iterdir()):
        raise ConflictError(f"{output}: is not empty; name a directory that is empty or does not exist")
    for left in output.glob(".*.tmp"):  # by an export that was killed
        left.unlink()
    write_json(marker, request)


def _write_files(
    corpus: Corpus, output: Path, kind: str, sources: Sequence[str], schema: pa.Schema, display: ProgressDisplay
) -> list[ExportedFile]:
    write, suffix = _WRITERS[kind]
    groups = [(source, number, parts) for source in sources for number, parts in enumerate(_groups(corpus, source))]
    total, done = sum(len(parts) for _, _, parts in groups), 0
    files: list[ExportedFile] = []
    for source, number, parts in groups:
        documents = text_bytes = 0

        def tables(parts: Sequence[Part] = parts) -> Iterator[pa.Table]:
            nonlocal documents, text_bytes, done
            for part in parts:
                table = kept_documents(corpus, part, schema)
                documents += table.num_rows
                text_bytes += pc.sum(pc.binary_length(table["text"])).as_py()
                yield table
                done += 1
                display.progress("export", done, total)

        name = f"{source}-{number:05d}{suffix}"
        write_atomic(output / name, partial(_write_all, partial(write, schema), tables))
        display.say(f"{name}: {documents:,} documents")
        files.append(
            ExportedFile(**asdict(record_file(output, name)), source=source, documents=documents, text_bytes=text_bytes)
        )
    return files


def _groups(corpus: Corpus, source: str) -> Iterator[list[Part]]:
    """Neighbouring parts that keep any document, as many as share a file."""
    filled = 0

    def number(part: Part) -> int:
        nonlocal filled
        filled += part.text_bytes
        return (filled - part.text_bytes) // _FILE_BYTES

    kept = (part for part in corpus.parts(source) if part.drop().null_count)
    for _, group in groupby(kept, key=number):
        yield list(group)


def _total(corpus: Corpus, source: str, files: Sequence[ExportedFile]) -> dict[str, Any]:
    """What was written of a source; AccountingError unless it is what the corpus counted as kept."""
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


def _write_parquet(schema: pa.Schema, sink: BinaryIO, tables: Iterator[pa.Table]) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for table in tables:
            for group in _row_groups(table):
                writer.write_table(group, row_group_size=_GROUP_ROWS)


def _row_groups(table: pa.Table) -> Iterator[pa.Table]:
    """Slices of a table of at most _GROUP_BYTES of text, or of one longer document, and at most _GROUP_ROWS rows."""
    ends = np.cumsum(pc.binary_length(table["text"]).to_numpy())
    first = 0
    while first < table.num_rows:
        before = ends[first - 1] if first else 0
        last = int(np.searchsorted(ends, before + _GROUP_BYTES, side="right"))
        last = min(max(last, first + 1), first + _GROUP_ROWS)
        yield table.slice(first, last - first)
        first = last


def _write_jsonl(schema: pa.Schema, sink: BinaryIO, tables: Iterator[pa.Table]) -> None:
    # No time and no name in the header: the same documents give the same bytes.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=sink, mtime=0) as packed:
        for table in tables:
            for batch in table.to_batches(max_chunksize=1024):
                for row in batch.to_pylist():
                    packed.write(_line(row))


def _line(row: dict[str, Any]) -> bytes:
    """A document as one line. `meta` is JSON already and goes in as it is, so that no number changes."""
    meta = row.pop("meta")
    line = json.dumps({name: value for name, value in row.items() if value is not None}, ensure_ascii=False)
    if meta is not None:
        between = meta.replace("\n", " ").replace("\r", " ")  # in JSON these stand between values only
        line = f'{line[:-1]}, "meta": {between}}}'
    return f"{line}\n".encode()


_WRITERS: dict[str, tuple[Callable[[pa.Schema, BinaryIO, Iterator[pa.Table]], None], str]] = {
    "parquet": (_write_parquet, ".parquet"),
    "jsonl": (_write_jsonl, ".jsonl.gz"),
}
