"""The inputs of a model for a task's examples: slices of encoded texts, without special tokens.

    Examples -> EncodedTexts -> TaskInputs -> rows of a Batch
     (texts)       (ids)         (slices)     (task_rows.py)

An input is one segment (a text or a pair), or one segment per candidate of a multiple choice. An example is
one input, or one input per window of a long text.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from gristmill.compilation import kernel
from trainers.data.examples.text_format import TextFormat
from trainers.data.examples.truncation import Truncation

InputKind = Literal["classify", "regress", "tag", "span", "choose", "text_to_text"]


@dataclass(frozen=True)
class TextSlices:
    """s segments, each of one or two texts: text t of segment i is `tokens[t][begins[t, i] : begins[t, i] +
    sizes[t, i]]`. `tokens` holds an int32 array for each t; `begins` and `sizes` are int64 [texts, s].
    """

    tokens: tuple[np.ndarray, ...]
    begins: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return self.sizes.shape[1]


@dataclass(frozen=True)
class Rendered:
    """Segments with their special tokens: segment i is `ids[offsets[i] : offsets[i + 1]]`. `part` is 0 for
    special tokens, and 1 or 2 for tokens of the first or second text. All are int64.
    """

    ids: np.ndarray
    part: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class TaskInputs:
    """The n inputs of a split. Input i belongs to example `example[i]`, and its segments are `offsets[i]` to
    `offsets[i + 1] - 1`. The gold of each kind of task is in its own fields:

    - `labels`, int64 [n]: for classify, the class; for choose, the index of the right candidate. It is -100 if the
      gold is hidden or no candidate is right.
    - `values`, float64 [n]: for regress, the number; NaN if hidden.
    - `word_offsets`, `words`, `word_tokens` and `tags`: for tag, input i predicts the words at `word_offsets[i]` to
      `word_offsets[i + 1] - 1` of three flat arrays. `words` holds the index of each word in the split,
      `word_tokens` the position of its first token in the segment, not counting virtual tokens, and `tags` its
      tag, -100 if hidden.
    - `answers`, int64 [n, 2]: for span, the positions of the answer's first and last token in the segment, not
      counting virtual tokens, or -1 if the window does not contain the whole answer. It is None if the gold is
      hidden.

    For span, `token_starts` and `token_ends` delimit the bytes of the passage that each token comes from.
    """

    name: str
    kind: InputKind
    format: TextFormat
    segments: TextSlices
    offsets: np.ndarray
    example: np.ndarray
    truncation: Truncation
    labels: np.ndarray | None = None
    values: np.ndarray | None = None
    word_offsets: np.ndarray | None = None
    words: np.ndarray | None = None
    word_tokens: np.ndarray | None = None
    tags: np.ndarray | None = None
    answers: np.ndarray | None = None
    token_starts: np.ndarray | None = None
    token_ends: np.ndarray | None = None
    text_bytes: int = 0

    def __len__(self) -> int:
        return len(self.example)

    @property
    def reads(self) -> int:
        """The number of input texts in each segment, 1 or 2. In text to text, it is 1: the target does not
        count.
        """
        return 1 if self.kind == "text_to_text" else len(self.segments.tokens)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of positions of each segment, int64 [s], not counting virtual tokens or, in an
        encoder-decoder, the decoder's positions. In text to text, a decoder's segment includes the target
        without its last token.
        """
        form, sizes = self.format, self.segments.sizes
        lengths: np.ndarray = form.marks(self.reads) + sizes[: self.reads].sum(axis=0)
        return lengths + self.target_lengths - 1 if self._continues else lengths

    @cached_property
    def target_lengths(self) -> np.ndarray:
        """The number of positions of each segment's target, special tokens included, int64 [s]; 0 for kinds
        other than text to text.
        """
        if self.kind != "text_to_text":
            return np.zeros(len(self.segments), np.int64)
        marks = len(self.format.target_before) + len(self.format.target_after)
        lengths: np.ndarray = self.segments.sizes[1] + marks
        return lengths

    @property
    def _continues(self) -> bool:
        """Whether the target follows the source in the same row."""
        return self.kind == "text_to_text" and self.format.decoder_start is None

    @cached_property
    def sizes(self) -> np.ndarray:
        """The number of positions of each input, int64 [n], virtual tokens included. In an encoder-decoder,
        only the encoder's positions count.
        """
        ends = np.concatenate([[0], np.cumsum(self.lengths + self.format.virtual_tokens)])
        sizes: np.ndarray = ends[self.offsets[1:]] - ends[self.offsets[:-1]]
        return sizes

    def segments_of(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the segments of the inputs at the indices `inputs`, in that order, and for
        each segment the position of its input in `inputs`.
        """
        counts = np.diff(self.offsets)[inputs]
        owner = np.repeat(np.arange(len(inputs)), counts)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.offsets[inputs][owner] + within, owner

    def render(self, chosen: np.ndarray) -> Rendered:
        """Return the texts of the segments `chosen` (in text to text, only their sources), with special
        tokens but without virtual tokens.
        """
        form = self.format
        marks = (form.before, form.between if self.reads == 2 else (), form.after)
        return _rendered(self.segments, chosen, range(self.reads), marks)

    def render_targets(self, chosen: np.ndarray) -> Rendered:
        """Return the targets of the segments `chosen`, with special tokens. Valid only for text to text."""
        return _rendered(self.segments, chosen, range(1, 2), (self.format.target_before, (), self.format.target_after))


def _rendered(
    segments: TextSlices,
    chosen: np.ndarray,
    texts: range,
    marks: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> Rendered:
    begins, sizes = segments.begins[texts.start : texts.stop, chosen], segments.sizes[texts.start : texts.stop, chosen]
    specials = np.array([mark for each in marks for mark in each], dtype=np.int64)
    counts = np.array([len(each) for each in marks])
    offsets = np.concatenate([[0], np.cumsum(sizes.sum(axis=0) + len(specials))])
    ids, part = np.empty((2, offsets[-1]), np.int64)
    first, second = segments.tokens[texts.start], segments.tokens[texts.stop - 1]
    _render(first, second, begins, sizes, specials, counts, ids, part)
    return Rendered(ids, part, offsets)


@kernel(nogil=True)
def _render(
    first: np.ndarray,
    second: np.ndarray,
    begins: np.ndarray,
    sizes: np.ndarray,
    specials: np.ndarray,
    counts: np.ndarray,
    ids: np.ndarray,
    part: np.ndarray,
) -> None:
    at = 0
    for i in range(begins.shape[1]):
        special = 0
        for piece in range(3):
            for _ in range(counts[piece]):
                ids[at], part[at] = specials[special], 0
                at, special = at + 1, special + 1
            if piece < begins.shape[0]:
                tokens = first if piece == 0 else second
                for k in range(begins[piece, i], begins[piece, i] + sizes[piece, i]):
                    ids[at], part[at] = tokens[k], piece + 1
                    at += 1
