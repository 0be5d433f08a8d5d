"""The rows of one pass through a model: packed documents, before and after an objective is applied."""

from dataclasses import dataclass

import numpy as np

IGNORED = -100
PADDING = -1  # the segment number of padding
ORDER_COLUMNS = 8
"""`Batch.factorization` of permutation has a multiple of so many columns: compiled code and allocators then see few shapes."""


@dataclass(frozen=True)
class Frame:
    """The special tokens that readers put around every document of a stream: their names, or None.

    With only `before`, the packer writes the next tokens as targets; the target of a document's last token is
    `<eos>`. Otherwise it writes no targets, and the objective makes them.
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

    `needed[n]`, int64 and ascending, is the maximum number of positions that n tokens of a document take in
    the encoder's or the decoder's row, whichever is longer. All documents of a row together take up to
    `positions`. The last n is the longest document that fits.
    """

    needed: np.ndarray
    positions: int

    @property
    def length(self) -> int:
        """The maximum number of stream positions in a row, which is reached if one document fills it."""
        return len(self.needed) - 1


@dataclass(frozen=True)
class Decoder:
    """The decoder's rows of an encoder-decoder batch. Arrays are int64 [rows, target length]; segments are
    numbered as in Batch.
    """

    inputs: np.ndarray
    positions: np.ndarray
    segments: np.ndarray


@dataclass(frozen=True)
class TaskTargets:
    """The positions that the head of a task reads, and its targets. The rows of a batch hold n inputs with s
    segments in all. An input is one segment, or in multiple choice one segment per candidate.

    `number`, int64 [n], is the number of the input in its split. `at`, int64 [s], is the flattened position
    whose state represents a segment: its first or last token. `owner`, int64 [rows, length], is the segment
    (0 to s - 1) whose text a position belongs to, -1 for specials and padding. In an encoder-decoder,
    positions are the decoder's.

    Other fields are set only for the kinds of tasks that need them. `labels`, int64 [n], are classes, and for
    multiple choice the right candidate; -100 if hidden. `values`, float32 [n], are numbers to predict; nan if
    hidden. `choice`, int64 [s], is the input that a candidate belongs to; candidates are in order. `tags`,
    int64 [rows, length], are the classes of first pieces of words, -100 elsewhere. `starts` and `ends`, int64
    [n], are the flattened positions of the first and last token of an answer, both `at` if there is none;
    `answerable`, bool [rows, length], marks positions that an answer may cover, `at` included.
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

    `source`, `sequence`, `sample` and `epoch` are int64 [rows]: index of the source, number of the sequence
    in it, global number of the sample (-1 for a row of padding), and how often the source was read before.

    `prefix`, bool [rows, length], marks positions that attend to one another in both directions (prefix LM).
    `token_types`, int64 [rows, length], tell segment A from B, and `labels`, int64 [rows], are the classes of
    sentence pairs (-100 for none). `sentence_starts`, bool [rows, length], marks positions where sentences
    begin; it is set only for objectives that need it, until they are applied. `task` is set in the batches of tasks.
    `spans`, int64 [rows, length, 2], are the number, in its document, of the span that a token belongs to, and the number of its
    type in `pipelines.contracts.shard_set.SPAN_TYPES`, -1 outside spans; it is set only for objectives that need it, until they
    are applied.
    `in_target`, bool [rows, length], marks the tokens of the targets of pairs, such as translations; it is set only for
    objectives that need it, until they are applied.
    `draws`, float64 [rows, length, 2], are uniform numbers with which a generator draws the tokens that replace the
    targets; it is set only for objectives with a generator.
    `outside`, int64 [rows, length, 2], are the columns before and after the span of a target (-1 for none); it is set only
    for objectives that predict tokens from there.
    `factorization`, int64 [rows, targets], are the columns of the targets of a row in the order in which they are predicted,
    -1 to fill; it is set only for objectives that permute, and for those that predict characters. `targets`, `read` and the
    arrays of `decoder`, whose inputs are the characters that are predicted, then have its shape and order.
    `documents`, int64 [rows, length], are the documents of a row, numbered from 0, -1 for padding; it is set only where segments
    are parts of documents.
    `covered`, int64 [rows, length], are the numbers of characters that a mask covers, 0 for other tokens, and `read` those of the
    characters of a token before the one whose state predicts it; they are set only for objectives of models that read characters.
    `trunks`, int64 [rows, length], are the segments that continuations of one context also see (-1 for none); the context is
    then read once for all of them. Only scoring sets it.
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
        """The segment of each target, int64, of the shape of `targets`."""
        return self.segments if self.decoder is None else self.decoder.segments

    @property
    def target_documents(self) -> np.ndarray:
        """The document of each target, int64, of the shape of `targets`."""
        return self.target_segments if self.documents is None else self.documents
