"""Benchmark padding: the share of real tokens in a padded batch with one document per row.

    GRISTMILL_DATA=DIR python -m benchmarks.padding [--rows 256] [--micro-batch 8]

Documents are from three kinds of text, with one token per four characters plus two special tokens. `one
length` pads every row to the sequence length, as a collator that pads to a maximum does. `by micro-batch`
pads consecutive rows to the longest, rounded up to a multiple of 8, as HF Trainer can. `ours` distributes
rows with `packed_corpus.PackedCorpus.share` and rounds lengths up to a multiple of 1, 8 or 64.
"""

import argparse
import gzip
import json
import os
from pathlib import Path

import numpy as np

from trainers.data.order import Samples
from trainers.data.packed_corpus import PackedCorpus
from trainers.objectives.causal import Causal
from trainers.objectives.shared.context import Context
from trainers.rows.best_fit import cut_documents

TEXTS = ("wiki_en", "forum_stackexchange", "news_bbc")
MARKS = 2


def steps(path: Path, length: int, rows: int) -> list[Samples]:
    """Return the sequences that the documents of a file are cut into, in random order, `rows` for each step."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        sizes = [len(json.loads(line)["text"]) // 4 for line in lines]
    _, counts = cut_documents(np.concatenate([[0], np.cumsum(sizes)]), MARKS, length)
    tokens = np.random.default_rng(0).permutation(counts)
    nothing = np.zeros(rows, dtype=np.int64)
    whole = range(0, len(tokens) - rows + 1, rows)
    return [Samples(nothing, nothing, nothing, tokens[first : first + rows], nothing) for first in whole]


def places(parts: list[np.ndarray], size: int, length: int, multiple: int) -> int:
    """Return the number of positions in micro-batches of `size` rows, each padded to its longest row, rounded
    up to a multiple of `multiple`.
    """
    return sum(size * min(length, -(-int(part.max()) // multiple) * multiple) for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=8)
    options = parser.parse_args()
    size = options.micro_batch
    for name in TEXTS:
        for length in (128, 512):
            packed = PackedCorpus((), length, Causal(), Context(0, {}, 0, "decoder", length))
            read = steps(Path(os.environ["GRISTMILL_DATA"]) / "prose" / f"{name}.jsonl.gz", length, options.rows)
            shared = [part.tokens for samples in read for part in packed.share(samples, size, 0, 1)]
            as_they_come = [p for s in read for p in np.split(s.tokens, range(size, options.rows, size))]
            tokens = sum(int(samples.tokens.sum()) for samples in read)
            shares = {"one length": tokens / (len(read) * options.rows * length)}
            shares["by micro-batch"] = tokens / places(as_they_come, size, length, 8)
            shares |= {f"ours, {m}": tokens / places(shared, size, length, m) for m in (1, 8, 64)}
            print(f"{name:20} {length:4}  " + "  ".join(f"{key} {share:.1%}" for key, share in shares.items()))


if __name__ == "__main__":
    main()
