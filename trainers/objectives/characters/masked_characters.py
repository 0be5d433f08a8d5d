"""Autoregressive modelling of masked characters (CANINE-C: Clark et al., 2022, section 3.2).

tokens      the   quick    brown        fox
characters  t h e _ q u i c k _ b r o w n _ f o x
read        t h e _ q u i c k M M M M M M _ f o x     a word and the space before it become one mask per character
predicted                     3 6 1 5 2 4             one after another, in a random order: r first, w second, ...
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from gristmill.compilation import kernel
from tokenizer.vocabulary.specials import CLS, MASK, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import IGNORED, PADDING, Batch, Decoder, Frame
from trainers.rows.random import uniforms

_MULTIPLE = 8  # of the number of targets of a row, so that compiled code and allocators see few shapes
_REPLACEMENT = np.int64(0xFFFD)


@dataclass(frozen=True)
class MaskedCharacters(TrainingObjective):
    """Predict the characters of masked words, one after another in a random order.

    In each document, random words are masked until they contain a share `rate` of the characters of all its
    words. The word that would exceed this share is masked with the probability that makes the mean share
    exact. A word is a run of tokens between ASCII white space. A run of more than `span_characters`
    characters, as in scripts without spaces, is divided. Each character of a masked word becomes a mask. As
    in the paper, words are never replaced with other tokens.

    The masked characters of a document are predicted in a random order. Each is predicted from the text that
    is not masked and from the characters that precede it in this order. The class to predict is the
    character's code point modulo `model.character_buckets`. Requires `model.character_buckets` and
    architecture canine.

    In most vocabularies, the space before a word is part of the word's first token, and is then masked and
    predicted with the word; the paper's spans end at white space. White space that is a token by itself is
    not masked.
    """

    rate: float = 0.15
    span_characters: int = 32
    kind: Literal["masked_characters"] = "masked_characters"

    families: ClassVar[tuple[str, ...]] = ("encoder",)
    needs_character_counts: ClassVar[bool] = True
    predicts_characters: ClassVar[bool] = True

    def check(self) -> None:
        """Raise ValueError if `rate` or `span_characters` is out of range."""
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate: got {self.rate}, allowed above 0 and at most 1")
        if self.span_characters < 1:
            raise ValueError(f"span_characters: got {self.span_characters}, allowed 1 or more")

    @property
    def frame(self) -> Frame:
        return Frame(CLS, SEP)

    def apply(self, batch: Batch, context: Context) -> Batch:
        """Return the batch with words masked, and with the masked characters as targets in the order of
        prediction.
        """
        assert context.spelled is not None
        assert context.character_counts is not None
        assert context.character_buckets is not None
        special = np.zeros(max(context.vocab_size, *context.specials.values()) + 1, dtype=bool)
        special[list(context.specials.values())] = True
        counts = np.pad(context.character_counts, (0, len(special) - len(context.character_counts)))[batch.inputs]
        text = context.spelled.content, context.spelled.offsets
        words = np.full(batch.inputs.shape, -1, dtype=np.int64)
        divide_words(batch.inputs, batch.segments, special, *text, counts, self.span_characters, words)
        draws = uniforms(context.seed, batch.sample, batch.inputs.shape[1], "masked_characters/word")
        size = uniforms(context.seed, batch.sample, batch.inputs.shape[1], "masked_characters/last")
        chosen = _choose(words, batch.segments, counts, self.rate, draws, size)
        most = int((chosen * counts).sum(1).max(initial=0))
        shape = len(chosen), max(_MULTIPLE, -(-most // _MULTIPLE) * _MULTIPLE)
        columns, codes = np.full(shape, -1, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
        places, segments = np.zeros(shape, dtype=np.int64), np.full(shape, PADDING, dtype=np.int64)
        order = uniforms(context.seed, batch.sample, shape[1], "masked_characters/order")
        read_characters(batch.inputs, batch.segments, special, *text, chosen, columns, places, codes, segments)
        # Entries without a character stay at the end.
        ranked = np.argsort(np.where(columns >= 0, order, 2.0), axis=1, kind="stable")
        columns, places, codes, segments = (
            np.take_along_axis(array, ranked, axis=1) for array in (columns, places, codes, segments)
        )
        there = columns >= 0
        codes = np.where(there, codes % context.character_buckets, IGNORED)
        ranks = np.where(there, np.arange(shape[1]), 0)
        return replace(
            batch,
            inputs=np.where(chosen & (counts > 0), context.special(MASK), batch.inputs),
            covered=np.where(chosen, counts, 0),
            targets=codes,
            decoder=Decoder(np.where(there, codes, 0), ranks, segments),
            factorization=columns,
            read=places,
        )


def _choose(
    words: np.ndarray, segments: np.ndarray, counts: np.ndarray, rate: float, draws: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """Return which tokens are masked, bool [rows, length].

    `words`, `segments` and `counts`, int64 [rows, length], give for each token the first column of its word
    (-1 for none), its document (-1 for padding) and its number of characters. The words of a document are
    taken in ascending order of `draws` until they contain a share `rate` of the characters of all its words;
    `last` decides whether the word that would exceed this share is taken. `draws` and `last` are uniform
    numbers, float64 [rows, length], and are read at the first column of each word.
    """
    rows, length = words.shape
    places = np.arange(rows)[:, None] * length
    sizes = np.bincount((places + words)[words >= 0], weights=counts[words >= 0], minlength=rows * length)
    heads = np.flatnonzero(sizes)
    document = (places + segments).ravel()[heads]
    order = np.lexsort((draws.ravel()[heads], document))
    heads, document = heads[order], document[order]
    whole = np.cumsum(sizes[heads])
    totals = np.bincount(document, weights=sizes[heads], minlength=rows * length)
    first = np.cumsum(totals) - totals  # characters of earlier documents
    before = whole - sizes[heads] - first[document]
    taken = before + last.ravel()[heads] * sizes[heads] < rate * totals[document]
    mask = np.zeros(rows * length + 1, dtype=bool)
    mask[heads[taken]] = True
    return mask[np.where(words >= 0, places + words, rows * length)]


@kernel(nogil=True)
def _is_space(byte: int) -> bool:
    return byte == 32 or 9 <= byte <= 13


@kernel(nogil=True)
def divide_words(
    inputs: np.ndarray,
    segments: np.ndarray,
    special: np.ndarray,
    content: np.ndarray,
    offsets: np.ndarray,
    counts: np.ndarray,
    longest: int,
    words: np.ndarray,
) -> None:
    """Write the first column of each token's word to `words`, int64 [rows, length]. `words` must be filled
    with -1 beforehand; special tokens, padding and white space keep this value.

    A word begins at the start of a document, at or after white space, after a special token, and at a token
    that would make the word before it longer than `longest` characters.

    `content`, uint8, holds the bytes of all tokens of the vocabulary, and `offsets`, int64 [tokens + 1], the
    position in `content` where each token begins. `counts`, int64 [rows, length], is the number of characters
    of each token of the rows.
    """
    for row in range(len(inputs)):
        first, size = -1, 0
        for column in range(inputs.shape[1]):
            token = inputs[row, column]
            if column > 0 and segments[row, column] != segments[row, column - 1]:
                first = -1
            if segments[row, column] < 0 or special[token]:
                first = -1
                continue
            start, end = offsets[token], offsets[token + 1]
            blank = True
            for k in range(start, end):
                blank = blank and _is_space(content[k])
            if blank:
                first = -1
                continue
            if first < 0 or _is_space(content[start]) or size + counts[row, column] > longest:
                first, size = column, 0
            words[row, column] = first
            size += counts[row, column]
            if _is_space(content[end - 1]):
                first = -1


@kernel(nogil=True)
def read_characters(
    inputs: np.ndarray,
    segments: np.ndarray,
    special: np.ndarray,
    content: np.ndarray,
    offsets: np.ndarray,
    chosen: np.ndarray,
    columns: np.ndarray,
    places: np.ndarray,
    codes: np.ndarray,
    owners: np.ndarray,
) -> None:
    """Find the characters that begin in the `chosen` tokens, bool [rows, length], and write them to four
    arrays, int64 [rows, targets], in the order of the text. `columns` receives the column of each character's
    token, `places` the number of characters before it in this token, `codes` its code point, and `owners` its
    document. Entries after the last character of a row are left as they are.

    The bytes of a character may be spread over several tokens. A character that is cut off counts as U+FFFD.
    """
    length = inputs.shape[1]
    for row in range(len(inputs)):
        number = 0
        for column in range(length):
            if not chosen[row, column]:
                continue
            place, end = 0, offsets[inputs[row, column] + 1]
            for start in range(offsets[inputs[row, column]], end):
                lead = np.int64(content[start])
                if lead & 0xC0 == 0x80:
                    continue
                following = 0 if lead < 0x80 else 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
                code = lead if following == 0 else lead & (0x3F >> following)
                at, k, last = column, start + 1, end
                while following > 0:
                    while k == last:  # the character goes on in the next token
                        at += 1
                        if at == length or segments[row, at] != segments[row, column] or special[inputs[row, at]]:
                            break
                        k, last = offsets[inputs[row, at]], offsets[inputs[row, at] + 1]
                    if k == last or np.int64(content[k]) & 0xC0 != 0x80:
                        code, following = _REPLACEMENT, 0
                    else:
                        code, k, following = code << 6 | np.int64(content[k]) & 0x3F, k + 1, following - 1
                columns[row, number], places[row, number] = column, place
                codes[row, number], owners[row, number] = code, segments[row, column]
                number, place = number + 1, place + 1
