"""Benchmark the scoring of items: our scorer against lm-evaluation-harness's `HFLM`, on the same model.

    GRISTMILL_DATA=... python -m benchmarks.harness [--size demo|30m] [--items N] [--rounds N]

The weights are random, which does not affect time. HFLM runs at the best of several batch sizes, found on the
first items. The two scorers alternate. For each task, the script prints items per processor second, the ratio
of the processor times, and the largest difference of the scores.
"""

import argparse
import gzip
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.signals import machine
from gristmill.libraries.extras import install_extra
from gristmill.storage.disk import LocalPath
from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import train_byte_bpe
from trainers.config.architecture import Model, fill
from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.items import Items, read_items
from trainers.inference.tokenizer_export import save_tokenizer
from trainers.models import build_model
from trainers.recipes import llama_tiny
from trainers.tasks.load_task import load_task

SPLITS = {"hellaswag": "dev", "lambada": "test", "blimp": "test"}
VOCABULARY = 8192
SIZES = {
    "demo": Model("llama", layers=2, width=128, heads=4, positions=256, feed_forward=512, vocab_size=VOCABULARY),
    "30m": Model("llama", layers=7, width=512, heads=8, positions=512, feed_forward=1408, vocab_size=VOCABULARY),
}
BATCHES = (1, 4, 16, 64)
TRIED = 16  # candidates on which batch sizes are compared


def processor_seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def items_of(name: str, data: LocalPath, count: int) -> Items:
    """Return the first `count` items of a task; for BLiMP, about `count` items spread evenly over its
    paradigms.
    """
    limit = max(1, count // 46) if name == "blimp" else count
    return read_items(load_task(name), SPLITS[name], data, limit=limit)


def both_models(sizes: Model, texts: Sequence[str], folder: LocalPath) -> tuple[Scorer, Any, Any]:
    from transformers import AutoTokenizer

    recipe = llama_tiny()
    (folder / "tokenizer.json").write_bytes(train_byte_bpe(list(texts), VOCABULARY - 150))
    encoder = Encoder.load(str(folder / "tokenizer.json"))
    sizes = fill(sizes, encoder.vocab_size)
    network = build_model(sizes, encoder.specials, 0).eval()
    made = folder / "tokenizer"
    made.mkdir()
    save_tokenizer(Path(folder / "tokenizer.json"), encoder.specials, replace(recipe, model=sizes), made)
    scorer = Scorer("ours", network, sizes, recipe.objective, encoder)
    return scorer, network, AutoTokenizer.from_pretrained(str(made))


def harness_scores(model: Any, items: Items, first: int | None = None) -> np.ndarray:
    from lm_eval.api.instance import Instance

    pairs = list(zip(items.contexts, items.continuations, strict=True))[:first]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    return np.array([nats for nats, _ in model.loglikelihood(requests, disable_tqdm=True)])


def compare(name: str, items: Items, scorer: Scorer, network: Any, tokenizer: Any, rounds: int) -> str:
    from lm_eval.models.huggingface import HFLM

    models = {size: HFLM(network, tokenizer=tokenizer, batch_size=size, device="cpu") for size in BATCHES}
    tried = {size: processor_seconds(lambda m=m: harness_scores(m, items, TRIED)) for size, m in models.items()}
    best = min(tried, key=lambda size: tried[size])
    scorer.score(items.contexts[:TRIED], items.continuations[:TRIED])  # compiles and loads what is compiled once
    here, there = [], []
    for _ in range(rounds):
        here.append(processor_seconds(lambda: scorer.score(items.contexts, items.continuations)))
        there.append(processor_seconds(lambda: harness_scores(models[best], items)))
    found = scorer.score(items.contexts, items.continuations)
    same = ~found.cut
    gap = float(np.abs(found.log_likelihood - harness_scores(models[best], items))[same].max())
    count = len(items)
    ratio = sum(there) / sum(here)
    return (
        f"{name:10} {count:5} items  {count * rounds / sum(here):8.1f} here  {count * rounds / sum(there):8.1f} HFLM "
        f"(batch {best})  ratio {ratio:.2f}  largest difference {gap:.1e} nats"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="demo")
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tasks", default=",".join(SPLITS))
    options = parser.parse_args()
    if find_spec("lm_eval") is None:
        raise SystemExit(f"skipped: needs lm-eval: {install_extra('harness')}")
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("set GRISTMILL_DATA to the directory of the development data")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import torch

    print(machine(), f"{torch.get_num_threads()} threads of torch", flush=True)
    data = LocalPath(os.environ["GRISTMILL_DATA"])
    asked = {name: items_of(name, data / "tasks", options.items) for name in options.tasks.split(",")}
    with gzip.open(data / "prose" / "wiki_en.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["text"] for line in islice(lines, 2000)]
    with tempfile.TemporaryDirectory() as folder:
        scorer, network, tokenizer = both_models(SIZES[options.size], texts, LocalPath(folder))
        print(f"{options.size}: {sum(p.numel() for p in network.parameters()):,} parameters", flush=True)
        for name, items in asked.items():
            print(compare(name, items, scorer, network, tokenizer, options.rounds), flush=True)


if __name__ == "__main__":
    main()
