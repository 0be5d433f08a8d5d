"""Benchmark a training step of AWD-LSTM with truncated back-propagation through time on one process, against
a bare loop over torch's own LSTMs of the same sizes.

    python -m benchmarks.awd_lstm_step [--cells 1150] [--width 400] [--vocabulary 8192] [--rows 16] [--length 280] [--bptt 70]
        [--steps 5] [--threads 1] [--clock wall|cpu]

The default widths are the published ones. The bare loop is a hand-written baseline: an embedding, three
layers of `torch.nn.LSTM`, an output layer tied to the embedding, the detached state of the previous window,
clipping and fused AdamW. Each row is one document, so the bare loop need not reset the state within a row.
There is no dropout. Our step and the bare loop start from the same weights, have the same loss, and alternate
step by step. The printed ratio is the median of bare / ours over steps, so it is above 1 where ours is
faster.
"""

import argparse
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.elmo_step import RATE, WARM_UP, compare
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Execution, Optimizer, TrainingBudget
from trainers.config.pretraining import Data, Pretraining
from trainers.engine.engine import Engine
from trainers.engine.forward import forward_of
from trainers.models import build_model
from trainers.rows.batch import Batch

LAYERS = 3


def rows_of(options: argparse.Namespace, step: int) -> Batch:
    generator, least = np.random.default_rng(step), max(SPECIAL_IDS.values()) + 1
    ids = generator.integers(least, options.vocabulary, (options.rows, options.length + 1))
    positions, row = np.tile(np.arange(options.length), (options.rows, 1)), np.zeros(options.rows, np.int64)
    return Batch(ids[:, :-1].copy(), ids[:, 1:].copy(), positions, np.zeros_like(positions), row, row, row, row)


def ours(options: argparse.Namespace) -> tuple[Callable[[Batch], float], Any]:
    sizes = {"width": options.width, "feed_forward": options.cells, "vocab_size": options.vocabulary}
    config = Pretraining(
        name="benchmark",
        model=Model("awd_lstm", layers=LAYERS, heads=1, positions=options.length, **sizes),
        batch=BatchSize(sequences=options.rows),
        budget=TrainingBudget(steps=options.steps),
        data=Data(sequence_length=options.length, bptt=options.bptt),
        optimizer=Optimizer(weight_decay=0.0),
        execution=Execution(zero_stage=1),
    )
    network = build_model(config.model, SPECIAL_IDS, 0)
    engine = Engine(forward_of(network, config), config, options.rows, 1)
    steps = iter(range(options.steps + WARM_UP))
    return lambda batch: engine.train_step([batch], next(steps), RATE, 1, False)[0].loss, network


def bare(options: argparse.Namespace, network: Any) -> Callable[[Batch], float]:
    """Return the training step of the bare loop, which starts from the weights of `network`."""
    embed = torch.nn.Embedding(options.vocabulary, options.width)
    output = torch.nn.Linear(options.width, options.vocabulary)
    output.weight = embed.weight
    widths = [options.width, *[options.cells] * (LAYERS - 1), options.width]
    lstms = torch.nn.ModuleList(torch.nn.LSTM(*sizes, batch_first=True) for sizes in pairwise(widths))
    with torch.no_grad():
        embed.weight.copy_(network.lstm.embed.weight)
        output.bias.copy_(network.lm_head.bias)
        for layer, lstm in zip(network.lstm.layers, lstms, strict=True):
            its = (layer.input_weight, layer.recurrent_weight, layer.input_bias, layer.recurrent_bias)
            for place, weight in zip(lstm.parameters(), its, strict=True):
                place.copy_(weight)
    trained = [*embed.parameters(), output.bias, *lstms.parameters()]
    adam = torch.optim.AdamW(
        trained, lr=RATE, betas=Optimizer().betas, eps=Optimizer().epsilon, weight_decay=0.0, fused=True
    )

    def step(batch: Batch) -> float:
        inputs, targets, losses = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets), []
        state: list[Any] = [None] * LAYERS
        for first in range(0, options.length, options.bptt):
            here = slice(first, first + options.bptt)
            states = embed(inputs[:, here])
            for number, lstm in enumerate(lstms):
                states, (hidden, cell) = lstm(states, state[number])
                state[number] = hidden.detach(), cell.detach()
            loss = cross_entropy(output(states).flatten(0, 1), targets[:, here].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            adam.step()
            adam.zero_grad()
            losses.append(loss.item())
        return float(np.mean(losses))

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        *(("cells", 1150), ("width", 400), ("vocabulary", 8192)),
        *(("rows", 16), ("length", 280), ("bptt", 70), ("steps", 5), ("threads", 1)),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    compare(options, ours, bare, rows_of)


if __name__ == "__main__":
    main()
