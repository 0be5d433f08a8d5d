"""Helpers of the launch tests: the commands that start workers, the log of a run, and the rows its models
read.
"""

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import random
import socket
import sys
import tempfile
from collections import defaultdict
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from unittest.mock import patch

import xxhash

from gristmill.events import read_events

ROOT = Path(__file__).parents[2]
SEQUENCES, STEPS = 5, 10  # a batch that neither two nor three workers divide
WORKER_LOST_AT, NODE_LOST_AT = 3, 8  # steps, the first is 1, of the run on Ray
GRACE_SECONDS = 30
SETTINGS = [
    f"batch.sequences={SEQUENCES}",
    f"budget.steps={STEPS}",
    "schedule.warmup_steps=5",
    "validation={every: 5, tokens: 512}",
    "checkpoints={every: 5, keep: 5}",
    "log_every=1",
]
# For runs that are broken again and again, or over a bad network.
LONG_STEPS = 20
LONG_SETTINGS = [*SETTINGS, f"budget.steps={LONG_STEPS}", "validation.every=10"]


def environment(**more):
    """Return the environment of a process that starts workers, without the variables of a launch that this
    process may belong to.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**kept, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", **more}


def preloaded():
    """Return a multiprocessing context whose processes start with the imports of training and export already
    loaded.

    A fork server of this test process loads them once, and each process is a fork of it. For tests that need
    a separate process, but not a fresh interpreter.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainers.worker_imports"])
    with patch.dict(os.environ, environment()):
        forkserver.ensure_running()
    return context


def run_workers(count, script, *arguments, grace=GRACE_SECONDS):
    """Run the `main` of a worker script in `count` processes of one group; return (their exit statuses, what
    they printed).

    Works like torchrun, except that each process is forked from a server that has already imported what
    training needs; the imports take longer than most of these groups train. When one process has ended with
    an error, the others are killed after `grace` seconds. Launching itself is tested with `torchrun`.
    """
    module = ".".join(Path(script).relative_to(ROOT).with_suffix("").parts)
    group = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    with tempfile.TemporaryDirectory() as logs:
        workers = []
        for rank in range(count):
            of_worker = {**group, "RANK": rank, "LOCAL_RANK": rank}
            variables = environment(**{name: f"{its}" for name, its in of_worker.items()})
            workers.append(_forked(f"{logs}/{rank}", module, arguments, variables))
        while waiting := [worker for worker in workers if worker.exitcode is None]:
            broken = any(worker.exitcode for worker in workers)
            if not wait([worker.sentinel for worker in waiting], grace if broken else None):
                for worker in waiting:
                    worker.kill()
        return [worker.exitcode for worker in workers], "".join(path.read_text() for path in Path(logs).iterdir())


def start_command(log, *arguments):
    """Start a command of the trainers in a separate process, a fork like the workers of `run_workers`, and
    return the process. Its output goes to the file `log`.
    """
    return _forked(log, "trainers.__main__", arguments, environment())


def run_command(log, *arguments):
    """Run a command as `start_command` does; return (its exit status, what it printed)."""
    process = start_command(log, *arguments)
    process.join()
    return process.exitcode, Path(log).read_text()


def _forked(log, module, arguments, variables):
    """Start a process that runs the `main` of a module. It may start others, which multiprocessing forbids
    daemons.
    """
    process = preloaded().Process(target=_work, args=(module, [*map(str, arguments)], variables, str(log)))
    process.start()
    atexit.register(process.terminate)  # else the test process would wait, as it exits, for one that hangs
    return process


def _work(module, arguments, variables, log):
    """The body of the process that `_forked` starts."""
    with open(log, "w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.environ.clear()
    os.environ.update(variables)
    os.fsync = lambda descriptor: None  # as in the test process: these workers are killed, the machine is not
    sys.argv = [module, *arguments]
    status = importlib.import_module(module).main()
    from trainers.engine.engine import hard_exit

    hard_exit(status or 0)


def pass_over_garbage():
    """In a worker, between two runs: free what the last run has left, and exclude what remains from garbage
    collection. DeepSpeed collects garbage for every model of stage 3, and keeps thousands of objects of each
    earlier model.
    """
    gc.collect()
    gc.freeze()


def free_port():
    """Return a port that nothing listens on. It is below the range from which the kernel chooses ports of connections, one of
    which could otherwise take it before the group listens.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", random.randrange(16384, 32768)))
            return probe.getsockname()[1]


def start_torchrun(log, options, workers, *script):
    """Start torchrun with `options`, which starts `workers` workers of `script` on this machine; return its
    process, which is like that of `start_command`. Its output and its workers' goes to the file `log`.
    """
    return _forked(log, "torch.distributed.run", [*options, "--nproc-per-node", workers, *script], environment())


def losses(run, name="loss"):
    """Return {step: loss} from the log; the last value if a run has repeated a step."""
    return {entry["step"]: entry[name] for entry in read_events(run / "log.jsonl", "step") if name in entry}


@contextmanager
def only_training():
    """In a worker: runs within the block end without an export or a page, both of which can be made later
    from what a run stores.
    """
    from trainers.report import run_page
    from trainers.training import loop

    with patch.object(loop, "export_checkpoint", lambda run, export: export), patch.object(run_page, "write_report"):
        yield


class Record:
    """In a worker: writes a line for each row that is trained on, before the step. `path` may be changed
    between runs.
    """

    def __init__(self, path=None):
        from trainers.engine.engine import Engine

        self.path, whole = path, Engine.train_step

        def train_step(engine, batches, step, *others):
            batches = list(batches)
            with open(f"{self.path}.rank{engine.rank}", "a") as lines:
                for batch in batches:
                    for row in range(len(batch.sample)):
                        if batch.sample[row] >= 0:
                            lines.write(json.dumps([step + 1, int(batch.sample[row]), digest(batch, row)]) + "\n")
            return whole(engine, batches, step, *others)

        Engine.train_step = train_step


def digest(batch, row):
    """Return a digest of what the model is given in a row of a batch, without padding, whose amount depends
    on the other rows.
    """
    sides = [
        (batch.segments, [batch.inputs, batch.positions, batch.segments, batch.prefix, batch.token_types, batch.draws])
    ]
    if batch.decoder is not None:
        decoder = batch.decoder
        sides.append((decoder.segments, [decoder.inputs, decoder.positions, decoder.segments]))
    sides.append((batch.target_segments, [batch.targets]))
    state = xxhash.xxh3_64()
    for segments, arrays in sides:
        filled = int((segments[row] >= 0).sum())
        assert (segments[row, :filled] >= 0).all()
        for array in arrays:
            state.update(b"none" if array is None else array[row, :filled].tobytes())
    state.update(b"none" if batch.labels is None else batch.labels[row].tobytes())
    return state.hexdigest()


def recorded(path):
    """Return what Record wrote at `path`, over all workers and attempts: {(step, sample): set of digests}."""
    rows = defaultdict(set)
    for file in path.parent.glob(f"{path.name}.rank*"):
        for line in file.read_text().splitlines():
            step, sample, found = json.loads(line)
            rows[step, sample].add(found)
    return dict(rows)
