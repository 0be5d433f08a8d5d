"""Sentence-order prediction with masked language modelling (ALBERT: Lan et al., 2020, section 3.1)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from gristmill.compilation import kernel
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.masking import Masking
from trainers.rows.batch import Batch


@dataclass(frozen=True)
class SentenceOrder(Masking):
    """Predict masked tokens, and whether the two consecutive parts of a row are in order.

    The parts of a row are swapped (label 1) with probability one half. A row without a second part has no
    label. If `copies` is set, each copy of a row always has its parts in the same order. The other fields
    work as in `masked`. Requires `data.packing: segment_pairs` or `sentence_pairs`, `data.isolation: false`
    and `model.sentence_head: true`.
    """

    kind: Literal["sentence_order"] = "sentence_order"

    sentence_pairs: ClassVar[bool] = True
    losses: ClassVar[Mapping[str, float]] = {"loss": 1.0, "sentence_loss": 1.0}

    def apply(self, batch: Batch, context: Context) -> Batch:
        assert batch.labels is not None
        chance = self._uniforms(batch, context, "order", 1)[:, 0]
        swapped = (batch.labels >= 0) & (chance < 0.5)
        inputs, segments = batch.inputs.copy(), batch.segments.copy()
        assert batch.token_types is not None
        token_types = batch.token_types.copy()
        swap_parts(np.flatnonzero(swapped), batch.inputs, batch.segments, inputs, segments, token_types)
        labels = np.where(swapped, 1, batch.labels)
        ordered = replace(batch, inputs=inputs, segments=segments, token_types=token_types, labels=labels)
        return super().apply(ordered, context)


@kernel(nogil=True)
def swap_parts(
    rows: np.ndarray,
    inputs: np.ndarray,
    segments: np.ndarray,
    swapped: np.ndarray,
    swapped_segments: np.ndarray,
    token_types: np.ndarray,
) -> None:
    """In the given `rows`, turn `<cls> A <sep> B <sep>` into `<cls> B <sep> A <sep>`. The last three
    arguments must be copies of the batch's arrays and receive the result. Each part keeps its segment number;
    token types follow the new order.
    """
    for row in rows:
        end = first = 0
        while end < inputs.shape[1] and segments[row, end] >= 0:
            first += segments[row, end] == 0
            end += 1
        # A, without <cls> and with its <sep>, is columns 1 to `first`; B, with its <sep>, is `first` to
        # `end`.
        second = end - first
        for column in range(1, end):
            in_b = column <= second
            swapped[row, column] = inputs[row, column + first - 1 if in_b else column - second]
            swapped_segments[row, column] = 1 if in_b else 0
            token_types[row, column] = 0 if in_b else 1
        swapped_segments[row, 0] = 1
