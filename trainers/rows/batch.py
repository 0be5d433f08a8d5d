"""The rows that a model processes in one pass (`Batch`), the special tokens around their documents (`Frame`),
and the capacity of a row when an objective adds marks (`Room`).
"""

from dataclasses import dataclass

import numpy as np

IGNORED = -100
PADDING = -1  # the segment number of padding
ORDER_COLUMNS = 8
"""With objective permutation, the number of columns of `Batch.factorization` is a multiple of this, so that compiled
code and allocators see few shapes.
"""


@dataclass(frozen=True)
class Frame:
    """The special tokens before and after every document of a stream: their names, or None for no token.

    If only `before` is set, the packer writes the targets: the target of each token is the next token, and
    that of a document's last token is `<eos>`. Otherwise the objective makes the targets.
    """

    before: str | None = None
    after: str | None = None

    @property
    def marks(self) -> int:
        """The number of marks added to each document."""
        return (self.before is not None) + (self.after is not None)


@dataclass(frozen=True)
class Room:
    """The capacity of a row when an objective adds marks to each document.

    `needed[n]`, int64 and ascending, is the number of positions to reserve for a document of n tokens; in an
    encoder-decoder, it covers the longer of the document's input and target. The documents of a row may take
    up to `positions` in total.
    """

    needed: np.ndarray
    positions: int

    @property
    def length(self) -> int:
        """The maximum number of stream positions in a row."""
        return len(self.needed) - 1


@dataclass(frozen=True)
class Decoder:
    """The rows that a decoder reads. Arrays are int64 [rows, target length]. Segments are numbered as in
    Batch.
    """

    inputs: np.ndarray
    positions: np.ndarray
    segments: np.ndarray


@dataclass(frozen=True)
class TaskTargets:
    """The positions that the head of a task reads, and the head's targets. The rows of a batch contain n
    inputs with s segments in total. An input is one segment or, in multiple choice, one segment per
    candidate. In an encoder-decoder, positions are the decoder's.

    - `number`, int64 [n]: the index of the input in its split.
    - `at`, int64 [s]: the flattened position of the segment's first or last token, whose state the head reads.
    - `owner`, int64 [rows, length]: the segment (0 to s - 1) whose text a position belongs to; -1 for special tokens
      and padding.

    The other fields are set only for the kinds of tasks that need them:

    - `labels`, int64 [n]: the class or, in multiple choice, the right candidate; -100 if the data does not give it.
    - `values`, float32 [n]: the number to predict; nan if the data does not give it.
    - `choice`, int64 [s]: the input (0 to n - 1) that a candidate belongs to; candidates are in order.
    - `tags`, int64 [rows, length]: the class of a word at its first token; -100 elsewhere, or if the data gives none.
    - `starts` and `ends`, int64 [n]: the flattened positions of the first and last token of the answer. Both equal `at`
      if the segment does not contain the whole answer, and are -100 if the data does not give it.
    - `answerable`, bool [rows, length]: the positions that an answer may cover, including `at`.
    """

    number: np.ndarray
    at: np.ndarray
    owner: np.ndarray
    labels: np.ndarray | None = None
    values: np.ndarray | None = None
    choice: np.ndarray | None = None
    tags: np.ndarray | None = None
    starts: np.ndarray | None = None
    ends: np.ndarray | None = None
    answerable: np.ndarray | None = None


@dataclass(frozen=True)
class Batch:
    """Rows for a model. Arrays are int64 unless another type is given.

    - `inputs`, `positions` and `segments`, [rows, length]. Segments number the documents of a row from 0, or the
      parts of documents if `documents` is set; padding has segment -1.
    - `targets`, [rows, length], or [rows, target length] with a `decoder`: -100 means that there is no target.
    - `source`, `sequence`, `sample` and `epoch`, [rows]: the index of the source, the index of the sequence in the
      source, the global index of the sample (-1 for a row of padding), and the number of times that the source was
      read before.
    - `decoder`: the rows that a decoder reads.
    - `prefix`, bool [rows, length]: positions that attend to one another in both directions (prefix LM).
    - `token_types`, [rows, length]: BERT's segment A (0) or B (1).
    - `labels`, [rows]: the classes of sentence pairs, -100 for none.
    - `task`: set in the batches of tasks.

    Three fields are set only for objectives that need them, and only until the objective is applied:

    - `sentence_starts`, bool [rows, length]: the positions where sentences begin.
    - `spans`, [rows, length, 2]: for a token in a span, the index of the span in its document, and the index of the
      span's type in `pipelines.contracts.shard_set.SPAN_TYPES`; -1 outside spans.
    - `in_target`, bool [rows, length]: the tokens of the targets of pairs, such as translations.

    Some objectives set further fields:

    - `draws`, float64 [rows, length, 2]: uniform numbers from which a generator draws the tokens that replace the
      targets. Only for objectives with a generator.
    - `outside`, [rows, length, 2]: the columns before and after the span of a target, -1 for none. Only for
      objectives that predict a token from these two positions.
    - `factorization`, [rows, targets]: the columns of a row's targets in the order in which they are predicted,
      padded with -1. Only for objectives that permute or predict characters. If characters are predicted,
      `targets`, `read` and the arrays of `decoder` have this shape and order, and the inputs of `decoder` are the
      characters.
    - `documents`, [rows, length]: the number of each position's document in its row, from 0; -1 for padding. Only
      where segments are parts of documents.
    - `covered`, [rows, length]: the number of characters that a mask covers, 0 for other tokens. Only for models
      that read characters.
    - `read`, in the shape of `targets`: the index, within its token, of the character whose state predicts the
      target. Only for models that read characters.

    Scoring sets `trunks`, [rows, length]: an additional segment that a position may attend to, -1 for none.
    This lets several continuations of a context share one copy of the context, which is read only once.
    """

    inputs: np.ndarray
    targets: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    source: np.ndarray
    sequence: np.ndarray
    sample: np.ndarray
    epoch: np.ndarray
    prefix: np.ndarray | None = None
    decoder: Decoder | None = None
    token_types: np.ndarray | None = None
    labels: np.ndarray | None = None
    sentence_starts: np.ndarray | None = None
    task: TaskTargets | None = None
    trunks: np.ndarray | None = None
    draws: np.ndarray | None = None
    outside: np.ndarray | None = None
    factorization: np.ndarray | None = None
    documents: np.ndarray | None = None
    covered: np.ndarray | None = None
    read: np.ndarray | None = None
    spans: np.ndarray | None = None
    in_target: np.ndarray | None = None

    @property
    def target_segments(self) -> np.ndarray:
        """The segment number of each target, int64, in the shape of `targets`."""
        return self.segments if self.decoder is None else self.decoder.segments

    @property
    def target_documents(self) -> np.ndarray:
        """The document number of each target, int64, in the shape of `targets`."""
        return self.target_segments if self.documents is None else self.documents
