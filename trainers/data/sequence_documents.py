"""Which documents a sequence holds, and taking the loss off some of them while every token stays where it is."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from trainers.rows.batch import IGNORED, PADDING

if TYPE_CHECKING:
    from trainers.data.stream import SourceStream
    from trainers.rows.batch import Batch


def documents_of(source: "SourceStream", sequence: int, length: int, epoch: int = 0) -> list[tuple[int, int]]:
    """(number of the shard, row in it) of the document of each segment of a packed sequence: segment s is entry s. `epoch`
    matters to sentence pairs, of which every epoch has its own.
    """
    marks = source.frame.marks
    if source.packing is not None:
        number, starts, counts = source.packing.place(sequence, epoch)
        offsets = source.shard(number).offsets
        pieces = zip(starts.tolist(), counts.tolist(), strict=True)
        return [(number, row) for first, count in pieces for row in _documents(offsets, marks, first, first + count)]
    first, end = sequence * length, min((sequence + 1) * length, source.tokens)
    found = []
    for number in range(bisect_right(source.starts, first) - 1, bisect_left(source.starts, end)):
        start = source.starts[number]
        rows = _documents(source.shard(number).offsets, marks, max(0, first - start), end - start)
        found += [(number, row) for row in rows]
    return found


def _documents(offsets: np.ndarray, marks: int, first: int, end: int) -> list[int]:
    """The documents of a shard with a place between two positions of its stream."""
    rows = range(len(offsets))

    def begin(row: int) -> int:
        return int(offsets[row] - offsets[0]) + marks * row

    here = max(0, bisect_right(rows, first, key=begin) - 1)
    until = min(len(offsets) - 1, bisect_left(rows, end, key=begin))
    # A document without tokens and marks has no place in the stream.
    return [row for row in range(here, until) if offsets[row + 1] - offsets[row] + marks > 0]


def ids_of(source: "SourceStream", sequence: int, length: int, epoch: int = 0) -> list[bytes]:
    """The 16-byte id of the document of each segment of a packed sequence."""
    return [source.shard(shard).doc_ids[row].as_py() for shard, row in documents_of(source, sequence, length, epoch)]


def silence(batch: "Batch", sources: "Sequence[SourceStream]", length: int, excluded: Set[bytes]) -> None:
    """Take the targets off excluded documents, and the label off pairs that hold one; `length` is what a row takes of the
    stream.

    Inputs and positions stay, so every other token keeps its place. The segment becomes that of padding, which no document
    sees, whether the others see one another or not.
    """
    for row in np.flatnonzero(batch.sample >= 0):
        ids = ids_of(sources[batch.source[row]], int(batch.sequence[row]), length, int(batch.epoch[row]))
        silenced = [segment for segment, identifier in enumerate(ids) if identifier in excluded]
        if silenced:
            batch.targets[row][np.isin(batch.target_segments[row], silenced)] = IGNORED
            for segments in (batch.segments, *([] if batch.decoder is None else [batch.decoder.segments])):
                segments[row][np.isin(segments[row], silenced)] = PADDING
            if batch.labels is not None:
                batch.labels[row] = IGNORED
