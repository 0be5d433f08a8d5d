"""The pass through a model that training, evaluation and blame share: from a batch to its losses by name.

Masks over the segments of a row keep its documents apart: sdpa gets a boolean 4-D mask. `position_ids` alone
isolate documents only in decoders with `attention_mask=None` and `use_cache=False`. In all other cases they
silently fail to.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from trainers.config.architecture import ARCHITECTURES
from trainers.config.job import Job
from trainers.engine.losses import LOSSES, ForwardPass, Loss, losses_of
from trainers.models import MODELS
from trainers.models.heads.task_head import recorded_layers
from trainers.models.interface import Inputs
from trainers.rows.batch import IGNORED, Batch


class Forward(torch.nn.Module):
    """A `transformers` model of an architecture (`trainers.models`) with its losses.

    With `isolation` the documents of a row do not see each other and positions restart; without it they see
    each other and positions continue.
    """

    def __init__(
        self, model: Any, architecture: str, isolation: bool = True, losses: Sequence[Loss] = (LOSSES["loss"],)
    ) -> None:
        super().__init__()
        assert len({loss.name for loss in losses}) == len(losses)
        self.model, self.isolation, self.losses = model, isolation, tuple(losses)
        self._architecture, self._causal = MODELS[architecture], ARCHITECTURES[architecture].family == "decoder"

    def forward(self, predicts: bool = False, **arrays: Any) -> dict[str, Any]:
        """Compute {name of a loss: nats of its targets}, in the order of the losses, from the `tensors` of a
        batch; with `predicts` also `predictions`, those of the model's head.
        """
        made = self._pass(arrays)
        nats = {loss.name: loss.nats(made) for loss in self.losses}
        return {**nats, "predictions": made.predictions} if predicts else nats

    def logits_at(self, at: Any, **arrays: Any) -> Any:
        """Compute the logits [n, vocabulary] at the flattened positions `at` [n] of a batch's targets."""
        made = self._pass(arrays)
        return self._architecture.logits(self.model, made.states.flatten(0, 1)[at])

    def _pass(self, arrays: dict[str, Any]) -> ForwardPass:
        segments, decoder_segments = arrays["segments"], arrays.get("decoder_segments")
        mask = self._mask(segments, segments, self._causal, arrays.get("prefix"))
        inputs = Inputs(arrays["inputs"], self._positions(arrays["positions"]), mask, arrays.get("token_types"))
        if decoder_segments is not None:
            own = self._mask(decoder_segments, decoder_segments, True)
            decoder = Inputs(arrays["decoder_inputs"], self._positions(arrays["decoder_positions"]), own)
            inputs = replace(inputs, decoder=decoder, cross=self._mask(decoder_segments, segments, False))
        head = getattr(self.model, "task_head", None)
        if head is None or head.layers == "last":
            states, layers = self._architecture.hidden(self.model, inputs), []
        else:
            with recorded_layers(self._architecture.blocks(self.model)) as layers:
                states = self._architecture.hidden(self.model, inputs)
            layers[-1] = states  # normalised, where the architecture ends with a norm
        return ForwardPass(self.model, self._architecture, inputs, states, arrays, layers)

    def _positions(self, positions: Any) -> Any:
        if self.isolation:
            return positions
        return torch.arange(positions.shape[1], device=positions.device).expand_as(positions)

    def _mask(self, queries: Any, keys: Any, causal: bool, prefix: Any = None) -> Any:
        if not self.isolation:
            queries, keys = queries.clamp(max=0), keys.clamp(max=0)
        return attention_mask(queries, keys, causal, prefix)


def forward_of(model: Any, config: Job) -> Forward:
    """Return the forward pass of a run's model, with the losses of its objective."""
    return Forward(model, config.model.architecture, config.isolates_documents, losses_of(config.objective.losses))


def attention_mask(queries: Any, keys: Any, causal: bool, prefix: Any = None) -> Any:
    """Return which positions each position sees, bool [rows, 1, queries, keys], from segments [rows, length].

    A position sees its own document; with `causal`, no later position. Positions in `prefix` [rows, length]
    see one another. Padding sees only padding.
    """
    seen = queries[:, :, None] == keys[:, None, :]
    if causal:
        length = queries.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=queries.device).tril()
        allowed = earlier if prefix is None else earlier | (prefix[:, :, None] & prefix[:, None, :])
        seen = seen & allowed
    return seen[:, None]


def tensors(batch: Batch, device: Any) -> dict[str, Any]:
    """Convert the arrays of a batch to tensors on `device`, by name of field; those of its decoder are called
    `decoder_...` and those of its task `task_...`.

    `chosen`, int64, are the positions of targets in the flattened array of targets; it is left out if every
    position has a target.
    """
    parts = ("decoder", "task")
    arrays = {field.name: getattr(batch, field.name) for field in fields(batch) if field.name not in parts}
    for part in parts:
        its = getattr(batch, part)
        if its is not None:
            arrays |= {f"{part}_{field.name}": getattr(its, field.name) for field in fields(its)}
    arrays["chosen"] = _chosen(batch.targets)
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items() if array is not None}


def _chosen(targets: np.ndarray) -> np.ndarray | None:
    """Where in the flattened targets the targets are, int64; None where they are everywhere.

    Positions without target fill it up to a multiple of 64, so that compiled code and allocators see few shapes.
    """
    present = targets.ravel() != IGNORED
    chosen = np.flatnonzero(present)
    if len(chosen) == targets.size:
        return None
    others = np.flatnonzero(~present)[: -len(chosen) % 64]
    return np.concatenate([chosen, others])
