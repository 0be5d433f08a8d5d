"""Benchmark fine-tuning on one process: examples per second and peak memory against HF Trainer with the same
model, batch and dtype.

    python -m benchmarks.finetuning [TASK] [--method full|lora|ia3|prefix] [--grouped] [--memory] [--layers 6] [--width 512]
        [--batch 32] [--steps 12] [--evaluated 512] [--data DIR]

The model is a RoBERTa with random weights, and the tokenizer is trained on the texts of the task. HF Trainer
uses peft for methods other than `full`. It pads each batch (`DataCollatorWithPadding`) of random inputs or,
with `--grouped`, of inputs of similar length. The two sides alternate step by step, so other load affects
both. The time of a step includes making its batch. Then both sides predict the dev split, or its first
examples. The last line of each clock is for one epoch of the task with one evaluation. Rates are given by
wall-clock time and by processor time, which is less affected by other load. With `--grouped`, use a multiple
of 50 steps, because HF Trainer sorts inputs by length within each 50 batches.

With `--memory`, each side instead runs in a separate process, which prints how much memory training and one
evaluation take on top of libraries and data. Needs the package `accelerate`.
"""

import argparse
import os
import re
import subprocess
import sys
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

WARM_UP, LENGTH = 3, 128


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
    """Our engine, which must be created after HF Trainer has started.

    Within an existing process group, HF Trainer would wrap its model.
    """

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
    """Return the stock model of `transformers`, with peft's version of the fine-tuning method."""
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


def features(data: TaskData | HeldOut) -> list[dict[str, Any]]:
    (task,) = data.tasks
    count = len(task)
    rendered = task.render(np.arange(count))
    assert task.labels is not None
    ids = np.split(rendered.ids, rendered.offsets[1:-1])
    return [
        {"input_ids": row.tolist(), "labels": int(label), "length": len(row)}
        for row, label in zip(ids, task.labels[:count], strict=True)
    ]


def clocks() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def trainer_of(
    options: argparse.Namespace, job: Finetuning, data: TaskData, held_out: HeldOut, output: str, callbacks: Any = ()
) -> Any:
    from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast, Trainer, TrainingArguments

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
    return Trainer(
        model=peer_of(job),
        args=arguments,
        train_dataset=features(data),
        eval_dataset=features(held_out),
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=list(callbacks),
    )


def measure(
    options: argparse.Namespace, job: Finetuning, corpus: TaskCorpus, output: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of each step, [steps, 2, 2], and of three evaluations, [3, 2, 2].

    The last two axes are (HF Trainer, ours) and (wall-clock, processor).
    """
    from transformers import TrainerCallback

    data, held_out = task_training(corpus, job), first(task_validation(corpus, job), options.evaluated)
    seconds: list[list[np.ndarray]] = []

    class Turns(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.ours = Ours(job, data)
            self.began = clocks()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended = clocks()
            self.ours.step(len(seconds))
            seconds.append([ended - self.began, clocks() - ended])
            self.began = clocks()

    turns = Turns()
    trainer = trainer_of(options, job, data, held_out, output, [turns])
    trainer.train()
    evaluations = []
    for _ in range(3):
        began = clocks()
        trainer.evaluate()
        ended = clocks()
        turns.ours.predict(held_out)
        evaluations.append([ended - began, clocks() - ended])
    turns.ours.close()
    return np.array(seconds[WARM_UP:]), np.array(evaluations)


def measure_memory(options: argparse.Namespace, job: Finetuning, corpus: TaskCorpus, output: str) -> None:
    """Train and evaluate one side in this process, and print the megabytes that this takes (Linux).

    Memory held before training is not counted, except for the parameters.
    """
    data, held_out = task_training(corpus, job), first(task_validation(corpus, job), options.evaluated)
    ours = trainer = None
    if options.alone == "trainer":
        trainer = trainer_of(options, job, data, held_out, output)
    else:
        ours = Ours(job, data)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = resident("VmRSS")
    if trainer is not None:
        trainer.train()
        trainer.evaluate()
    if ours is not None:
        for step in range(options.steps + WARM_UP):
            ours.step(step)
        ours.predict(held_out)
    taken = resident("VmHWM") - before
    taken += sum(each.numel() for each in peer_of(job).parameters()) * 4 / 1e6
    print(f"{options.alone:8} {taken:,.0f} MB")


def resident(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1000


def first(held_out: HeldOut, count: int) -> HeldOut:
    (task,) = held_out.tasks
    count = min(count, len(task))
    fewer = replace(task, offsets=task.offsets[: count + 1], example=task.example[:count])
    return replace(held_out, tasks=(fewer,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="sst2")
    parser.add_argument("--method", choices=("full", "lora", "ia3", "prefix"), default="full")
    parser.add_argument("--grouped", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--alone", choices=("trainer", "ours"), help=argparse.SUPPRESS)  # a process of --memory
    for name, value in {"layers": 6, "width": 512, "batch": 32, "steps": 12, "evaluated": 512}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--data", default=os.environ.get("GRISTMILL_DATA", ".") + "/tasks")
    options = parser.parse_args()
    if options.memory and options.alone is None:
        for side in ("trainer", "ours"):
            subprocess.run([sys.executable, "-m", "benchmarks.finetuning", *sys.argv[1:], "--alone", side], check=True)
        return
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
        if options.alone:
            measure_memory(options, job, corpus, folder)
        else:
            report(options, *measure(options, job, corpus, folder), *sizes(corpus))


def sizes(corpus: TaskCorpus) -> tuple[int, int]:
    (task,) = corpus.tasks
    train_split, dev = corpus.splits(task)
    return len(corpus.examples(task, train_split)), len(corpus.examples(task, dev))


def report(
    options: argparse.Namespace, steps: np.ndarray, evaluations: np.ndarray, trained: int, held_out: int
) -> None:
    how = "grouped by length" if options.grouped else "padded"
    print(
        f"{options.task}, {options.method}, {torch.get_num_threads()} threads; HF Trainer {how}; load {os.getloadavg()[0]:.1f}"
    )
    examples = min(options.evaluated, held_out)
    whole = steps.mean(axis=0) * trained / options.batch + evaluations.mean(axis=0) * held_out / examples
    for clock, name in enumerate(("wall-clock", "processor")):
        theirs, ours = options.batch / steps[:, :, clock].mean(axis=0)
        print(f"training    ours {ours:,.1f} examples/s by {name}, HF Trainer {theirs:,.1f}: {ours / theirs:.2f} x")
        theirs, ours = examples / evaluations[:, :, clock].mean(axis=0)
        print(f"evaluation  ours {ours:,.1f} examples/s by {name}, HF Trainer {theirs:,.1f}: {ours / theirs:.2f} x")
        print(f"an epoch of {trained:,} and {held_out:,} examples by {name}: {whole[0, clock] / whole[1, clock]:.2f} x")


if __name__ == "__main__":
    main()
