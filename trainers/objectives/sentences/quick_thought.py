"""Contrastive learning of sentence vectors from neighbouring sentences (quick thoughts: Logeswaran and Lee, 2018, section 3).

stream   ...  the quick fox .  it ran away .  nobody saw it .  ...
row      <cls> the quick fox . <sep>  <cls> it ran away . <sep>  <cls> nobody saw it . <sep>
segment  0                            1                          2

Of all other sentences of its row, a sentence has to find those before and after it.
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
    """Find the neighbours of a sentence among the other sentences of its row, by the inner products of their vectors.

    A row holds whole sentences, each by itself: nothing attends beyond a sentence. The loss of sentence i with neighbour k is
    -log(exp(v_i . v_k / t) / sum_j exp(v_i . v_j / t)), where v are the vectors, t is `temperature`, and j runs over the other
    sentences of the row, which the paper calls a minibatch of contiguous sentences (400 there). The loss of a sentence is the
    mean over the neighbours that it has in its row and its document, one or two. So the candidates are the same however large
    the batch and the micro-batch are and however many workers train; longer rows have more. Rows of two sentences, and
    documents of one, have no target.

    Needs shards with `sentences`. Sentences with fewer than `min_tokens` tokens are left out, and those around one are then
    neighbours. `pooling` says which states are the vector, as in `trainers similarity`: that of the `first` token, or the
    `mean` of the tokens between the marks. The paper has no temperature: the states of its GRU are between -1 and 1. The last
    norm of a transformer makes a state about sqrt(width) long, so its inner products begin far apart, and at a high rate
    training soon makes all vectors equal, where the gradient is 0. A temperature above 1 brings them together without that.

    Differs from the paper in that one encoder reads both a sentence and its candidates, not two with parameters of their own,
    whose vectors are concatenated. The authors' code (lajanugen/S2V) leaves the sentence itself among the candidates, with an
    inner product of 0; here it is none. With packing `full_sentences` rows go on from one document to the next, and only
    sentences longer than a row are cut; with `doc_sentences` all candidates are of one document, which is harder.
    """

    temperature: float = 1.0
    pooling: Literal["first", "mean"] = "mean"
    min_tokens: int = 4
    kind: Literal["quick_thought"] = "quick_thought"

    families: ClassVar[tuple[str, ...]] = ("encoder",)
    needs_sentences: ClassVar[bool] = True
    least_sentences: ClassVar[int] = 2

    def check(self) -> None:
        """Validate ranges."""
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature: got {self.temperature}, allowed above 0; the paper has 1")
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens: got {self.min_tokens}, allowed 1 or more")

    @property
    def frame(self) -> Frame:
        """`<cls>` before every document and `<sep>` after it. Rows have them around every sentence instead."""
        return Frame(CLS, SEP)

    @property
    def contrast(self) -> NeighbourContrast:
        """The pooling and the temperature."""
        return NeighbourContrast(self.pooling, self.temperature)

    @property
    def least_tokens(self) -> int:
        """Those of a sentence."""
        return self.min_tokens

    def stream_length(self, sequence_length: int, family: str) -> int:
        """Return the number of tokens of the stream whose sentences fit in a row, with their marks, if all are as short as
        allowed. Raises ConfigError if three do not fit.
        """
        return stream_of_sentences(sequence_length, self.min_tokens, 1, 3, "three sentences")

    def apply(self, batch: Batch, context: Context) -> Batch:
        """Return rows of sentences, each between marks."""
        return sentence_rows(batch, context, self.min_tokens)
