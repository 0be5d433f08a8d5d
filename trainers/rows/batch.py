"""What a model reads in one pass: rows of packed documents, before and after an objective has worked on them."""

from dataclasses import dataclass

import numpy as np

IGNORED = -100
PADDING = -1  # the segment of padding


@dataclass(frozen=True)
class Frame:
    """The specials that readers put around every document of a stream, by name; None for none.

    With `before` alone, the targets that the packer writes are the next tokens, `<eos>` after a document's last one;
    otherwise there are none, and an objective makes them.
    """

    before: str | None = None
    after: str | None = None

    @property
    def marks(self) -> int:
        """Positions that a document takes beside its tokens."""
        return (self.before is not None) + (self.after is not None)


@dataclass(frozen=True)
class Room:
    """What rows have room for when an objective adds marks to each of their documents.

    `needed[n]`, int64 and ascending, is the most positions that a document of n tokens, or n tokens of one, takes of the
    longer side of a row. All documents of a row take up to `positions` together. The last n is the longest that fits.
    """

    needed: np.ndarray
    positions: int

    @property
    def length(self) -> int:
        """Positions of the stream that a row takes at most: as many as one document may fill it with."""
        return len(self.needed) - 1


@dataclass(frozen=True)
class Decoder:
    """The decoder's side of a batch for an encoder-decoder, each int64 [rows, target length]; segments as in Batch."""

    inputs: np.ndarray
    positions: np.ndarray
    segments: np.ndarray


@dataclass(frozen=True)
class Batch:
    """Rows for a model.

    `inputs`, `positions` and `segments` are int64 [rows, length], `targets` as well, or [rows, target length] where there
    is a `decoder`; -100 is no target. Segments number the documents of a row from 0, those of padding are -1. `source`,
    `sequence`, `sample` and `epoch` are int64 [rows]: index of the source, number of the sequence in it, global number
    of the sample (-1 for a row of padding), and how often the source was read before. `prefix`, bool [rows, length],
    are positions that see one another in both directions (prefix LM). `token_types`, int64 [rows, length], tell segment
    A from B, and `labels`, int64 [rows], are the classes of sentence pairs (-100 for none). `sentence_starts`, bool
    [rows, length], are positions where sentences begin, before an objective that needs them has worked on the batch.
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

    @property
    def target_segments(self) -> np.ndarray:
        """The document that each target belongs to, of the shape of `targets`."""
        return self.segments if self.decoder is None else self.decoder.segments
