"""The forward pass, from a batch to its losses by name.

With `isolation`, a boolean mask over the segments of a row keeps its documents from attending to each other.
`position_ids` that restart at each document are not enough: in `transformers`, they isolate documents only in
decoders with `attention_mask=None` and `use_cache=False`, and have no effect on attention elsewhere.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from trainers.config.architecture import ARCHITECTURES
from trainers.config.job import Job
from trainers.engine.losses import LOSSES, MEASURES, ForwardPass, Loss, Measure, losses_of
from trainers.models import MODELS
from trainers.models.heads.task_head import recorded_layers
from trainers.models.interface import Carried, Inputs, Past
from trainers.models.positions import RELATIVE
from trainers.rows.batch import IGNORED, PADDING, Batch


class Forward(torch.nn.Module):
    """A `transformers` model of an architecture (`trainers.models`), with the losses and measures computed
    from its outputs.

    With `isolation`, the documents of a row do not attend to each other, and positions restart at each
    document.
    """

    def __init__(
        self,
        model: Any,
        architecture: str,
        isolation: bool = True,
        losses: Sequence[Loss] = (LOSSES["loss"],),
        measures: Sequence[Measure] = (),
    ) -> None:
        super().__init__()
        assert len({loss.name for loss in losses}) == len(losses)
        self.model, self.isolation, self.losses, self.measures = model, isolation, tuple(losses), tuple(measures)
        self._architecture, self._causal = MODELS[architecture], ARCHITECTURES[architecture].family == "decoder"

    def forward(self, predicts: bool = False, carried: Carried | None = None, **arrays: Any) -> dict[str, Any]:
        """Return the results of a batch by name: the nats of each loss's targets, then the counts of each
        measure. `arrays` is what `tensors` returns for the batch. With `predicts`, the key `predictions`
        holds the predictions of the model's head. With `carried`, the batch is a window of rows: the pass
        starts from the state in `carried` and replaces it with the final state.
        """
        made = self._pass(arrays, carried=carried)
        found = {loss.name: loss.nats(made) for loss in self.losses}
        with torch.no_grad():
            found |= {measure.name: measure.counts(made) for measure in self.measures}
        return {**found, "predictions": made.predictions} if predicts else found

    @property
    def names(self) -> list[str]:
        """The names of the results of a pass: losses, then measures."""
        return [*(loss.name for loss in self.losses), *(measure.name for measure in self.measures)]

    def states(self, **arrays: Any) -> Any:
        """Return the final hidden state at each position of the batch's targets, [rows, target length,
        width].
        """
        return self._pass(arrays).states

    def layers(self, **arrays: Any) -> dict[str, list[Any]]:
        """Return, for each stack of the model, a list of hidden states [rows, length, width]: first those of
        the embeddings, then those of each layer. An encoder-decoder has the keys `encoder` and `decoder`; any
        other model has only `decoder`.
        """
        encoder, final = self._architecture.encoder_blocks, []
        with ExitStack() as recording:
            found = {"decoder": recording.enter_context(self._recorded())}
            if encoder is not None:
                found["encoder"] = recording.enter_context(recorded_layers(encoder(self.model)))
                hook = self.model.get_encoder().register_forward_hook(lambda _, __, made: final.append(made[0]))
                recording.callback(hook.remove)
            found["decoder"][-1:] = [self._pass(arrays).states]  # after the final norm
        if final:
            found["encoder"][-1] = final[0]
        return found

    def logits_at(self, at: Any, past: Past | None = None, **arrays: Any) -> Any:
        """Return the logits [n, vocabulary] at the positions `at` [n], given as indices into the flattened
        targets of the batch `arrays` (see `tensors`). If `past` is given, store the states of the batch's
        tokens in `past`.
        """
        made = self._pass(arrays, past)
        if past is not None:
            past.trim()
        return self._architecture.logits(self.model, made.states.flatten(0, 1)[at])

    def new_past(self) -> Past | None:
        """Return an empty `Past`, or None if this model cannot use a cache."""
        from transformers import DynamicCache, EncoderDecoderCache

        # Clipped relative distances are counted along the row, which has gaps after short texts.
        if not self._architecture.caches or self.model.config._attn_implementation == RELATIVE:
            return None
        return Past(DynamicCache() if self._causal else EncoderDecoderCache(DynamicCache(), DynamicCache()))

    def logits_after(self, past: Past, ids: Any, positions: Any) -> Any:
        """Return the logits [rows, vocabulary] after each row is extended by one token. `ids` and
        `positions`, int64 [rows], describe the new tokens. `past` was filled by `logits_at`; the states of
        the new tokens are added to it.
        """
        past.seen = torch.cat([past.seen, past.seen.new_ones(len(ids), 1)], 1)
        inputs = Inputs(ids[:, None], positions[:, None], past.seen[:, None, None], past=past)
        if past.source is not None:
            decoder = Inputs(inputs.ids, inputs.positions, inputs.mask)
            inputs = replace(inputs, decoder=decoder, cross=past.source[:, None, None])
        return self._architecture.logits(self.model, self._architecture.hidden(self.model, inputs)[:, -1])

    def _pass(self, arrays: dict[str, Any], past: Past | None = None, carried: Carried | None = None) -> ForwardPass:
        segments, decoder_segments = arrays["segments"], arrays.get("decoder_segments")
        if past is not None:
            past.seen = (segments if decoder_segments is None else decoder_segments) != PADDING
            past.source = None if decoder_segments is None else segments != PADDING
        alone = past is None and self._needs_no_mask(arrays)
        keys = segments
        if carried is not None:
            keys = torch.cat([carried.segments, segments], 1) if carried.memories else segments
            carried.segments = segments
        mask = None if alone else self._mask(segments, keys, self._causal, arrays.get("prefix"), arrays.get("trunks"))
        inputs = Inputs(
            arrays["inputs"],
            self._positions(arrays["positions"], 0 if carried is None else carried.columns),
            mask,
            arrays.get("token_types"),
            past=past,
            order=arrays.get("factorization"),
            covered=arrays.get("covered"),
            read=arrays.get("read"),
            carried=carried,
        )
        if decoder_segments is not None:
            own = self._mask(decoder_segments, decoder_segments, True)
            decoder = Inputs(arrays["decoder_inputs"], self._positions(arrays["decoder_positions"]), own)
            inputs = replace(inputs, decoder=decoder, cross=self._mask(decoder_segments, segments, False))
        if "draws" in arrays:
            generator = self.model.generator
            states = self._architecture.hidden(generator, inputs)
            return ForwardPass(generator, self._architecture, inputs, states, arrays, discriminator=self.model)
        head = getattr(self.model, "task_head", None)
        if head is None or head.layers == "last":
            states, layers = self._architecture.hidden(self.model, inputs), []
        else:
            with self._recorded() as layers:
                states = self._architecture.hidden(self.model, inputs)
            layers[-1] = states  # after the final norm, in architectures that have one
        return ForwardPass(self.model, self._architecture, inputs, states, arrays, layers)

    def _recorded(self) -> AbstractContextManager[list[Any]]:
        convert = self._architecture.layer_states
        own = None if convert is None else partial(convert, self.model)
        return recorded_layers(self._architecture.blocks(self.model), own)

    def _needs_no_mask(self, arrays: dict[str, Any]) -> bool:
        """Return whether attention can run without a mask, which is faster."""
        least, most = arrays["segment_range"]
        whole = least >= 0 and (most == 0 or not self.isolation) and arrays.get("prefix") is None
        return whole and self._architecture.unmasked and self.model.config._attn_implementation == "sdpa"

    def _positions(self, positions: Any, before: int = 0) -> Any:
        if self.isolation:
            return positions
        return torch.arange(before, before + positions.shape[1], device=positions.device).expand_as(positions)

    def _mask(self, queries: Any, keys: Any, causal: bool, prefix: Any = None, trunks: Any = None) -> Any:
        if not self.isolation:
            queries, keys = queries.clamp(max=0), keys.clamp(max=0)
        return attention_mask(queries, keys, causal, prefix, trunks)


def forward_of(model: Any, config: Job) -> Forward:
    """Return the forward pass of a run's model, with the losses and measures of its objective."""
    objective = config.objective
    losses, measures = losses_of(objective.losses, objective.contrast), [MEASURES[name] for name in objective.measures]
    return Forward(model, config.model.architecture, config.isolates_documents, losses, measures)


def attention_mask(queries: Any, keys: Any, causal: bool, prefix: Any = None, trunks: Any = None) -> Any:
    """Return the attention mask, bool [rows, 1, queries, keys], from the segment numbers of the queries,
    [rows, queries], and of the keys, [rows, keys].

    A position attends to its own segment and, if its number in `trunks` [rows, queries] is not -1, to the
    segment with that number. With `causal`, queries and keys must be the same positions, and a position
    attends to a later one only if both are in `prefix` [rows, queries].
    """
    seen = queries[:, :, None] == keys[:, None, :]
    if trunks is not None:
        seen = seen | ((trunks[:, :, None] == keys[:, None, :]) & (trunks >= 0)[:, :, None])
    if causal:
        length = queries.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=queries.device).tril()
        allowed = earlier if prefix is None else earlier | (prefix[:, :, None] & prefix[:, None, :])
        seen = seen & allowed
    return seen[:, None]


def tensors(batch: Batch, device: Any) -> dict[str, Any]:
    """Return the arrays of a batch by field name, as tensors on `device`. Fields that are None are left out.
    Fields of the decoder and of the task get the prefixes `decoder_` and `task_`.

    Two entries are added. `chosen`, int64, holds indices into the flattened targets: all positions that have
    a target, and possibly some others. It is omitted if every position has a target. `segment_range` is the
    pair of the smallest and largest segment numbers, as integers.
    """
    parts = ("decoder", "task")
    arrays = {field.name: getattr(batch, field.name) for field in fields(batch) if field.name not in parts}
    for part in parts:
        its = getattr(batch, part)
        if its is not None:
            arrays |= {f"{part}_{field.name}": getattr(its, field.name) for field in fields(its)}
    arrays["chosen"] = _chosen(batch.targets)
    found = {name: torch.from_numpy(array).to(device) for name, array in arrays.items() if array is not None}
    return {**found, "segment_range": (int(batch.segments.min()), int(batch.segments.max()))}


def _chosen(targets: np.ndarray) -> np.ndarray | None:
    """Return the indices of the flattened targets that are not IGNORED, int64, or None if none is ignored.
    Other indices are appended, normally up to a multiple of 64, so that compiled code and allocators see few
    shapes.
    """
    present = targets.ravel() != IGNORED
    chosen = np.flatnonzero(present)
    if len(chosen) == targets.size:
        return None
    others = np.flatnonzero(~present)[: -len(chosen) % 64]
    return np.concatenate([chosen, others])
