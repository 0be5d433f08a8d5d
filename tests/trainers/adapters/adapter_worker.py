"""Worker of test_adapters_zero. The methods of MODELS are trained from the beginning under ZeRO stages 0, 2
and 3 (`lora` under all stages), and resumed half way from each of these three runs under another stage. Stage
`partitioned` is stage 3 with every tensor partitioned, however small.

Started by `run_workers` as `adapter_worker.py OUTPUT`. The first worker writes {case: {stage: {"losses",
"trained"}}}, and for resumed runs {case: {"STAGE after STAGE": {...}}}.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from gristmill.storage.disk import LocalPath
from tests.trainers.adapters import test_matrix
from tests.trainers.adapters.tiny_models import applied
from tests.trainers.launching import pass_over_garbage
from trainers.config.job import TrainingBudget
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, Batch

STEPS, HALF, SEQUENCES, RATE = 4, 2, 4, 1e-2
CASES = test_matrix.CASES | {"adalora": replace(test_matrix.CASES["adalora"], warmup=0.25, final=0.25, interval=1)}
MODELS = {
    "adalora": "llama",
    "bitfit": "gpt",
    "dora": "llama",
    "houlsby": "llama",
    "ia3": "llama",
    "loha": "gpt2",
    "lokr": "llama",
    "lora": "gpt2",
    "multitask_prompt": "llama",
    "p_tuning": "gpt2",
    "p_tuning_v2": "gpt",
    "parallel": "gpt2",
    "prefix": "gpt2",
    "prompt": "llama",
}
RESUMED = {"0": "partitioned", "2": "3", "3": "1"}
STAGES = tuple(RESUMED)
ALL_STAGES = ("0", "1", "2", "3", "partitioned")  # the one case that begins under every stage: lora


def configuration(stage: str) -> Any:
    whole = RECIPES["tiny_gpt2"]()
    number = 3 if stage == "partitioned" else int(stage)
    execution = replace(whole.execution, zero_stage=number)
    return replace(whole, execution=execution, budget=TrainingBudget(steps=STEPS))


def batch(case: str, step: int, part: int = 0, parts: int = 1) -> Batch:
    """Return part `part` of `parts` of the rows of a step. Each row holds two documents. Virtual tokens,
    which have no targets, precede each document.
    """
    method, generator = CASES[case], np.random.default_rng(step)
    ids = generator.integers(128, 200, (SEQUENCES, 2, 8))
    virtual = np.broadcast_to(np.arange(200, 200 + method.virtual_tokens), (SEQUENCES, 2, method.virtual_tokens))
    targets = np.concatenate([np.full_like(virtual, IGNORED), np.roll(ids, -1, 2)], 2)
    targets[:, :, -1] = IGNORED
    inputs = np.concatenate([virtual, ids], 2)
    places = np.broadcast_to(np.arange(inputs.shape[2]) + method.prefix_length, inputs.shape)
    segments = np.broadcast_to(np.array([0, 1])[:, None], inputs.shape)
    mine = slice(part * SEQUENCES // parts, (part + 1) * SEQUENCES // parts)
    rows = [np.ascontiguousarray(each.reshape(SEQUENCES, -1)[mine]) for each in (inputs, targets, places, segments)]
    numbers = np.zeros(len(rows[0]), dtype=np.int64)
    return Batch(*rows, numbers, numbers, numbers, numbers)


def model(case: str, seed: int = 0) -> Any:
    network = applied(MODELS[case], CASES[case], seed)
    del network.task_head
    return network


def main() -> None:
    output = LocalPath(sys.argv[1])
    from trainers.engine import engine as module
    from trainers.engine import zero
    from trainers.engine.forward import Forward

    settings = zero._settings

    def partitioned(*arguments: Any) -> dict[str, Any]:
        found = settings(*arguments)
        return found | {"zero_optimization": found["zero_optimization"] | {"stage3_param_persistence_threshold": 0}}

    rank, world = module.start_group()
    found: dict[str, Any] = {}

    def run(case: str, stage: str, steps: range, state: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        zero._settings = partitioned if stage == "partitioned" else settings
        network = model(case, seed=0 if state is None else 5)
        engine = module.Engine(Forward(network, MODELS[case]), configuration(stage), 1, SEQUENCES // world)
        if state is not None:
            engine.restore(state, steps.start)
        losses = []
        for step in steps:
            batches = [batch(case, step, part, SEQUENCES) for part in range(rank, SEQUENCES, world)]
            losses.append(engine.train_step(batches, step, RATE, 1, False)[0].loss)
            if step == HALF - 1 or (step == STEPS - 1 and state is not None):
                half = dict(engine.state())
        engine.close()
        pass_over_garbage()
        return {"losses": losses, "trained": sorted(half)}, half

    for case in MODELS:
        its = found[case] = {}
        for stage in ALL_STAGES if case == "lora" else STAGES:
            its[stage], state = run(case, stage, range(STEPS))
            if stage in RESUMED:
                its[f"{RESUMED[stage]} after {stage}"], _ = run(case, RESUMED[stage], range(HALF, STEPS), state)
    if rank == 0:
        output.write_text(json.dumps(found))
    module.hard_exit(0)
