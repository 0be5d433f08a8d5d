"""Packings: ways to cut the stream of a shard into sequences other than equal slices.

    concatenate     documents end to end, cut where a row is full with the objective's marks
                    (`trainers.rows.concatenation`)
    best_fit        documents where they fit best, with padding (`trainers.rows.best_fit`)
    documents       one document per sequence; longer ones are cut into whole sequences and a remainder
    full_sentences  whole sentences until the sequence is full, across documents (`trainers.rows.sentences`)
    doc_sentences   the same, but a sequence also ends where its document ends

Every position of the stream is in exactly one sequence. If an objective adds marks to each document, a
sequence contains only as much text as fits in a row together with these marks (`trainers.rows.batch.Room`).
The sequences of a shard are kept in the local cache, under a digest of the shard's checksum and everything
else that they depend on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

import numpy as np
import xxhash

from gristmill.storage.store import digest
from pipelines.contracts.shard_set import Shard
from trainers.rows.batch import Frame, Room
from trainers.rows.best_fit import best_fit, cut_documents, room_of_pieces
from trainers.rows.concatenation import cut_where_full
from trainers.rows.index_cache import load_or_make
from trainers.rows.sentences import cut_at_sentences

_VERSION = 3
SENTENCE_PACKINGS = ("full_sentences", "doc_sentences")


@dataclass(frozen=True)
class SequenceRows:
    """The sequences of a shard, made of pieces of its stream. Piece p covers `counts[p]` positions of the
    stream from `starts[p]` on. Sequence r consists of the pieces `first[r]` to `first[r + 1] - 1`.
    """

    first: np.ndarray
    starts: np.ndarray
    counts: np.ndarray

    @cached_property
    def sizes(self) -> np.ndarray:
        """The number of stream positions in each sequence."""
        if not len(self.counts):
            return np.empty(0, np.int64)
        sizes: np.ndarray = np.add.reduceat(self.counts, self.first[:-1])
        return sizes


@dataclass(frozen=True)
class Packing:
    """The sequences of a source: those of its first shard, then those of its second, and so on."""

    shards: tuple[SequenceRows, ...]
    added_marks: ClassVar[int] = 0  # marks added to a row beyond those of the stream

    @cached_property
    def starts(self) -> np.ndarray:
        """The index of each shard's first sequence, followed by the total number of sequences."""
        return np.array(list(accumulate((len(rows.first) - 1 for rows in self.shards), initial=0)), dtype=np.int64)

    @cached_property
    def sizes(self) -> np.ndarray:
        """The number of stream positions in each sequence of the source."""
        return np.concatenate([np.empty(0, np.int64), *(rows.sizes for rows in self.shards)])

    def locate(self, sequence: int, epoch: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Return where a sequence comes from: the index of its shard, the starts of its pieces in the shard's
        stream, and the number of positions in each piece.
        """
        number = int(np.searchsorted(self.starts, sequence, side="right")) - 1
        rows, inside = self.shards[number], sequence - int(self.starts[number])
        pieces = slice(rows.first[inside], rows.first[inside + 1])
        return number, rows.starts[pieces], rows.counts[pieces]

    def pieces(self, number: int, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the pieces of `sequences`, which must all belong to the shard with index `number`, as three
        arrays [pieces]: the index in `sequences` of the sequence that the piece belongs to, the start of the
        piece in the shard's stream, and the number of positions in the piece.
        """
        rows, inside = self.shards[number], sequences - self.starts[number]
        begins, many = rows.first[inside], rows.first[inside + 1] - rows.first[inside]
        piece = np.repeat(begins - (np.cumsum(many) - many), many) + np.arange(many.sum())
        return np.repeat(np.arange(len(sequences)), many), rows.starts[piece], rows.counts[piece]


def pack_shard(
    packing: str,
    shard: Callable[[], Shard],
    checksum: str,
    length: int,
    frame: Frame,
    seed: int,
    room: Room | None = None,
) -> SequenceRows:
    """Return the sequences of a shard, from the cache if they are there and intact; otherwise compute them
    from the shard that `shard` opens.

    Pass `room` if the objective adds marks to each document; `concatenate` requires it. With `room`,
    `room.length` must equal `length`, and `frame.after` must be None.
    """
    assert room is None or (room.length == length and frame.after is None)
    marks, lead = frame.marks, int(frame.before is not None)
    depends = {"packing": packing, "version": _VERSION, "shard": checksum, "length": length, "marks": marks}
    if packing == "best_fit":
        depends["seed"] = seed
    if packing in SENTENCE_PACKINGS:
        depends["lead"] = lead
    if room is not None:
        depends["room"] = [room.positions, xxhash.xxh3_128_hexdigest(room.needed.tobytes())]
    name = digest(depends)

    def make() -> tuple[np.ndarray, ...]:
        rows = _pack(packing, shard(), length, lead, marks, room, xxhash.xxh3_64_intdigest(name.encode()))
        return rows.first, rows.starts, rows.counts

    return SequenceRows(*load_or_make(name, make))


def _pack(packing: str, shard: Shard, length: int, lead: int, marks: int, room: Room | None, key: int) -> SequenceRows:
    if packing == "concatenate":
        assert room is not None
        cuts = cut_where_full(shard.offsets, lead, room.needed, room.positions)
        return SequenceRows(np.arange(len(cuts)), cuts[:-1], np.diff(cuts))
    if packing in SENTENCE_PACKINGS:
        assert shard.sentences is not None
        assert shard.sentence_offsets is not None
        sentences = (shard.sentences, shard.sentence_offsets)
        needed, positions = (np.empty(0, np.int64), 0) if room is None else (room.needed, room.positions)
        across = packing == "full_sentences"
        cuts = cut_at_sentences(shard.offsets, *sentences, lead, marks, length, across, needed, positions)
        return SequenceRows(np.arange(len(cuts)), cuts[:-1], np.diff(cuts))
    starts, counts = cut_documents(shard.offsets, marks, length)
    if packing == "documents":
        return SequenceRows(np.arange(len(starts) + 1), starts, counts)
    if room is None:
        order, first = best_fit(counts, length, key)
    else:
        order, first = best_fit(room_of_pieces(shard.offsets, lead, starts, counts, room), room.positions, key)
    return SequenceRows(first, starts[order], counts[order])
