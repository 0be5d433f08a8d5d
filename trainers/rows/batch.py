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

    If only `before` is set, the packer writes the next tokens as targets, and `<eos>` after the last token of
    a document. Otherwise the objective makes the targets.
    """

    before: str | None = None
    after: str | None = None

    @property
    def marks(self) -> int:
        """The number of marks added to each document."""
        return (self.before is not None) + (self.after is not None)


@dataclass(frozen=True)
class Room:
    """The capacity of a row when an objective adds marks to each of its documents.

    `needed[n]`, int64 and ascending, is the maximum number of positions that n tokens of a document take in a
    row of the encoder or of the decoder. The documents of a row may take up to `positions` in all.
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
    """The positions that the head of a task reads, and the targets of the head. The rows of a batch contain n
    inputs with s segments in all. An input is one segment, or in multiple choice one segment per candidate.

    `number`, int64 [n], is the index of the input in its split. `at`, int64 [s], is the flattened position
    whose state represents a segment: its first or last token. `owner`, int64 [rows, length], is the segment
    (0 to s - 1) whose text a position belongs to, -1 for special tokens and padding. In an encoder-decoder,
    positions are the decoder's.

    The other fields are set only for the kinds of tasks that need them. An answer that the data does not give
    is hidden. `labels`, int64 [n], are classes, and for multiple choice the right candidate; -100 if hidden.
    `values`, float32 [n], are numbers to predict; nan if hidden. `choice`, int64 [s], is the input (0 to n -
    1) that a candidate belongs to; candidates are in order. `tags`, int64 [rows, length], are the classes of
    words at their first tokens, -100 elsewhere and if hidden. `starts` and `ends`, int64 [n], are the
    flattened positions of the first and last token of an answer; both equal `at` if the segment does not
    contain the whole answer, and are -100 if hidden. `answerable`, bool [rows, length], marks the positions
    that an answer may cover, including `at`.
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
    """Rows for a model.

    `inputs`, `positions`, `segments` and `targets` are int64 [rows, length]; with a `decoder`, `targets` are
    [rows, target length]. -100 means that there is no target. Segments number the documents of a row from 0;
    padding has segment -1.

    `source`, `sequence`, `sample` and `epoch` are int64 [rows]: the index of the source, the index of the
    sequence in the source, the global index of the sample (-1 for a row of padding), and the number of times
    that the source was read before.

    `prefix`, bool [rows, length], marks positions that attend to one another in both directions (prefix LM).
    `token_types`, int64 [rows, length], tell segment A from B, and `labels`, int64 [rows], are the classes of
    sentence pairs (-100 for none). `task` is set in the batches of tasks.

    Three fields are set only for objectives that need them, and only until the objective is applied.
    `sentence_starts`, bool [rows, length], marks the positions where sentences begin. `spans`, int64 [rows,
    length, 2], describes the span that a token belongs to: the index of the span in its document, and the
    index of its type in `pipelines.contracts.shard_set.SPAN_TYPES`; -1 outside spans. `in_target`, bool
    [rows, length], marks the tokens of the targets of pairs, such as translations.

    `draws`, float64 [rows, length, 2], are uniform numbers. A generator uses them to draw the tokens that
    replace the targets; they are set only for objectives with a generator. `outside`, int64 [rows, length,
    2], are the columns before and after the span of a target (-1 for none); they are set only for objectives
    that predict a token from these two positions.

    `factorization`, int64 [rows, targets], are the columns of a row's targets in the order in which they are
    predicted, padded with -1. It is set only for objectives that permute and for objectives that predict
    characters. For the objectives that predict characters, `targets`, `read` and the arrays of `decoder` have
    the same shape and order, and the inputs of `decoder` are the predicted characters.

    `documents`, int64 [rows, length], number the documents of a row from 0, -1 for padding; they are
    set only where segments are parts of documents. `covered`, int64 [rows, length], is the number of
    characters that a mask covers, 0 for other tokens. `read` is the index, within its token, of the character
    whose state predicts the target. Both are set only for objectives of models that read characters.

    `trunks`, int64 [rows, length], are additional segments that positions may attend to (-1 for none). In
    this way, several continuations of one context share it, and it is read only once. Only scoring sets this
    field.
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
