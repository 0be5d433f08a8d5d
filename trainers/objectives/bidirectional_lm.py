"""Language modelling in both directions (ELMo: Peters et al., 2018, section 3.1). A forward model predicts
every token of a document from the tokens before it, a backward model from the tokens after it.

    document    <cls>  the  quick  fox  <sep>
    forward      the  quick  fox  <sep>            the target at each position
    backward          <cls>  the  quick  fox
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import IGNORED, PADDING, Batch, Frame


@dataclass(frozen=True)
class BidirectionalLM(TrainingObjective):
    """Predict the next token (`loss`) and the previous token (`backward_loss`) at every position of a
    document.

    Training minimises the mean of both losses, as the authors' code does. At the ends of a document, the
    targets are the `<cls>` before it and the `<sep>` after it. A token at the end of a row has no target
    beyond the row. Requires architecture elmo.
    """

    kind: Literal["bidirectional_lm"] = "bidirectional_lm"

    families: ClassVar[tuple[str, ...]] = ("encoder",)
    losses: ClassVar[Mapping[str, float]] = {"loss": 0.5, "backward_loss": 0.5}
    bidirectional_lm: ClassVar[bool] = True

    @property
    def frame(self) -> Frame:
        return Frame(CLS, SEP)

    def apply(self, batch: Batch, context: Context) -> Batch:
        """Return the batch with the next tokens as targets. `backward_loss` takes its targets, the previous
        tokens, from the inputs.
        """
        after = batch.segments[:, 1:]
        targets = np.full_like(batch.inputs, IGNORED)
        follows = (after == batch.segments[:, :-1]) & (after != PADDING)
        targets[:, :-1] = np.where(follows, batch.inputs[:, 1:], IGNORED)
        return replace(batch, targets=targets)
