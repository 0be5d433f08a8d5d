"""Tokens per second of a training step on one process, beside HF Trainer with the same model, batch and dtype.

    python -m benchmarks.train_step [--layers 4] [--width 128] [--vocabulary 16384] [--sequence-length 256] [--rows 8]

Both train on the same random rows, one document per row, AdamW, clipping at 1, no accumulation. Ours pays for the block mask
and for ZeRO; HF Trainer is given `attention_mask=None`, its fastest path.
"""

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tokenizer.specials import SPECIAL_IDS
from trainers.batch import Batch
from trainers.config import Batch as BatchSize
from trainers.config import Budget, Data, Model, Pretraining
from trainers.models import build_model

WARM_UP = 3


def configuration(options: argparse.Namespace) -> Pretraining:
    model = Model(
        architecture="llama",
        layers=options.layers,
        width=options.width,
        heads=max(1, options.width // 32),
        key_value_heads=max(1, options.width // 32),
        positions=options.sequence_length,
        feed_forward=3 * options.width,
        vocab_size=options.vocabulary,
    )
    data = Data(sequence_length=options.sequence_length)
    config = Pretraining("benchmark", model, BatchSize(sequences=options.rows), Budget(steps=options.steps), data=data)
    return replace(config, execution=replace(config.execution, zero_stage=options.zero_stage, micro_batch=options.rows))


def rows(options: argparse.Namespace) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (options.rows, options.sequence_length + 1)
    return [rng.integers(128, options.vocabulary, shape) for _ in range(options.steps + WARM_UP)]


def ours(options: argparse.Namespace) -> list[float]:
    from trainers.engine import Engine, start_group

    start_group()
    config = configuration(options)
    engine = Engine(build_model(config.model, SPECIAL_IDS, 0), config, options.rows, 1)
    positions = np.tile(np.arange(options.sequence_length), (options.rows, 1))
    of_rows = np.zeros((4, options.rows), dtype=np.int64)
    times = [time.perf_counter()]
    for step, ids in enumerate(rows(options)):
        batch = Batch(ids[:, :-1].copy(), ids[:, 1:].copy(), positions, np.zeros_like(positions), *of_rows)
        engine.train_step([batch], step, 1e-3, 1, False)
        times.append(time.perf_counter())
    engine.close()
    return times


def hugging_face(options: argparse.Namespace, output: str) -> list[float]:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not times:
                times.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    flat = [{"input_ids": row[:-1], "labels": row[:-1]} for ids in rows(options) for row in torch.from_numpy(ids)]
    arguments = TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=options.rows,
        max_steps=options.steps + WARM_UP,
        max_grad_norm=1.0,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        optim="adamw_torch",
    )
    model = build_model(configuration(options).model, SPECIAL_IDS, 0)
    Trainer(model=model, args=arguments, train_dataset=flat, callbacks=[Clock()]).train()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"layers": 4, "width": 128, "vocabulary": 16384, "sequence-length": 256, "rows": 8, "steps": 12}
    for name, value in {**defaults, "zero-stage": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    import tempfile

    # Theirs first: in a process group HF Trainer would wrap the model for many workers.
    with tempfile.TemporaryDirectory() as output:
        theirs = hugging_face(options, output)
    measured = {"ours": ours(options), "HF Trainer": theirs}
    tokens = options.rows * options.sequence_length
    rates = {name: tokens / float(np.median(np.diff(times)[WARM_UP:])) for name, times in measured.items()}
    for name, value in rates.items():
        print(f"{name:12} {value:10,.0f} tokens/s   ours / this {rates['ours'] / value:5.2f}")


if __name__ == "__main__":
    main()
