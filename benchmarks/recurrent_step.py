"""Benchmark a training step of AWD-LSTM on one process: tokens per second against a bare torch loop of the same sizes.

    python -m benchmarks.recurrent_step [--vocabulary 8192] [--rows 16] [--sequence-length 70] [--documents 3] [--steps 10]

The sizes are ULMFiT's. Ours has all five rates of dropout, and `--documents` isolated documents of random lengths in each row.
The bare loop is what torch's example of a language model does (`torch.nn.LSTM` over whole rows, whose documents are not
isolated, without dropout), with the same tied output layer, clipping and fused AdamW. They alternate step by step, so other
load affects both; the ratio is the median over pairs of steps.
"""

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.job import BatchSize
from trainers.config.pretraining import Data
from trainers.engine.engine import Engine, start_group
from trainers.engine.forward import forward_of
from trainers.models import build_model
from trainers.recipes import RECIPES
from trainers.rows.batch import Batch

WARM_UP = 2


class BareLoop:
    """Embeddings, LSTM layers and a tied output layer of torch, and their step."""

    def __init__(self, vocabulary: int, width: int, cells: int) -> None:
        self.embed = torch.nn.Embedding(vocabulary, width)
        sizes = (width, cells, cells, width)
        self.layers = [torch.nn.LSTM(sizes[k], sizes[k + 1], batch_first=True) for k in range(3)]
        self.output = torch.nn.Linear(width, vocabulary)
        self.output.weight = self.embed.weight
        self.modules = torch.nn.ModuleList([self.embed, *self.layers, self.output])
        self.optimizer = torch.optim.AdamW(self.modules.parameters(), 1e-3, fused=True)

    def step(self, ids: np.ndarray) -> None:
        """Train on `ids` [rows, length + 1]."""
        states = self.embed(torch.from_numpy(ids[:, :-1]))
        for layer in self.layers:
            states = layer(states)[0]
        logits = self.output(states).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(ids[:, 1:].copy()).flatten()).backward()
        torch.nn.utils.clip_grad_norm_(self.modules.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def packed(ids: np.ndarray, documents: int, random: np.random.Generator) -> Batch:
    """Rows of `ids` [rows, length + 1] that hold so many documents of random lengths."""
    rows, length = len(ids), ids.shape[1] - 1
    segments, positions = np.zeros((rows, length), np.int64), np.zeros((rows, length), np.int64)
    for row in range(rows):
        borders = np.sort(random.choice(np.arange(1, length), documents - 1, replace=False))
        starts = np.concatenate([[0], borders])
        segments[row] = np.searchsorted(borders, np.arange(length), side="right")
        positions[row] = np.arange(length) - starts[segments[row]]
    zeros = np.zeros(rows, np.int64)
    inputs, targets = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
    return Batch(inputs, targets, positions, segments, zeros, zeros, zeros, zeros)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes: dict[str, Any] = {"vocabulary": 8192, "rows": 16, "sequence-length": 70, "documents": 3, "steps": 10}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    recipe, length = RECIPES["awd_lstm"](), options.sequence_length
    config = replace(
        recipe,
        model=replace(recipe.model, vocab_size=options.vocabulary, positions=length),
        batch=BatchSize(sequences=options.rows),
        data=Data(sequence_length=length),
        execution=replace(recipe.execution, micro_batch=options.rows),
    )
    start_group()
    engine = Engine(forward_of(build_model(config.model, SPECIAL_IDS, 0), config), config, options.rows, 1)
    assert config.model.feed_forward is not None
    bare = BareLoop(options.vocabulary, config.model.width, config.model.feed_forward)
    random, seconds = np.random.default_rng(0), []
    for number in range(options.steps + WARM_UP):
        ids = random.integers(128, options.vocabulary, (options.rows, length + 1))
        batch = packed(ids, options.documents, random)
        began = time.perf_counter()
        bare.step(ids)
        between = time.perf_counter()
        engine.train_step([batch], number, 1e-3, 1, False)
        seconds.append((between - began, time.perf_counter() - between))
    engine.close()
    measured = np.array(seconds[WARM_UP:])
    theirs, ours = options.rows * length / np.median(measured, axis=0)
    ratio = float(np.median(measured[:, 0] / measured[:, 1]))
    print(f"{torch.get_num_threads()} threads: ours {ours:,.0f} tokens/s   bare torch {theirs:,.0f} tokens/s   "
          f"median ratio of {len(measured)} pairs {ratio:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
