"""Causal language modelling (GPT: Radford et al., 2018): each token predicts the next token of its own
document.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from trainers.objectives.shared.context import Context
from trainers.objectives.shared.prompt_format import PromptFormat
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import Batch, Frame


@dataclass(frozen=True)
class Causal(TrainingObjective):
    """Predict the next token. A document is preceded by `<bos>`, and its last token predicts `<eos>`."""

    kind: Literal["causal"] = "causal"

    frame: ClassVar[Frame] = Frame("<bos>", None)
    families: ClassVar[tuple[str, ...]] = ("decoder",)
    predicts_text: ClassVar[bool] = True
    gives_likelihood: ClassVar[bool] = True
    prompt_format: ClassVar[PromptFormat] = PromptFormat(plain_text=True)

    def apply(self, batch: Batch, context: Context) -> Batch:
        """Return the packed batch unchanged: its targets are already the next tokens."""
        return batch
