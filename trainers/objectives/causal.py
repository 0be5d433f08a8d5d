"""The causal objective (GPT: Radford et al., 2018): each token predicts the next one of its own document."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from trainers.objectives.shared.context import Context
from trainers.rows.batch import Batch, Frame


@dataclass(frozen=True)
class Causal:
    """Predict the next token; a document begins after `<bos>` and its last token predicts `<eos>`."""

    kind: Literal["causal"] = "causal"

    frame: ClassVar[Frame] = Frame("<bos>", None)
    families: ClassVar[tuple[str, ...]] = ("decoder",)
    predicts_text: ClassVar[bool] = True
    losses: ClassVar[Mapping[str, float]] = {"loss": 1.0}

    def stream_length(self, sequence_length: int, family: str) -> int:
        """A row of the model is one of the stream."""
        return sequence_length

    def apply(self, batch: Batch, context: Context) -> Batch:
        """The batch as it is packed: its targets are the next tokens."""
        return batch
