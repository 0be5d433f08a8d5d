"""Benchmark the width of rows of pair objectives on short documents, with and without room for their special
tokens.

    GRISTMILL_DATA=DIR python -m benchmarks.row_width [--tokens 400000]

Wikipedia, encoded by a byte-level BPE of 4,096 tokens, is cut into documents of lognormal lengths (sigma 1).
With `stream`, a row holds as many positions of the stream as one document may fill. With `room`, it holds as
many as fit together with their special tokens. For the longer side (encoder or decoder) of each row, the
script prints the maximum and mean width, the share of rows wider than the sequence length, and the share of
padding.
"""

import argparse
import gzip
import json
import os
import tempfile
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.objectives import OBJECTIVES
from gristmill.storage.disk import LocalPath
from pipelines.contracts.shard_set import Shard, ShardRecord
from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import train_byte_bpe
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import ARCHITECTURES
from trainers.data.order import Samples
from trainers.data.packed_corpus import PackedCorpus
from trainers.data.stream import SourceStream
from trainers.objectives.shared.character_cuts import TokenTexts
from trainers.objectives.shared.context import Context

VOCABULARY = 4096
NAMES = ("span corruption", "i.i.d. replace", "denoising (BART's choice)", "prefix LM", "UL2")
DECODERS = ("span corruption, decoder", "prefix LM, decoder", "fill in the middle, decoder")


@dataclass(frozen=True)
class Held(SourceStream):
    """A source with one shard, held in memory."""

    held: Shard | None = None

    def shard(self, number: int) -> Shard:
        assert self.held is not None
        return self.held


def shard_of(tokens: np.ndarray, median: int) -> Shard:
    """Return a shard of the tokens, cut into documents, with sentences of about 20 tokens."""
    rng, sizes = np.random.default_rng(0), []
    while sum(sizes) < len(tokens):
        sizes += [max(1, round(size)) for size in rng.lognormal(np.log(median), 1, 1000)]
    ends = np.cumsum(sizes)
    offsets = np.concatenate([[0], ends[ends <= len(tokens)]])
    counts = -(-np.diff(offsets) // 20)
    starts = np.concatenate([np.arange(count) * 20 for count in counts]).astype(np.int32)
    places = np.concatenate([[0], np.cumsum(counts)])
    return Shard(tokens, offsets, pa.array([], pa.binary(16)), np.diff(offsets), starts, places, {})


def widths(packed: PackedCorpus) -> np.ndarray:
    """Return the number of used positions on the longer side (encoder or decoder) of each row but the last."""
    source, found = packed.sources[0], []
    sequences = np.arange(source.count(packed.length))
    for first in range(0, len(sequences), 64):
        chosen = sequences[first : first + 64]
        nothing = np.zeros_like(chosen)
        samples = Samples(chosen, nothing, chosen, source.sizes(packed.length, chosen), nothing)
        batch = packed.rows(samples)
        sides = [batch.segments] if batch.decoder is None else [batch.segments, batch.decoder.segments]
        found.append(np.max([(side >= 0).sum(axis=1) for side in sides], axis=0))
    return np.concatenate(found)[:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=400_000)
    options = parser.parse_args()
    path = LocalPath(os.environ["GRISTMILL_DATA"]) / "prose" / "wiki_en.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in islice(lines, 800)]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        LocalPath(file.name).write_bytes(train_byte_bpe(texts[:200], VOCABULARY))
        encoder = Encoder.load(file.name)
        ids, _ = encoder.encode(pa.array(texts, pa.large_string()))
        known = TokenTexts(encoder.definition)
    tokens = np.asarray(ids[: options.tokens], dtype=np.uint16)
    print(f"{len(tokens):,} tokens")
    for length in (128, 512):
        for median in (5, 20, 200):
            shard = shard_of(tokens, median)
            for name in (*NAMES, *DECODERS):
                line = measure(name, shard, f"{median}-{length}", length, known)
                print(f"{length:4} {median:4}  {name:28} {line}", flush=True)


def measure(name: str, shard: Shard, key: str, length: int, known: TokenTexts) -> str:
    architecture, objective = OBJECTIVES[name]
    family: Any = ARCHITECTURES[architecture].family
    start = ARCHITECTURES[architecture].decoder_start
    context = Context(0, dict(SPECIAL_IDS), VOCABULARY, family, length, decoder_start=start, texts=known)
    record = ShardRecord("x", 0, key, "wiki_en", "train", len(shard.offsets) - 1, int(shard.offsets[-1]), 0)
    source = Held("wiki_en", LocalPath(), (record,), objective.frame, held=shard)
    taken = objective.stream_length(length, family)
    packed = source.packed("concatenate", taken, 0, objective.room(length, family))
    before, after = (widths(PackedCorpus((one,), taken, objective, context)) for one in (replace(source), packed))
    shares = f"{1 - before.sum() / (len(before) * max(length, before.max())):.1%} {1 - after.mean() / length:.1%}"
    over = f"{(before > length).mean():.0%} {(after > length).mean():.0%}"
    return (
        f"stream {before.max()} {before.mean():.0f}  room {after.max()} {after.mean():.0f}  wider {over}  "
        f"padding {shares}  tokens a row {packed.packing.sizes[:-1].mean():.0f} of {taken}"
    )


if __name__ == "__main__":
    main()
