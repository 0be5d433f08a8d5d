"""Helpers of the launch tests: commands that start workers, the log of a run, and the rows that its models
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
    """Return the environment for a process that starts workers, without the variables of a launch that the
    current process may belong to.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**kept, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", **more}


def preloaded():
    """Return a multiprocessing context whose processes start with everything imported that training and
    export need.

    A fork server of this test process imports the modules once, and each process is forked from it. Use it in
    tests that need a separate process but not a fresh interpreter.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainers.worker_imports"])
    with patch.dict(os.environ, environment()):
        forkserver.ensure_running()
    return context


def run_workers(count, script, *arguments, grace=GRACE_SECONDS):
    """Run the `main` of a worker script in `count` processes of one group. Return (exit statuses, output).

    Works like torchrun, but forks each process from a server that has already imported what training needs;
    the imports would take longer than the training in most tests. When one process fails, the others are
    killed after `grace` seconds. Tests of launching itself use `torchrun`.
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
    """Start a command of the trainers in a separate process, forked like the workers of `run_workers`, with
    its output in the file `log`. Return the process.
    """
    return _forked(log, "trainers.__main__", arguments, environment())


def run_command(log, *arguments):
    """Run a command like `start_command`, and return (exit status, output)."""
    process = start_command(log, *arguments)
    process.join()
    return process.exitcode, Path(log).read_text()


def _forked(log, module, arguments, variables):
    """Start a process that runs the `main` of a module. It is not a daemon, because multiprocessing does not
    let daemons start processes.
    """
    process = preloaded().Process(target=_work, args=(module, [*map(str, arguments)], variables, str(log)))
    process.start()
    atexit.register(process.terminate)  # else the test process would wait, as it exits, for one that hangs
    return process


def _work(module, arguments, variables, log):
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
    """Free what the last run of a worker has left, and exclude all remaining objects from garbage collection.
    DeepSpeed collects garbage for every stage 3 model, and keeps thousands of objects of each earlier model.
    """
    gc.collect()
    gc.freeze()


def free_port():
    """Return a port that nothing listens on. The port is below the range from which the kernel assigns ports
    to connections, so no connection can take it before the group listens.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", random.randrange(16384, 32768)))
            return probe.getsockname()[1]


def start_torchrun(log, options, workers, *script):
    """Start torchrun with `options` and `workers` workers of `script` on this machine, and return its
    process. The output of torchrun and its workers goes to the file `log`.
    """
    return _forked(log, "torch.distributed.run", [*options, "--nproc-per-node", workers, *script], environment())


def losses(run, name="loss"):
    """Return {step: loss} from the log. If the run repeated a step, its last loss counts."""
    return {entry["step"]: entry[name] for entry in read_events(run / "log.jsonl", "step") if name in entry}


@contextmanager
def only_training():
    """In a worker, let runs within the block finish without an export or a page."""
    from trainers.report import run_page
    from trainers.training import loop

    with patch.object(loop, "export_checkpoint", lambda run, export: export), patch.object(run_page, "write_report"):
        yield


class Record:
    """Makes a worker write a line for each sample before training on it. `path` may be changed between runs."""

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
    """Return a digest of the inputs and targets in a row of a batch. Padding is left out, because its amount
    depends on the other rows.
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
    """Return {(step, sample): set of digests} from the files of a `Record` at `path`, over all workers and
    attempts.
    """
    rows = defaultdict(set)
    for file in path.parent.glob(f"{path.name}.rank*"):
        for line in file.read_text().splitlines():
            step, sample, found = json.loads(line)
            rows[step, sample].add(found)
    return dict(rows)
