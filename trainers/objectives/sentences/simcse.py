"""Contrastive learning of sentence vectors (SimCSE without labels: Gao et al., 2021, section 3).

    stream   ...  the fox .  it ran away .  ...
    row      <cls> the fox . <sep>  <cls> the fox . <sep>  <cls> it ran away . <sep>  <cls> it ran away . <sep>
    segment  0                      1                      2                          3

The two copies of a sentence differ only in the units that dropout removes.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.sentence_rows import sentence_rows, stream_of_sentences
from trainers.objectives.shared.training_objective import CopyContrast, TrainingObjective
from trainers.rows.batch import Batch, Frame


@dataclass(frozen=True)
class SimCSE(TrainingObjective):
    """Pull together the two vectors that a sentence gets under different dropout masks, and push them apart
    from those of the other sentences in its row.

    A row contains many sentences, each twice, and tokens attend only to their own copy. The loss of sentence
    i is -log(exp(s_ii / t) / sum_j exp(s_ij / t)), where s_ij is the cosine of the vectors of the first copy
    of i and the second copy of j, t is `temperature`, and j runs over the sentences of the row. A row takes
    the place of the paper's batch: a longer row gives each sentence more negatives, while the batch size, the
    micro-batch size and the number of workers have no effect on them. A row of one sentence has no target.

    `unit: sentences` reads the sentences of documents, and needs shards with `sentences`. `unit: documents`
    reads every document as one sentence, for corpora of single sentences. Sentences with fewer than
    `min_tokens` tokens are left out. If a row comes from a single document, all negatives are about one
    subject; packing `best_fit` puts several short documents in a row.

    The vector is the state of the first token (`pooling: first`) or the mean of the states of the sentence's
    own tokens (`pooling: mean`), as in `trainers similarity`. The layer that the paper trains on top of the
    first token's state, and drops after training, is left out. Validation runs without dropout, so its loss
    shows only how far apart the sentences of a row are. Start from a trained model with `init`, and set
    `model.dropout` (0.1 in the paper) above 0.
    """

    temperature: float = 0.05
    pooling: Literal["first", "mean"] = "first"
    unit: Literal["sentences", "documents"] = "sentences"
    min_tokens: int = 4
    kind: Literal["simcse"] = "simcse"

    families: ClassVar[tuple[str, ...]] = ("encoder",)

    def check(self) -> None:
        """Raise ValueError if `temperature` or `min_tokens` is out of range."""
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature: got {self.temperature}, allowed above 0; the paper has 0.05")
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens: got {self.min_tokens}, allowed 1 or more")

    @property
    def frame(self) -> Frame:
        return Frame(CLS, SEP)

    @property
    def contrast(self) -> CopyContrast:
        return CopyContrast(self.pooling, self.temperature)

    @property
    def needs_sentences(self) -> bool:
        return self.unit == "sentences"

    @property
    def least_tokens(self) -> int:
        return self.min_tokens

    def stream_length(self, sequence_length: int, family: str) -> int:
        return stream_of_sentences(sequence_length, self.min_tokens, 2, 2, "two sentences")

    def apply(self, batch: Batch, context: Context) -> Batch:
        return sentence_rows(batch, context, self.min_tokens, 2)
