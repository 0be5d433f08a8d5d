"""Benchmark training on real documents: useful tokens per second of an encoder or encoder-decoder, against HF
Trainer.

    python -m pipelines build ...   # a corpus of documents of many lengths
    python -m benchmarks.train_documents CORPUS [--objective masked|span_corruption] [--width 512] [--layers 6] [--tokens 4096]
        [--packing best_fit|documents]

HF Trainer needs the package `accelerate`, which gristmill does not install.

Both sides train the same model from the same weights in fp32 with AdamW and clipping at 1, on documents of
the corpus truncated to the sequence length, with about the same number of tokens per step. HF Trainer gets
one document per row, padded to the longest of the batch. For masked language modelling it uses its own
collator. For span corruption it has none, so it gets pairs that our objective made beforehand, padded by its
sequence-to-sequence collator. `grouped` sorts documents by length first, which is HF Trainer's best case. Our
side packs and isolates documents and makes masks and spans within the measured time. Useful tokens are those
of the documents read, without padding and without tokens that an objective adds.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Optimizer, TrainingBudget
from trainers.config.pretraining import Data, Pretraining
from trainers.data.packed_corpus import TrainingData, corpus_of, training_data
from trainers.models import build_model
from trainers.objectives.masked import Masked
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.runs.resolve import resolve

WARM_UP = 3
LENGTH = 512
OBJECTIVES = {"masked": ("bert", Masked()), "span_corruption": ("t5", SpanCorruption())}


def configuration(options: argparse.Namespace, packing: str) -> Pretraining:
    architecture, objective = OBJECTIVES[options.objective]
    heads = options.width // 64
    model = Model(architecture, layers=options.layers, width=options.width, heads=heads, positions=LENGTH)
    rows = max(1, options.tokens // LENGTH)
    config = Pretraining(
        name="benchmark",
        model=model,
        batch=BatchSize(sequences=rows),
        budget=TrainingBudget(steps=options.steps + WARM_UP),
        objective=objective,
        data=Data((options.corpus,), sequence_length=LENGTH, packing=packing),
        optimizer=Optimizer(learning_rate=1e-4),
    )
    config = replace(config, execution=replace(config.execution, zero_stage=1, micro_batch=rows))
    return resolve(config, corpus_of(config))


def ours(options: argparse.Namespace, packing: str) -> tuple[list[float], list[int]]:
    from trainers.engine.engine import Engine, start_group
    from trainers.engine.forward import forward_of

    start_group()
    config = configuration(options, packing)
    corpus = corpus_of(config)
    data = training_data(corpus, config)
    rows = config.batch.sequences or 0
    engine = Engine(forward_of(build_model(config.model, corpus.tokenizer.specials, 0), config), config, rows, 1)
    times, useful = [time.perf_counter()], []
    for step in range(options.steps + WARM_UP):
        samples = data.order.take(step * rows, rows)
        engine.train_step(list(data.micro_batches(step * rows, rows, rows, 0, 1)), step, 1e-4, len(data.sources), False)
        times.append(time.perf_counter())
        useful.append(int(samples.tokens.sum()))
    engine.close()
    return times, useful


def documents(data: TrainingData, count: int) -> list[np.ndarray]:
    """Return up to `count` random documents of the first shard, truncated to leave room for two special
    tokens, without those of one token.
    """
    rng, found = np.random.default_rng(0), []
    source = data.sources[0]
    shard = source.shard(0)
    for number in rng.permutation(len(shard.offsets) - 1)[:count]:
        found.append(shard.tokens[shard.offsets[number] : shard.offsets[number + 1]][: LENGTH - 2].astype(np.int64))
    return [document for document in found if len(document) > 1]


def examples(options: argparse.Namespace, config: Pretraining) -> tuple[list[dict[str, Any]], list[int]]:
    """Return HF Trainer's examples, and the number of document tokens of each."""
    corpus = corpus_of(config)
    specials = corpus.tokenizer.specials
    texts = documents(training_data(corpus, config), options.documents)
    if options.objective == "masked":
        rows = [{"input_ids": [specials["<cls>"], *text.tolist(), specials["<sep>"]]} for text in texts]
        return rows, [len(text) for text in texts]
    data = training_data(corpus, replace(config, data=replace(config.data, packing="documents")))
    rows, sizes = [], []
    for first in range(0, options.documents, 64):
        samples = data.order.take(first, 64)
        batch = data.rows(samples)
        assert batch.decoder is not None
        for row in range(len(batch.inputs)):
            read, asked = batch.segments[row] == 0, batch.targets[row] != -100
            rows.append({"input_ids": batch.inputs[row][read].tolist(), "labels": batch.targets[row][asked].tolist()})
        sizes += samples.tokens.tolist()
    return rows, sizes


def hugging_face(options: argparse.Namespace, grouped: bool) -> tuple[list[float], list[int]]:
    from transformers import (
        DataCollatorForLanguageModeling,
        DataCollatorForSeq2Seq,
        PreTrainedTokenizerFast,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    config = configuration(options, options.packing)
    corpus = corpus_of(config)
    rows, sizes = examples(options, config)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"])) if grouped else list(range(len(rows)))
    per_batch = max(1, round(options.tokens / float(np.mean(sizes))))
    batches = [order[i : i + per_batch] for i in range(0, len(order) - per_batch, per_batch)]
    chosen = np.random.default_rng(1).permutation(len(batches))[: options.steps + WARM_UP]
    flat = [rows[i] for batch in chosen for i in batches[batch]]
    useful = [sum(sizes[i] for i in batches[batch]) for batch in chosen]
    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not times:
                times.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    names = {
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "cls_token": "<cls>",
        "sep_token": "<sep>",
        "eos_token": "<eos>",
    }
    file = str(corpus.directory / corpus.tokenizer.file.path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, **names)
    collator = (
        DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
        if options.objective == "masked"
        else DataCollatorForSeq2Seq(tokenizer)
    )

    class InOrder(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output,
            per_device_train_batch_size=per_batch,
            max_steps=len(chosen),
            max_grad_norm=1.0,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            optim="adamw_torch",
        )
        model = build_model(config.model, corpus.tokenizer.specials, 0)
        InOrder(model=model, args=arguments, train_dataset=flat, data_collator=collator, callbacks=[Clock()]).train()
    return times, useful


def rate(measured: tuple[list[float], list[int]]) -> float:
    times, useful = measured
    return sum(useful[WARM_UP:]) / (times[-1] - times[WARM_UP])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--objective", choices=list(OBJECTIVES), default="masked")
    parser.add_argument("--packing", default="best_fit")
    for name, value in {"width": 512, "layers": 6, "tokens": 4096, "steps": 10, "documents": 2048, "rounds": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    found: dict[str, list[float]] = {"HF Trainer": [], "HF Trainer, grouped": []}
    # HF Trainer first: inside a process group it would wrap the model for many workers.
    for _ in range(options.rounds):
        found["HF Trainer"].append(rate(hugging_face(options, False)))
        found["HF Trainer, grouped"].append(rate(hugging_face(options, True)))
    for packing in dict.fromkeys((options.packing, "documents")):
        found[f"ours, {packing}"] = [rate(ours(options, packing)) for _ in range(options.rounds)]
    config = configuration(options, options.packing)
    model = build_model(config.model, corpus_of(config).tokenizer.specials, 0)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{config.model.architecture}, {parameters / 1e6:.1f} M parameters")
    best = float(np.median(found[f"ours, {options.packing}"]))
    for name, rates in found.items():
        value = float(np.median(rates))
        print(f"{name:22} {value:10,.0f} useful tokens/s   ours / this {best / value:5.2f}")


if __name__ == "__main__":
    main()
