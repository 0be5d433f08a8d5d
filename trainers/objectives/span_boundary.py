"""Masked language modelling with the span boundary objective (SpanBERT: Joshi et al., 2020, section 3.2).

text       ...  the  quick  brown  fox  jumps  ...
masked     ...  the  <mask> <mask> <mask> jumps ...   predicted at <mask>: `loss`
outside         the                       jumps       predicted from these two and places 1 to 3: `boundary_loss`
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from trainers.objectives.masked import Masked
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.masking import Masking
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import Batch

PLACES = 20
"""The boundary loss has targets at the first PLACES tokens of a span, as in the authors' code."""


@dataclass(frozen=True)
class SpanBoundary(Masking):
    """Predict the tokens of masked spans of whole words, and predict them again from the tokens on either
    side of the span.

    The minimised loss is the sum of `loss` and `boundary_loss`, each a mean over its targets. For
    `boundary_loss`, a token is predicted from the final states of the tokens before and after its span, and
    from its place in the span, 1 to 20. Tokens beyond place 20 are not targets of `boundary_loss`. If the row
    begins or ends inside a document, a span there may have no token on one side; its tokens are not targets
    of `boundary_loss` either. The tokens next to a span may be marks, or belong to other spans. The fields
    work as in `masked`, but `unit` is always `spans`. Requires `model.boundary_head`.
    """

    unit: Literal["spans"] = "spans"
    kind: Literal["span_boundary"] = "span_boundary"

    losses: ClassVar[Mapping[str, float]] = {"loss": 1.0, "boundary_loss": 1.0}
    needs_boundary: ClassVar[bool] = True

    @property
    def exported(self) -> TrainingObjective:
        """The objective `masked` with the same spans, because exports lack the boundary head."""
        return Masked(self.rate, self.mask_share, self.random_share, "spans", self.span_p, self.span_words, self.copies)

    def apply(self, batch: Batch, context: Context) -> Batch:
        group = self.choose(batch, context)
        masked = self.replaced(batch, context, group)
        return replace(masked, outside=outside_columns(group, batch.segments, PLACES))


def outside_columns(group: np.ndarray, segments: np.ndarray, places: int) -> np.ndarray:
    """Return, for each chosen token, the columns just before and just after its span: int64 [rows, length,
    2], -1 for other tokens.

    `group`, int64 [rows, length], is the first column of a token's span, -1 where no token is chosen. A
    chosen token also gets -1 if one of the two columns is not in its segment, or if `places` or more tokens
    of its span precede it.
    """
    length = group.shape[1]
    columns = np.arange(length)
    ends = np.ones(group.shape, dtype=bool)
    ends[:, :-1] = group[:, 1:] != group[:, :-1]
    last = np.minimum.accumulate(np.where(ends, columns, length)[:, ::-1], axis=1)[:, ::-1]
    outside = np.stack([group - 1, last + 1], axis=2)
    inside = (group >= 0) & (columns - group < places) & (outside[..., 0] >= 0) & (outside[..., 1] < length)
    there = np.clip(outside, 0, length - 1)
    for side in range(2):
        inside &= np.take_along_axis(segments, there[..., side], axis=1) == segments
    outside[~inside] = -1
    return outside
