"""Benchmark training steps of small models on one worker: time per step against the bare loop of the same
model, against HF Trainer, and against nanoGPT's model if its checkout is given.

    python -m benchmarks.small_models [--family decoder|encoder|encoder_decoder] [--parameters 0.8 5 10 30]
        [--precision fp32|bf16] [--threads 1|2] [--steps 20] [--busy 0] [--clock wall|cpu] [--nanogpt DIRECTORY]
        [--only ours|bare|trainer|nanogpt]

The bare loop is the stock model of `transformers` with cross-entropy loss: forward, backward, clipping at 1,
fused AdamW. HF Trainer trains the same model with `adamw_torch_fused`; its decoder has one target less per
row. With `--only`, a single loop runs, and the line ends with the peak memory of the process. Our commands
set GOMP_SPINCOUNT=1000; set it here as well.

Our model and the bare loop start from the same weights and train on the same rows; the last column shows that
their losses stay the same. All loops alternate step by step, so other load affects them all. Ratios are
medians of theirs / ours over rounds, above 1 where ours is faster. `--busy N` keeps N other processes busy
meanwhile. `--clock cpu` counts processor time, for machines with other work.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.config.job import BatchSize, Execution, Optimizer, TrainingBudget
from trainers.config.pretraining import Data, Pretraining
from trainers.engine.engine import Engine
from trainers.engine.forward import forward_of
from trainers.engine.optimizers import parameter_groups
from trainers.models import MODELS, build_model, stock_class
from trainers.rows.batch import IGNORED, Batch, Decoder

# Millions of parameters: (layers, width, heads, vocabulary, rows, tokens per row). The first is nanoGPT's CPU example.
SIZES = {
    0.8: (4, 128, 4, 65, 12, 64),
    5.0: (6, 256, 4, 1024, 16, 128),
    10.0: (6, 384, 6, 256, 16, 256),
    30.0: (8, 512, 8, 8192, 8, 256),
}
ARCHITECTURE = {"decoder": "gpt2", "encoder": "roberta", "encoder_decoder": "t5"}
WARM_UP = 3
RATE = 1e-3


def model_of(family: str, size: tuple[int, ...]) -> Model:
    layers, width, heads, vocabulary, _, length = size
    every = vocabulary + max(SPECIAL_IDS.values()) + 1
    model = Model(
        ARCHITECTURE[family],
        layers=layers,
        width=width,
        heads=heads,
        positions=length,
        feed_forward=4 * width,
        vocab_size=every,
    )
    return fill(model, every)


def rows_of(family: str, size: tuple[int, ...], step: int) -> Batch:
    """Return random rows of a single document each; for an encoder, about 15 % of the positions have a
    target.
    """
    *_, vocabulary, rows, length = size
    generator = np.random.default_rng(step)
    least = max(SPECIAL_IDS.values()) + 1
    ids = generator.integers(least, least + vocabulary, (rows, length + 1))
    inputs, targets = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
    if family == "encoder":
        targets = np.where(generator.random(inputs.shape) < 0.15, targets, IGNORED)
    positions, numbers = np.tile(np.arange(length), (rows, 1)), np.zeros(rows, np.int64)
    segments = np.zeros_like(positions)
    decoder = None
    if family == "encoder_decoder":
        start = np.full((rows, 1), SPECIAL_IDS["<pad>"])
        decoder = Decoder(np.concatenate([start, targets[:, :-1]], axis=1), positions, segments)
    return Batch(inputs, targets, positions, segments, numbers, numbers, numbers, numbers, decoder=decoder)


def ours(model: Model, options: argparse.Namespace, size: tuple[int, ...]) -> Callable[[Batch], float]:
    config = Pretraining(
        name="benchmark",
        model=model,
        batch=BatchSize(sequences=size[4]),
        budget=TrainingBudget(steps=options.steps),
        precision=options.precision,
        data=Data(sequence_length=size[5]),
        execution=Execution(zero_stage=1),
    )
    engine = Engine(forward_of(build_model(model, SPECIAL_IDS, 0), config), config, size[4], 1)
    steps = iter(range(options.steps + WARM_UP))
    return lambda batch: engine.train_step([batch], next(steps), config.optimizer.learning_rate, 1, False)[0].loss


def stock(model: Model) -> Any:
    configuration = MODELS[model.architecture].configuration(model, SPECIAL_IDS)
    network = stock_class(model).from_config(configuration)
    network.load_state_dict(build_model(model, SPECIAL_IDS, 0).state_dict())
    return network


def bare(model: Model, options: argparse.Namespace) -> Callable[[Batch], float]:
    network = stock(model)
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    adam = torch.optim.AdamW(parameter_groups(network, Optimizer()), fused=True)

    def step(batch: Batch) -> float:
        targets = torch.from_numpy(batch.targets)
        reads = {"input_ids": torch.from_numpy(batch.inputs)}
        if batch.decoder is not None:
            reads["decoder_input_ids"] = torch.from_numpy(batch.decoder.inputs)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            logits = network(**reads, **({} if model.family == "encoder" else {"use_cache": False})).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        return loss.item()

    return step


def nanogpt(model: Model, options: argparse.Namespace) -> Callable[[Batch], float]:
    """Return a training step of nanoGPT's own model and optimizer, with its own initial weights."""
    sys.path.insert(0, str(options.nanogpt))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    network = GPT(
        GPTConfig(
            block_size=model.positions,
            vocab_size=model.vocab_size,
            n_layer=model.layers,
            n_head=model.heads,
            n_embd=model.width,
            dropout=0.0,
            bias=False,
        )
    )
    adam = network.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu")

    def step(batch: Batch) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
            _, loss = network(torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        return loss.item()

    return step


class TrainerTurns:
    """HF Trainer in a thread that pauses between steps. The time of a step includes loading the next batch."""

    def __init__(self, model: Model, options: argparse.Namespace, size: tuple[int, ...]) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._failure: BaseException | None = None
        steps = options.steps + WARM_UP
        batches = [rows_of(options.family, size, number) for number in range(steps + 1)]
        rows = [
            {"input_ids": torch.from_numpy(i), "labels": torch.from_numpy(i if options.family == "decoder" else t)}
            for batch in batches
            for i, t in zip(batch.inputs, batch.targets, strict=True)
        ]
        arguments = (stock(model), rows, options, size[4], steps + 1)
        threading.Thread(target=self._train, args=arguments, daemon=True).start()
        self._done.acquire()

    def _train(self, network: Any, rows: list[Any], options: argparse.Namespace, batch: int, steps: int) -> None:
        from transformers import Trainer, TrainerCallback, TrainingArguments

        turns = self

        class Wait(TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                turns._done.release()
                turns._go.acquire()

        try:
            with tempfile.TemporaryDirectory() as output:
                settings = {"learning_rate": RATE, "max_grad_norm": 1.0, "optim": "adamw_torch_fused"}
                quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
                arguments = TrainingArguments(
                    output_dir=output,
                    per_device_train_batch_size=batch,
                    max_steps=steps,
                    bf16=options.precision == "bf16",
                    use_cpu=True,
                    **settings,
                    **quiet,
                )
                Trainer(model=network, args=arguments, train_dataset=rows, callbacks=[Wait()]).train()
        except BaseException as error:
            self._failure = error
            self._done.release()

    def __call__(self, batch: Batch) -> float:
        """Let the Trainer take one step on its own rows, ignoring `batch`; return NaN in place of a loss."""
        self._go.release()
        self._done.acquire()
        if self._failure is not None:
            raise self._failure
        return float("nan")


def measure(options: argparse.Namespace, size: tuple[int, ...]) -> None:
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    model = model_of(options.family, size)
    makers: dict[str, Callable[[], Callable[[Batch], float]]] = {
        "ours": lambda: ours(model, options, size),
        "bare": lambda: bare(model, options),
        "trainer": lambda: TrainerTurns(model, options, size),
    }
    if options.nanogpt and options.family == "decoder":
        makers["nanogpt"] = lambda: nanogpt(model, options)
    loops = {name: make() for name, make in makers.items() if options.only in (None, name)}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    losses: dict[str, float] = {}
    for number in range(options.steps + WARM_UP):
        batch = rows_of(options.family, size, number)
        for name, loop in loops.items():
            began = clock()
            losses[name] = loop(batch)
            seconds[name].append(clock() - began)
    taken = {name: np.array(its[WARM_UP:]) for name, its in seconds.items()}
    parameters = sum(parameter.numel() for parameter in build_model(model, SPECIAL_IDS, 0).parameters())
    first, *others = taken
    shown = [f"{first} {1e3 * np.median(taken[first]):8.1f} ms"]
    shown += [f"{name} / {first} {np.median(taken[name] / taken[first]):.2f}" for name in others]
    if others:
        shown.append(f"loss {losses['ours']:.5f}, bare {losses['bare']:.5f}")
    else:
        shown.append(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")
    print(f"{parameters / 1e6:6.1f} M   {'   '.join(shown)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=tuple(ARCHITECTURE), default="decoder")
    parser.add_argument("--parameters", type=float, nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--only", choices=("ours", "bare", "trainer", "nanogpt"), help="one loop, with its peak memory")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.nanogpt is None:
        print("nanoGPT is not measured: give its checkout as --nanogpt")
    print(
        f"{options.family}, {options.precision}, {options.threads} threads, {options.busy} busy processes, {options.clock}"
    )
    others: list[Any] = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    try:
        for size in options.parameters:
            measure(options, SIZES[size])
    finally:
        for other in others:
            other.kill()


if __name__ == "__main__":
    main()
