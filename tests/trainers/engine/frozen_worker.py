"""Worker of test_frozen: trains only the first block of each stack of a model under every ZeRO stage, and
resumes from each stage's state under the next stage.

Started by `run_workers` as `frozen_worker.py CORPUS OUTPUT`; the first worker writes {recipe: {stage:
{"losses", "resumed", "state", "gradients"}}} and, under the key "bf16" of a recipe, {stage: losses}.
"""

import json
import sys
from dataclasses import replace

from gristmill.storage.disk import LocalPath
from trainers.config.job import BatchSize
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import TrainingData, corpus_of, training_data
from trainers.models import build_model
from trainers.recipes import RECIPES
from trainers.runs.resolve import resolve

STEPS, HALF, SEQUENCES, RATE = 5, 3, 6, 5e-3
RECIPE_NAMES = ("tiny_gpt2", "tiny_t5")


def prepared(
    recipe: str, corpus: str, stage: int = 0, precision: str = "fp32"
) -> tuple[Pretraining, TrainingData, object]:
    """Return (configuration, data, fresh model). Only the first block of each stack is trainable."""
    whole = RECIPES[recipe]()
    config = replace(
        whole,
        data=replace(whole.data, corpora=(corpus,)),
        batch=BatchSize(sequences=SEQUENCES),
        execution=replace(whole.execution, zero_stage=stage),
        precision=precision,
    )
    opened = corpus_of(config)
    config = resolve(config, opened)
    model = build_model(config.model, opened.tokenizer.specials, 0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".h.0." in name or ".block.0." in name)
    return config, training_data(opened, config), model


def main() -> None:
    corpus, output = sys.argv[1], LocalPath(sys.argv[2])
    from trainers.engine.engine import Engine, hard_exit, start_group
    from trainers.engine.forward import forward_of

    rank, world = start_group()
    size = SEQUENCES // world
    found: dict[str, dict[str, object]] = {}

    def run(recipe: str, stage: int, steps: range, state: dict | None = None, precision: str = "fp32"):
        config, data, model = prepared(recipe, corpus, stage, precision)
        engine = Engine(forward_of(model, config), config, size, 1)
        if state is not None:
            engine.restore(state, steps.start)
        losses, half = [], {}
        for step in steps:
            batches = list(data.micro_batches(step * SEQUENCES, SEQUENCES, size, rank, world))
            losses.append(engine.train_step(batches, step, RATE, len(data.sources), False)[0].loss)
            if step == HALF - 1:
                half = dict(engine.state())
        gradients = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
        engine.close()
        return losses, half, gradients

    for recipe in RECIPE_NAMES:
        for stage in range(4):
            losses, state, gradients = run(recipe, stage, range(STEPS))
            resumed, _, _ = run(recipe, (stage + 1) % 4, range(HALF, STEPS), state)
            keys = {name: sorted(tensors) for name, tensors in state.items()}
            its = {"losses": losses, "resumed": resumed, "state": keys, "gradients": gradients}
            found.setdefault(recipe, {})[str(stage)] = its
        found[recipe]["bf16"] = {stage: run(recipe, stage, range(STEPS), precision="bf16")[0] for stage in (2, 3)}
    if rank == 0:
        output.write_text(json.dumps(found))
    hard_exit(0)
