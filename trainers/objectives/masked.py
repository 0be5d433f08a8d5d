"""Masked language modelling (BERT: Devlin et al., 2019, section 3.1)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from trainers.batch import IGNORED, Batch, Frame
from trainers.objectives.context import Context
from trainers.objectives.random import uniforms


@dataclass(frozen=True)
class Masked:
    """Each token that is no special is chosen with probability `rate`; of those chosen `mask_share` become `<mask>`,
    `random_share` another token, the others stay. The original token is the target where a token is chosen.
    """

    kind: Literal["masked"] = "masked"
    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1

    frame: ClassVar[Frame] = Frame("<cls>", "<sep>")
    families: ClassVar[tuple[str, ...]] = ("encoder",)
    predicts_text: ClassVar[bool] = False

    def check(self) -> None:
        """Shares are shares."""
        if not 0 < self.rate < 1:
            raise ValueError(f"rate: got {self.rate}, allowed above 0 to below 1")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1:
            raise ValueError(
                f"mask_share, random_share: got {self.mask_share} and {self.random_share}, allowed 0 and more, up to 1 together"
            )

    def stream_length(self, sequence_length: int) -> int:
        """A row of the model is one of the stream."""
        return sequence_length

    def apply(self, batch: Batch, context: Context) -> Batch:
        """The batch with tokens masked, by (seed, sample)."""
        shape = batch.inputs.shape
        special = np.zeros(context.vocab_size, dtype=bool)
        special[list(context.specials.values())] = True
        ordinary = np.flatnonzero(~special)
        chance, kind, other = (
            uniforms(context.seed, batch.sample, shape[1], f"masked/{name}") for name in ("choice", "kind", "other")
        )
        chosen = (chance < self.rate) & ~special[batch.inputs]
        random = ordinary[(other * len(ordinary)).astype(np.int64)]
        masked = chosen & (kind < self.mask_share)
        replaced = chosen & ~masked & (kind < self.mask_share + self.random_share)
        inputs = np.where(masked, context.specials["<mask>"], np.where(replaced, random, batch.inputs))
        return replace(batch, inputs=inputs, targets=np.where(chosen, batch.inputs, IGNORED))
