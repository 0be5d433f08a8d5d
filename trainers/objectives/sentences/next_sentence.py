"""Next-sentence prediction with masked language modelling (BERT: Devlin et al., 2019, section 3.1, task 2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from trainers.objectives.shared.masking import Masking


@dataclass(frozen=True)
class NextSentence(Masking):
    """Predict masked tokens, and whether the second part of a row follows the first.

    In half of the pairs with a label, the second part follows the first (label 0); in the other half it comes
    from another document (label 1). Packing prepares `exchanges` different pairings of first and second
    parts, and the epochs cycle through these (`trainers.rows.sentence_pairs`). Each pairing takes 16 bytes
    per row in the local cache. If `copies` equals `exchanges`, the epochs cycle through that many static
    copies of the data, as BERT made them. The other fields work as in `masked`. Requires `data.packing:
    segment_pairs` or `sentence_pairs`, `data.isolation: false` and `model.sentence_head: true`.
    """

    exchanges: int = 10
    kind: Literal["next_sentence"] = "next_sentence"

    sentence_pairs: ClassVar[bool] = True
    losses: ClassVar[Mapping[str, float]] = {"loss": 1.0, "sentence_loss": 1.0}

    def check(self) -> None:
        super().check()
        if not 1 <= self.exchanges <= 1000:
            raise ValueError(f"exchanges: got {self.exchanges}, allowed 1 to 1000")
