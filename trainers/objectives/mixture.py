"""Mixtures of objectives: each row of a batch goes to one of them (UL2: Tay et al., "UL2: Unifying Language
Learning Paradigms", 2023, section 3.1).

The choice is a function of the run's seed and the sample's number. A mode token may precede the inputs of an
objective. Here, UL2's mode tokens are reserved entries of the vocabulary:

    R, regular spans         <reserved_0>   spans of 3 and of 8 tokens, 15 % of the tokens
    S, sequential            <reserved_1>   the last 25 % of a document, given the rest
    X, extreme               <reserved_2>   spans of 3, 8 and 64 tokens, 50 %; spans of 64 tokens, 15 %

All parts read one stream, and a row takes no more stream tokens than fit in a row of every part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from trainers.objectives.causal import Causal
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.multitask import Multitask
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.pairs import PairObjective, check_length
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.objectives.spans.denoising import Denoising
from trainers.objectives.spans.salient_spans import SalientSpans
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.rows.batch import IGNORED, PADDING, Batch, Decoder, Frame, Room
from trainers.rows.random import uniforms


@dataclass(frozen=True)
class MixturePart:
    """One objective of a mixture, which gets an expected share of the rows equal to its `weight` divided by
    the sum of all weights. `token` is a special token of the tokenizer that precedes each input of the
    objective, or null for none; it must be null for `causal`.
    """

    objective: Causal | SpanCorruption | SalientSpans | Multitask | Denoising | PrefixLM | FillInTheMiddle
    weight: float = 1.0
    token: str | None = None

    def check(self) -> None:
        """Raise ValueError if `weight` is out of range, or if `token` is set for an objective that does not
        rewrite rows (`causal`).
        """
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight: got {self.weight}, allowed above 0")
        if self.token is not None and not self.objective.rewrites_rows:
            raise ValueError(
                f"token: got {self.token}, objective {self.objective.kind} has no inputs for it to precede; set null"
            )

    def room(self, sequence_length: int, family: str) -> Room | None:
        """Return the capacity of a row in which `token`, if set, precedes every input, or None if packing
        need not reserve positions.
        """
        return self.objective.room(sequence_length, family, int(self.token is not None))


def _ul2() -> tuple[MixturePart, ...]:
    """Return the seven denoisers of UL2's table 1. The S denoiser gets a fifth of the samples, the best share
    in the paper; the others get equal shares of the rest.
    """
    regular = [(3.0, 0.15), (8.0, 0.15)]
    extreme = [(3.0, 0.5), (8.0, 0.5), (64.0, 0.15), (64.0, 0.5)]
    parts = [(SpanCorruption(mean_span=span, rate=rate), "<reserved_0>") for span, rate in regular]
    parts += [(SpanCorruption(mean_span=span, rate=rate), "<reserved_2>") for span, rate in extreme]
    weight = 0.8 / len(parts)
    sequential = MixturePart(PrefixLM(target_share=0.25), 0.2, "<reserved_1>")
    return (*(MixturePart(objective, weight, token) for objective, token in parts), sequential)


UL2 = _ul2()


@dataclass(frozen=True)
class ObjectiveMixture(TrainingObjective):
    """Train on several objectives: each row goes to one of `parts`, drawn by weight.

    The default is the seven denoisers of UL2, each with a mode token. Six corrupt spans, and share four
    fifths of the rows equally. Two of them use `<reserved_0>` and remove 15 % of the tokens, in spans of 3 or
    of 8 tokens on average. Four use `<reserved_2>`: three remove 50 % of the tokens, in spans of 3, 8 or 64
    tokens, and one removes 15 %, in spans of 64. The seventh uses `<reserved_1>`, gets a fifth of the rows,
    and predicts the last quarter of a text.

    On the command line a mixture is written `objective={kind: mixture, parts: [{objective: causal},
    {objective: {kind: span_corruption, rate: 0.3}, weight: 2}]}`.
    """

    kind: Literal["mixture"] = "mixture"
    parts: tuple[MixturePart, ...] = UL2

    @property
    def frame(self) -> Frame:
        wanted = [part.objective.frame for part in self.parts]
        return next((frame for frame in wanted if frame.before), wanted[0])

    @property
    def families(self) -> tuple[str, ...]:
        first, *others = (part.objective.families for part in self.parts)
        return tuple(name for name in first if all(name in other for other in others))

    @property
    def needs_sentences(self) -> bool:
        return any(part.objective.needs_sentences for part in self.parts)

    @property
    def least_tokens(self) -> int:
        return min(part.objective.least_tokens for part in self.parts)

    @property
    def span_types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind for part in self.parts for kind in part.objective.span_types))

    @property
    def needs_pairs(self) -> bool:
        return any(part.objective.needs_pairs for part in self.parts)

    @property
    def needs_texts(self) -> bool:
        return any(part.objective.needs_texts for part in self.parts)

    @property
    def gives_likelihood(self) -> bool:
        return any(part.objective.gives_likelihood for part in self.parts)

    @property
    def sees_prefix(self) -> bool:
        return any(part.objective.sees_prefix for part in self.parts)

    @property
    def rewrites_rows(self) -> bool:
        return any(part.objective.rewrites_rows for part in self.parts)

    def members(self) -> Sequence[tuple[TrainingObjective, str | None]]:
        return [(part.objective, part.token) for part in self.parts]

    @property
    def losses(self) -> dict[str, float]:
        return {name: weight for part in self.parts for name, weight in part.objective.losses.items()}

    def check(self) -> None:
        """Raise ValueError if there are no parts, or if no family of models suits the objectives of all
        parts.
        """
        if not self.parts:
            raise ValueError("parts: got none, allowed one or more")
        if not self.families:
            kinds = ", ".join(f"{part.objective.kind} ({', '.join(part.objective.families)})" for part in self.parts)
            raise ValueError(f"parts: no family of models can be trained by all of {kinds}; leave some of them out")

    def stream_length(self, sequence_length: int, family: str) -> int:
        """Return the number of stream tokens in a row, small enough for every part. Raises ConfigError if a
        part cannot use this number or the family of models.
        """
        room = self.room(sequence_length, family)
        length = sequence_length if room is None else room.length
        check_length(length, sequence_length)
        for part in self.parts:
            if isinstance(part.objective, PairObjective):
                part.objective.check_family(family)
                part.objective.check_document(length)
        return length

    def room(self, sequence_length: int, family: str, lead: int = 0) -> Room | None:
        """Return the capacity of a row that suits every part, or None if packing need not reserve positions
        for any part.
        """
        assert lead == 0, "no token leads a whole mixture"
        rooms = [room for part in self.parts if (room := part.room(sequence_length, family)) is not None]
        if not rooms:
            return None
        length, positions = min(room.length for room in rooms), min(room.positions for room in rooms)
        needed = np.max([room.needed[: length + 1] for room in rooms], axis=0)
        # A document may need positions that some part keeps spare. Its need is capped, so that it fills a row
        # by itself.
        return Room(np.minimum(needed, positions), positions)

    def apply(self, batch: Batch, context: Context) -> Batch:
        shares = np.cumsum([part.weight for part in self.parts])
        drawn = uniforms(context.seed, batch.sample, 1, "mixture")[:, 0]
        chosen = np.searchsorted(shares[:-1] / shares[-1], drawn, side="right")
        made, places = [], []
        for number, part in enumerate(self.parts):
            rows = np.flatnonzero(chosen == number)
            if len(rows):
                made.append(_apply(part, _rows(batch, rows), context))
                places.append(rows)
        return _merge_rows(batch, made, places, context.padding)


def _apply(part: MixturePart, batch: Batch, context: Context) -> Batch:
    if part.token is None:
        return part.objective.apply(batch, context)
    assert isinstance(part.objective, PairObjective)
    return part.objective.apply(batch, context, context.special(part.token))


def _rows(batch: Batch, rows: np.ndarray) -> Batch:
    arrays = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{name: array[rows] for name, array in arrays.items() if array is not None})


def _merge_rows(batch: Batch, made: Sequence[Batch], places: Sequence[np.ndarray], padding: int) -> Batch:
    """Merge the batches `made` into one. The rows of batch i go to the rows `places[i]` of the result."""

    def join(arrays: Sequence[np.ndarray], fill: int) -> np.ndarray:
        width = max(array.shape[1] for array in arrays)
        joined = np.full((len(batch.inputs), width), fill, dtype=arrays[0].dtype)
        for array, rows in zip(arrays, places, strict=True):
            joined[rows, : array.shape[1]] = array
        return joined

    def rows_of(sides: Sequence[Batch | Decoder]) -> dict[str, np.ndarray]:
        fills = {"inputs": padding, "positions": 0, "segments": PADDING}
        return {name: join([getattr(side, name) for side in sides], fill) for name, fill in fills.items()}

    prefix = None
    if any(one.prefix is not None for one in made):
        prefix = join([np.zeros(b.inputs.shape, bool) if b.prefix is None else b.prefix for b in made], 0)
    decoders = [one.decoder for one in made if one.decoder is not None]
    decoder = Decoder(**rows_of(decoders)) if decoders else None
    targets = join([one.targets for one in made], IGNORED)
    arrays: dict[str, Any] = {**rows_of(made), "targets": targets}
    return replace(batch, **arrays, prefix=prefix, decoder=decoder, sentence_starts=None, spans=None, in_target=None)
