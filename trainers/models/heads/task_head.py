"""Task heads, which compute the predictions of a task from the states of a model. A head is the submodule
`task_head` of its model, so checkpoints, optimizers and exports include its parameters.

A head has the layers that the architecture's `interface.HeadForm` describes. It reads the state of every
position or, for tasks with one prediction per text, either the state of the text's first or last token or the
pooled states of all its tokens. The states come from the last layer or from several layers, concatenated or
mixed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch

from gristmill.errors import ConfigError
from trainers.config.architecture import Model
from trainers.models.interface import PER_POSITION, Architecture, HeadForm, HeadKind

Pooling = Literal["first", "last", "mean", "max", "last_max_mean"]
Layers = Literal["last", "last_four", "scalar_mix"]
_FOUR = 4


class ScalarMix(torch.nn.Module):
    """A learned weighted mean of the states h_j of the embeddings and of all layers: gamma * sum_j
    softmax(s)_j h_j, where gamma and s are learned (Peters et al., 2018, equation 1).
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.scalars = torch.nn.Parameter(torch.zeros(layers))
        self.gamma = torch.nn.Parameter(torch.ones(1))

    def forward(self, layers: Sequence[Any]) -> Any:
        """Return `gamma` times the weighted mean of the tensors `layers`, which must all have the same shape."""
        shares = (self.gamma.float() * self.scalars.float().softmax(0)).to(layers[0].dtype)
        return sum(share * states for share, states in zip(shares, layers, strict=True))


class TaskHead(torch.nn.Module):
    """The head of a task: it combines the states of one or more layers, pools them if the task does not
    predict at every position, and applies the layers that the architecture's `HeadForm` describes.
    """

    def __init__(
        self, form: HeadForm, model: Model, kind: HeadKind, outputs: int, pooling: Pooling, layers: Layers, rate: float
    ) -> None:
        super().__init__()
        self.kind, self.pooling, self.layers, self._form = kind, pooling, layers, form
        width = model.width * (_FOUR if layers == "last_four" else 1) * (3 if pooling == "last_max_mean" else 1)
        self.mix = ScalarMix(_depth(model) + 1) if layers == "scalar_mix" else None
        self.dropout = torch.nn.Dropout(rate)
        plain = form.norm is not None  # ModernBERT, whose dense layers and norms have no bias
        self.dense = torch.nn.Linear(width, model.width, bias=not plain) if form.dense else None
        self.norm = torch.nn.LayerNorm(model.width, bias=False) if form.norm else None
        self.output = torch.nn.Linear(model.width if form.dense else width, outputs, bias=form.bias)

    def forward(self, states: Any, at: Any, owner: Any, layers: Sequence[Any] = ()) -> Any:
        """Return predictions from `states` [rows, length, width]: [rows, length, outputs] for tasks that
        predict at every position, else [segments, outputs]. The predictions of `regress` and `choose` have no
        last dimension.

        `at` and `owner` are those of `rows.batch.TaskTargets`. `layers` are the states after the embeddings
        and after every block; they are needed unless `self.layers` is `last`.
        """
        representations = list(layers) if self.layers != "last" else [states]
        if self.layers == "last_four":
            representations = representations[-_FOUR:]
        if self.kind not in PER_POSITION and self.pooling in ("first", "last"):
            representations = [each.flatten(0, 1)[at] for each in representations]
        features = self.mix(representations) if self.mix is not None else torch.cat(representations, dim=-1)
        if self.kind not in PER_POSITION and self.pooling not in ("first", "last"):
            features = _pooled(features.flatten(0, 1), at, owner.flatten(), self.pooling)
        if self.dense is not None:
            features = self.dense(self.dropout(features) if self._form.drops_first else features)
            features = features.tanh() if self._form.activation == "tanh" else torch.nn.functional.gelu(features)
        if self.norm is not None:
            features = self.norm(features)
        predicted = self.output(self.dropout(features)).float()
        return predicted.squeeze(-1) if self.kind in ("regress", "choose") else predicted


def build_head(
    architecture: Architecture,
    model: Model,
    kind: HeadKind,
    outputs: int,
    seed: int,
    pooling: Pooling | None = None,
    layers: Layers = "last",
    dropout: float | None = None,
) -> TaskHead:
    """Return a new fp32 head, initialised from `seed`, with `outputs` outputs: one per class or tag, 1 for
    regress and choose, or 2 for span, the scores of starts and ends.

    In tasks with one prediction per text, `pooling` defaults to the first token in encoders, the mean in
    recurrent encoders, and the last token in other families. `dropout` defaults to the model's rate or, if
    `HeadForm.drops` is false, to 0. Raises ConfigError if `pooling` or `layers` does not apply.
    """
    form = architecture.heads[kind]
    usual: Pooling = "first" if model.family == "encoder" else "last"
    recurrent = model.traits.recurrent and model.family == "encoder"
    if kind in PER_POSITION and pooling not in (None, usual):
        raise ConfigError(
            f"head.pooling: got {pooling}, a head of kind {kind} predicts at every position; leave it out"
        )
    pooling = pooling or ("mean" if recurrent and kind not in PER_POSITION else usual)
    single = () if recurrent else (usual,)
    allowed = [name for name in get_args(Pooling) if name not in ("first", "last") or name in single]
    if kind not in PER_POSITION and pooling not in allowed:
        reads = "pools the states of all tokens" if recurrent else f"reads the {usual} token"
        raise ConfigError(f"head.pooling: got {pooling}, {model.architecture} {reads}; allowed {', '.join(allowed)}")
    if layers != "last" and model.traits.recurrent and not model.traits.bidirectional_lm:
        raise ConfigError(
            f"method.layers: got {layers}, the layers of {model.architecture} have different widths; use last"
        )
    if layers == "last_four" and _depth(model) < _FOUR:
        raise ConfigError(f"method.layers: got last_four, the model has {_depth(model)} layers; use scalar_mix or last")
    rate = dropout if dropout is not None else (model.dropout if form.drops else 0.0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        head = TaskHead(form, model, kind, outputs, pooling, layers, rate)
        _initialise(head, model)
    return head


def _initialise(head: TaskHead, model: Model) -> None:
    deviation = model.initializer_range if "initializer_range" in model.traits.has else model.width**-0.5
    for layer in (head.dense, head.output):
        if layer is not None:
            torch.nn.init.normal_(layer.weight, std=deviation)
            if layer.bias is not None:
                torch.nn.init.zeros_(layer.bias)


def _depth(model: Model) -> int:
    return model.decoder_layers or model.layers


def _pooled(states: Any, at: Any, owner: Any, pooling: Pooling) -> Any:
    """Pool `states` [positions, width] to [segments, width] or, with `last_max_mean`, to [segments, 3 x
    width] (Howard and Ruder, 2018, section 3.3).
    """
    text = (owner >= 0).nonzero()[:, 0]
    rows, owners = states[text], owner[text]
    parts = []
    if pooling == "last_max_mean":
        parts.append(states[at])
    if pooling in ("max", "last_max_mean"):
        empty = rows.new_zeros(len(at), rows.shape[1])
        parts.append(empty.scatter_reduce(0, owners[:, None].expand_as(rows), rows, "amax", include_self=False))
    if pooling in ("mean", "last_max_mean"):
        sums = rows.new_zeros(len(at), rows.shape[1], dtype=torch.float32).index_add(0, owners, rows.float())
        counts = torch.bincount(owners, minlength=len(at)).clamp(min=1)
        parts.append((sums / counts[:, None]).to(rows.dtype))
    return torch.cat(parts, dim=-1)


@contextmanager
def recorded_layers(blocks: Sequence[Any], convert: Callable[[Any], Any] | None = None) -> Iterator[list[Any]]:
    """Yield a list to which one forward pass appends states [rows, length, width]: the input of the first of
    `blocks`, then the output of every block. `convert` converts the states of blocks that use another shape.
    """
    layers: list[Any] = []

    def begin(block: Any, given: tuple[Any, ...]) -> None:
        if not layers:
            layers.append(_states(given[0], convert))

    handles = [blocks[0].register_forward_pre_hook(begin)]
    for block in dict.fromkeys(blocks):
        handles.append(block.register_forward_hook(lambda block, given, made: layers.append(_states(made, convert))))
    try:
        yield layers
    finally:
        for handle in handles:
            handle.remove()


def _states(made: Any, convert: Callable[[Any], Any] | None) -> Any:
    states = made[0] if isinstance(made, tuple | list) else made
    return states if convert is None else convert(states)
