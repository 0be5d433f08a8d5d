"""Losses by name. Training minimises and logs them; reports and evaluations show them.

A step minimises the sum over its losses of weight x nats / targets. Nats and targets are summed over all
workers and micro-batches, so how a step is divided changes nothing but rounding. The number of targets must
therefore be known before the first backward pass. It follows from the batch alone, not from the model.

An objective names its losses and their weights (`objectives/`). The first is called `loss` and the others
`..._loss`, also in `log.jsonl`. To add a loss, add an entry to LOSSES and its name to the objective that
needs it. A job whose losses come from elsewhere (the head of a task, or a teacher) passes them to
`engine.forward.Forward`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from trainers.engine.cross_entropy import cross_entropy
from trainers.models.interface import Architecture, Inputs
from trainers.rows.batch import IGNORED, Batch


@dataclass(frozen=True)
class ForwardPass:
    """One pass through a `transformers` model of an architecture, up to its output layer.

    `states` [rows, length, width] are the final states of the stack that predicts, which in an
    encoder-decoder is the decoder. `arrays` are those of the batch as tensors (`engine.forward.tensors`).
    """

    network: Any
    architecture: Architecture
    inputs: Inputs
    states: Any
    arrays: Mapping[str, Any]
    layers: Sequence[Any] = ()

    @cached_property
    def predictions(self) -> Any:
        """The predictions of the model's head, as `models.heads.task_head.TaskHead.forward` returns them."""
        task_head = self.network.task_head
        return task_head(self.states, self.arrays["task_at"], self.arrays["task_owner"], self.layers)


@dataclass(frozen=True)
class Loss:
    """One loss. `targets` returns where a batch has targets of this loss: bool, of the shape of
    `Batch.targets` or [rows]. `nats` returns the loss of each target: fp32 of the same shape, 0 elsewhere.
    """

    name: str
    targets: Callable[[Batch], np.ndarray]
    nats: Callable[[ForwardPass], Any]
    weight: float = 1.0

    def __post_init__(self) -> None:
        assert self.name == "loss" or self.name.endswith("_loss"), self.name


def _token_targets(batch: Batch) -> np.ndarray:
    return batch.targets != IGNORED


def _token_nats(made: ForwardPass) -> Any:
    """Return the nats of every target token. Logits are computed at the targets only."""
    import torch

    targets, chosen = made.arrays["targets"], made.arrays.get("chosen")
    if chosen is None:
        return cross_entropy(made.architecture.logits(made.network, made.states), targets)
    logits = made.architecture.logits(made.network, made.states.flatten(0, 1)[chosen])
    nats = cross_entropy(logits[None], targets.flatten()[chosen][None])[0]
    everywhere = torch.zeros(targets.numel(), dtype=nats.dtype, device=nats.device)
    return everywhere.index_copy(0, chosen, nats).view(targets.shape)


def _label_targets(batch: Batch) -> np.ndarray:
    assert batch.labels is not None
    return batch.labels != IGNORED


def _label_nats(made: ForwardPass) -> Any:
    """Return the nats of every row's label."""
    assert made.architecture.sentence is not None
    logits = made.architecture.sentence(made.network, made.states)
    return cross_entropy(logits[None], made.arrays["labels"][None])[0]


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("loss", _token_targets, _token_nats),
        Loss("sentence_loss", _label_targets, _label_nats),
    )
}


def losses_of(weights: Mapping[str, float]) -> tuple[Loss, ...]:
    """Return the losses of an objective, in the order of its `losses`."""
    return tuple(replace(LOSSES[name], weight=weight) for name, weight in weights.items())
