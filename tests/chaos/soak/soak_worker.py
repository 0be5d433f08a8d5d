"""A hook for the training workers of the soak test.

The hook records what the workers train on. It also prolongs the phase that a kill aims at until the kill has
happened. The environment variable SOAK names the directory. Its file `aim` holds the phase and step
(`validation 10`), and a file of that name is made when the phase begins.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SECONDS = 0.25  # between two micro-batches, or two files of a checkpoint, of a phase that a kill aims at
_LONGEST = 120.0


def prepare() -> None:
    """Patch training in this process. Ray calls this as its `worker_process_setup_hook` in every worker
    process.
    """
    from trainers.training import launch

    train = launch._train

    def prepared(*arguments):
        from tests.trainers.launching import Record

        place = Path(os.environ["SOAK"])
        _stretch(place)
        Record(place / "record")
        train(*arguments)

    launch._train = prepared


def _stretch(place: Path) -> None:
    from trainers.engine.engine import Engine
    from trainers.runs import checkpoint

    train_step, evaluate, save, fsync = Engine.train_step, Engine.evaluate, checkpoint.save, checkpoint._fsync
    pause, done = [0.0], [0]

    def slowly(batches):
        for batch in batches:
            time.sleep(pause[0])
            yield batch

    class Slow(list):
        __iter__ = lambda self: slowly(list.__iter__(self))  # noqa: E731

    def step_of(self, batches, step, *others):
        done[0] = step + 1
        with _lasting(place, "training", done[0], pause):
            return train_step(self, Slow(batches), step, *others)

    def evaluation(self, batches, *others):
        with _lasting(place, "validation", done[0], pause):
            return evaluate(self, slowly(batches), *others)

    def saving(run, step, *others, **named):
        with _lasting(place, "checkpoint", step, pause):
            return save(run, step, *others, **named)

    def written(path):
        time.sleep(pause[0])
        fsync(path)

    Engine.train_step, Engine.evaluate, checkpoint.save, checkpoint._fsync = step_of, evaluation, saving, written


@contextmanager
def _lasting(place: Path, phase: str, step: int, pause: list[float]) -> Iterator[None]:
    aim = f"{phase} {step}"
    aimed = _aim(place) == aim
    if aimed:
        (place / aim).touch()
        pause[0] = _SECONDS
    yield
    pause[0] = 0.0
    last = time.monotonic() + _LONGEST
    while aimed and _aim(place) == aim and time.monotonic() < last:
        time.sleep(0.05)


def _aim(place: Path) -> str:
    file = place / "aim"
    return file.read_text() if file.exists() else ""
