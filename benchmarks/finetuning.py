"""Benchmark fine-tuning on one process: examples per second beside HF Trainer with the same model, batch and dtype.

    python -m benchmarks.finetuning [TASK] [--method full|lora|ia3|prefix] [--grouped] [--layers 6] [--width 512]
        [--batch 32] [--steps 12] [--data DIR]

The model is a RoBERTa with random weights, and the tokenizer is trained on the texts of the task. HF Trainer pads each
batch (`DataCollatorWithPadding`), of random inputs or, with `--grouped`, of inputs of similar length; methods are peft's.
Both take turns, a step each, so other load affects both, and the time of a step includes making its batch. Then both
predict the dev split, or its first examples. The last line is for an epoch of the task with one evaluation. With
`--grouped`, use 50 steps or a multiple: the trainer sorts inputs by length within each 50 batches. Needs the package
`accelerate`.
"""

import argparse
import os
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokenizer.kinds.train import train
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.adapters import METHODS
from trainers.config.architecture import Model, fill
from trainers.config.finetuning import Encoding, Finetuning
from trainers.config.job import BatchSize, Execution, Optimizer, TrainingBudget
from trainers.data.examples.held_out import HeldOut
from trainers.data.examples.task_corpus import TaskCorpus, open_tasks, task_training, task_validation
from trainers.data.examples.task_data import TaskData
from trainers.engine.assembly import build_forward, outputs_of
from trainers.models import MODELS
from trainers.tasks.load_task import load_task

WARM_UP, EVALUATED, LENGTH = 3, 512, 128


def job_of(options: argparse.Namespace, tokenizer: Path) -> Finetuning:
    sizes = {"layers": options.layers, "width": options.width, "heads": options.width // 64}
    return Finetuning(
        name="benchmark",
        model=fill(Model("roberta", positions=LENGTH, dropout=0.1, **sizes), 8000),
        tasks=(load_task(options.task),),
        files=options.data,
        tokenizer=str(tokenizer),
        encoding=Encoding(max_length=LENGTH),
        method=METHODS[options.method](),
        batch=BatchSize(sequences=options.batch),
        budget=TrainingBudget(steps=options.steps),
        optimizer=Optimizer(learning_rate=1e-5, weight_decay=0.1, betas=(0.9, 0.999)),
        execution=Execution(zero_stage=0, micro_batch=options.batch),
    )


class Ours:
    """Our engine, created after HF Trainer has started, which inside a process group would wrap its model."""

    def __init__(self, job: Finetuning, data: TaskData) -> None:
        from trainers.engine.engine import Engine, start_group

        start_group()
        size = job.batch.sequences or 0
        self._data, self._size = data, size
        self._engine = Engine(build_forward(job, SPECIAL_IDS, {}), job, size, 1)

    def step(self, number: int) -> None:
        samples = self._data.order.take(number * self._size, self._size)
        self._engine.train_step(list(self._data.split(samples, self._size, 0, 1)), number, 1e-5, 1, False)

    def predict(self, held_out: HeldOut) -> None:
        self._engine.predict(held_out.batches(self._size, 0, 1), 1)

    def close(self) -> None:
        self._engine.close()


def peer_of(job: Finetuning) -> Any:
    """The stock model of `transformers` with peft's method."""
    import transformers

    configuration = MODELS["roberta"].configuration(job.model, SPECIAL_IDS)
    configuration.num_labels = outputs_of(job.tasks[0])
    model = transformers.AutoModelForSequenceClassification.from_config(configuration)
    if job.method.kind == "full":
        return model
    import peft

    configs = {
        "lora": lambda: peft.LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["query", "value"]),
        "ia3": lambda: peft.IA3Config(
            task_type="SEQ_CLS",
            target_modules=["key", "value", "output.dense"],
            feedforward_modules=["output.dense"],
        ),
        "prefix": lambda: peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=20),
    }
    return peft.get_peft_model(model, configs[job.method.kind]())


def features(data: TaskData | HeldOut, limit: int | None = None) -> list[dict[str, Any]]:
    """The inputs as lists of ids, with their labels."""
    (task,) = data.tasks
    count = min(len(task), limit or len(task))
    rendered = task.render(np.arange(count))
    assert task.labels is not None
    ids = np.split(rendered.ids, rendered.offsets[1:-1])
    return [
        {"input_ids": row.tolist(), "labels": int(label), "length": len(row)}
        for row, label in zip(ids, task.labels[:count], strict=True)
    ]


def measure(
    options: argparse.Namespace, job: Finetuning, corpus: TaskCorpus, output: str
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of (HF Trainer, ours): of each step [steps, 2], and of each of three evaluations [3, 2]."""
    from transformers import (
        DataCollatorWithPadding,
        PreTrainedTokenizerFast,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    data, held_out = task_training(corpus, job), task_validation(corpus, job)
    seconds: list[tuple[float, float]] = []

    class Turns(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.ours = Ours(job, data)
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended = time.perf_counter()
            self.ours.step(len(seconds))
            seconds.append((ended - self.began, time.perf_counter() - ended))
            self.began = time.perf_counter()

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(job.tokenizer), pad_token="<pad>")
    arguments = TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=options.batch,
        max_steps=options.steps + WARM_UP,
        learning_rate=1e-5,
        weight_decay=0.1,
        max_grad_norm=1.0,
        train_sampling_strategy="group_by_length" if options.grouped else "random",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        optim="adamw_torch_fused",
    )
    turns, examples = Turns(), min(EVALUATED, len(held_out.tasks[0]))
    trainer = Trainer(
        model=peer_of(job),
        args=arguments,
        train_dataset=features(data),
        eval_dataset=features(held_out, examples),
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[turns],
    )
    trainer.train()
    held_out = first(held_out, examples)
    evaluations = []
    for _ in range(3):
        began = time.perf_counter()
        trainer.evaluate()
        ended = time.perf_counter()
        turns.ours.predict(held_out)
        evaluations.append((ended - began, time.perf_counter() - ended))
    turns.ours.close()
    return np.array(seconds[WARM_UP:]), np.array(evaluations)


def first(held_out: HeldOut, count: int) -> HeldOut:
    """The first inputs of what is held out."""
    (task,) = held_out.tasks
    fewer = replace(task, offsets=task.offsets[: count + 1], example=task.example[:count])
    return replace(held_out, tasks=(fewer,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="sst2")
    parser.add_argument("--method", choices=("full", "lora", "ia3", "prefix"), default="full")
    parser.add_argument("--grouped", action="store_true")
    for name, value in {"layers": 6, "width": 512, "batch": 32, "steps": 12}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--data", default=os.environ.get("GRISTMILL_DATA", ".") + "/tasks")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRISTMILL_CACHE"] = folder
        tokenizer = Path(folder) / "tokenizer.json"
        tokenizer.write_bytes(train("bytes", [], 384))
        corpus = open_tasks(job_of(options, tokenizer))
        texts = corpus.examples(corpus.tasks[0], "train").texts
        tokenizer.write_bytes(train("byte_bpe", [text for column in texts for text in column.to_pylist()], 8000))
        job = job_of(options, tokenizer)
        corpus = open_tasks(job)
        steps, evaluations = measure(options, job, corpus, folder)
        report(options, steps, evaluations, *sizes(corpus))


def sizes(corpus: TaskCorpus) -> tuple[int, int]:
    """Examples of train and dev."""
    (task,) = corpus.tasks
    train_split, dev = corpus.splits(task)
    return len(corpus.examples(task, train_split)), len(corpus.examples(task, dev))


def report(
    options: argparse.Namespace, steps: np.ndarray, evaluations: np.ndarray, trained: int, held_out: int
) -> None:
    theirs, ours = options.batch / np.median(steps, axis=0)
    ratio = float(np.median(steps[:, 0] / steps[:, 1]))
    how = "grouped by length" if options.grouped else "padded"
    print(f"{options.task}, {options.method}, {torch.get_num_threads()} threads; HF Trainer {how}")
    print(
        f"training    ours {ours:,.1f} examples/s, HF Trainer {theirs:,.1f}; median of {len(steps)} pairs {ratio:.2f} x"
    )
    examples = min(EVALUATED, held_out)
    evaluated = examples / np.median(evaluations, axis=0)
    times = float(np.median(evaluations[:, 0] / evaluations[:, 1]))
    print(f"evaluation  ours {evaluated[1]:,.1f} examples/s, HF Trainer {evaluated[0]:,.1f}; median {times:.2f} x")
    whole = np.median(steps, axis=0) * trained / options.batch + np.median(evaluations, axis=0) * held_out / examples
    print(f"an epoch of {trained:,} and {held_out:,} examples: {whole[0] / whole[1]:.2f} x")


if __name__ == "__main__":
    main()
