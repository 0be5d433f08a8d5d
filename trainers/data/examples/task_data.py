"""The samples of a fine-tuning run: the inputs of its tasks in the order of `trainers.data.order`.

Tasks are mixed at the rates of Raffel et al. (2020, section 3.5.2), computed from their numbers of inputs.
The order counts tokens, so a task's rate is multiplied by the mean length of its inputs.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pipelines.contracts.mixtures import proportional, temperature
from trainers.config.finetuning import Mixing
from trainers.data.examples.task_inputs import TaskInputs
from trainers.data.examples.task_rows import ChosenInputs, task_batch
from trainers.data.mixture_weights import build_mixture
from trainers.data.order import DrawTotals, Order, OrderPhase, Samples, Stream
from trainers.rows.batch import Batch


@dataclass(frozen=True)
class TaskSource:
    """A task, represented as a source for logs and ledgers. `tokens` and `text_bytes` are totals over one
    epoch.
    """

    name: str
    tokens: int
    text_bytes: int


def mixing_rates(inputs: Mapping[str, int], mixing: Mixing) -> dict[str, float]:
    """Return the share of each task among the samples, given the number of inputs of each task."""
    counted = {name: min(count, mixing.limit) for name, count in inputs.items()}
    exponents = {"proportional": 1.0, "temperature": 1 / mixing.temperature, "equal": 0.0}
    exponent = exponents[mixing.kind]
    return proportional(counted) if exponent == 1 else temperature(counted, exponent)


def order_of_tasks(tasks: Sequence[TaskInputs], mixing: Mixing, seed: int, fingerprint: str) -> Order:
    """Return the order in which a run reads the inputs of its tasks. `fingerprint` identifies the data."""
    rates = mixing_rates({task.name: len(task) for task in tasks}, mixing)
    tokens = {task.name: rates[task.name] * float(task.sizes.mean()) for task in tasks}
    total = sum(tokens.values())
    weights = {name: share / total for name, share in tokens.items()}
    streams = tuple(Stream(task.name, int(task.sizes.sum()), task.sizes) for task in tasks)
    longest = max(int(task.sizes.max()) for task in tasks)
    mixture = build_mixture([(math.inf, weights)], {}, [task.name for task in tasks])
    return Order([OrderPhase(streams, longest)], mixture, seed, fingerprint)


@dataclass(frozen=True)
class TaskData:
    """The training inputs of a run's tasks, in the order given by `order`, from sample `since` on. `length`
    is the maximum number of positions in a segment, not counting virtual tokens. If `packed`, a row can have
    several segments.
    """

    tasks: tuple[TaskInputs, ...]
    order: Order
    length: int
    packed: bool = True
    since: int = 0

    @cached_property
    def sources(self) -> tuple[TaskSource, ...]:
        """The sources by which losses are reported, one for each task."""
        return sources_of(self.tasks)

    @property
    def row_lengths(self) -> list[int]:
        """A list that holds only `length`, since the order has a single phase."""
        return [self.length]

    @property
    def epoch_inputs(self) -> int:
        """The total number of inputs of all tasks, each counted once."""
        return sum(map(len, self.tasks))

    def read_since(self, sample: int) -> "TaskData":
        """Return the same data, with `since` set to `sample`."""
        return replace(self, since=sample)

    def split(self, samples: Samples, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield the batches, each of up to `size` inputs, that process `rank` of `world` trains on in a step
        with these samples. Every process gets the same number of batches. Thread-safe.
        """
        for part in samples.share(size, rank, world):
            yield batch_of(self.tasks, part, self.packed)

    def consumed(self, samples: int) -> dict[str, dict[str, float]]:
        """Return, for each task, what the run read from sample `since` up to, but not including, sample
        `samples`. Numbers of tokens include special and virtual tokens; in an encoder-decoder, they count
        only what the encoder reads. `padding` and `cropped` are always 0.
        """
        upto, before = self.order.totals(samples), self._before
        tokens, requested = upto.tokens - before.tokens, upto.requested - before.requested
        sequences = upto.sequences - before.sequences
        return {
            task.name: {
                "requested_tokens": float(requested[i]),
                "tokens": int(tokens[i]),
                "sequences": int(sequences[i]),
                "epochs": float(sequences[i] / len(task)),
                "padding": 0,
                "cropped": 0,
            }
            for i, task in enumerate(self.tasks)
        }

    @cached_property
    def _before(self) -> DrawTotals:
        return self.order.totals(self.since)

    def notices(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield a log event, as (name, fields), for each task. The fields give the numbers of examples and
        inputs of the task, and how much was cut.
        """
        for task in self.tasks:
            yield "task", notice_of(task)


def notice_of(task: TaskInputs) -> dict[str, Any]:
    """Return the fields of the log event that describes a task's inputs."""
    cut = task.truncation
    message = f"{task.name}: {cut.total:,} examples, {len(task):,} inputs of {task.sizes.mean():.1f} tokens on average"
    fields = {"source": task.name, "examples": cut.total, "inputs": len(task), "cut_examples": cut.examples}
    fields |= {"cut_tokens": cut.tokens, "windows": cut.windows, "cut_answers": cut.answers}
    return {**fields, "message": "; ".join(filter(None, (message, cut.message)))}


def sources_of(tasks: Sequence[TaskInputs]) -> tuple[TaskSource, ...]:
    """Return a `TaskSource` for each task."""
    return tuple(TaskSource(task.name, int(task.sizes.sum()), task.text_bytes) for task in tasks)


def batch_of(tasks: Sequence[TaskInputs], samples: Samples, packed: bool) -> Batch:
    """Return the batch of `samples`, whose sources are indices into `tasks`. If `packed`, rows can have
    several segments.
    """
    chosen = []
    for source, task in enumerate(tasks):
        here = samples.select(np.flatnonzero(samples.source == source))
        if len(here) or (source == 0 and not len(samples)):
            chosen.append(ChosenInputs(task, source, here.sequence, here.number, here.epoch))
    return task_batch(chosen, packed)
