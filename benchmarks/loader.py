"""Benchmark the training loader: tokens per second, against plain memmap readers and other libraries.

    pip install --target PEERS datasets mosaicml-streaming litdata
    python -m benchmarks.loader [--million-tokens 64] [--sequence-length 2048] [--peers PEERS]

All loaders read shuffled sequences of random tokens from the page cache, in one process: `ours` from two
shards, the others from the first of them. `ours` makes inputs, targets, positions and document segments in
the order of the mixture, for every packing. `memmap` yields inputs alone, like nanoGPT's loader; `memmap +
boundaries` also finds documents by a vectorised search in their offsets. Hugging Face `datasets`, MosaicML's
`streaming` and `litdata` read fixed-length rows, without boundaries, from their own formats. Libraries that
are not installed are left out, with a note.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.storage.disk import LocalPath
from pipelines.contracts.document import document_id
from pipelines.contracts.shard_set import ShardRecord, TokenizerRecord, open_shard, write_shard
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.pretraining import Data
from trainers.data.packed_corpus import TrainingCorpus, training_data
from trainers.data.stream import SourceStream
from trainers.objectives.causal import Causal
from trainers.recipes import llama_tiny

Reader = Callable[[SourceStream, int], Iterator[int]]
ROWS = 32
MEAN_DOCUMENT = 600
SENTENCE = 25


def write_source(directory: LocalPath, tokens: int) -> SourceStream:
    rng = np.random.default_rng(0)
    records = []
    for number in range(2):
        lengths = rng.lognormal(np.log(MEAN_DOCUMENT) - 0.5, 1.0, tokens // 2 // MEAN_DOCUMENT).astype(np.int64) + 1
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = rng.integers(128, 32_000, offsets[-1], dtype=np.uint16)
        ids = pa.array([document_id(number, i) for i in range(len(lengths))], pa.binary(16))
        name = f"{number}.arrow"
        (directory / name).write_atomic(
            lambda sink, v=values, o=offsets, i=ids, n=lengths: write_shard(sink, v, o, i, n, {}, every(o, SENTENCE)),
        )
        file = directory.record(name)
        size = (len(lengths), int(offsets[-1]), int(offsets[-1]))
        records.append(ShardRecord(file.path, file.bytes, file.xxh3_128, "web", "train", *size))
    return SourceStream("web", directory, tuple(records), Causal.frame)


def every(offsets: np.ndarray, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the (starts, offsets) of sentences of `tokens` tokens each, in the layout of a shard."""
    many = -(-np.diff(offsets) // tokens)
    ends = np.concatenate([[0], np.cumsum(many)])
    return (np.arange(ends[-1]) - np.repeat(ends[:-1], many)) * tokens, ends


def ours(packing: str) -> Reader:
    def read(source: SourceStream, length: int) -> Iterator[int]:
        config = replace(llama_tiny(), data=Data(sequence_length=length, packing=packing, weights={"web": 1.0}))
        data = training_data(corpus_around(source), config)
        first = 0
        while True:
            samples = data.order.take(first, ROWS)
            data.rows(samples)
            yield int(samples.tokens.sum())
            first += ROWS

    return read


def corpus_around(source: SourceStream) -> TrainingCorpus:
    tokenizer = TokenizerRecord("tokenizer.json", 0, "", 32_000, "byte_bpe", dict(SPECIAL_IDS))
    columns = frozenset({"sentences"})
    return TrainingCorpus(
        "benchmark", tokenizer, source.directory, "shards", {}, {"web": source}, {}, frozenset(), columns
    )


def memmap(source: SourceStream, length: int) -> Iterator[int]:
    tokens = source.shard(0).tokens
    sequences = np.random.default_rng(0).permutation(len(tokens) // length - 1)
    for first in range(0, len(sequences) - ROWS, ROWS):
        yield np.stack(
            [tokens[i * length : (i + 1) * length].astype(np.int64) for i in sequences[first : first + ROWS]]
        ).size


def memmap_boundaries(source: SourceStream, length: int) -> Iterator[int]:
    shard = source.shard(0)
    sequences = np.random.default_rng(0).permutation(len(shard.tokens) // length - 1)
    for first in range(0, len(sequences) - ROWS, ROWS):
        places = sequences[first : first + ROWS, None] * length + np.arange(length)
        inputs, targets = shard.tokens[places].astype(np.int64), shard.tokens[places + 1].astype(np.int64)
        document = np.searchsorted(shard.offsets, places, side="right") - 1
        positions = places - np.maximum(shard.offsets[document], places[:, :1])
        targets[places + 1 == shard.offsets[document + 1]] = -100
        assert positions.shape == inputs.shape
        yield inputs.size


def datasets(source: SourceStream, length: int) -> Iterator[int]:
    import datasets as hf

    tokens = source.shard(0).tokens
    rows = tokens[: len(tokens) // length * length].reshape(-1, length)
    table = hf.Dataset.from_dict({"input_ids": rows.astype(np.int32)}).with_format("numpy").shuffle(seed=0)
    for first in range(0, len(table) - ROWS, ROWS):
        yield table[first : first + ROWS]["input_ids"].size


def mosaic(source: SourceStream, length: int) -> Iterator[int]:
    dataset = mosaic_dataset(source, length)
    while True:
        rows = []
        for entry in dataset:
            rows.append(entry["tokens"])
            if len(rows) == ROWS:
                yield np.stack(rows).astype(np.int64).size
                rows = []


@cache
def mosaic_dataset(source: SourceStream, length: int) -> Any:
    # Its image datasets, not needed here, require a torchvision built for exactly this torch.
    sys.modules.setdefault("streaming.vision", ModuleType("streaming.vision"))
    from streaming import MDSWriter, StreamingDataset

    tokens, directory = source.shard(0).tokens, str(source.directory / "mds")
    with MDSWriter(out=directory, columns={"tokens": f"ndarray:uint16:{length}"}) as writer:
        for row in tokens[: len(tokens) // length * length].reshape(-1, length):
            writer.write({"tokens": row})
    return StreamingDataset(local=directory, shuffle=True, batch_size=ROWS)


def litdata(source: SourceStream, length: int) -> Iterator[int]:
    import torch
    from litdata import StreamingDataset, TokensLoader, optimize

    directory = source.directory / "litdata"
    if not directory.exists():
        tokens = torch.from_numpy(source.shard(0).tokens.astype(np.int32))
        pieces = [tokens[i : i + (1 << 20)] for i in range(0, len(tokens), 1 << 20)]
        optimize(iter_piece, pieces, str(directory), chunk_bytes="64MB", num_workers=1, item_loader=TokensLoader())
    while True:
        rows = []
        for entry in StreamingDataset(str(directory), item_loader=TokensLoader(block_size=length), shuffle=True):
            rows.append(entry)
            if len(rows) == ROWS:
                yield torch.stack(rows).long().numel()
                rows = []


def iter_piece(piece: Any) -> Iterator[Any]:
    yield piece


def rate(read: Reader, source: SourceStream, length: int, seconds: float) -> float:
    batches = read(source, length)
    for _ in range(5):
        next(batches)
    tokens, began = 0, time.perf_counter()
    for size in batches:
        tokens += size
        if time.perf_counter() - began > seconds:
            break
    return tokens / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million-tokens", type=int, default=64)
    parser.add_argument("--sequence-length", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--peers", help="a directory with the peers' packages; ours come first")
    parser.add_argument("--rounds", type=int, default=3, help="the readers take turns; the best round of each counts")
    options = parser.parse_args()
    if options.peers:
        sys.path.append(options.peers)
    with tempfile.TemporaryDirectory() as directory:
        source = write_source(LocalPath(directory), options.million_tokens * 1_000_000)
        for number in range(2):
            open_shard(source.directory, source.shards[number].file).tokens.sum()
        readers = {
            "ours": ours("concatenate"),
            "ours, best fit": ours("best_fit"),
            "ours, documents": ours("documents"),
            "ours, full sentences": ours("full_sentences"),
            "memmap + boundaries": memmap_boundaries,
            "memmap": memmap,
            "HF datasets": datasets,
            "MosaicML streaming": mosaic,
            "litdata": litdata,
        }
        rates: dict[str, float] = {}
        for name, read in [*readers.items()] * options.rounds:
            try:
                once = rate(read, source, options.sequence_length, options.seconds / options.rounds)
                rates[name] = max(rates.get(name, 0.0), once)
            except ImportError:
                rates[name] = 0.0
        for name, tokens in rates.items():
            ratio = (
                f"{tokens / 1e6:8.1f} M tokens/s   ours / this {rates['ours'] / tokens:6.2f}"
                if tokens
                else "not installed"
            )
            print(f"{name:22} {ratio}")


if __name__ == "__main__":
    main()
