"""What the workers of one launch do for test_zero: train under every ZeRO stage, and resume, in the same processes;
then runs in which one worker alone meets a loss that is not a number.

Started by torchrun as `zero_worker.py CORPUS OUTPUT`; each run is a directory below OUTPUT with its log.
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from trainers.config import Batch, Budget, Checkpoints, Validation
from trainers.data import open_corpus
from trainers.loop import train
from trainers.recipes import llama_tiny
from trainers.resolve import resolve
from trainers.run import open_run

RUNS = {
    **{f"stage{stage}": {"zero_stage": stage} for stage in (0, 1, 2, 3)},
    "accumulated": {"zero_stage": 2, "micro_batch": 1},
    "uneven": {"zero_stage": 1, "micro_batch": 2},
}


POISONED = {"poisoned0": 0, "poisoned2": 2}
POISONED_STEP = 5


def poison(rank):
    """From here on the second worker's loss at POISONED_STEP of each run is not a number."""
    from trainers.forward import Forward

    whole, calls = Forward.forward, []

    def forward(self, **arrays):
        nats, pairs = whole(self, **arrays)
        if self.training:
            calls.append(arrays)
            if rank == 1 and len(calls) == POISONED_STEP:
                return nats * float("nan"), pairs
        return nats, pairs

    Forward.forward = forward
    return calls


def configuration(corpus, **execution):
    """llama_tiny for 20 steps of 6 sequences, every step logged."""
    recipe = llama_tiny()
    small = replace(
        recipe,
        batch=Batch(sequences=6),
        budget=Budget(steps=20),
        validation=Validation(every=10, tokens=512),
        checkpoints=Checkpoints(every=10, keep=3),
        log_every=1,
        execution=replace(recipe.execution, **{"micro_batch": 3, **execution}),
    )
    return resolve(small, corpus)


def main() -> None:
    corpus, output = open_corpus((sys.argv[1],), None), Path(sys.argv[2])
    from trainers.engine import start_group

    rank, _ = start_group()
    import torch

    for name, execution in RUNS.items():
        run, resumed = output / name, output / f"{name}-resumed"
        config = configuration(corpus, **execution)
        if rank == 0:
            open_run(run, config, corpus)
        train(config, corpus, run, None)
        if rank == 0:
            shutil.copytree(
                run, resumed, ignore=shutil.ignore_patterns("step-00000020", "finished.json", "export", "log*")
            )
        torch.distributed.barrier()
        # A resumed run goes on under the next stage: checkpoints do not depend on it.
        following = replace(config.execution, zero_stage=(config.execution.zero_stage + 1) % 4)
        train(replace(config, execution=following), corpus, resumed, None)
    calls = poison(rank)
    for name, stage in POISONED.items():
        calls.clear()
        config = configuration(corpus, zero_stage=stage)
        if rank == 0:
            open_run(output / name, config, corpus)
        torch.distributed.barrier()
        train(config, corpus, output / name, None)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
