"""Benchmark a training step of ELMo on one process, against a bare loop over torch's own LSTMs of the same
sizes.

    python -m benchmarks.elmo_step [--cells 4096] [--width 512] [--vocabulary 8192] [--rows 8] [--length 64] [--steps 10]
        [--dropout 0.1] [--threads 1] [--clock wall|cpu]

The default model has as many cells as the published one and a smaller vocabulary. The bare loop is a
hand-written baseline: an embedding, two layers of `torch.nn.LSTM` with a projection for each direction (the
backward layers read flipped rows), one output layer tied to the embedding, dropout, clipping and fused AdamW.
Each row is one document, so the bare loop need not reset the state within a row. Our step and the bare loop
start from the same weights and alternate step by step. With `--dropout 0` they have the same loss. The
printed ratio is the median of bare / ours over steps, so it is above 1 where ours is faster.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy, dropout

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Execution, Optimizer, TrainingBudget
from trainers.config.pretraining import Data, Pretraining
from trainers.engine.engine import Engine
from trainers.engine.forward import forward_of
from trainers.models import build_model
from trainers.objectives.bidirectional_lm import BidirectionalLM
from trainers.rows.batch import IGNORED, Batch

WARM_UP = 2
RATE = 1e-3
LAYERS = 2


class BareElmo(torch.nn.Module):
    """Two LSTM language models, forward and backward, with a shared embedding, built from torch's modules."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        width = options.width
        self.rate = options.dropout
        self.embed = torch.nn.Embedding(options.vocabulary, width)
        self.lstms = torch.nn.ModuleList(
            torch.nn.ModuleList(
                torch.nn.LSTM(width, options.cells, proj_size=width, batch_first=True) for _ in range(LAYERS)
            )
            for _ in range(2)
        )
        self.output = torch.nn.Linear(width, options.vocabulary)
        self.output.weight = self.embed.weight

    def losses(self, ids: Any) -> tuple[Any, Any]:
        found = []
        for layers, read in zip(self.lstms, (ids, ids.flip(1)), strict=True):
            states = self.embed(read)
            for number, lstm in enumerate(layers):
                kept = dropout(states, self.rate, self.training)
                after, _ = lstm(kept)
                states = after + kept if number else after
            logits = self.output(dropout(states, self.rate, self.training)[:, :-1])
            found.append(cross_entropy(logits.flatten(0, 1), read[:, 1:].flatten()))
        return found[0], found[1]


def rows_of(options: argparse.Namespace, step: int) -> Batch:
    generator, least = np.random.default_rng(step), max(SPECIAL_IDS.values()) + 1
    inputs = generator.integers(least, options.vocabulary, (options.rows, options.length))
    targets = np.concatenate([inputs[:, 1:], np.full((options.rows, 1), IGNORED)], axis=1)
    positions, row = np.tile(np.arange(options.length), (options.rows, 1)), np.zeros(options.rows, np.int64)
    return Batch(inputs, targets, positions, np.zeros_like(positions), row, row, row, row)


def ours(options: argparse.Namespace) -> tuple[Callable[[Batch], float], Any]:
    model = Model(
        "elmo",
        layers=LAYERS,
        width=2 * options.width,
        heads=1,
        positions=options.length,
        feed_forward=options.cells,
        vocab_size=options.vocabulary,
        dropout=options.dropout,
    )
    config = Pretraining(
        name="benchmark",
        model=model,
        objective=BidirectionalLM(),
        batch=BatchSize(sequences=options.rows),
        budget=TrainingBudget(steps=options.steps),
        data=Data(sequence_length=options.length),
        optimizer=Optimizer(weight_decay=0.0),
        execution=Execution(zero_stage=1),
    )
    network = build_model(model, SPECIAL_IDS, 0)
    engine = Engine(forward_of(network, config), config, options.rows, 1)
    steps = iter(range(options.steps + WARM_UP))
    return lambda batch: engine.train_step([batch], next(steps), RATE, 1, False)[0].loss, network


def bare(options: argparse.Namespace, network: Any) -> Callable[[Batch], float]:
    """Return the training step of the bare loop, which starts from the weights of `network`."""
    own = BareElmo(options)
    with torch.no_grad():
        own.embed.weight.copy_(network.elmo.embed.weight)
        own.output.bias.copy_(network.lm_head.bias)
        for number, layer in enumerate(network.elmo.layers):
            for ours_of, theirs in zip((layer.forward_lstm, layer.backward_lstm), own.lstms, strict=True):
                lstm = theirs[number]
                weights = (ours_of.input_weight, ours_of.recurrent_weight, ours_of.bias, ours_of.projection)
                for place, weight in zip(
                    (lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.weight_hr_l0), weights, strict=True
                ):
                    place.copy_(weight)
                lstm.bias_hh_l0.zero_()
                lstm.bias_hh_l0.requires_grad_(False)
    trained = [parameter for parameter in own.parameters() if parameter.requires_grad]
    adam = torch.optim.AdamW(
        trained, lr=RATE, betas=Optimizer().betas, eps=Optimizer().epsilon, weight_decay=0.0, fused=True
    )

    def step(batch: Batch) -> float:
        after, before = own.losses(torch.from_numpy(batch.inputs))
        loss = 0.5 * (after + before)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        adam.step()
        adam.zero_grad()
        return loss.item()

    return step


def compare(
    options: argparse.Namespace,
    ours: Callable[[argparse.Namespace], tuple[Callable[[Batch], float], Any]],
    bare: Callable[[argparse.Namespace, Any], Callable[[Batch], float]],
    rows_of: Callable[[argparse.Namespace, int], Batch],
) -> None:
    """Time our step and the bare loop alternately on the same batches, then print the medians and both losses
    of the last batch.
    """
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    torch.set_num_threads(options.threads)
    our_step, network = ours(options)
    loops = {"ours": our_step, "bare": bare(options, network)}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    losses: dict[str, float] = {}
    for number in range(options.steps + WARM_UP):
        batch = rows_of(options, number)
        for name, loop in loops.items():
            began = clock()
            losses[name] = loop(batch)
            seconds[name].append(clock() - began)
    taken = {name: np.array(its[WARM_UP:]) for name, its in seconds.items()}
    ratio = taken["bare"] / taken["ours"]
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(
        f"{parameters / 1e6:.1f} M   ours {np.median(taken['ours']):.3f} s   bare / ours {np.median(ratio):.2f} "
        f"({ratio.min():.2f} to {ratio.max():.2f})   loss {losses['ours']:.5f}, bare {losses['bare']:.5f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("cells", 4096),
        ("width", 512),
        ("vocabulary", 8192),
        ("rows", 8),
        ("length", 64),
        ("steps", 10),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    compare(options, ours, bare, rows_of)


if __name__ == "__main__":
    main()
