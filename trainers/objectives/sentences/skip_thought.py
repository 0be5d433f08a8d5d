"""Skip-thoughts (Kiros et al., 2015, section 2.1): from the vector of a sentence, one decoder writes the next
sentence of its document, and another the previous one.

    row        <cls> the quick fox . <sep>  <cls> it ran away . <sep>
    next       -                            it    ran away .   <sep>     given the vector of "the quick fox ."
    previous   the   quick fox .  <sep>     -                            given the vector of "it ran away ."
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.sentence_neighbours import sentence_neighbours
from trainers.objectives.shared.sentence_rows import sentence_rows, stream_of_sentences
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import IGNORED, Batch, Frame


@dataclass(frozen=True)
class SkipThought(TrainingObjective):
    """Predict the next sentence of a document (`loss`) and the previous sentence (`previous_loss`) from the
    vector of a sentence.

    A row contains many sentences, each encoded by itself. The decoders read the tokens of the sentence that
    they write, from `<cls>` on; the targets are the following tokens and `<sep>`. A sentence is a target of
    `loss` if another sentence precedes it in its row and its document, and of `previous_loss` if one follows
    it there. The vector of a sentence is the encoder's state at its last token before `<sep>`, as in
    `trainers similarity` with `pooling=last`. Training minimises the sum of both losses, each per token.

    Requires architecture gru, and shards with `sentences`; only documents of two or more sentences have
    targets. Sentences with fewer than `min_tokens` tokens are left out, and the sentences on either side of
    them then count as neighbours. Packing `full_sentences` is best, because it cuts only sentences that are
    longer than a row.
    """

    min_tokens: int = 4
    kind: Literal["skip_thought"] = "skip_thought"

    families: ClassVar[tuple[str, ...]] = ("encoder",)
    losses: ClassVar[Mapping[str, float]] = {"loss": 1.0, "previous_loss": 1.0}
    needs_sentences: ClassVar[bool] = True
    least_sentences: ClassVar[int] = 2
    decodes_neighbours: ClassVar[bool] = True

    def check(self) -> None:
        """Raise ValueError if `min_tokens` is below 1."""
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens: got {self.min_tokens}, allowed 1 or more")

    @property
    def frame(self) -> Frame:
        return Frame(CLS, SEP)

    @property
    def least_tokens(self) -> int:
        return self.min_tokens

    def stream_length(self, sequence_length: int, family: str) -> int:
        return stream_of_sentences(sequence_length, self.min_tokens, 1, 2, "two sentences")

    def apply(self, batch: Batch, context: Context) -> Batch:
        """Return the batch as rows of sentences, with the targets of `loss`. `previous_loss` takes its
        targets from the inputs.
        """
        made = sentence_rows(batch, context, self.min_tokens)
        targets = np.full_like(made.inputs, IGNORED)
        has_before, _ = sentence_neighbours(made)
        follows = has_before[:, :-1] & (made.segments[:, 1:] == made.segments[:, :-1])
        targets[:, :-1] = np.where(follows, made.inputs[:, 1:], IGNORED)
        return replace(made, targets=targets)
