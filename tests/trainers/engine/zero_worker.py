"""Worker of test_zero: trains a model under every ZeRO stage, and recipes of FAMILIES, in the same processes.
Launches with several workers also resume runs; launches with two also train runs in which one worker gets a
NaN loss or is slow to write.

Started by `run_workers` as `zero_worker.py CORPUS OTHER OUTPUT`, where OTHER has the columns `spans` and
`target`. Each run is a directory below OUTPUT, with a record of what it read next to it. If names of runs
follow OUTPUT, the worker only continues those runs.
"""

import os
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch

from gristmill.storage.disk import LocalPath
from tests.trainers.launching import SEQUENCES, STEPS, Record, only_training, pass_over_garbage
from trainers.config.architecture import RECURRENT_RATES, Model
from trainers.config.job import BatchSize, Checkpoints, TrainingBudget
from trainers.config.pretraining import Pretraining, Validation
from trainers.data.packed_corpus import corpus_of
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.mixture import ObjectiveMixture
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.objectives.spans.denoising import Denoising
from trainers.recipes import RECIPES
from trainers.runs.resolve import resolve
from trainers.runs.run import open_run, read_config
from trainers.training.loop import train

FAMILIES = (
    *("tiny_roberta", "tiny_t5", "tiny_bart", "tiny_electra", "tiny_albert", "tiny_spanbert", "tiny_deberta"),
    *("tiny_deberta_v3", "tiny_awd_lstm", "tiny_xlnet", "tiny_elmo"),
    *("tiny_simcse", "tiny_quick_thought", "tiny_skip_thought"),
    *("tiny_canine", "tiny_canine_c", "tiny_deberta_v1"),
    *("tiny_pegasus", "tiny_bert", "mixture", "tiny_translation_lm", "tiny_multitask", "tiny_prefix_lm"),
    *("tiny_salient_spans", "fill_in_the_middle"),
)
# Of objectives without a tiny recipe: (recipe, objective).
VARIED = {"fill_in_the_middle": ("llama_tiny", FillInTheMiddle()), "mixture": ("tiny_t5", ObjectiveMixture())}
BPTT = {"tiny_awd_lstm": 16}  # a quarter of a row
FAMILY_STEPS = 4
# One worker trains every family, two and three every other one.
WORLDS_OF = {family: (1, 2 + number % 2) for number, family in enumerate(FAMILIES)}
POISONED = {"poisoned0": 0, "poisoned2": 2}
POISONED_STEP = 5


def execution(stage: int, world: int) -> dict[str, int]:
    """Return the execution settings for a ZeRO stage with `world` workers, chosen so that the runs together
    cover every pair of values of any two settings.
    """
    return {"zero_stage": stage, "micro_batch": 1 + (stage + world) % 3, "loader_threads": (stage + 2 * world) % 3}


def without_dropout(model: Model) -> Model:
    """Return the model without dropout, because dropout masks depend on how a batch is divided."""
    return replace(model, **{name: 0.0 for name in ("dropout", *RECURRENT_RATES) if name in model.traits.has})


def pretraining_of(family: str) -> Pretraining:
    recipe, *objectives = VARIED.get(family, (family,))
    whole = RECIPES[recipe]()
    return replace(whole, objective=objectives[0]) if objectives else whole


def corpus_for(objective: TrainingObjective, corpora: tuple[str, str]) -> str:
    return corpora[bool(objective.span_types or objective.needs_pairs)]


def configuration(corpora: tuple[str, str], recipe: str, steps: int, **execution: int) -> Pretraining:
    """Return a recipe, or an entry of VARIED, for `steps` steps of SEQUENCES sequences, with every step
    logged.
    """
    whole = pretraining_of(recipe)
    objective = Denoising(permute_sentences=False) if recipe == "tiny_bart" else whole.objective
    small = replace(
        whole,
        model=without_dropout(whole.model),
        data=replace(whole.data, corpora=(corpus_for(objective, corpora),), bptt=BPTT.get(recipe)),
        objective=objective,
        batch=BatchSize(sequences=SEQUENCES),
        budget=TrainingBudget(steps=steps),
        schedule=replace(whole.schedule, warmup_steps=min(whole.schedule.warmup_steps, steps // 2)),
        validation=Validation(every=5, tokens=512),
        checkpoints=Checkpoints(every=steps // 2, keep=3),
        log_every=1,
        execution=replace(whole.execution, **execution),
    )
    return resolve(small, corpus_of(small))


def runs(corpora: tuple[str, str], world: int) -> dict[str, Pretraining]:
    stages = {
        f"stage{stage}": configuration(corpora, "llama_tiny", STEPS, **execution(stage, world)) for stage in range(4)
    }
    families = {
        recipe: configuration(corpora, recipe, FAMILY_STEPS, **execution((number // 2 + world) % 4, world))
        for number, recipe in enumerate(FAMILIES)
        if world in WORLDS_OF[recipe]
    }
    return stages | families


def without_corners() -> None:
    """Replace ReLU with softplus from now on.

    The gradient of ReLU jumps at 0. Among the hundred thousand inputs of a step, some are so close to 0 that
    the order of summation decides their sign. On some CPUs and with some numbers of workers, the losses then
    differ from the fourth decimal on.
    """
    import torch

    softplus = torch.nn.functional.softplus
    torch.nn.ReLU.forward = lambda layer, states: softplus(states)
    torch.Tensor.relu = softplus


def poison(rank: int) -> list[object]:
    """From now on, make the second worker's loss NaN at POISONED_STEP of each run. Return the list that
    counts the calls, which must be cleared before each run.
    """
    from trainers.engine.forward import Forward

    whole, calls = Forward.forward, []

    def forward(self, **arrays):
        nats = whole(self, **arrays)
        if self.training:
            calls.append(arrays)
            if rank == 1 and len(calls) == POISONED_STEP:
                return nats | {"loss": nats["loss"] * float("nan")}
        return nats

    Forward.forward = forward
    return calls


def no_process(*arguments: object, **named: object) -> None:
    """Stand in for subprocess.Popen and end the worker. Raising an error would not do, because DeepSpeed
    catches errors when it starts a process.
    """
    print(f"training starts a process: {arguments}", flush=True)
    os._exit(1)


def slow_writer(rank: int, seconds: float) -> None:
    """Set the time limit of collectives to `seconds`. From now on, delay every checkpoint, export and search
    for a checkpoint on the first worker by one and a half times as long.
    """
    import torch

    from trainers.runs import checkpoint
    from trainers.training import loop

    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))

    def slow(whole):
        def later(*arguments, **named):
            if rank == 0:
                time.sleep(1.5 * seconds)
            return whole(*arguments, **named)

        return later

    checkpoint.save, loop.export_checkpoint, checkpoint.newest = map(
        slow, (checkpoint.save, loop.export_checkpoint, checkpoint.newest)
    )


def main() -> None:
    corpora, output, *continued = (sys.argv[1], sys.argv[2]), LocalPath(sys.argv[3]), *sys.argv[4:]
    from trainers.engine import partitions
    from trainers.engine.engine import hard_exit, start_group

    subprocess.Popen = no_process
    rank, world = start_group()
    import torch

    without_corners()
    record = Record()

    def run(name: str, config: Pretraining) -> None:
        record.path = output / f"{name}.record"
        if rank == 0 and not (output / name).exists():
            open_run(output / name, config, corpus_of(config))
        if world > 1:
            torch.distributed.barrier()
        # Small models fit into one gathering of tensors; here several are together in some of them, and one is alone.
        gathered = 20_000 if name.startswith("stage") else partitions._GATHERED
        # An export and a page are made of what a run has stored: by one of each stage, and by one with a slow disk.
        exports = (name.startswith("stage") and "-" not in name) or name == "slow_writer"
        with patch.object(partitions, "_GATHERED", gathered), nullcontext() if exports else only_training():
            train(config, corpus_of(config), output / name, None)
        pass_over_garbage()

    for name in continued:
        run(name, read_config(output / name))
    if continued:
        hard_exit(0)
    for name, config in runs(corpora, world).items():
        run(name, config)
        if world == 2 or (world > 1 and name in FAMILIES):
            if rank == 0:
                last = f"step-{config.budget.steps:08d}"
                left_out = shutil.ignore_patterns(last, "finished.json", "export", "log*")
                shutil.copytree(output / name, output / f"{name}-resumed", ignore=left_out)
            # A resumed run continues under the next stage: checkpoints do not depend on it.
            following = replace(config.execution, zero_stage=(config.execution.zero_stage + 1) % 4)
            run(f"{name}-resumed", replace(config, execution=following))
    if world == 2:
        calls = poison(rank)
        for name, stage in POISONED.items():
            calls.clear()
            run(name, configuration(corpora, "llama_tiny", STEPS, zero_stage=stage, micro_batch=4))
        slow_writer(rank, 2.0)
        run("slow_writer", configuration(corpora, "llama_tiny", 2, zero_stage=2, micro_batch=4))
    hard_exit(0)
