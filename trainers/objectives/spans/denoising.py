"""Denoising (BART: Lewis et al., 2020, section 2.2): up to five kinds of noise corrupt a document, and the
target is the original.

For "A B C . D E ." with the mask M:

    sentence permutation   D E . A B C .      sentences in random order
    document rotation      C . D E . A B      starts at a random token
    token deletion         A C . E .          random tokens are removed
    token masking          A M C . M E .      random tokens become masks
    text infilling         A M . D M E .      each span, even one of length 0, becomes a single mask

The noises are applied in the order of this list. The paper's large models permute all sentences, then infill
30 % of the tokens.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from gristmill.compilation import kernel
from gristmill.errors import UserError
from tokenizer.vocabulary.specials import MASK
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.pairs import Documents, PairObjective, Pairs, documents_of
from trainers.objectives.shared.prompt_format import PromptFormat, replace_text
from trainers.objectives.shared.ragged import Ragged
from trainers.rows.batch import Batch, Frame

_LONGEST = 1 << 10  # tokens in a span; for the allowed means the Poisson tail beyond this is negligible


@dataclass(frozen=True)
class Denoising(PairObjective):
    """Corrupt documents with BART's noises and predict the originals. A noise is off when its share is 0 or
    its switch is false. Every document has a target, even if no noise changed it.

    `masking` and `deletion` are probabilities per token. `infilling` is the share of a document's tokens,
    rounded to whole tokens, that is removed in spans of Poisson(`mean_span`) tokens. Lengths are drawn until
    they add up to the number of tokens to remove, and the last length is cut to fit. The spans are placed
    uniformly among the other tokens, and each leaves one mask. A span of length 0 inserts a mask. If the row
    has no room for more masks, the last span takes all tokens still to be removed.

    `permute_sentences` needs shards with sentence boundaries; a row that continues a document may begin in
    the middle of a sentence. With `rotate`, a document starts at a random token, and the tokens before it
    move to the end. In a decoder, `bidirectional_prefix` lets the positions of the input see one another in
    both directions, and `loss_on_prefix` adds the tokens of the input to the loss.
    """

    kind: Literal["denoising"] = "denoising"
    infilling: float = 0.3
    mean_span: float = 3.0
    masking: float = 0.0
    deletion: float = 0.0
    permute_sentences: bool = True
    rotate: bool = False
    bidirectional_prefix: bool = False
    loss_on_prefix: bool = False

    frame: ClassVar[Frame] = Frame(None, None)
    families: ClassVar[tuple[str, ...]] = ("encoder_decoder", "decoder")

    @property
    def needs_sentences(self) -> bool:
        return self.permute_sentences

    def text_frame(self, family: str) -> Frame:
        return Frame("<bos>", "<eos>") if family == "encoder_decoder" else super().text_frame(family)

    @property
    def prompt_format(self) -> PromptFormat:
        gap = MASK if self.infilling or self.masking else None
        return PromptFormat(names=(MASK,), gap=gap, closed=True, answer=replace_text)

    def check(self) -> None:
        """Raise ValueError if a field is out of range, if all noises are off, or if options are incompatible."""
        for name in ("infilling", "masking", "deletion"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed 0 (none) or more and below 1")
        if not 1 <= self.mean_span <= 100:
            raise ValueError(
                f"mean_span: got {self.mean_span}, allowed 1 to 100: shorter spans insert more than they remove"
            )
        if not (self.infilling or self.masking or self.deletion or self.permute_sentences or self.rotate):
            raise ValueError(
                "infilling: got 0 and no other noise; set one of the noises, or use the objective prefix_lm"
            )
        self.check_prefix()

    def rendered(self, tokens: int, family: str) -> int:
        """Return the number of positions that a document of `tokens` tokens and its two marks take. In a
        decoder-only model, the noisy and the original text share a row, so the tokens count twice. No
        positions are reserved for masks that noise inserts: a document grows only where its row has free
        positions.
        """
        return tokens + 2 if family == "encoder_decoder" else 2 * tokens + 2

    def pairs(self, batch: Batch, context: Context) -> Pairs:
        documents = documents_of(batch, context)
        bos, eos = context.special("<bos>") if context.family == "encoder_decoder" else None, context.special("<eos>")
        original = documents.content
        noisy = self._noisy(batch, documents, context).with_marks(bos, eos)
        return documents.pairs(noisy, original.with_marks(bos, eos, original.sizes > 0))

    def _noisy(self, batch: Batch, documents: Documents, context: Context) -> Ragged:
        original = text = documents.content
        if self.permute_sentences:
            if batch.sentence_starts is None:
                raise UserError(
                    "objective.permute_sentences: the shards do not say where sentences begin; build the corpus with the "
                    "column `sentences`, or set this to false"
                )
            starts = batch.sentence_starts[documents.text]
            text = shuffle_sentences(text, starts, documents.per_token(context, "denoising/sentences"))
        if self.rotate:
            text = rotate_documents(text, documents.per_document(context, "denoising/rotation")[:, 0])
        if self.deletion:
            text = delete_tokens(text, documents.per_token(context, "denoising/deletion") < self.deletion)
        if self.masking or self.infilling:
            mask = context.special(MASK)
        if self.masking:
            chosen = _first(documents.per_token(context, "denoising/masking"), original, text) < self.masking
            text = Ragged(np.where(chosen, mask, text.tokens), text.offsets)
        if self.infilling:
            lengths = documents.per_token(context, "denoising/lengths")
            places = documents.per_token(context, "denoising/places", 2)
            # In a mixture a mode token may precede each document, hence the 1.
            needed = [1 + self.rendered(size, context.family) for size in original.sizes.tolist()]
            taken = np.bincount(documents.rows, needed, minlength=len(batch.inputs)).astype(np.int64)
            free = np.maximum(0, context.sequence_length - taken)
            shares = (self.infilling, self.mean_span, mask)
            text = infill_spans(text, original.offsets, lengths, places, *shares, documents.rows, free)
        return text


def shuffle_sentences(text: Ragged, starts: np.ndarray, drawn: np.ndarray) -> Ragged:
    """Return the text with each document's sentences in random order. `starts`, bool [tokens], marks the
    first token of each sentence; `drawn`, float64 [tokens], are uniform numbers.
    """
    tokens = np.empty_like(text.tokens)
    _permute(text.tokens, text.offsets, starts, drawn, tokens)
    return Ragged(tokens, text.offsets)


def rotate_documents(text: Ragged, drawn: np.ndarray) -> Ragged:
    """Return the text with each document rotated to start at a random token. `drawn`, float64 [documents],
    are uniform numbers.
    """
    begins = (drawn * text.sizes).astype(np.int64)
    first, sizes = (np.repeat(numbers, text.sizes) for numbers in (text.offsets[:-1], text.sizes))
    inside = np.arange(len(text.tokens)) - first + np.repeat(begins, text.sizes)
    return Ragged(text.tokens[first + np.where(inside >= sizes, inside - sizes, inside)], text.offsets)


def delete_tokens(text: Ragged, chosen: np.ndarray) -> Ragged:
    """Return the text without the tokens marked in `chosen`, bool [tokens]. A document that would become
    empty keeps its first token.
    """
    before = np.concatenate([[0], np.cumsum(~chosen)])
    empty = (before[text.offsets[1:]] == before[text.offsets[:-1]]) & (text.sizes > 0)
    if empty.any():
        chosen = chosen.copy()
        chosen[text.offsets[:-1][empty]] = False
        before = np.concatenate([[0], np.cumsum(~chosen)])
    return Ragged(text.tokens[~chosen], before[text.offsets])


def infill_spans(
    text: Ragged,
    offsets: np.ndarray,
    lengths: np.ndarray,
    places: np.ndarray,
    share: float,
    mean_span: float,
    mask: int,
    rows: np.ndarray,
    free: np.ndarray,
) -> Ragged:
    """Return the text with random spans of each document replaced with one `mask` each. The spans of a
    document contain about the fraction `share` of its tokens. Their lengths are drawn from a Poisson
    distribution with mean `mean_span`; a span of length 0 inserts a mask.

    `offsets` [documents + 1] are those of the original documents, before other noise removed tokens, and
    `rows` [documents] is the row of each document. Together, the documents of row r become at most `free[r]`
    tokens longer than the originals. `lengths`, float64 [original tokens], and `places`, float64 [2 *
    original tokens], are uniform numbers that determine the lengths and the positions of the spans.
    """
    weights = np.exp(
        [
            k * math.log(mean_span) - mean_span - math.lgamma(k + 1)
            for k in range(int(min(_LONGEST, 20 + 5 * mean_span)))
        ]
    )
    # A document gets a mask per original token at most.
    tokens = np.empty(len(text.tokens) + len(lengths), dtype=np.int64)
    starts = np.zeros_like(text.offsets)
    spans = np.empty(int(np.diff(offsets).max(initial=0)) + 1, dtype=np.int64)
    drawn = (offsets, lengths, places)
    _infill(
        text.tokens, text.offsets, *drawn, share, np.cumsum(weights), mask, rows, free.copy(), spans, tokens, starts
    )
    return Ragged(tokens[: starts[-1]], starts)


def _first(drawn: np.ndarray, original: Ragged, text: Ragged) -> np.ndarray:
    """Return a uniform number for each token of `text`. A document takes the first of its numbers in `drawn`,
    which holds one for each token of `original`.
    """
    if len(text.tokens) == len(original.tokens):
        return drawn
    shift = np.repeat(original.offsets[:-1] - text.offsets[:-1], text.sizes)
    chosen: np.ndarray = drawn[np.arange(len(text.tokens)) + shift]
    return chosen


@kernel(nogil=True)
def _permute(
    tokens: np.ndarray, offsets: np.ndarray, starts: np.ndarray, drawn: np.ndarray, permuted: np.ndarray
) -> None:
    begins = np.empty(len(tokens), dtype=np.int64)
    for document in range(len(offsets) - 1):
        first, end, count = offsets[document], offsets[document + 1], 0
        for place in range(first, end):
            if starts[place] or place == first:
                begins[count] = place
                count += 1
        for last in range(count - 1, 0, -1):
            other = int(drawn[first + last] * (last + 1))
            begins[last], begins[other] = begins[other], begins[last]
        written = first
        for sentence in range(count):
            place = begins[sentence]
            while True:
                permuted[written] = tokens[place]
                written, place = written + 1, place + 1
                if place == end or starts[place]:
                    break


@kernel(nogil=True)
def _infill(
    tokens: np.ndarray,
    offsets: np.ndarray,
    drawn_offsets: np.ndarray,
    lengths: np.ndarray,
    places: np.ndarray,
    share: float,
    cumulative: np.ndarray,
    mask: int,
    rows: np.ndarray,
    free: np.ndarray,
    spans: np.ndarray,
    filled: np.ndarray,
    filled_offsets: np.ndarray,
) -> None:
    """Copy each document to `filled`, with one mask in place of each span. The positions of the spans are
    chosen by selection sampling (Knuth, The Art of Computer Programming 2, 3.4.2, algorithm S).
    """
    written = 0
    for document in range(len(offsets) - 1):
        place, size = offsets[document], offsets[document + 1] - offsets[document]
        drawn, original = drawn_offsets[document], drawn_offsets[document + 1] - drawn_offsets[document]
        left, count = int(np.rint(size * share)), 0
        kept = size - left
        most = min(original, original + free[rows[document]] - kept)
        while left > 0:
            length = 0
            while length < len(cumulative) - 1 and lengths[drawn + count] >= cumulative[length]:
                length += 1
            # If spans of length 0 use up the numbers drawn or the room, the last span takes all tokens still
            # to be removed.
            spans[count] = left if length > left or count == most - 1 else length
            left -= spans[count]
            count += 1
        spans_left, slot = count, 0
        while kept + spans_left > 0:
            if places[2 * drawn + slot] * (kept + spans_left) < spans_left:
                filled[written] = mask
                place += spans[count - spans_left]
                spans_left -= 1
            else:
                filled[written] = tokens[place]
                place += 1
                kept -= 1
            written, slot = written + 1, slot + 1
        filled_offsets[document + 1] = written
        free[rows[document]] += original - (written - filled_offsets[document])
