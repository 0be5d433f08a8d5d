"""Benchmark encoding: our Encoder (gigatoken) against Hugging Face `tokenizers`, with the same tokenizer and
documents.

    python -m benchmarks.encode [FILE ...] [--tokenizer DIR_OR_JSON] [--megabytes 20] [--runs 3]

FILEs are UTF-8 text or JSON lines, gzipped or not; the default is four files of $GRISTMILL_DATA/prose.
Without a tokenizer, a byte-level BPE with a vocabulary of 16,384 is trained on the first third of the texts.
All ids are compared before anything is timed.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa

from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import train_byte_bpe
from tokenizer.texts import read_texts

PROSE = ("textbooks", "tech_docs", "forum_20news", "wiki_en")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--tokenizer", metavar="DIR_OR_JSON")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    texts = list(taken(options.files or prose_files(), options.megabytes * 1e6))
    with tempfile.TemporaryDirectory() as folder:
        path = options.tokenizer or trained(texts, Path(folder))
        ours, peer = Encoder.load(path, "gigatoken"), Encoder.load(path, "tokenizers")
    compare(ours, peer, pa.array(texts, pa.large_string()), options.runs)


def compare(ours: Encoder, peer: Encoder, documents: pa.LargeStringArray, runs: int) -> None:
    size = sum(map(len, map(str.encode, documents.to_pylist()))) / 1e6
    same = all(np.array_equal(a, b) for a, b in zip(ours.encode(documents), peer.encode(documents), strict=True))
    tokens = len(ours.encode(documents)[0])
    print(f"{size:.1f} MB, {len(documents):,} documents, {tokens:,} tokens, vocabulary {ours.vocab_size:,}")
    print(f"all ids equal: {'yes' if same else 'NO'}")
    if not same:
        raise SystemExit("error: the libraries disagree; speeds of different results are not compared")
    cold = fresh(ours)
    alone = f"tokenizers alone (encode_batch_fast), {os.cpu_count()} threads"
    rows = {
        "Encoder, gigatoken, fresh, 1 thread": once(lambda: cold.encode(documents)),
        "Encoder, gigatoken, warm, 1 thread": best(lambda: ours.encode(documents), runs),
        f"Encoder, gigatoken, warm, {os.cpu_count()} threads": best(
            lambda: ours.encode(documents, parallel=True), runs
        ),
        f"Encoder, tokenizers, {os.cpu_count()} threads": best(lambda: peer.encode(documents), 1),
        alone: best(lambda: bare(peer, documents), 1),
    }
    for name, seconds in rows.items():
        print(f"{name:58s} {seconds:8.2f} s {size / seconds:8.1f} MB/s {rows[alone] / seconds:7.1f} x")
    print(f"gigatoken {version('gigatoken')}, tokenizers {version('tokenizers')}, Python {platform.python_version()}")
    print(f"{os.cpu_count()} cores, {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}")


def fresh(encoder: Encoder) -> Encoder:
    """Return a copy of the encoder with an empty cache.

    gigatoken caches pieces of text, so a first pass is slower.
    """
    copy = Encoder(encoder.definition, encoder.library, encoder.library_reason)
    copy.encode(pa.array(["load"], pa.large_string()))
    return copy


def bare(encoder: Encoder, documents: pa.LargeStringArray) -> None:
    encoder._plain.encode_batch_fast(documents.to_pylist(), add_special_tokens=False)


def once(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def best(run: Callable[[], object], runs: int) -> float:
    return min(once(run) for _ in range(runs))


def trained(texts: list[str], folder: Path) -> str:
    file = folder / "tokenizer.json"
    file.write_bytes(train_byte_bpe(texts[: max(1, len(texts) // 3)], 16384))
    return str(file)


def taken(files: list[str], limit: float) -> Iterator[str]:
    """Yield documents up to about `limit` bytes in all, in equal shares from each file."""
    for file in files:
        size = 0
        for text in read_texts(file):
            size += len(text.encode())
            yield text
            if size >= limit / len(files):
                break


def prose_files() -> list[str]:
    root = os.environ.get("GRISTMILL_DATA")
    if root is None:
        raise SystemExit("error: name text FILEs, or set GRISTMILL_DATA to the folder of shared data")
    return [str(Path(root) / "prose" / f"{name}.jsonl.gz") for name in PROSE]


if __name__ == "__main__":
    main()
