"""Contrastive learning of sentence vectors from neighbouring sentences (quick thoughts: Logeswaran and Lee,
2018, section 3).

    stream   ...  the quick fox .  it ran away .  nobody saw it .  ...
    row      <cls> the quick fox . <sep>  <cls> it ran away . <sep>  <cls> nobody saw it . <sep>
    segment  0                            1                          2
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.sentence_rows import sentence_rows, stream_of_sentences
from trainers.objectives.shared.training_objective import NeighbourContrast, TrainingObjective
from trainers.rows.batch import Batch, Frame


@dataclass(frozen=True)
class QuickThought(TrainingObjective):
    """Find the neighbours of a sentence among the other sentences of its row, by the inner products of their
    vectors.

    A row contains many sentences, and tokens attend only to their own sentence. The loss of sentence i with
    neighbour k is -log(exp(v_i . v_k / t) / sum_j exp(v_i . v_j / t)), where v are the vectors, t is
    `temperature`, and j runs over the other sentences of the row. A sentence has at most two neighbours: the
    sentences before and after it, if they are in its row and its document. The loss of a sentence is the mean
    over its neighbours. Sentences without a neighbour, and rows of fewer than three sentences, have no
    target.

    A row takes the place of the paper's minibatch of 400 contiguous sentences. The candidates therefore do
    not depend on the batch size, the micro-batch size or the number of workers, and longer rows have more of
    them.

    Needs shards with `sentences`. Sentences with fewer than `min_tokens` tokens are left out, and the
    sentences on either side of them then count as neighbours. `pooling` says how the vector is computed, as
    in `trainers similarity`: it is the state of the `first` token, or the `mean` of the states between the
    marks.

    The paper has no temperature, because the states of its GRU are between -1 and 1. In a transformer, the
    last norm makes a state about sqrt(width) long, so the inner products initially differ widely. At a high
    learning rate, training then soon makes all vectors equal, where the gradient is 0. A temperature above 1
    reduces the differences and avoids this.

    One encoder reads both a sentence and its candidates; the paper has two encoders with separate parameters,
    and concatenates their vectors. The authors' code (lajanugen/S2V) leaves the sentence itself among the
    candidates, with an inner product of 0; here it is not a candidate. With packing `full_sentences`, rows
    continue from one document to the next, and only sentences longer than a row are cut. With
    `doc_sentences`, all candidates are of one document, which is harder.
    """

    temperature: float = 1.0
    pooling: Literal["first", "mean"] = "mean"
    min_tokens: int = 4
    kind: Literal["quick_thought"] = "quick_thought"

    families: ClassVar[tuple[str, ...]] = ("encoder",)
    needs_sentences: ClassVar[bool] = True
    least_sentences: ClassVar[int] = 2

    def check(self) -> None:
        """Raise ValueError if `temperature` or `min_tokens` is out of range."""
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature: got {self.temperature}, allowed above 0; the paper has 1")
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens: got {self.min_tokens}, allowed 1 or more")

    @property
    def frame(self) -> Frame:
        return Frame(CLS, SEP)

    @property
    def contrast(self) -> NeighbourContrast:
        return NeighbourContrast(self.pooling, self.temperature)

    @property
    def least_tokens(self) -> int:
        return self.min_tokens

    def stream_length(self, sequence_length: int, family: str) -> int:
        return stream_of_sentences(sequence_length, self.min_tokens, 1, 3, "three sentences")

    def apply(self, batch: Batch, context: Context) -> Batch:
        return sentence_rows(batch, context, self.min_tokens)
