"""Which documents a sequence holds, and taking the loss off some of them while every token stays where it is."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from trainers.packing import IGNORED

if TYPE_CHECKING:
    from trainers.data import Batch, Source


def documents_of(source: "Source", sequence: int, length: int) -> list[tuple[int, int]]:
    """(number of the shard, row in it) of the document of each segment of a packed sequence: segment s is entry s."""
    if source.packing is not None:
        number, starts = source.packing.place(sequence)
        offsets = source.shard(number).offsets
        rows = range(len(offsets) - 1)
        return [(number, bisect_right(rows, start, key=lambda r: offsets[r] - offsets[0] + r) - 1) for start in starts]
    first, end = sequence * length, min((sequence + 1) * length, source.tokens)
    found = []
    for number in range(bisect_right(source.starts, first) - 1, bisect_left(source.starts, end)):
        offsets = source.shard(number).offsets
        rows = range(len(offsets))

        def begin(row: int, offsets: np.ndarray = offsets, start: int = source.starts[number]) -> int:
            """The stream position of a document: a separator is before each of its predecessors."""
            return start + int(offsets[row] - offsets[0]) + row

        here = max(0, bisect_right(rows, first, key=begin) - 1)
        until = min(len(offsets) - 1, bisect_left(rows, end, key=begin))
        found += [(number, row) for row in range(here, until)]
    return found


def ids_of(source: "Source", sequence: int, length: int) -> list[bytes]:
    """The 16-byte id of the document of each segment of a packed sequence."""
    return [source.shard(shard).doc_ids[row].as_py() for shard, row in documents_of(source, sequence, length)]


def silence(batch: "Batch", sources: "Sequence[Source]", sequence: np.ndarray, excluded: Set[bytes]) -> None:
    """Take the targets off excluded documents in the first rows of a batch, which hold the sequences `sequence`.

    Inputs, positions and segments stay, so every other token keeps its place, and the attention mask keeps the
    document apart as it keeps all of them apart.
    """
    length = batch.inputs.shape[1]
    for row, number in enumerate(sequence):
        ids = ids_of(sources[batch.source[row]], int(number), length)
        silenced = [segment for segment, identifier in enumerate(ids) if identifier in excluded]
        if silenced:
            batch.targets[row][np.isin(batch.segments[row], silenced)] = IGNORED
