"""Export: the kept, edited text of a published corpus as Parquet or gzipped JSON lines, for readers that are not ours.

`data/` holds one or more files per source, `00000-SOURCE.parquet` or `00000-SOURCE.jsonl.gz`, numbered over the whole export and
each written atomically, with the columns `id` (printed), `text`, `source`, `url` and `meta`, and those annotations that are asked
for. Beside it are README.md, a dataset card with which `datasets.load_dataset` reads the directory, and, written last,
`export.json`, which lists the files with checksums. The same corpus gives the same bytes. Until the export is complete
`unfinished.json` says what is being exported, so that the same command can begin again. The output may be a URL.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.config import near_match
from gristmill.console import ProgressDisplay
from gristmill.errors import AccountingError, ConflictError, UserError
from gristmill.storage.location import RemotePath, is_within
from gristmill.storage.store import fsync_directory, read_json, write_atomic, write_file, write_json
from gristmill.terminal import human_bytes
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.contracts.parts import Part
from pipelines.export.export_card import dataset_card
from pipelines.export.export_formats import WRITERS

FORMAT = "gristmill-export/2"
EXPORTED = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("meta", pa.string(), nullable=False),
    ]
)
"""Columns before annotations. `meta` is a JSON object as a string, `{}` where a record had no other fields."""
LEAVES_OUT = ("url", "meta")
"""Columns that an export can do without."""

_UNFINISHED = "unfinished.json"
_FILE_BYTES = 1 << 30  # stored text of the parts that share a file


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
    without: Sequence[str] = (),
) -> list[ExportedFile]:
    """Write the kept, edited text of a corpus into the directory or prefix `output`, and `export.json` last.

    `format` is parquet (zstd, page checksums) or jsonl (gzip). `sources` None means all. `columns` are annotations to write
    beside the text, null where a step did not look at a source; `without` leaves out `url` or `meta`. Memory holds one part.
    ConflictError where `output` holds anything but what the same export has left unfinished, UserError for an unknown
    source, column or format, AccountingError where the documents written are not those that the corpus manifest counted.
    """
    if format not in WRITERS:
        raise UserError(f"--format: got {format!r}, expected one of {', '.join(WRITERS)}")
    opened = open_corpus(corpus)
    names = list(opened.manifest.sources) if sources is None else list(dict.fromkeys(sources))
    if not names:
        raise UserError(f"--sources: names no source; there are: {', '.join(opened.manifest.sources)}")
    for name in names:
        opened.check_source(name, "--sources")
    schema = _schema(opened, columns, without)
    manifest = opened.manifest
    header = {"format": FORMAT, "corpus": manifest.corpus, "fingerprint": manifest.fingerprint, "written_as": format}
    _claim(output, opened, header | {"sources": names, "columns": schema.names})
    with ProgressDisplay() as display:
        files = _write_files(opened, output, format, _typed_first(opened, names, schema), schema, display)
        totals = {name: _total(opened, name, files) for name in names}
        card = dataset_card(manifest, schema, totals, WRITERS[format][1])
        write_atomic(output / "README.md", card.encode())
        write_json(output / "export.json", header | {"sources": totals, "files": [asdict(file) for file in files]})
        (output / _UNFINISHED).unlink()
        fsync_directory(output)
        documents, size = sum(file.documents for file in files), sum(file.bytes for file in files)
        display.say(f"{documents:,} documents in {len(files)} files, {human_bytes(size)}: {output / 'export.json'}")
        for line in _warnings(opened, names, schema):
            display.say(line)
    return files


def _warnings(corpus: Corpus, sources: Sequence[str], schema: pa.Schema) -> Iterator[str]:
    """What of `url` and `meta` leaves as it was read although steps looked for personal data in the text."""
    fields = [name for name in LEAVES_OUT if name in schema.names]
    for field in fields:
        bare = [name for name in sources if _searched(corpus, name) and f"pii_{field}" not in _searched(corpus, name)]
        if bare:
            yield (
                f"{field} of {', '.join(bare)}: as it was read, personal data included; name it in `fields` of the pii step, or "
                f"leave it out with --without {field}"
            )


def _searched(corpus: Corpus, source: str) -> frozenset[str]:
    """The columns that pii steps wrote for a source."""
    steps = [step for step in corpus.steps if step.stage == "pii" and step.manifest.source in (None, source)]
    return frozenset(name for step in steps for name in step.manifest.schema)


def _schema(corpus: Corpus, columns: Sequence[str], without: Sequence[str]) -> pa.Schema:
    """EXPORTED less `without`, and the annotations `columns`; UserError for one that no step writes, or that is no value of a
    document.
    """
    for name in without:
        if name not in LEAVES_OUT:
            raise UserError(f"--without: got {name!r}, expected some of {', '.join(LEAVES_OUT)}")
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
    return pa.schema([*(field for field in EXPORTED if field.name not in without), *fields])


def kept_documents(corpus: Corpus, part: Part, schema: pa.Schema) -> pa.Table:
    """The documents of a part that no step dropped, edited: columns of `schema`, which begins with those of EXPORTED."""
    names = [name for name in schema.names if name not in ("id", "text")]
    docs = part.table((DROP, "edited_text", *names, *(["id"] if "id" in schema.names else [])))
    kept = pc.is_null(docs[DROP])
    ids = pa.array(corpus.printed_ids(part), pa.string()).filter(kept.combine_chunks())
    docs = _redacted(part, docs).filter(kept).combine_chunks()
    columns: dict[str, Any] = {name: docs[name] for name in names} | {"id": ids, "text": docs["edited_text"]}
    columns["source"] = docs["source"].cast(pa.string())
    if "meta" in columns:
        columns["meta"] = pc.fill_null(columns["meta"], "{}")
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _redacted(part: Part, docs: pa.Table) -> pa.Table:
    """Documents with `url` and `meta` as the fields of pii steps have them, and without what was derived from such URLs."""
    for name in LEAVES_OUT:
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


def _typed_first(corpus: Corpus, sources: Sequence[str], schema: pa.Schema) -> list[str]:
    """The sources, those first whose first part has a value in most columns: readers of JSON lines guess from the first file."""

    def nulls(source: str) -> int:
        part = next((part for part in corpus.parts(source) if part.drop().null_count), None)
        if part is None:
            return len(schema)
        kept = part.table((DROP, *(field.name for field in schema if field.nullable)))
        kept = kept.filter(pc.is_null(kept[DROP])).drop([DROP])
        return sum(column.null_count == kept.num_rows for column in kept.columns)

    return sorted(sources, key=nulls)


def _write_all(write: Callable[..., None], tables: Callable[[], Iterator[pa.Table]], sink: BinaryIO) -> None:
    write(sink, tables())


def _claim(output: Path, corpus: Corpus, request: dict[str, Any]) -> None:
    """Make the directory of an export, or take over what was left of the same one."""
    if output.is_file():
        raise ConflictError(f"{output}: is a file, expected a directory")
    if is_within(output, corpus.directory):
        raise ConflictError(f"{output}: lies inside the corpus; name a directory outside it")
    marker = output / _UNFINISHED
    if marker.exists():
        begun = {name: value for name, value in read_json(marker).items() if name != "checksum"}
        if begun != request:
            raise ConflictError(f"{output}: holds another export, unfinished; remove it, or name another directory")
    elif output.is_dir() and any(not fnmatch(path.name, f".{_UNFINISHED}.*.tmp") for path in output.iterdir()):
        raise ConflictError(f"{output}: is not empty; name a directory that is empty or does not exist")
    if not isinstance(output, RemotePath):  # where files appear whole
        for left in output.glob("**/.*.tmp"):  # by an export that was killed
            left.unlink()
    write_json(marker, request)


def _write_files(
    corpus: Corpus, output: Path, kind: str, sources: Sequence[str], schema: pa.Schema, display: ProgressDisplay
) -> list[ExportedFile]:
    write, suffix = WRITERS[kind]
    groups = [(source, parts) for source in sources for parts in _groups(corpus, source)]
    total, done = sum(len(parts) for _, parts in groups), 0
    files: list[ExportedFile] = []
    for number, (source, parts) in enumerate(groups):
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

        name = f"data/{number:05d}-{source}{suffix}"
        record = write_file(output, name, partial(_write_all, partial(write, schema), tables))
        display.say(f"{name}: {documents:,} documents")
        files.append(ExportedFile(**asdict(record), source=source, documents=documents, text_bytes=text_bytes))
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
