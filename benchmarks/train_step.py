"""Benchmark a training step on one process: tokens per second against HF Trainer with the same model, batch
and dtype.

    python -m benchmarks.train_step [--precision fp32|bf16] [--layers 6] [--width 384] [--vocabulary 50304] [--rows 4]
        [--sequence-length 256] [--steps 10] [--zero-stage 0..3] [--compile]

The default is a Llama of 30 M parameters with GPT-2's vocabulary. Both sides train on random rows of one
document each, with fused AdamW, clipping at 1 and no accumulation. Our step includes the block mask and ZeRO,
while HF Trainer gets `attention_mask=None`, its fastest path. The two sides alternate step by step, so other
load affects both. The printed ratio is the median over pairs of steps. Needs the package `accelerate`.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model
from trainers.config.job import BatchSize, TrainingBudget
from trainers.config.pretraining import Data, Pretraining
from trainers.models import build_model
from trainers.rows.batch import Batch

WARM_UP = 3


def configuration(options: argparse.Namespace) -> Pretraining:
    model = Model(
        architecture="llama",
        layers=options.layers,
        width=options.width,
        heads=max(1, options.width // 64),
        key_value_heads=max(1, options.width // 64),
        positions=options.sequence_length,
        feed_forward=3 * options.width,
        vocab_size=options.vocabulary,
    )
    config = Pretraining(
        name="benchmark",
        model=model,
        batch=BatchSize(sequences=options.rows),
        budget=TrainingBudget(steps=options.steps),
        precision=options.precision,
        data=Data(sequence_length=options.sequence_length),
    )
    execution = {"zero_stage": options.zero_stage, "micro_batch": options.rows, "compile": options.compile}
    return replace(config, execution=replace(config.execution, **execution))


class Ours:
    """Our engine, which must be created after HF Trainer has started.

    Within an existing process group, HF Trainer would wrap its model.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        from trainers.engine.engine import Engine, start_group
        from trainers.engine.forward import forward_of

        start_group()
        self._options = options
        config = configuration(options)
        self._engine = Engine(forward_of(build_model(config.model, SPECIAL_IDS, 0), config), config, options.rows, 1)

    def step(self, number: int, ids: np.ndarray) -> None:
        positions = np.tile(np.arange(ids.shape[1] - 1), (len(ids), 1))
        row = np.zeros(len(ids), dtype=np.int64)
        inputs, targets = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
        batch = Batch(inputs, targets, positions, np.zeros_like(positions), row, row, row, row)
        self._engine.train_step([batch], number, 1e-3, 1, False)

    def close(self) -> None:
        self._engine.close()


def pairs(options: argparse.Namespace, output: str) -> np.ndarray:
    """Return the seconds of each step, [steps, 2]: HF Trainer's step, and our step right after it."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    shape = (options.steps + WARM_UP, options.rows, options.sequence_length + 1)
    data = np.random.default_rng(0).integers(128, options.vocabulary, shape)
    seconds: list[tuple[float, float]] = []

    class Turns(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.ours = Ours(options)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended = time.perf_counter()
            self.ours.step(len(seconds), data[len(seconds)])
            seconds.append((ended - self.began, time.perf_counter() - ended))

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.ours.close()

    arguments = TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=options.rows,
        max_steps=options.steps + WARM_UP,
        max_grad_norm=1.0,
        bf16=options.precision == "bf16",
        torch_compile=options.compile,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        optim="adamw_torch_fused",
    )
    model = build_model(configuration(options).model, SPECIAL_IDS, 0)
    rows = [{"input_ids": row[:-1], "labels": row[:-1]} for ids in data for row in torch.from_numpy(ids)]
    Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Turns()]).train()
    return np.array(seconds[WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 6, "width": 384, "vocabulary": 50304, "sequence-length": 256, "rows": 4, "steps": 10}
    for name, value in {**sizes, "zero-stage": None}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    if options.zero_stage is None:
        options.zero_stage = 0 if options.precision == "fp32" else 1
    with tempfile.TemporaryDirectory() as output:
        seconds = pairs(options, output)
    tokens = options.rows * options.sequence_length
    theirs, ours = tokens / np.median(seconds, axis=0)
    ratio = float(np.median(seconds[:, 0] / seconds[:, 1]))
    print(f"{options.precision}, {torch.get_num_threads()} threads, ZeRO {options.zero_stage}")
    print(
        f"ours {ours:,.0f} tokens/s   HF Trainer {theirs:,.0f} tokens/s   median ratio of {len(seconds)} pairs {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
