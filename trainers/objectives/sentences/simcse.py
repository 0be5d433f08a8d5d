"""Contrastive learning of sentence vectors (SimCSE without labels: Gao et al., 2021, section 3).

stream   ...  the quick fox .  it ran away .  ...
row      <cls> the quick fox . <sep>  <cls> the quick fox . <sep>  <cls> it ran away . <sep>  <cls> it ran away . <sep>
segment  0                            1                            2                          3

The two copies of a sentence differ in what dropout leaves out. Of the second copies in its row, the first copy has to find
its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from gristmill.errors import ConfigError
from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.ragged import Ragged
from trainers.objectives.shared.training_objective import Contrast, TrainingObjective
from trainers.rows.batch import IGNORED, PADDING, Batch, Frame

_MULTIPLE = 8


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
    def contrast(self) -> Contrast:
        """The pooling and the temperature."""
        return Contrast(self.pooling, self.temperature)

    @property
    def needs_sentences(self) -> bool:
        """Whether the unit is `sentences`."""
        return self.unit == "sentences"

    def stream_length(self, sequence_length: int, family: str) -> int:
        """Return the number of tokens of the stream whose sentences fit in a row twice, with their marks, if all are as short as
        allowed. Raises ConfigError if two do not fit.
        """
        least = 4 * (self.min_tokens + 2)
        if sequence_length < least:
            raise ConfigError(
                f"data.sequence_length: got {sequence_length}, too short for two sentences of {self.min_tokens} tokens, each "
                f"twice and with its marks; allowed {least} or more, or lower objective.min_tokens"
            )
        return sequence_length * self.min_tokens // (2 * (self.min_tokens + 2))

    def apply(self, batch: Batch, context: Context) -> Batch:
        """Return rows of sentences, each between marks and twice. Rows are as long as the fullest, rounded up to a multiple of
        8.
        """
        cls, sep = context.special(CLS), context.special(SEP)
        texts, rows, documents = self._texts(batch, (cls, sep))
        texts = texts.with_marks(cls, sep)
        sizes, rows, documents = (np.repeat(each, 2) for each in (texts.sizes, rows, documents))
        ends = np.cumsum(sizes)
        begins, count = ends - sizes, len(batch.inputs)
        held = np.bincount(rows, minlength=count)
        first = (np.cumsum(held) - held)[rows]  # the number of the first copy in the row of each
        width = -(-int(np.bincount(rows, sizes, minlength=count).max(initial=1)) // _MULTIPLE) * _MULTIPLE
        inside = np.arange(sizes.sum()) - np.repeat(begins, sizes)
        columns = inside + np.repeat(begins - begins[first], sizes) if len(sizes) else inside
        there = (np.repeat(rows, sizes), columns)
        inputs = np.full((count, width), context.padding, np.int64)
        positions, segments = np.zeros_like(inputs), np.full_like(inputs, PADDING)
        origin = segments.copy()
        inputs[there] = texts.tokens[inside + np.repeat(np.repeat(texts.offsets[:-1], 2), sizes)]
        positions[there], origin[there] = inside, np.repeat(documents, sizes)
        segments[there] = np.repeat(np.arange(len(sizes)) - first, sizes)
        targets = np.full_like(inputs, IGNORED)
        return replace(
            batch,
            inputs=inputs,
            targets=targets,
            positions=positions,
            segments=segments,
            documents=origin,
            sentence_starts=None,
        )

    def _texts(self, batch: Batch, marks: Sequence[int]) -> tuple[Ragged, np.ndarray, np.ndarray]:
        """Return the sentences of a batch that are long enough, without marks, and the row and the document of each."""
        starts = np.ones(batch.segments.shape, dtype=bool)
        starts[:, 1:] = batch.segments[:, 1:] != batch.segments[:, :-1]
        if batch.sentence_starts is not None:
            starts |= batch.sentence_starts
        number = np.cumsum(starts.ravel()) - 1
        is_text = (batch.segments != PADDING) & ~np.isin(batch.inputs, marks)
        sizes = np.bincount(number[is_text.ravel()], minlength=number[-1] + 1)
        kept = sizes >= self.min_tokens
        tokens = batch.inputs[is_text & kept[number].reshape(starts.shape)]
        rows, columns = (at[kept] for at in np.nonzero(starts))
        return Ragged(tokens, np.concatenate([[0], np.cumsum(sizes[kept])])), rows, batch.segments[rows, columns]
