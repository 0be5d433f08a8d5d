"""The losses of tasks, computed from the predictions of a model's head (`models.heads`).

The loss of an input is placed at the position of its segment (`TaskTargets.at`) or, if the input has several
candidates, of its first candidate. Tags have a loss at the first token of every word with a known tag. Losses
at positions can be summed by row and source, and do not depend on whether the inputs of a batch share rows or
are padded.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from trainers.engine.losses import ForwardPass, Loss
from trainers.models.interface import HeadKind
from trainers.rows.batch import IGNORED, Batch, TaskTargets

Costs = Callable[[Any, ForwardPass], Any]


def task_losses(
    kind: HeadKind, smoothing: float = 0.0, class_weights: Sequence[float] | None = None
) -> tuple[Loss, ...]:
    """Return the loss of a kind of task, as a tuple with one element:

    - classify: w_y ((1 - e) nll(y) + e / K sum_k nll(k)) for class y of K, with label smoothing e =
      `smoothing` (Szegedy et al., 2016, section 7) and `class_weights` w. The sum is divided by the number of
      inputs, not by their weights. The weights should therefore have mean 1 over the training inputs, as
      N / (K N_k) has, with N_k of N inputs in class k (King and Zeng, 2001).
    - regress: the squared error.
    - tag: the nats of every word's tag.
    - choose: the nats of the right candidate among the candidates of the input.
    - span: the mean of the nats of start and end, each by softmax over the positions that an answer may cover
      (Devlin et al., 2019, section 4.2).
    """
    assert kind == "classify" or (smoothing == 0.0 and class_weights is None), kind
    costs: dict[HeadKind, Costs] = {
        "classify": lambda scores, made: _classify(scores, made.arrays["task_labels"], smoothing, class_weights),
        "regress": _regress,
        "span": _span,
        "choose": _choose,
    }
    if kind == "tag":
        return (Loss("loss", _tagged, _tag),)
    return (Loss("loss", lambda batch: _targets(batch, kind), lambda made: _at_positions(costs[kind], made)),)


def first_at(task: TaskTargets) -> np.ndarray:
    """Return the flattened position that the head reads for each input, int64 [n]: that of the input's only
    segment or, if it has several candidates, of its first candidate.
    """
    if task.choice is None:
        return task.at
    first: np.ndarray = task.at[np.searchsorted(task.choice, np.arange(len(task.number)))]
    return first


def _targets(batch: Batch, kind: HeadKind) -> np.ndarray:
    task = batch.task
    assert task is not None
    if kind == "regress":
        assert task.values is not None
        known = ~np.isnan(task.values)
    else:
        gold = task.starts if kind == "span" else task.labels
        assert gold is not None
        known = gold != IGNORED
    positions = np.zeros(batch.targets.size, dtype=bool)
    positions[first_at(task)[known]] = True
    return positions.reshape(batch.targets.shape)


def _at_positions(costs: Costs, made: ForwardPass) -> Any:
    shape, at, choice = made.arrays["targets"].shape, made.arrays["task_at"], made.arrays.get("task_choice")
    if choice is not None:
        numbers = torch.arange(len(made.arrays["task_number"]), device=at.device)
        at = at[torch.searchsorted(choice, numbers)]
    nats = costs(made.predictions, made)
    return torch.zeros(shape.numel(), dtype=nats.dtype, device=nats.device).index_copy(0, at, nats).view(shape)


def _classify(scores: Any, labels: Any, smoothing: float, weights: Sequence[float] | None) -> Any:
    nats = cross_entropy(scores, labels, reduction="none", ignore_index=IGNORED, label_smoothing=smoothing)
    if weights is None:
        return nats
    return nats * torch.tensor(weights, dtype=nats.dtype, device=nats.device)[labels.clamp(min=0)]


def _regress(predicted: Any, made: ForwardPass) -> Any:
    values = made.arrays["task_values"]
    return torch.where(values.isnan(), 0.0, predicted - values.nan_to_num()).square()


def _tagged(batch: Batch) -> np.ndarray:
    assert batch.task is not None
    assert batch.task.tags is not None
    tagged: np.ndarray = batch.task.tags != IGNORED
    return tagged


def _tag(made: ForwardPass) -> Any:
    tags = made.arrays["task_tags"]
    return cross_entropy(made.predictions.flatten(0, 1), tags.flatten(), reduction="none", ignore_index=IGNORED).view(
        tags.shape
    )


def _choose(scores: Any, made: ForwardPass) -> Any:
    labels, choice = made.arrays["task_labels"], made.arrays["task_choice"]
    first = torch.searchsorted(choice, torch.arange(len(labels), device=choice.device))
    return _nats_within(scores, choice, first + labels.clamp(min=0), labels != IGNORED)


def _span(scores: Any, made: ForwardPass) -> Any:
    at = made.arrays["task_at"]
    owner = made.arrays["task_owner"].flatten().index_copy(0, at, torch.arange(len(at), device=at.device))
    allowed = made.arrays["task_answerable"].flatten().nonzero()[:, 0]
    rank = torch.zeros_like(owner).index_copy(0, allowed, torch.arange(len(allowed), device=at.device))
    nats = scores.new_zeros(len(at))
    for side, name in enumerate(("task_starts", "task_ends")):
        gold = made.arrays[name]
        chosen = rank[gold.clamp(min=0)]
        nats = nats + _nats_within(scores[..., side].flatten()[allowed], owner[allowed], chosen, gold != IGNORED) / 2
    return nats


def _nats_within(scores: Any, group: Any, chosen: Any, known: Any) -> Any:
    """Return the cross-entropy, in nats, of n groups of scores: for each group, minus the log-softmax of its
    right score, [n], or 0 where `known`, bool [n], is false. `group` [m] holds the group of each of the
    `scores` [m]. `chosen` [n] holds the index in `scores` of each group's right score.
    """
    lowest = scores.detach().new_full((len(chosen),), -torch.inf)
    largest = lowest.scatter_reduce(0, group, scores.detach(), "amax")
    sums = scores.new_zeros(len(chosen)).index_add(0, group, (scores - largest[group]).exp())
    return torch.where(known, sums.log() + largest - scores[chosen], 0.0)
