"""Masked language modelling: BERT (Devlin et al., 2019, section 3.1) with RoBERTa's dynamic masks (Liu et
al., 2019), whole words, SpanBERT's spans (Joshi et al., 2020, section 3.1) and REALM's salient spans (Guu et
al., 2020, section 3.4).
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.masking import Masking
from trainers.rows.batch import IGNORED, Batch, Frame


@dataclass(frozen=True)
class Masked(Masking):
    """Predict masked tokens from the text on both sides of them.

    In each document, a share `rate` of the tokens that are not special is chosen. Of the chosen tokens, a
    share `mask_share` is replaced with `<mask>`, a share `random_share` with random tokens that are not
    special, and the rest stay unchanged. The loss is taken at all chosen tokens. `unit` says what is chosen:
    single `tokens`, whole `words`, `spans` of words, or `salient` spans. In scripts without spaces between
    words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) each token is a word. The length of a span is
    geometric with parameter `span_p`, at most `span_words` words (SpanBERT's 0.2 and 10 give a mean of 3.8
    words). With `words`, each token is replaced independently of the other tokens of its word. With `spans`,
    all tokens of a span are replaced in the same way.

    `unit: salient` chooses among the dates and names of a document, which the column `spans` of the shards
    contains (REALM: Guu et al., 2020, section 3.4). It chooses max(round(`rate` n), 1) of the document's n
    spans, all with the same probability, so a small rate chooses one. A document without spans has no
    targets. All tokens of a span are replaced in the same way. For masks only, as in REALM, set `mask_share`
    to 1 and `random_share` to 0.

    By default a mask is a function of the seed and the sample's number, so a sequence gets a new mask in
    every epoch. With `copies`, a sequence cycles through that many masks: each is a function of the seed, the
    sequence and the epoch modulo `copies`. BERT made 10 copies of its data and trained for 40 epochs, so it
    saw each mask 4 times.

    With `marks: documents`, `<cls>` precedes and `<sep>` follows every document. With `marks: rows`, `<cls>`
    begins every row and `<sep>` follows every document, as in RoBERTa's full sentences (Liu et al., 2019,
    section 4.2).
    """

    marks: Literal["documents", "rows"] = "documents"
    kind: Literal["masked"] = "masked"

    masks_salient: ClassVar[bool] = True

    @property
    def frame(self) -> Frame:
        return Frame(CLS if self.marks == "documents" else None, SEP)

    def stream_length(self, sequence_length: int, family: str) -> int:
        return sequence_length - (self.marks == "rows")

    def apply(self, batch: Batch, context: Context) -> Batch:
        return super().apply(prepend_mark(batch, context.special(CLS)) if self.marks == "rows" else batch, context)


def prepend_mark(batch: Batch, mark: int) -> Batch:
    """Return the batch with `mark` inserted at the beginning of every row that contains a document, as part
    of the row's first document.
    """
    first = batch.segments[:, :1]
    there = first >= 0
    inputs = np.concatenate([np.where(there, mark, batch.inputs[:, :1]), batch.inputs], axis=1)
    targets = np.concatenate([np.full_like(first, IGNORED), batch.targets], axis=1)
    segments = np.concatenate([first, batch.segments], axis=1)
    spans = None
    if batch.spans is not None:
        spans = np.concatenate([np.full_like(batch.spans[:, :1], -1), batch.spans], axis=1)
    moved = batch.positions + ((batch.segments == first) & there)
    positions = np.concatenate([np.zeros_like(first), moved], axis=1)
    return replace(batch, inputs=inputs, targets=targets, segments=segments, positions=positions, spans=spans)
