"""A training run that takes almost no time: the real configuration, with stand-ins for corpus, data and
engine.

The state of the stand-in engine is a single number determined by the steps done, so the expected contents of
a checkpoint, an export and a log are known.
"""

import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from gristmill.host import host
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import file_checksum
from pipelines.contracts.shard_set import TokenizerRecord
from tests.schedules.memory_disk import ROOT
from trainers.config.job import BatchSize, Checkpoints, TrainingBudget
from trainers.engine.engine import Totals
from trainers.recipes import RECIPES
from trainers.runs.job_data import DataReader

RUN, EXPORT, REPORT = f"{ROOT}/run", f"{ROOT}/run/export", f"{ROOT}/report.html"
STEPS = 4
STEP_SECONDS = 3.0  # less than a heartbeat of the lease
_kept_directories: list[tempfile.TemporaryDirectory] = []


def state_after(steps: int) -> int:
    value = 1
    for step in range(steps):
        value = (value * 31 + step + 7) % 9973
    return value


@dataclass(frozen=True)
class StandInCorpus:
    """A corpus of which only the tokenizer is read, from the real disk."""

    fingerprint: str
    tokenizer: TokenizerRecord
    directory: LocalPath


@cache
def corpus() -> StandInCorpus:
    directory = tempfile.TemporaryDirectory(prefix="schedules-")
    _kept_directories.append(directory)
    path = LocalPath(directory.name)
    Path(path / "tokenizer.json").write_bytes(b'{"stands in for": "a tokenizer"}')
    size = (path / "tokenizer.json").stat().st_size
    record = TokenizerRecord("tokenizer.json", size, file_checksum(path / "tokenizer.json"), 400, "byte_bpe", {})
    return StandInCorpus("f" * 32, record, path)


@cache
def job():
    """Return a resolved configuration that saves a checkpoint after every step and keeps the newest two."""
    recipe = RECIPES["llama_tiny"]()
    data = replace(recipe.data, corpora=("corpus",), weights={"web": 1.0})
    return replace(
        recipe,
        data=data,
        batch=BatchSize(tokens=16, sequences=2),
        budget=TrainingBudget(tokens=16 * STEPS, steps=STEPS),
        checkpoints=Checkpoints(every=1, keep=2),
        schedule=replace(recipe.schedule, warmup_steps=0),
        execution=replace(recipe.execution, loader_threads=0, micro_batch=2),
        log_every=1,
    )


class _Order:
    def phase_of(self, samples):
        return 0

    def state(self, samples):
        return {"samples": samples}

    def resume(self, state):
        assert set(state) == {"samples"}

    def clone(self):
        return self

    def take(self, start, count):
        return SimpleNamespace(tokens=np.full(count, 8))


class _Data:
    sources = (SimpleNamespace(name="web", tokens=1000, text_bytes=4000),)
    row_lengths = (8,)
    order, since = _Order(), 0

    def read_since(self, sample):
        return self

    def notices(self):
        return ()

    def split(self, samples, size, rank, world):
        return (samples,)

    def consumed(self, samples):
        tokens = 8 * samples
        return {"web": {"requested_tokens": float(tokens), "tokens": tokens, "epochs": tokens / 1000, "padding": 0}}


def _nothing(corpus, job):
    return None


READER = DataReader(lambda job: corpus(), lambda corpus, job, excluded: _Data(), _nothing, _nothing)


class StandInEngine:
    """A single-worker engine whose only weight is a number."""

    rank, world, zero_stage = 0, 1, 0

    def __init__(self, forward, config, micro_batch, accumulation):
        self.losses, self.names, self.value = (SimpleNamespace(name="loss"),), ("loss",), state_after(0)
        self.updates = 0

    def train_step(self, batches, step, rate, sources, stop, scale=None):
        host().sleep(STEP_SECONDS)
        self.value = (self.value * 31 + step + 7) % 9973
        self.updates += 1
        loss = self.value / 1000
        return Totals(np.array([[[16 * loss], [16.0]]]), loss, int(stop), 16, updates=1), 1.0

    def broadcast(self, value):
        return value

    def state(self):
        weight = torch.full((2,), float(self.value))
        yield "weight", {"weight": weight, "exp_avg": weight + 1}

    def shapes(self):
        return {"weight": (2,)}

    def restore(self, state, updates):
        tensors = state["weight"]
        assert torch.equal(tensors["weight"] + 1, tensors["exp_avg"]), "weights and moments are of different steps"
        self.value, self.updates = int(tensors["weight"][0]), updates
