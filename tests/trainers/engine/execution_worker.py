"""Worker of test_execution: trains a list of runs, some of which continue another run.

Started by `run_workers` as `execution_worker.py CORPUS OUTPUT RUNS.json`. A run is {"name", "recipe", "set":
{field: value}} with these optional fields:

- "after": name of the run that this run continues, from its second newest checkpoint.
- "exports": true if the run writes an export and a page.
- "backend": the backend of torch.compile for compiled blocks. With "eager", the default, nothing is compiled,
  not even the functions that DeepSpeed decorates with torch.compile.
"""

import json
import shutil
import sys
from contextlib import nullcontext
from functools import partialmethod

from gristmill.config import parse, plain
from gristmill.storage.disk import LocalPath
from tests.trainers.launching import only_training, pass_over_garbage
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import open_corpus
from trainers.recipes import RECIPES
from trainers.runs.resolve import resolve
from trainers.runs.run import open_run
from trainers.training.loop import train

STEPS, HALF = 6, 3
SMALL = {
    "batch": {"sequences": 6},
    "budget": {"steps": STEPS},
    "validation": {"every": STEPS, "tokens": 256},
    "checkpoints": {"every": HALF, "keep": 3},
    "schedule": {"kind": "cosine", "warmup_steps": 2},
    "log_every": 1,
    "execution.micro_batch": 3,
}


def configuration(corpus, recipe, changes):
    fields = plain(RECIPES[recipe]())
    for name, value in {**SMALL, **changes}.items():
        section, _, field = name.partition(".")
        if field:
            fields[section][field] = value
        else:
            fields[section] = value
    return resolve(parse(Pretraining, fields, "test"), corpus)


def main() -> None:
    corpus, output = open_corpus((sys.argv[1],), None), LocalPath(sys.argv[2])
    from trainers.engine.engine import hard_exit, start_group

    rank, world = start_group()
    import torch

    compile_block = torch.nn.Module.compile
    for run in json.loads(LocalPath(sys.argv[3]).read_text()):
        path = output / run["name"]
        config = configuration(corpus, run["recipe"], run["set"])
        if rank == 0 and "after" in run:
            ignored = shutil.ignore_patterns(f"step-{STEPS:08d}", "finished.json", "export", "log*")
            shutil.copytree(output / run["after"], path, ignore=ignored)
        elif rank == 0:
            open_run(path, config, corpus)
        if world > 1:
            torch.distributed.barrier()
        backend = run.get("backend", "eager")
        torch.nn.Module.compile = partialmethod(compile_block, backend=backend)
        torch.compiler.set_stance("force_eager" if backend == "eager" else "default")
        with nullcontext() if run.get("exports") else only_training():
            train(config, corpus, path, None)
        pass_over_garbage()
    hard_exit(0)
