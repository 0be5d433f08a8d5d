"""Export the kept, edited text of a published corpus as Parquet, gzipped JSON lines, WebDataset or MDS, for
use by other software.

An export is a directory or URL prefix with these files:

- `data/`: the files of each source, `00000-SOURCE.parquet`, `.jsonl.gz` or `.tar`, numbered consecutively across
  sources. Workers write several files at a time, each atomically. Columns: `id` (`source/path#record`), `text`,
  `source`, `url`, `meta`, `split` if any source of the corpus comes with a split, and requested annotations.
  In a corpus with the column `split`, every file has documents of only one split and is named after it,
  `00000-SOURCE.SPLIT.parquet`. Documents without a split are in the files of `train`; their `split` is null.
- `train/`, `validation/` and `test/`, only with MDS, in place of `data/`: the files of each split,
  `train/00000-SOURCE.mds`, and their `index.json`. Documents without a split are in `train/`.
- `README.md`: a dataset card that lets `datasets.load_dataset` read the whole export, its splits and each source
  (with MDS, which `datasets` does not read, the card only describes the export).
- `croissant.json`: a description of the data set in the Croissant format. WebDataset and MDS have none, because
  their files are not tables.
- `export.json`, written last: the files with their checksums, and what was left out and why, as in README.md.
- `unfinished.json`, present only until the export is complete: the request and the files finished so far. If the
  export is interrupted, the same command continues from it.

The same corpus gives the same bytes with any number of workers, even if the export is killed and continued.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.console import ProgressDisplay
from gristmill.errors import AccountingError, UserError
from gristmill.storage.location import Location
from gristmill.storage.store import digest, write_json
from gristmill.terminal import human_bytes
from pipelines.contracts.columns import DROP
from pipelines.contracts.given_split import SPLITS, TRAIN
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.contracts.parts import Part
from pipelines.export.croissant import croissant
from pipelines.export.export_card import dataset_card
from pipelines.export.export_directory import FORMAT, ExportedFile, check_unchanged, finish_output, prepare_output
from pipelines.export.export_files import ExportJob
from pipelines.export.export_formats import TEXT_FORMATS
from pipelines.export.exported_documents import SPLIT_COLUMN, export_schema, kept_documents
from pipelines.export.left_out import OPTIONAL_COLUMNS, find_left_out
from pipelines.export.mds_shards import shard_index


def export_corpus(
    corpus: Location,
    output: Location,
    format: str,  # noqa: A002
    sources: Sequence[str] | None,
    columns: Sequence[str] = (),
    without: Sequence[str] = (),
    workers: int | None = 1,
) -> list[ExportedFile]:
    """Write the kept, edited text of a corpus into the directory or prefix `output`, and return the records
    of the files that contain documents. `export.json` is written last.

    `format` is parquet (zstd, page checksums), jsonl (gzip), webdataset (tar) or mds. If `sources` is None,
    all sources are exported. `columns` are annotations to add; they are null in sources to which their step
    does not apply. `without` leaves out `url` or `meta`, or both. `workers` is the number of processes, each
    of which writes one file at a time; if it is None, it depends on the amount of text.

    Raises ConflictError if `output` lies inside the corpus or contains anything but an unfinished run of the
    same export, or if the corpus changes in the meantime. Raises UserError for an unknown source, column or
    format. Raises AccountingError if the number of documents differs from the number in the corpus manifest.
    """
    if format not in TEXT_FORMATS:
        raise UserError(f"--format: got {format!r}, expected one of {', '.join(TEXT_FORMATS)}")
    opened = open_corpus(corpus)
    names = opened.choose_sources(sources, "--sources")
    schema = export_schema(opened, columns, without)
    manifest = opened.manifest
    header = {"format": FORMAT, "corpus": manifest.corpus, "fingerprint": manifest.fingerprint, "written_as": format}
    unfinished = prepare_output(output, opened, header | {"sources": names, "columns": schema.names})
    with ProgressDisplay() as display:
        try:
            plans = _plan_files(opened, format, _sort_by_nulls(opened, names, schema), schema)
            job = ExportJob(corpus, opened, output, unfinished, workers, display)
            files = job.write_files(plans, write_text_file, ExportedFile)
            totals = {name: _total(opened, name, files) for name in names}
            left_out = find_left_out(opened, names, schema, without)
        except UserError:
            check_unchanged(corpus, opened, output)
            raise
        is_table = TEXT_FORMATS[format].is_table
        listed = [] if format == "mds" else files
        card = dataset_card(manifest, schema, totals, listed, left_out, with_columns=is_table)
        (output / "README.md").write_atomic(card.encode())
        if is_table:
            (output / "croissant.json").write_atomic(croissant(manifest, schema, totals, files, format).encode())
        for split in SPLITS if format == "mds" else ():
            if shards := [file for file in files if file.split == split]:
                (output / split / "index.json").write_atomic(shard_index(schema, shards))
        receipt = {"sources": totals, "left_out": asdict(left_out), "files": [asdict(file) for file in files]}
        write_json(output / "export.json", header | receipt, lambda: check_unchanged(corpus, opened, output))
        finish_output(output)
        documents, size = sum(file.documents for file in files), sum(file.bytes for file in files)
        display.say(f"{documents:,} documents in {len(files)} files, {human_bytes(size)}: {output / 'export.json'}")
        for line in _warnings(opened, names, schema):
            display.say(line)
    return files


def _warnings(corpus: Corpus, sources: Sequence[str], schema: pa.Schema) -> Iterator[str]:
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
    steps = [step for step in corpus.steps if step.stage == "pii" and step.manifest.source in (None, source)]
    return frozenset(name for step in steps for name in step.manifest.schema)


def _sort_by_nulls(corpus: Corpus, sources: Sequence[str], schema: pa.Schema) -> list[str]:
    """Sort sources by the number of columns that are entirely null in their first part with kept documents,
    because readers of JSON lines infer types from the first file.
    """

    def nulls(source: str) -> int:
        part = next((part for part in corpus.parts(source) if part.drop().null_count), None)
        if part is None:
            return len(schema)
        kept = part.table(
            (DROP, *(field.name for field in schema if field.nullable and field.name != SPLIT_COLUMN.name))
        )
        kept = kept.filter(pc.is_null(kept[DROP])).drop([DROP])
        without_split = SPLIT_COLUMN.name in schema.names and part.given is None
        return without_split + sum(column.null_count == kept.num_rows for column in kept.columns)

    return sorted(sources, key=nulls)


class _HashingSink(io.RawIOBase):
    """A file object that passes bytes on to a sink and computes their SHA-256. Closing it leaves the sink
    open.
    """

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
class TextFile:
    """A file to write, with the kept documents of `parts`, which all belong to `source`. If `by_split` is
    set, only the documents of `split` are written.
    """

    number: int
    source: str
    split: str
    by_split: bool
    parts: Sequence[Part]
    format: str
    schema: pa.Schema

    @property
    def path(self) -> str:
        """The path of the file, relative to the export."""
        suffix = TEXT_FORMATS[self.format].suffix
        if self.format == "mds":
            return f"{self.split}/{self.number:05d}-{self.source}{suffix}"
        return f"data/{self.number:05d}-{self.source}{f'.{self.split}' if self.by_split else ''}{suffix}"

    @property
    def inputs(self) -> str:
        """A digest of everything that determines the file's content: its parts, source, split, format and
        schema.
        """
        parts = [[part.name, part.documents.xxh3_128] for part in self.parts]
        return digest([self.source, self.split, self.by_split, parts, self.format, str(self.schema)])

    @property
    def bytes_read(self) -> int:
        """The number of bytes of stored text in the file's parts."""
        return sum(part.text_bytes for part in self.parts)

    def tables(self, corpus: Corpus) -> Iterator[pa.Table]:
        """Yield the kept documents of each part as a table; with `by_split`, only those of the file's split."""
        for part in self.parts:
            table = kept_documents(corpus, part, self.schema)
            yield table.filter(pc.equal(pc.fill_null(table["split"], TRAIN), self.split)) if self.by_split else table


def write_text_file(corpus: Corpus, output: Location, file: TextFile) -> ExportedFile:
    """Write one file of an export and return its record."""
    documents = text_bytes = 0
    sha256 = ""

    def tables() -> Iterator[pa.Table]:
        nonlocal documents, text_bytes
        documents = text_bytes = 0
        for table in file.tables(corpus):
            documents += table.num_rows
            text_bytes += pc.sum(pc.binary_length(table["text"])).as_py() or 0
            yield table

    def content(sink: BinaryIO) -> None:
        nonlocal sha256
        hashing = _HashingSink(sink)
        TEXT_FORMATS[file.format].write(file.schema, cast("BinaryIO", hashing), tables())
        sha256 = hashing.sha256.hexdigest()

    record = output.write_file(file.path, content)
    facts: dict[str, Any] = {
        "source": file.source,
        "split": file.split,
        "documents": documents,
        "text_bytes": text_bytes,
    }
    return ExportedFile(**asdict(record), sha256=sha256, **facts)


def _plan_files(corpus: Corpus, kind: str, sources: Sequence[str], schema: pa.Schema) -> list[TextFile]:
    files: list[TextFile] = []
    add = partial(TextFile, format=kind, schema=schema)
    for source in sources:
        for parts in _groups(corpus, source, TEXT_FORMATS[kind].file_bytes):
            if SPLIT_COLUMN.name not in schema.names:
                files.append(add(len(files), source, TRAIN, by_split=False, parts=parts))
                continue
            held = [_kept_splits(part) for part in parts]
            for split in SPLITS:
                if chosen := [part for part, splits in zip(parts, held, strict=True) if split in splits]:
                    files.append(add(len(files), source, split, by_split=True, parts=chosen))
    return files


def _kept_splits(part: Part) -> set[str]:
    """Return the splits that the kept documents of a part belong to. The part must have kept documents."""
    splits = part.splits()
    return {TRAIN} if splits is None else set(pc.unique(splits.filter(pc.is_null(part.drop()))).to_pylist())


def _groups(corpus: Corpus, source: str, file_bytes: int) -> Iterator[list[Part]]:
    """Yield the parts that have kept documents, in groups of consecutive parts with about `file_bytes` of
    stored text each.
    """
    filled = 0

    def number(part: Part) -> int:
        nonlocal filled
        filled += part.text_bytes
        return (filled - part.text_bytes) // file_bytes

    kept = (part for part in corpus.parts(source) if part.drop().null_count)
    for _, group in groupby(kept, key=number):
        yield list(group)


def _total(corpus: Corpus, source: str, files: Sequence[ExportedFile]) -> dict[str, Any]:
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
