"""Export the token shards of a corpus for other trainers: nanoGPT and Megatron-LM.

Documents are those of the shards, source by source and in the order of the shards, each followed by `<eos>`. The shards of a
source that `group_by` splits follow one another. The same corpus gives the same bytes.

- `nanogpt`: `train.bin` and `val.bin` (`test.bin`, if a source gives that split), the ids of all documents as
  little-endian uint16, which nanoGPT's `train.py` maps into memory.
- `megatron`: `train`, `validation` and `test`, each as `.bin` (ids, uint16 or int32) and `.idx`, the index that
  Megatron-LM's `IndexedDataset` reads: one sequence per document.

Beside them lie `tokenizer.json` and, written last, `export.json` with the checksums.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from gristmill.console import ProgressDisplay
from gristmill.errors import UserError
from gristmill.storage.location import FileRecord, Location
from gristmill.storage.store import write_json
from gristmill.terminal import human_bytes
from pipelines.contracts.given_split import SPLITS, TRAIN, VALIDATION
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.contracts.shard_set import Shard, ShardRecord, ShardSet, choose_shard_set, open_shard
from pipelines.export.export_directory import FORMAT, check_unchanged, finish_output, prepare_output

_MEGATRON_HEADER = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1)  # magic and version of an index
_MEGATRON_TYPES = {"uint16": ("<u2", 8), "uint32": ("<i4", 4)}  # of a shard set -> of the ids in .bin, and its code
_NANOGPT_NAMES = {TRAIN: "train", VALIDATION: "val"}


@dataclass(frozen=True)
class TokenFormat:
    """A format of exported ids: the type of the ids for each type of shard set, its name for a split, and whether it has
    an index.
    """

    types: dict[str, str]
    names: dict[str, str]
    index: bool


FORMATS = {
    "nanogpt": TokenFormat({"uint16": "<u2"}, _NANOGPT_NAMES, index=False),
    "megatron": TokenFormat({name: kind for name, (kind, _) in _MEGATRON_TYPES.items()}, {}, index=True),
}


def export_tokens(
    corpus: Location,
    output: Location,
    format: str,  # noqa: A002
    shard_set: str | None = None,
    sources: Sequence[str] | None = None,
) -> list[FileRecord]:
    """Write the shards of a corpus into the directory or prefix `output`, and `export.json` last. `sources` None means
    all; `shard_set` may be left out if there is only one. One shard is held in memory.

    Raises ConflictError if `output` holds anything but an unfinished run of the same export, or the corpus changes
    meanwhile. Raises UserError for an unknown source or shard set, a vocabulary without `<eos>`, and one that is too
    large for the format.
    """
    form, opened = FORMATS[format], open_corpus(corpus)
    name, shards = choose_shard_set(opened.manifest.shard_sets, shard_set, "--shard-set")
    wanted = opened.choose_sources(sources, "--sources")
    if shards.dtype not in form.types:
        raise UserError(
            f"--format: {format} has 16-bit ids, and the vocabulary of {name} has {shards.tokenizer.vocab_size:,}; use "
            "--format megatron"
        )
    if "<eos>" not in shards.tokenizer.specials:
        raise UserError(f"--shard-set: the tokenizer of {name} has no <eos> to put after each document")
    header: dict[str, Any] = {
        "format": FORMAT,
        "corpus": opened.manifest.corpus,
        "fingerprint": opened.manifest.fingerprint,
    }
    header |= {"written_as": format, "shard_set": name, "sources": wanted, "eos": shards.tokenizer.specials["<eos>"]}
    prepare_output(output, opened, header)
    files: list[FileRecord] = []
    with ProgressDisplay() as display:
        for split in SPLITS:
            chosen = [each for source in wanted for each in shards.shards if _belongs(each, source, split)]
            if chosen:
                tokens = sum(each.tokens + each.documents for each in chosen)
                display.say(f"{split}: {tokens:,} tokens of {sum(each.documents for each in chosen):,} documents")
                files += _write_split(opened, output, form, shards, split, chosen)
        files.append(output.write_file("tokenizer.json", (opened.directory / shards.tokenizer.path).read_bytes()))
        check_unchanged(opened, output)
        write_json(output / "export.json", header | {"files": [asdict(file) for file in files]})
        finish_output(output)
        display.say(f"{human_bytes(sum(file.bytes for file in files))}: {output / 'export.json'}")
    return files


def _belongs(record: ShardRecord, source: str, split: str) -> bool:
    return record.source == source and record.split == split and record.documents > 0


def _write_split(
    corpus: Corpus, output: Location, form: TokenFormat, shards: ShardSet, split: str, chosen: Sequence[ShardRecord]
) -> Iterator[FileRecord]:
    name, kind = form.names.get(split, split), np.dtype(form.types[shards.dtype])
    eos = shards.tokenizer.specials["<eos>"]

    def write_ids(sink: BinaryIO) -> None:
        for record in chosen:
            sink.write(with_eos(open_shard(corpus.directory, record.file), eos, kind).tobytes())

    yield output.write_file(f"{name}.bin", write_ids)
    if form.index:
        sizes = np.concatenate([np.diff(open_shard(corpus.directory, record.file).offsets) for record in chosen])
        yield output.write_file(f"{name}.idx", partial(_write_megatron_index, sizes + 1, shards.dtype))


def with_eos(shard: Shard, eos: int, kind: np.dtype) -> np.ndarray:
    """Return the ids of all documents of a shard, each followed by `eos`."""
    documents = len(shard.offsets) - 1
    ids = np.empty(len(shard.tokens) + documents, kind)
    ends = shard.offsets[1:] + np.arange(documents)
    of_text = np.ones(len(ids), bool)
    of_text[ends] = False
    ids[of_text], ids[ends] = shard.tokens, eos
    return ids


def _write_megatron_index(sizes: np.ndarray, dtype: str, sink: BinaryIO) -> None:
    """Write the index of a .bin file, given the number of ids of each document: magic, version, code of the type, numbers of
    sequences and of document borders, lengths, byte offsets, and the borders (Megatron-LM, `indexed_dataset.py`).
    """
    kind, code = _MEGATRON_TYPES[dtype]
    starts = np.concatenate([[0], np.cumsum(sizes[:-1])]) * np.dtype(kind).itemsize
    sink.write(_MEGATRON_HEADER + struct.pack("<BQQ", code, len(sizes), len(sizes) + 1))
    for values, width in ((sizes, "<i4"), (starts, "<i8"), (np.arange(len(sizes) + 1), "<i8")):
        sink.write(values.astype(width).tobytes())
