"""Benchmark the encoder computations used in evaluation: pseudo-log-likelihoods against a loop over
sentences, and features of all layers against the bare forward pass.

    GRISTMILL_DATA=... python -m benchmarks.encoders [--sentences N] [--documents N] [--rounds N]

The model is a BERT with random weights, which do not affect time: 4 layers of width 128 or, with `--size
30m`, 8 layers of width 512. The loop works like minicons: a sentence is one batch, with a masked copy for
each token. The bare forward pass is that of the same `transformers` model with `output_hidden_states`, on the
same texts, sorted by length and padded, at the best of several batch sizes. Ours and the peer alternate. The
script prints sentences or tokens per processor second, and ratios that are above 1 where ours is faster.
"""

import argparse
import gzip
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from benchmarks.harness import processor_seconds
from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import train_byte_bpe
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.evaluation.probing.hidden_states import StateReader
from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.items import read_items
from trainers.models import build_model
from trainers.objectives.masked import Masked
from trainers.tasks.load_task import load_task

SIZES = {
    "demo": Model("bert", layers=4, width=128, heads=4, positions=256, feed_forward=512),
    "30m": Model("bert", layers=8, width=512, heads=8, positions=256, feed_forward=2048),
}
VOCABULARY = 8192
BATCHES = (1, 4, 16, 64)


def sentence_loop(network: Any, sentences: Sequence[list[int]]) -> np.ndarray:
    """Return the pseudo-log-likelihood of each sentence (Salazar et al., 2020), with one sentence per batch."""
    first, last, mask = (SPECIAL_IDS[name] for name in ("<cls>", "<sep>", "<mask>"))
    found = []
    with torch.no_grad():
        for ids in sentences:
            whole = torch.tensor([first, *ids, last])
            places = torch.arange(1, len(ids) + 1)
            copies = whole.repeat(len(ids), 1)
            copies[torch.arange(len(ids)), places] = mask
            logits = network(copies).logits[torch.arange(len(ids)), places].log_softmax(1)
            found.append(float(logits[torch.arange(len(ids)), whole[places]].double().sum()))
    return np.array(found)


def forward_states(network: Any, documents: Sequence[np.ndarray], size: int) -> int:
    """Compute the hidden states of documents, longest first, in batches of `size`.

    Return the number of computed values, including padding.
    """
    ordered, count = sorted(documents, key=len, reverse=True), 0
    with torch.no_grad():
        for first in range(0, len(ordered), size):
            batch = ordered[first : first + size]
            ids = torch.zeros(len(batch), len(batch[0]), dtype=torch.long)
            for row, document in enumerate(batch):
                ids[row, : len(document)] = torch.from_numpy(document)
            lengths = torch.tensor([len(document) for document in batch])
            attended = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
            states = network(ids, attention_mask=attended, output_hidden_states=True).hidden_states
            count += sum(each.numel() for each in states)
    return count


def in_turns(sides: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Run each side once to warm up, then `rounds` times alternately; return the processor seconds of each."""
    spent = [0.0] * len(sides)
    for number in range(rounds + 1):
        for place, side in enumerate(sides):
            seconds = processor_seconds(side)
            spent[place] += seconds if number else 0.0
    return spent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="demo")
    parser.add_argument("--sentences", type=int, default=184, help="of BLiMP")
    parser.add_argument("--documents", type=int, default=200, help="of Wikipedia")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("set GRISTMILL_DATA to the directory of the development data")
    data = LocalPath(os.environ["GRISTMILL_DATA"])
    print(machine(), f"{torch.get_num_threads()} threads of torch", flush=True)
    with gzip.open(data / "prose" / "wiki_en.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["text"] for line in islice(lines, 2000)]
    with tempfile.TemporaryDirectory() as folder:
        file = LocalPath(folder) / "tokenizer.json"
        file.write_bytes(train_byte_bpe(texts, VOCABULARY - 150))
        encoder = Encoder.load(str(file))
        model = fill(SIZES[options.size], encoder.vocab_size)
        network = build_model(model, SPECIAL_IDS, 0).eval()
        print(f"{options.size}: {sum(each.numel() for each in network.parameters()):,} parameters", flush=True)
        reader = StateReader("ours", network, model, Masked(), encoder)
        blimp = read_items(load_task("blimp"), "test", data / "tasks", limit=1 + options.sentences // 92)
        sentences = blimp.continuations[: options.sentences]
        ids = [each.tolist() for each in reader.encode(sentences)]
        scorer = Scorer("ours", network, model, Masked(), encoder, pseudo="token")
        ours, loop = scorer.score([""] * len(sentences), sentences).log_likelihood, sentence_loop(network, ids)
        sides = (lambda: scorer.score([""] * len(sentences), sentences), lambda: sentence_loop(network, ids))
        here, there = in_turns(sides, options.rounds)
        done = len(sentences) * options.rounds
        print(
            f"pseudo-log-likelihood  {done / here:8.1f} sentences here  {done / there:8.1f} loop  ratio {there / here:.2f}  "
            f"largest difference {np.abs(ours - loop).max():.1e} nats",
            flush=True,
        )
        documents = [each[: model.positions - 2] for each in reader.encode(texts[: options.documents])]
        tried = {size: processor_seconds(lambda n=size: forward_states(network, documents, n)) for size in BATCHES}
        best = min(tried, key=lambda size: tried[size])
        pair = (lambda: reader.read(documents, reader.layers), lambda: forward_states(network, documents, best))
        here, there = in_turns(pair, options.rounds)
        done = sum(map(len, documents)) * options.rounds
        print(
            f"features, all layers   {done / here:8.0f} tokens here     {done / there:8.0f} bare (batch {best})  ratio "
            f"{there / here:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
