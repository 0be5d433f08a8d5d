"""Translation language modelling (XLM: Conneau and Lample, 2019, section 3.4): the two sides of a pair are
read as one text, and tokens of both sides are masked, so that one language helps to predict the other.

    source     the curtains were blue
    target     les rideaux étaient bleus
    tokens     <cls> the <mask> were  blue <sep> les rideaux <mask> bleus <sep>
    positions  0     1   2      3     4    5     0   1       2      3     4
    types      0     0   0      0     0    0     1   1       1      1     1
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.masking import Masking
from trainers.objectives.shared.pairs import check_length, documents_of
from trainers.rows.batch import IGNORED, PADDING, Batch, Frame, Room

_MARKS = 3  # <cls>, and <sep> after each side
_MULTIPLE = 8


@dataclass(frozen=True)
class TranslationLM(Masking):
    """Predict masked tokens of a text and of its translation, each token from both texts.

    `<cls>` precedes the source and `<sep>` follows each side, as models read pairs of texts in fine-tuning.
    With `data.isolation`, positions restart at 0 with the target, except in deberta, deberta_v2 and models
    with `position: relative`, which measure distances along the row, and in canine, which counts characters.
    Token types tell the sides apart in models that have token types. They act as XLM's language embeddings if
    all pairs have the same two languages. Tokens of both sides are chosen as in `masked`, which documents the
    fields.

    A document without a target is read as in `masked`, with type 0. The paper alternates batches of pairs
    with batches of one language; here the weights of the sources mix them. Needs shards with `target`.

    A pair that is longer than a row is cut. The piece in a row is read even if it is a part of only one side,
    and the tokens of the target keep type 1. With `data.packing: best_fit` or `documents`, all other pairs
    are whole.
    """

    kind: Literal["translation_lm"] = "translation_lm"

    needs_pairs: ClassVar[bool] = True
    rewrites_rows: ClassVar[bool] = True

    @property
    def frame(self) -> Frame:
        """An empty frame: the objective writes all marks itself, including the one between the two sides of a
        pair.
        """
        return Frame(None, None)

    def room(self, sequence_length: int, family: str, lead: int = 0) -> Room:
        """Return the capacity of a row. Every document counts as a pair, because pairs have the most marks.
        `lead` must be 0.
        """
        assert lead == 0, "no token leads a text of an encoder"
        return Room(np.arange(max(0, sequence_length - _MARKS) + 1, dtype=np.int64) + _MARKS, sequence_length)

    def stream_length(self, sequence_length: int, family: str) -> int:
        length = self.room(sequence_length, family).length
        check_length(length, sequence_length)
        return length

    def apply(self, batch: Batch, context: Context) -> Batch:
        return super().apply(_pair_rows(batch, context), context)


def _pair_rows(batch: Batch, context: Context) -> Batch:
    """Return the documents of a batch with their marks, positions and token types. No token is a target yet."""
    assert batch.in_target is not None
    documents = documents_of(batch, context)
    text, in_target = documents.content, batch.in_target[documents.text]
    owner = np.repeat(np.arange(len(text.sizes)), text.sizes)
    of_target = np.bincount(owner, in_target, minlength=len(text.sizes)).astype(np.int64)
    of_source = text.sizes - of_target
    # <cls> and <sep> belong to the side that they enclose: a document has the marks of two sides only if it is a pair.
    first = 1 + np.where(of_source > 0, of_source, of_target) + 1
    second = np.where((of_source > 0) & (of_target > 0), of_target + 1, 0)
    sizes = first + second
    count = len(batch.inputs)
    held = np.bincount(documents.rows, sizes, minlength=count).astype(np.int64)
    width = -(-int(held.max(initial=1)) // _MULTIPLE) * _MULTIPLE
    begins = np.cumsum(sizes) - sizes - (np.cumsum(held) - held)[documents.rows]  # the column of each document

    number = np.repeat(np.arange(len(sizes)), sizes)
    inside = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    in_second = inside >= first[number]
    there = (documents.rows[number], begins[number] + inside)
    shape = (count, width)
    inputs, segments = np.full(shape, context.padding, np.int64), np.full(shape, PADDING, np.int64)
    positions, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    is_cls = inside == 0
    is_sep = (inside == first[number] - 1) | (inside == sizes[number] - 1)
    tokens = np.where(is_sep, context.special(SEP), context.special(CLS))
    tokens[~(is_cls | is_sep)] = text.tokens
    inputs[there], segments[there] = tokens, documents.segments[number]
    positions[there] = np.where(in_second, inside - first[number], inside)
    types[there] = in_second | (of_source == 0)[number] & (of_target > 0)[number]
    return replace(
        batch,
        inputs=inputs,
        targets=np.full(shape, IGNORED, np.int64),
        positions=positions,
        segments=segments,
        token_types=types,
        in_target=None,
    )
