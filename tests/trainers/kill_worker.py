"""Runs the command line as one of several workers, one of which kills itself with SIGKILL at a chosen moment.

Started by torchrun or `run_workers` as `kill_worker.py MOMENT STEP RANK RECORD ARGUMENTS ...`. Worker RANK
dies at that moment of that step (counted from 1), but does not die again if torchrun restarts it. Every
worker writes what it trains on to RECORD (`launching.Record`), and the worker that dies leaves RECORD.MOMENT.
With the moment `never`, no worker dies.
"""

import multiprocessing
import os
import signal
import sys
from pathlib import Path

from tests.trainers.launching import Record


def die() -> None:
    moment, record = sys.argv[1], sys.argv[4]
    Path(f"{record}.{moment}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def before_the_first_step(step: int) -> None:
    """Die after the model has been built or restored, before any step."""
    from trainers.training.loop import Training

    Training.run = lambda *arguments: die()


def amid_a_step(step: int) -> None:
    """Die after the backward pass of the first micro-batch, when the second begins and nothing has been
    updated.
    """
    from trainers.engine.engine import Engine
    from trainers.engine.forward import Forward

    train_step, forward, begun = Engine.train_step, Forward.forward, []

    def noting(self, batches, number, *others):
        begun[:] = [] if number + 1 == step else [None] * 1000
        return train_step(self, batches, number, *others)

    def dying(self, **arrays):
        begun.append(arrays)
        if len(begun) == 2:
            die()
        return forward(self, **arrays)

    Engine.train_step, Forward.forward = noting, dying


def amid_a_checkpoint(step: int) -> None:
    """Die when the weights of the step's checkpoint have been written, but not its moments."""
    import safetensors.torch

    save_file = safetensors.torch.save_file

    def dying(tensors, path, *others, **named):
        save_file(tensors, path, *others, **named)
        if f"step-{step:08d}" in str(path):
            die()

    safetensors.torch.save_file = dying


def after_a_checkpoint(step: int) -> None:
    """Die as soon as the step's checkpoint has been published."""
    from trainers.runs import checkpoint

    save = checkpoint.save

    def dying(run, number, *others, **named):
        save(run, number, *others, **named)
        if number == step:
            die()

    checkpoint.save = dying


def amid_a_validation(step: int) -> None:
    """Die in the first validation, after its first batch."""
    from trainers.engine.engine import Engine

    evaluate = Engine.evaluate

    def until_the_second(batches):
        yield next(iter(batches))
        die()

    Engine.evaluate = lambda self, batches, *others: evaluate(self, until_the_second(batches), *others)


def amid_an_export(step: int) -> None:
    """Die when the weights of the export have been written, before its tokenizer is written and before the
    run is marked as finished.
    """
    import transformers

    transformers.PreTrainedTokenizerFast.save_pretrained = lambda *arguments, **named: die()


MOMENTS = {
    moment.__name__: moment
    for moment in (
        before_the_first_step,
        amid_a_step,
        amid_a_checkpoint,
        after_a_checkpoint,
        amid_a_validation,
        amid_an_export,
    )
}


def main() -> int:
    moment, step, rank, record, *arguments = sys.argv[1:]
    from trainers.__main__ import main as trainers

    Record(record)
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if os.environ.get("RANK", "0") == rank and moment != "never" and first:
        MOMENTS[moment](int(step))
    return trainers(arguments)


if __name__ == "__main__":
    status = main()
    from trainers.engine.engine import hard_exit

    # torchrun waits for what a worker that is a fork of it returns.
    if status or multiprocessing.parent_process() is None:
        hard_exit(status)
