"""Permutation language modelling with partial prediction (XLNet: Yang et al., 2019, sections 2.2, 2.3 and
3.1).

    text        the  quick  brown  fox  jumps  over  the  dog
    order         0      0      2    1      0     0    0    0      0: given; 1, 2: predicted first, second
    predicted                      fox <- the quick     jumps over the dog
                             brown <- the quick fox jumps over the dog
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from gristmill.compilation import kernel
from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import IGNORED, ORDER_COLUMNS, Batch, Frame
from trainers.rows.random import uniforms


@dataclass(frozen=True)
class Permutation(TrainingObjective):
    """Put the tokens of each document in a random order, and predict the last tokens in this order from the
    tokens before them.

    One in `partial_prediction` tokens (K in the paper) is a target. The targets are spans of n neighbouring
    tokens, where n is 1 to `span_tokens`, each at a random place in a context of K n tokens. Shorter spans
    are more probable, in proportion to 1 / length, as in the authors' code. The order of a document's targets
    is random. A target is predicted from its position, from all tokens that are not targets, and from the
    targets before it in the order. Special tokens are never targets. Orders and spans are functions of the
    run's seed and the sample's number. Requires architecture xlnet.
    """

    partial_prediction: int = 6
    span_tokens: int = 5
    kind: Literal["permutation"] = "permutation"

    families: ClassVar[tuple[str, ...]] = ("encoder",)
    losses: ClassVar[Mapping[str, float]] = {"loss": 1.0}
    permutes: ClassVar[bool] = True

    def check(self) -> None:
        """Raise ValueError if `partial_prediction` is below 2 or `span_tokens` below 1."""
        if self.partial_prediction < 2:
            raise ValueError(f"partial_prediction: got {self.partial_prediction}, allowed 2 or more")
        if self.span_tokens < 1:
            raise ValueError(f"span_tokens: got {self.span_tokens}, allowed 1 or more")

    @property
    def frame(self) -> Frame:
        return Frame(CLS, SEP)

    def apply(self, batch: Batch, context: Context) -> Batch:
        special = _special(tuple(context.specials.values()), context.vocab_size)
        shape = batch.inputs.shape
        sizes, places, rounding, order = (
            uniforms(context.seed, batch.sample, shape[1], f"permutation/{name}")
            for name in ("length", "place", "rounding", "order")
        )
        chosen = np.zeros(shape, dtype=bool)
        lengths = 1.0 / np.arange(1, self.span_tokens + 1)
        longer = np.cumsum(lengths / lengths.sum())[:-1]
        row = (batch.inputs, batch.segments, special)
        choose_spans(*row, self.partial_prediction, longer, sizes, places, rounding, chosen)
        width = max(1, -(-int(chosen.sum(1).max(initial=0)) // ORDER_COLUMNS)) * ORDER_COLUMNS
        ranked = np.argsort(np.where(chosen, order, 2.0), axis=1, kind="stable")[:, :width]
        there = np.arange(width) < chosen.sum(1)[:, None]
        columns = np.full((shape[0], width), -1, dtype=np.int64)
        columns[:, : ranked.shape[1]] = np.where(there[:, : ranked.shape[1]], ranked, -1)
        return replace(batch, targets=np.where(chosen, batch.inputs, IGNORED), factorization=columns)


@lru_cache(maxsize=8)
def _special(specials: tuple[int, ...], vocab_size: int) -> np.ndarray:
    special = np.zeros(max(vocab_size, *specials) + 1, dtype=bool)
    special[list(specials)] = True
    return special


@kernel(nogil=True)
def choose_spans(
    inputs: np.ndarray,
    segments: np.ndarray,
    special: np.ndarray,
    contexts: int,
    longer: np.ndarray,
    sizes: np.ndarray,
    places: np.ndarray,
    rounding: np.ndarray,
    chosen: np.ndarray,
) -> None:
    """Mark the tokens to predict: set their places in `chosen`, bool [rows, length], to True. All of `chosen`
    must be False before the call. The ordinary tokens (those that are not special) of every document are
    divided into successive contexts of `contexts` * n tokens, and n adjacent ordinary tokens of each context
    are marked.

    n is drawn anew for each context: P(n <= k) is `longer[k - 1]`, float64 [largest n - 1]. If a document
    ends before a context is complete, n is the number of remaining tokens divided by `contexts`, rounded up
    or down at random so that its mean is exact. Nothing is marked in a document of one token. `sizes`,
    `places` and `rounding` are uniform random numbers, float64 [rows, length].
    """
    length = inputs.shape[1]
    own = np.empty(length, dtype=np.int64)
    for row in range(len(inputs)):
        start = 0
        while start < length:
            segment, end, count = segments[row, start], start, 0
            while end < length and segments[row, end] == segment:
                if not special[inputs[row, end]]:
                    own[count] = end
                    count += 1
                end += 1
            first = 0
            while segment >= 0 and end - start > 1 and first < count:
                column, size = own[first], 1
                while size <= len(longer) and sizes[row, column] >= longer[size - 1]:
                    size += 1
                room = contexts * size
                if first + room > count:
                    room = count - first
                    size = int(room / contexts + rounding[row, column])
                offset = int(places[row, column] * (room - size + 1))
                for k in range(size):
                    chosen[row, own[first + offset + k]] = True
                first += room
            start = end
