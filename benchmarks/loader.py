"""Tokens per second of the training loader, beside plain memmap readers, in one run.

    python -m benchmarks.loader [--million-tokens 64] [--sequence-length 2048]

All read shuffled sequences of the same tokens from the page cache, one process, into numpy arrays ready for torch:
`ours` gives inputs, targets, positions and document segments, the mixture's order included, concatenated and best-fit;
`memmap` gives inputs alone, as nanoGPT's loader does; `memmap + boundaries` finds documents by a search in their offsets,
vectorised; `datasets` (if it is installed) reads rows of packed sequences, without boundaries.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.contracts.document import document_id
from pipelines.contracts.manifest import ShardRecord
from pipelines.contracts.shards import open_shard, write_shard
from pipelines.contracts.store import record_file, write_atomic
from tokenizer.specials import SPECIAL_IDS
from trainers.data import Source, TrainingData
from trainers.mixture import mixture
from trainers.order import Order, Stream

ROWS = 32
MEAN_DOCUMENT = 600


def write_source(directory: Path, tokens: int) -> Source:
    """A source of two shards of random tokens, document lengths log-normal."""
    rng = np.random.default_rng(0)
    records = []
    for number in range(2):
        lengths = rng.lognormal(np.log(MEAN_DOCUMENT) - 0.5, 1.0, tokens // 2 // MEAN_DOCUMENT).astype(np.int64) + 1
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = rng.integers(128, 32_000, offsets[-1], dtype=np.uint16)
        ids = pa.array([document_id(number, i) for i in range(len(lengths))], pa.binary(16))
        name = f"{number}.arrow"
        write_atomic(
            directory / name, lambda sink, v=values, o=offsets, i=ids, n=lengths: write_shard(sink, v, o, i, n, {})
        )
        file = record_file(directory, name)
        size = (len(lengths), int(offsets[-1]), int(offsets[-1]))
        records.append(ShardRecord(file.path, file.bytes, file.xxh3_128, "web", "train", *size))
    return Source("web", directory, tuple(records))


def best_fit(source: Source, length: int) -> Iterator[int]:
    return ours(source.packed(length, 0), length)


def ours(source: Source, length: int) -> Iterator[int]:
    asked = mixture([(math.inf, {"web": 1.0})], {}, ["web"])
    order = Order(
        [Stream("web", source.tokens, source.packing.sizes if source.packing else None)], asked, length, 0, "benchmark"
    )
    data = TrainingData((source,), order, SPECIAL_IDS)
    for first in range(0, source.tokens // length - ROWS, ROWS):
        yield data.rows(order.take(first, ROWS)).inputs.size


def memmap(source: Source, length: int) -> Iterator[int]:
    tokens = source.shard(0).tokens
    sequences = np.random.default_rng(0).permutation(len(tokens) // length - 1)
    for first in range(0, len(sequences) - ROWS, ROWS):
        yield np.stack(
            [tokens[i * length : (i + 1) * length].astype(np.int64) for i in sequences[first : first + ROWS]]
        ).size


def memmap_boundaries(source: Source, length: int) -> Iterator[int]:
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


def datasets(source: Source, length: int) -> Iterator[int]:
    import datasets as hf

    tokens = source.shard(0).tokens
    rows = tokens[: len(tokens) // length * length].reshape(-1, length)
    table = hf.Dataset.from_dict({"input_ids": rows.astype(np.int32)}).with_format("numpy").shuffle(seed=0)
    for first in range(0, len(table) - ROWS, ROWS):
        yield table[first : first + ROWS]["input_ids"].size


def rate(read: Callable[[Source, int], Iterator[int]], source: Source, length: int, seconds: float) -> float:
    """Tokens per second over `seconds`, after the first batches."""
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
    parser.add_argument("--rounds", type=int, default=3, help="the readers take turns; the best round of each counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        source = write_source(Path(directory), options.million_tokens * 1_000_000)
        for number in range(2):
            open_shard(source.directory, source.shards[number].file).tokens.sum()
        readers = {
            "ours": ours,
            "ours, best fit": best_fit,
            "memmap + boundaries": memmap_boundaries,
            "memmap": memmap,
            "datasets": datasets,
        }
        rates: dict[str, float] = {}
        for name, read in [*readers.items()] * options.rounds:
            try:
                rates[name] = max(
                    rates.get(name, 0.0), rate(read, source, options.sequence_length, options.seconds / options.rounds)
                )
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
