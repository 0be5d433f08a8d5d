"""Worker of test_task_engine: trains a head for every kind of task under every ZeRO stage, and predicts with
it.

Started by `run_workers` as `task_worker.py OUTPUT`; the first worker writes an npz file of arrays named "KIND
STAGE FIELD", where FIELD is losses, numbers, scores or offsets.
"""

import sys
from dataclasses import replace

import numpy as np

from tests.trainers.engine.heads.task_batches import batch_of, forward_of, hidden, network_of, some_inputs, tiny
from trainers.recipes import RECIPES

SIZES = {
    "classify": tiny("roberta", layers=2),
    "regress": tiny("gpt2", layers=2),
    "tag": tiny("bart", layers=2),
    "span": tiny("modernbert", layers=2),
    "choose": tiny("bert", layers=2, sentence_head=True),
}
HEADS = {"classify": {"layers": "scalar_mix", "pooling": "mean"}}
STEPS, RATE = 3, 1e-3
INPUTS = some_inputs((9, 3, 14, 6, 5, 8))


def configuration(stage):
    whole = RECIPES["tiny_roberta"]()
    return replace(whole, execution=replace(whole.execution, zero_stage=stage))


def micro_batches(kind, world, rank):
    parts = [[[0, 1], [2, 3]], [[4, 5]]]
    batches = [batch_of(INPUTS, kind, SIZES[kind], rows) for rows in parts]
    return [batch for number, batch in enumerate(batches) if number % world == rank]


def main() -> None:
    from trainers.engine.engine import Engine, hard_exit, start_group

    rank, world = start_group()
    found = {}
    for kind, model in SIZES.items():
        for stage in range(4):
            network = network_of(model, kind, **HEADS.get(kind, {}))
            engine = Engine(forward_of(network, model, kind), configuration(stage), 2, 2 // world)
            batches = micro_batches(kind, world, rank)
            losses = [engine.train_step(batches, step, RATE, 1, False)[0].loss for step in range(STEPS)]
            totals, outputs = engine.predict(batches, 1)
            assert totals.loss == engine.evaluate(batches, 1).loss
            losses.append(totals.loss)
            totals, without = engine.predict([hidden(batch) for batch in reversed(batches)], 1)
            assert totals.targets == 0
            assert without is None or np.array_equal(without.scores, outputs.scores)
            assert (outputs is None) == (rank != 0)
            engine.close()
            if outputs is not None:
                found[f"{kind} {stage}"] = {"losses": np.array(losses), **vars(outputs)}
    if rank == 0:
        flat = {
            f"{name} {key}": array for name, its in found.items() for key, array in its.items() if array is not None
        }
        np.savez(sys.argv[1], **flat)
    hard_exit(0)
