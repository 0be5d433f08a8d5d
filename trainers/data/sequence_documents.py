"""Find the documents in a sequence, and exclude documents from the loss without moving any tokens."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from trainers.rows.batch import IGNORED, PADDING

if TYPE_CHECKING:
    from trainers.data.stream import SourceStream
    from trainers.rows.batch import Batch


def documents_of(source: "SourceStream", sequence: int, length: int, epoch: int = 0) -> list[tuple[int, int]]:
    """Return the document of each segment of a packed sequence, in order, as (index of the shard, index of
    the document in the shard). `length` is the number of stream tokens in a full sequence. `epoch` matters
    only for sentence pairs.
    """
    marks = source.frame.marks
    if source.packing is not None:
        number, starts, counts = source.packing.locate(sequence, epoch)
        offsets = source.shard(number).offsets
        pieces = zip(starts.tolist(), counts.tolist(), strict=True)
        return [(number, row) for first, count in pieces for row in _documents(offsets, marks, first, first + count)]
    first, end = sequence * length, min((sequence + 1) * length, source.tokens)
    documents = []
    for number in range(bisect_right(source.starts, first) - 1, bisect_left(source.starts, end)):
        start = source.starts[number]
        rows = _documents(source.shard(number).offsets, marks, max(0, first - start), end - start)
        documents += [(number, row) for row in rows]
    return documents


def _documents(offsets: np.ndarray, marks: int, first: int, end: int) -> list[int]:
    rows = range(len(offsets))

    def begin(row: int) -> int:
        return int(offsets[row] - offsets[0]) + marks * row

    first_row = max(0, bisect_right(rows, first, key=begin) - 1)
    end_row = min(len(offsets) - 1, bisect_left(rows, end, key=begin))
    # A document without tokens and marks occupies no position.
    return [row for row in range(first_row, end_row) if offsets[row + 1] - offsets[row] + marks > 0]


def ids_of(source: "SourceStream", sequence: int, length: int, epoch: int = 0) -> list[bytes]:
    """Return the 16-byte document id of each segment of a packed sequence. The arguments are those of
    `documents_of`.
    """
    return [source.shard(shard).doc_ids[row].as_py() for shard, row in documents_of(source, sequence, length, epoch)]


def mask_documents(batch: "Batch", sources: "Sequence[SourceStream]", length: int, excluded: Set[bytes]) -> None:
    """Remove the targets of the documents whose id is in `excluded`, and the labels of rows that contain such
    a document. Tokens of these documents are marked as padding, so that no other document attends to them.
    `length` is as in `documents_of`.
    """
    for row in np.flatnonzero(batch.sample >= 0):
        ids = ids_of(sources[batch.source[row]], int(batch.sequence[row]), length, int(batch.epoch[row]))
        masked = [segment for segment, identifier in enumerate(ids) if identifier in excluded]
        if masked:
            batch.targets[row][np.isin(batch.target_documents[row], masked)] = IGNORED
            for segments in (batch.segments, *([] if batch.decoder is None else [batch.decoder.segments])):
                documents = segments if batch.documents is None else batch.documents
                segments[row][np.isin(documents[row], masked)] = PADDING
            if batch.labels is not None:
                batch.labels[row] = IGNORED
