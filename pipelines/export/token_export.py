"""Export the token shards of a corpus for other trainers: nanoGPT, Megatron-LM and litdata.

Documents are exported source by source, in the order of the shards, each followed by `<eos>`. If the shard
set has `group_by`, shards of different groups are interleaved. The same corpus gives the same bytes with any
number of workers, even if the export is killed and continued.

- `nanogpt`: `train.bin`, `val.bin` and `test.bin`, each with the ids of its documents as little-endian uint16.
  nanoGPT's `train.py` reads the first two.
- `megatron`: `train`, `validation` and `test`, each as `.bin` (ids, uint16 or int32) and `.idx`, the index that
  Megatron-LM's `IndexedDataset` reads, with one sequence per document.
- `litdata`: `train`, `validation` and `test`, each a directory with a chunk for each shard and an `index.json`,
  which litdata's `StreamingDataset` reads with its `TokensLoader`.

A split without documents has no files. The directory also has `tokenizer.json` and, written last,
`export.json` with the checksums and what was left out. Each worker writes one file at a time: a file of
nanoGPT or Megatron-LM, or a chunk of litdata.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from gristmill.console import ProgressDisplay
from gristmill.errors import UserError
from gristmill.storage.location import FileRecord, Location
from gristmill.storage.store import digest, write_json
from gristmill.terminal import human_bytes
from pipelines.contracts.given_split import SPLITS, TRAIN, VALIDATION
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.contracts.shard_set import Shard, ShardRecord, choose_shard_set, open_shard
from pipelines.export.export_directory import FORMAT, check_unchanged, finish_output, prepare_output
from pipelines.export.export_files import ExportJob
from pipelines.export.left_out import find_left_out
from pipelines.export.litdata_chunks import DTYPES, chunk_index, write_chunk

_MEGATRON_HEADER = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1)  # magic and version of an index
_MEGATRON_TYPES = {"uint16": ("<u2", 8), "uint32": ("<i4", 4)}  # of a shard set -> of the ids in .bin, and its code
_NANOGPT_NAMES = {TRAIN: "train", VALIDATION: "val"}

TOKEN_FORMATS = {
    "nanogpt": {"uint16": "<u2"},
    "megatron": {name: kind for name, (kind, _) in _MEGATRON_TYPES.items()},
    "litdata": {name: kind for name, (kind, _) in DTYPES.items()},
}
"""For each format: the id types of shard sets that it supports, each with the id type of the exported files."""


@dataclass(frozen=True)
class TokenFile:
    """One file to write: the ids of some shards (`content` is `ids`, or `chunk` for litdata) or an index of
    them (`megatron_index`). `dtype` is the type of the ids in the shards, and `kind` the type in the file.
    """

    path: str
    content: str
    shards: tuple[ShardRecord, ...]
    dtype: str
    kind: str
    eos: int

    @property
    def inputs(self) -> str:
        """A digest of everything that determines the file's content: the shards and all other fields except
        `path`.
        """
        checksums = [shard.xxh3_128 for shard in self.shards]
        return digest([self.content, checksums, self.dtype, self.kind, self.eos])

    @property
    def bytes_read(self) -> int:
        """The total size of the shards in bytes; 0 for an index, which needs only their offsets."""
        return 0 if self.content == "megatron_index" else sum(shard.bytes for shard in self.shards)


def export_tokens(
    corpus: Location,
    output: Location,
    format: str,  # noqa: A002
    shard_set: str | None = None,
    sources: Sequence[str] | None = None,
    workers: int | None = 1,
) -> list[FileRecord]:
    """Write the token shards of a corpus into the directory or prefix `output`, and return the records of all
    files but `export.json`, which is written last. `format` is a key of TOKEN_FORMATS. `shard_set` may be
    omitted if the corpus has only one shard set. If `sources` is None, all sources are exported.

    Raises ConflictError if `output` cannot be used (see `prepare_output`), or if the corpus changes in the
    meantime. Raises UserError for an unknown source or shard set, and for a vocabulary that lacks `<eos>` or
    is too large for the format.
    """
    opened, kinds = open_corpus(corpus), TOKEN_FORMATS[format]
    name, shards = choose_shard_set(opened.manifest.shard_sets, shard_set, "--shard-set")
    wanted = opened.choose_sources(sources, "--sources")
    if shards.dtype not in kinds:
        raise UserError(
            f"--format: {format} has 16-bit ids, and the vocabulary of {name} has {shards.tokenizer.vocab_size:,}; use "
            "--format megatron or litdata"
        )
    if "<eos>" not in shards.tokenizer.specials:
        raise UserError(f"--shard-set: the tokenizer of {name} has no <eos> to put after each document")
    eos = shards.tokenizer.specials["<eos>"]
    header: dict[str, Any] = {
        "format": FORMAT,
        "corpus": opened.manifest.corpus,
        "fingerprint": opened.manifest.fingerprint,
    }
    header |= {"written_as": format, "shard_set": name, "sources": wanted, "eos": eos}
    unfinished = prepare_output(output, opened, header)
    with ProgressDisplay() as display:
        plans: list[TokenFile] = []
        indexes: dict[str, bytes] = {}
        for split in SPLITS:
            chosen = tuple(each for source in wanted for each in shards.shards if _belongs(each, source, split))
            if chosen:
                tokens = sum(each.tokens + each.documents for each in chosen)
                display.say(f"{split}: {tokens:,} tokens of {sum(each.documents for each in chosen):,} documents")
                planned = list(_plan_split(format, split, chosen, shards.dtype, eos))
                plans += planned
                if format == "litdata":
                    names = [plan.path.rpartition("/")[2] for plan in planned]
                    indexes[f"{split}/index.json"] = chunk_index(names, chosen, shards.dtype)
        try:
            job = ExportJob(corpus, opened, output, unfinished, workers, display)
            files = job.write_files(plans, write_token_file, FileRecord)
            left_out = replace(find_left_out(opened, wanted, _TEXT, ()), columns={})
        except UserError:
            check_unchanged(corpus, opened, output)
            raise
        files += [output.write_file(path, content) for path, content in indexes.items()]
        files.append(output.write_file("tokenizer.json", (opened.directory / shards.tokenizer.path).read_bytes()))
        facts = {"left_out": asdict(left_out), "files": [asdict(file) for file in files]}
        write_json(output / "export.json", header | facts, lambda: check_unchanged(corpus, opened, output))
        finish_output(output)
        display.say(f"{human_bytes(sum(file.bytes for file in files))}: {output / 'export.json'}")
    return files


_TEXT = pa.schema([("text", pa.large_string())])  # all of a document that tokens are made of


def _belongs(record: ShardRecord, source: str, split: str) -> bool:
    return record.source == source and record.split == split and record.documents > 0


def _plan_split(form: str, split: str, chosen: tuple[ShardRecord, ...], dtype: str, eos: int) -> Iterator[TokenFile]:
    kind = TOKEN_FORMATS[form][dtype]
    if form == "litdata":
        for number, shard in enumerate(chosen):
            yield TokenFile(f"{split}/chunk-0-{number}.bin", "chunk", (shard,), dtype, kind, eos)
        return
    name = _NANOGPT_NAMES.get(split, split) if form == "nanogpt" else split
    yield TokenFile(f"{name}.bin", "ids", chosen, dtype, kind, eos)
    if form == "megatron":
        yield TokenFile(f"{name}.idx", "megatron_index", chosen, dtype, kind, eos)


def write_token_file(corpus: Corpus, output: Location, file: TokenFile) -> FileRecord:
    """Write one file of an export and return its record."""
    kind = np.dtype(file.kind)

    def lengths() -> np.ndarray:
        return np.concatenate([np.diff(open_shard(corpus.directory, each.file).offsets) for each in file.shards]) + 1

    def content(sink: BinaryIO) -> None:
        if file.content == "megatron_index":
            _write_megatron_index(lengths(), file.dtype, sink)
        elif file.content == "chunk":
            shard = open_shard(corpus.directory, file.shards[0].file)
            write_chunk(sink, with_eos(shard, file.eos, kind), np.diff(shard.offsets) + 1)
        else:
            for record in file.shards:
                sink.write(with_eos(open_shard(corpus.directory, record.file), file.eos, kind).tobytes())

    return output.write_file(file.path, content)


def with_eos(shard: Shard, eos: int, kind: np.dtype) -> np.ndarray:
    """Return the token ids of a shard, with `eos` after each document, as an array of dtype `kind`."""
    documents = len(shard.offsets) - 1
    ids = np.empty(len(shard.tokens) + documents, kind)
    ends = shard.offsets[1:] + np.arange(documents)
    of_text = np.ones(len(ids), bool)
    of_text[ends] = False
    ids[of_text], ids[ends] = shard.tokens, eos
    return ids


def _write_megatron_index(sizes: np.ndarray, dtype: str, sink: BinaryIO) -> None:
    """Write the index of a .bin file, given the number of ids in each document. The layout is that of
    `indexed_dataset.py` in Megatron-LM.
    """
    kind, code = _MEGATRON_TYPES[dtype]
    starts = np.concatenate([[0], np.cumsum(sizes[:-1])]) * np.dtype(kind).itemsize
    sink.write(_MEGATRON_HEADER + struct.pack("<BQQ", code, len(sizes), len(sizes) + 1))
    for values, width in ((sizes, "<i4"), (starts, "<i8"), (np.arange(len(sizes) + 1), "<i8")):
        sink.write(values.astype(width).tobytes())
