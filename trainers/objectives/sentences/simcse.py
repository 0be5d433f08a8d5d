"""Contrastive learning of sentence vectors (SimCSE without labels: Gao et al., 2021, section 3).

stream   ...  the quick fox .  it ran away .  ...
row      <cls> the quick fox . <sep>  <cls> the quick fox . <sep>  <cls> it ran away . <sep>  <cls> it ran away . <sep>
segment  0                            1                            2                          3

The two copies of a sentence differ in what dropout leaves out. Of the second copies in its row, the first copy has to find
its own.
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
    """Bring the vectors of a sentence under two draws of dropout together, apart from those of the other sentences of its row.

    A row holds whole sentences, each twice and each by itself: nothing attends beyond a copy. The loss of sentence i is
    -log(exp(s_ii / t) / sum_j exp(s_ij / t)), where s_ij is the cosine of the first copy of i and the second copy of j, t is
    `temperature`, and j runs over the sentences of the row, which the paper calls a batch. So the negatives of a sentence are the
    other sentences of its row, however large the batch and the micro-batch are and however many workers train; longer rows have
    more. A row of one sentence has no target.

    `unit: sentences` reads the sentences of documents, and needs shards with `sentences`. `documents` reads every document as
    one, for corpora of single sentences. Those with fewer than `min_tokens` tokens are left out. Rows of one document have
    negatives of one subject, except with packing `best_fit` and short documents. `pooling` says which states are the vector,
    as in `trainers similarity`: that of the `first` token, or the `mean` of the tokens between the marks. The layer that
    the paper trains on top of the first token's state, and then drops, is left out. Validation is without dropout, so its
    loss says only how far apart the sentences of a row are. Begin with `init`, and set `model.dropout` (0.1 in the paper)
    above 0.
    """

    temperature: float = 0.05
    pooling: Literal["first", "mean"] = "first"
    unit: Literal["sentences", "documents"] = "sentences"
    min_tokens: int = 4
    kind: Literal["simcse"] = "simcse"

    families: ClassVar[tuple[str, ...]] = ("encoder",)

    def check(self) -> None:
        """Validate ranges."""
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature: got {self.temperature}, allowed above 0; the paper has 0.05")
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens: got {self.min_tokens}, allowed 1 or more")

    @property
    def frame(self) -> Frame:
        """`<cls>` before every document and `<sep>` after it. Rows have them around every sentence instead."""
        return Frame(CLS, SEP)

    @property
    def contrast(self) -> CopyContrast:
        """The pooling and the temperature."""
        return CopyContrast(self.pooling, self.temperature)

    @property
    def needs_sentences(self) -> bool:
        """Whether the unit is `sentences`."""
        return self.unit == "sentences"

    @property
    def least_tokens(self) -> int:
        """Those of a sentence."""
        return self.min_tokens

    def stream_length(self, sequence_length: int, family: str) -> int:
        """Return the number of tokens of the stream whose sentences fit in a row twice, with their marks, if all are as short as
        allowed. Raises ConfigError if two do not fit.
        """
        return stream_of_sentences(sequence_length, self.min_tokens, 2, 2, "two sentences")

    def apply(self, batch: Batch, context: Context) -> Batch:
        """Return rows of sentences, each between marks and twice."""
        return sentence_rows(batch, context, self.min_tokens, 2)
