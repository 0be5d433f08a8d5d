"""The pass through a model that training, evaluation and blame share: from a batch to the nats of every target.

Documents of a row are kept apart by masks over their segments: a boolean 4-D mask is handed to sdpa as it is.
`position_ids` alone isolate documents only with `attention_mask=None` and `use_cache=False` in decoders, silently do not
otherwise, and never do in encoders.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from trainers.config.architecture import ARCHITECTURES
from trainers.engine.cross_entropy import cross_entropy
from trainers.models import MODELS
from trainers.models.interface import Inputs
from trainers.rows.batch import IGNORED, Batch


class Forward(torch.nn.Module):
    """A `transformers` model of an architecture (`trainers.models`) with its loss.

    With `isolation` documents of one row do not see each other and positions restart; without, they share the row.
    """

    def __init__(self, model: Any, architecture: str, isolation: bool = True) -> None:
        super().__init__()
        self.model, self.isolation = model, isolation
        self._architecture, self._causal = MODELS[architecture], ARCHITECTURES[architecture].family == "decoder"

    def forward(
        self,
        inputs: Any,
        targets: Any,
        positions: Any,
        segments: Any,
        chosen: Any = None,
        prefix: Any = None,
        token_types: Any = None,
        labels: Any = None,
        decoder_inputs: Any = None,
        decoder_positions: Any = None,
        decoder_segments: Any = None,
    ) -> tuple[Any, Any]:
        """(nats of every target, fp32 of the shape of `targets`, 0 where there is none; nats of every row's label, fp32
        [rows], or None without labels). Arguments are the arrays of a Batch as tensors, and in `chosen` where in the
        flattened targets the targets are, None for everywhere.
        """
        mask = self._mask(segments, segments, self._causal, prefix)
        reads = Inputs(inputs, self._positions(positions), mask, token_types)
        if decoder_inputs is not None:
            own = self._mask(decoder_segments, decoder_segments, True)
            decoder = Inputs(decoder_inputs, self._positions(decoder_positions), own)
            reads = replace(reads, decoder=decoder, cross=self._mask(decoder_segments, segments, False))
        states = self._architecture.hidden(self.model, reads)
        pairs = None
        if labels is not None:
            assert self._architecture.sentence is not None
            pairs = cross_entropy(self._architecture.sentence(self.model, states)[None], labels[None])[0]
        if chosen is None:
            return cross_entropy(self._architecture.logits(self.model, states), targets), pairs
        logits = self._architecture.logits(self.model, states.flatten(0, 1)[chosen])
        nats = cross_entropy(logits[None], targets.flatten()[chosen][None])[0]
        everywhere = torch.zeros(targets.numel(), dtype=nats.dtype, device=nats.device)
        return everywhere.index_copy(0, chosen, nats).view(targets.shape), pairs

    def _positions(self, positions: Any) -> Any:
        if self.isolation:
            return positions
        return torch.arange(positions.shape[1], device=positions.device).expand_as(positions)

    def _mask(self, queries: Any, keys: Any, causal: bool, prefix: Any = None) -> Any:
        if not self.isolation:
            queries, keys = queries.clamp(max=0), keys.clamp(max=0)
        return attention_mask(queries, keys, causal, prefix)


def attention_mask(queries: Any, keys: Any, causal: bool, prefix: Any = None) -> Any:
    """Boolean [rows, 1, queries, keys]: what each position sees, from segments [rows, length]: its own document, with
    `causal` no position after it, but those in `prefix` [rows, length] see one another. Padding sees padding alone.
    """
    seen = queries[:, :, None] == keys[:, None, :]
    if causal:
        length = queries.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=queries.device).tril()
        allowed = earlier if prefix is None else earlier | (prefix[:, :, None] & prefix[:, None, :])
        seen = seen & allowed
    return seen[:, None]


def tensors(batch: Batch, device: Any) -> dict[str, Any]:
    """The arrays of a batch as arguments of Forward, on `device`."""
    arrays = {name: getattr(batch, name) for name in ("inputs", "targets", "positions", "segments")}
    arrays |= {name: getattr(batch, name) for name in ("prefix", "token_types", "labels")}
    arrays["chosen"] = _chosen(batch.targets)
    if batch.decoder is not None:
        arrays |= {f"decoder_{name}": getattr(batch.decoder, name) for name in ("inputs", "positions", "segments")}
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
