"""Replaced token detection (ELECTRA: Clark et al., 2020, section 2).

    text            the   chef   cooked  the   meal
    masked          the  <mask>  cooked  the   meal       the generator predicts "chef" at <mask>: `loss`
    replaced        the   cook   cooked  the   meal       drawn from the generator's softmax, without a gradient
    is replaced?    no    yes    no      no    no         the discriminator says for every token: `discriminator_loss`

If the generator happens to draw the token of the text, the token counts as original.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from trainers.objectives.shared.context import Context
from trainers.objectives.shared.masking import Masking
from trainers.rows.batch import Batch


@dataclass(frozen=True)
class ReplacedTokens(Masking):
    """Train a generator to predict masked tokens, and a discriminator to detect the tokens that the generator
    has replaced.

    Tokens are chosen as in `masked`. Training minimises `loss` + `discriminator_weight` *
    `discriminator_loss`: `loss` is the generator's loss at the chosen tokens, and `discriminator_loss` the
    discriminator's binary cross-entropy over all tokens that it reads. For the generator, a share
    `mask_share` of the chosen tokens becomes `<mask>`. By default the rest stay unchanged, as in the authors'
    code (the paper masks all). For the discriminator, each chosen token is replaced with a token drawn from
    the generator.

    Three measures are also logged. `replaced_share` is the share of all tokens that the replacement changed;
    `replaced_accuracy` is the discriminator's accuracy on the changed tokens, and `original_accuracy` its
    accuracy on the others. The other fields work as in `masked`. Requires `model.generator_size`.
    """

    mask_share: float = 0.85
    random_share: float = 0.0
    discriminator_weight: float = 50.0
    kind: Literal["replaced_tokens"] = "replaced_tokens"

    measures: ClassVar[tuple[str, ...]] = ("replaced_share", "original_accuracy", "replaced_accuracy")
    needs_generator: ClassVar[bool] = True

    @property
    def losses(self) -> Mapping[str, float]:
        return {"loss": 1.0, "discriminator_loss": self.discriminator_weight}

    def check(self) -> None:
        super().check()
        if not 0 < self.discriminator_weight < float("inf"):
            raise ValueError(f"discriminator_weight: got {self.discriminator_weight}, allowed above 0")

    def apply(self, batch: Batch, context: Context) -> Batch:
        masked = super().apply(batch, context)
        rows, length = batch.inputs.shape
        return replace(masked, draws=self._uniforms(batch, context, "replacement", 2 * length).reshape(rows, length, 2))
