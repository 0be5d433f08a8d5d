"""Losses by name. Training minimises and logs them; reports and evaluations show them.

Unless sources are reweighted, a step minimises the sum over its losses of weight x nats / targets. Nats and
targets are summed over all workers and micro-batches. Without dropout, the division of a step into workers
and micro-batches therefore affects only rounding. The number of targets must be known before the first
backward pass, so it may depend on the batch, but not on the model.

An objective names its losses and their weights (`objectives/`). The first is called `loss` and the others
`..._loss`, also in `log.jsonl`. To add a loss, add an entry to LOSSES and its name to the objective that
needs it. A job whose losses come from elsewhere (the head of a task, or a teacher) passes them to
`engine.forward.Forward`.

An objective may also name measures: fractions, such as accuracies, that are logged but not minimised. The
numerator and the denominator may both depend on the model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from trainers.engine.cross_entropy import cross_entropy, draw_tokens
from trainers.engine.vectors.contrastive_losses import CONTRASTS
from trainers.engine.vectors.segment_vectors import neighbour_vectors
from trainers.models.interface import Architecture, Inputs
from trainers.objectives.shared.sentence_neighbours import sentence_neighbours
from trainers.objectives.shared.training_objective import Contrast
from trainers.rows.batch import IGNORED, PADDING, Batch


@dataclass(frozen=True)
class ForwardPass:
    """One pass through a `transformers` model, up to its output layer.

    `states` [rows, length, width] are the final states of the network; in an encoder-decoder, those of the
    decoder. `layers` contains the states of all layers if a task head reads them. `network` is the model or,
    if `arrays` has `draws`, the model's generator; `discriminator` is then the whole model.
    """

    network: Any
    architecture: Architecture
    inputs: Inputs
    states: Any
    arrays: Mapping[str, Any]
    layers: Sequence[Any] = ()
    discriminator: Any = None

    @cached_property
    def outputs(self) -> tuple[Any, Any]:
        """The logits [n, vocabulary] at n positions, and the tokens drawn from these logits, int64 [n].
        Instead of the tokens, there is None unless the model is a generator with a discriminator. The
        positions are `arrays["chosen"]`, or all of them if there is no `chosen`. Computing the loss
        overwrites the logits.
        """
        # Only rows of sentences have `documents`, and the decoders of sentences read nothing else.
        decodes = self.architecture.neighbours is not None and "documents" in self.arrays
        predicting = self.neighbours[0] if decodes else self.states
        chosen, states = self.arrays.get("chosen"), predicting.flatten(0, 1)
        logits = self.architecture.logits(self.network, states if chosen is None else states[chosen])
        if self.discriminator is None:
            return logits, None
        draws = self.arrays["draws"].flatten(0, 1)
        return logits, draw_tokens(logits.detach(), draws if chosen is None else draws[chosen])

    @cached_property
    def neighbours(self) -> tuple[Any, Any, Any]:
        """A tuple of three tensors: the states of the decoder that predicts the next sentence and of the
        decoder that predicts the previous one, each [rows, length, width], and whether the sentence at each
        position has a next sentence of the same document in its row, bool [rows, length].
        """
        arrays = self.arrays
        count = max(arrays["segment_range"][1], 0) + 1  # a batch may hold padding only
        sentences = (arrays["segments"], arrays["positions"], arrays["documents"])
        vectors, (_, has_after) = neighbour_vectors(self.states, *sentences, count)
        assert self.architecture.neighbours is not None
        return *self.architecture.neighbours(self.network, self.inputs, vectors), has_after

    @cached_property
    def judged(self) -> tuple[Any, Any]:
        """What the discriminator predicts and what it should predict: its logits that a token was replaced,
        fp32 [rows, length], and whether each token was replaced, bool [rows, length]. A drawn token that
        equals the original does not count as replaced.
        """
        import torch

        ids, targets = self.inputs.ids.flatten(), self.arrays["targets"].flatten()
        original = torch.where(targets == IGNORED, ids, targets)
        chosen = self.arrays.get("chosen")
        its = targets if chosen is None else targets[chosen]
        drawn = torch.where(its == IGNORED, original if chosen is None else original[chosen], self.outputs[1])
        read = drawn if chosen is None else original.index_copy(0, chosen, drawn)
        shape = self.inputs.ids.shape
        assert self.architecture.replaced is not None
        logits = self.architecture.replaced(self.discriminator, replace(self.inputs, ids=read.view(shape)))
        return logits.float(), (read != original).view(shape)

    @cached_property
    def predictions(self) -> Any:
        """The predictions of the model's head, as `models.heads.task_head.TaskHead.forward` returns them."""
        task_head = self.network.task_head
        return task_head(self.states, self.arrays["task_at"], self.arrays["task_owner"], self.layers)


@dataclass(frozen=True)
class Loss:
    """The cost of one kind of target, with its weight in the sum that a step minimises.

    `targets` returns the mask of a batch's targets: bool, of the shape of `Batch.targets` or [rows]. `nats`
    returns the cost of each target in nats: fp32 of the same shape, 0 where there is no target.
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
    targets, chosen = made.arrays["targets"], made.arrays.get("chosen")
    its = targets.flatten() if chosen is None else targets.flatten()[chosen]
    return _everywhere(cross_entropy(made.outputs[0][None], its[None])[0], chosen, targets.shape)


def _everywhere(nats: Any, chosen: Any, shape: Any) -> Any:
    import torch

    if chosen is None:
        return nats.view(shape)
    everywhere = torch.zeros(shape.numel(), dtype=nats.dtype, device=nats.device)
    return everywhere.index_copy(0, chosen, nats).view(shape)


def _label_targets(batch: Batch) -> np.ndarray:
    assert batch.labels is not None
    return batch.labels != IGNORED


def _label_nats(made: ForwardPass) -> Any:
    assert made.architecture.sentence is not None
    logits = made.architecture.sentence(made.network, made.states)
    return cross_entropy(logits[None], made.arrays["labels"][None])[0]


def _boundary_targets(batch: Batch) -> np.ndarray:
    assert batch.outside is not None
    inside: np.ndarray = (batch.outside[..., 0] >= 0) & (batch.targets != IGNORED)  # of an excluded document, none is
    return inside


def _boundary_nats(made: ForwardPass) -> Any:
    import torch

    targets, chosen = made.arrays["targets"], made.arrays.get("chosen")
    at = torch.arange(targets.numel(), device=targets.device) if chosen is None else chosen
    columns, column = made.arrays["outside"].flatten(0, 1)[at], at % targets.shape[1]
    there = columns[:, 0] >= 0
    states = made.states.flatten(0, 1)[(at - column)[:, None] + columns.clamp(min=0)]
    assert made.architecture.boundary is not None
    logits = made.architecture.boundary(made.network, states, (column - columns[:, 0] - 1) * there)
    its = torch.where(there, targets.flatten()[at], IGNORED)
    return _everywhere(cross_entropy(logits[None], its[None])[0], chosen, targets.shape)


def _backward_targets(batch: Batch) -> np.ndarray:
    """Return the mask of the backward model's targets, bool [rows, length]: the positions at which it
    predicts the previous token. A position has a backward target if the position before it has a forward
    target in `batch.targets`.
    """
    there = np.zeros(batch.targets.shape, dtype=bool)
    there[:, 1:] = batch.targets[:, :-1] != IGNORED
    return there


def _backward_nats(made: ForwardPass) -> Any:
    import torch

    before = torch.where(made.arrays["targets"][:, :-1] != IGNORED, made.inputs.ids[:, :-1], IGNORED)
    assert made.architecture.backward is not None
    nats = cross_entropy(made.architecture.backward(made.network, made.states[:, 1:]), before)
    return torch.nn.functional.pad(nats, (1, 0))


def _previous_targets(batch: Batch) -> np.ndarray:
    """Return whether the decoder of the previous sentence has a next token to predict at each position, bool
    [rows, length].
    """
    _, has_after = sentence_neighbours(batch)
    follows = np.zeros_like(has_after)
    follows[:, :-1] = has_after[:, :-1] & (batch.segments[:, 1:] == batch.segments[:, :-1])
    return follows


def _previous_nats(made: ForwardPass) -> Any:
    import torch

    _, states, has_after = made.neighbours
    segments, targets = made.arrays["segments"], torch.nn.functional.pad(made.inputs.ids[:, 1:], (0, 1))
    follows = torch.nn.functional.pad(has_after[:, :-1] & (segments[:, 1:] == segments[:, :-1]), (0, 1)).flatten()
    at = torch.arange(len(follows), device="meta") if follows.is_meta else follows.nonzero()[:, 0]
    logits = made.architecture.logits(made.network, states.flatten(0, 1)[at])
    return _everywhere(cross_entropy(logits[None], targets.flatten()[at][None])[0], at, targets.shape)


def _read_targets(batch: Batch) -> np.ndarray:
    read: np.ndarray = batch.segments != PADDING
    return read


def _discriminator_nats(made: ForwardPass) -> Any:
    """Return the binary cross-entropy of every token, and 0 for padding. Special tokens count too, as in the
    code of ELECTRA's authors.
    """
    from torch.nn.functional import binary_cross_entropy_with_logits

    logits, replaced = made.judged
    nats = binary_cross_entropy_with_logits(logits, replaced.float(), reduction="none")
    return nats * (made.arrays["segments"] != PADDING)


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("loss", _token_targets, _token_nats),
        Loss("sentence_loss", _label_targets, _label_nats),
        Loss("boundary_loss", _boundary_targets, _boundary_nats),
        Loss("backward_loss", _backward_targets, _backward_nats),
        Loss("previous_loss", _previous_targets, _previous_nats),
        Loss("discriminator_loss", _read_targets, _discriminator_nats),
    )
}


@dataclass(frozen=True)
class Measure:
    """A fraction that is logged but is not part of the loss, such as an accuracy. `counts` returns its
    numerator and denominator for each row, [rows, 2].
    """

    name: str
    counts: Callable[[ForwardPass], Any]


def _shares(part: Any, whole: Any) -> Any:
    import torch

    return torch.stack([(part & whole).sum(1), whole.sum(1)], 1)


def _replaced_share(made: ForwardPass) -> Any:
    return _shares(made.judged[1], made.arrays["segments"] != PADDING)


def _accuracy(made: ForwardPass, of_replaced: bool) -> Any:
    logits, replaced = made.judged
    return _shares((logits > 0) == replaced, (replaced == of_replaced) & (made.arrays["segments"] != PADDING))


MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("replaced_share", _replaced_share),
        Measure("original_accuracy", lambda made: _accuracy(made, of_replaced=False)),
        Measure("replaced_accuracy", lambda made: _accuracy(made, of_replaced=True)),
    )
}


def losses_of(weights: Mapping[str, float], contrast: Contrast | None = None) -> tuple[Loss, ...]:
    """Return the losses that an objective names, in the order of `weights` and with these weights. If the
    objective has a `contrast`, the loss named `loss` is the contrastive one.
    """
    known = LOSSES
    if contrast is not None:
        its = CONTRASTS[type(contrast)]
        known = {**LOSSES, "loss": Loss("loss", its.targets, lambda made: its.nats(contrast, made.states, made.arrays))}
    return tuple(replace(known[name], weight=weight) for name, weight in weights.items())
