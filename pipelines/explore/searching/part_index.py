"""The search index of one part: its texts, as `search` shows them, and a truncated suffix array of them.

An index is a directory with three files. `texts.arrow` is an uncompressed, memory-mapped table with a row for
each document of the part. `places.bin` contains the suffix array of each segment of consecutive documents, as
sorted places (see `pipelines.kernels.search.sorted_places`). `manifest.json` is written last, so an index
without it is unfinished. The same part always gives the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import ConflictError, CorruptFileError
from gristmill.host import lent
from gristmill.storage.location import Check, FileRecord, Location
from gristmill.storage.store import read_json, write_json
from pipelines.contracts.search_index.index_units import INDEX_FORMAT
from pipelines.explore.searching.query import Query
from pipelines.kernels.search.sorted_places import MOST_NARROW, find_phrase, sort_places, without_overlap
from pipelines.kernels.text.buffers import blocks, text_buffers

_TEXTS, _PLACES, _MANIFEST = "texts.arrow", "places.bin", "manifest.json"


@dataclass(frozen=True)
class _Segment:
    """A segment of the index: the sorted places of consecutive documents with less than 16 MiB of text
    together, or of a single longer document. `rows` is the number of documents, `places` the number of
    places, one per character, and `width` the bytes that each place takes.
    """

    rows: int
    places: int
    width: int


@dataclass(frozen=True)
class PartIndex:
    """An open search index. Each entry of `segments` is (first row, last row + 1, sorted places of the
    characters in the texts of these rows); the places are uint8 [characters, bytes per place], as from
    `sort_places`.
    """

    texts: pa.LargeStringArray
    segments: Sequence[tuple[int, int, np.ndarray]]

    def search(self, query: Query, kept: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the documents with a hit, in ascending order, and the number of hits in each,
        both int64. With `kept`, bool [documents of the part], only documents that it marks are returned.
        """
        if query.phrase is not None and not query.words:
            rows, counts = self._count(query.phrase)
            wanted = slice(None) if kept is None else kept[rows]
            return rows[wanted], counts[wanted]
        rows = self._candidates(query)
        rows = rows if kept is None else rows[kept[rows]]
        texts = self.texts if len(rows) == len(self.texts) else self.texts.take(pa.array(rows))
        counts = query.count(texts).to_numpy().astype(np.int64)
        return rows[counts > 0], counts[counts > 0]

    def _candidates(self, query: Query) -> np.ndarray:
        literals = query.literals
        if literals is None:
            return np.arange(len(self.texts))
        return np.unique(np.concatenate([self._count(literal)[0] for literal in literals]))

    def _count(self, phrase: bytes) -> tuple[np.ndarray, np.ndarray]:
        offsets, data = text_buffers(self.texts)
        found: list[np.ndarray] = [np.empty(0, np.int64)]
        for first, after, places in self.segments:
            begin = int(offsets[first])
            starts = find_phrase(data[begin : int(offsets[after])], places, phrase) + begin
            within = starts + len(phrase) <= offsets[np.searchsorted(offsets, starts, side="right")]
            starts = without_overlap(starts[within], phrase)
            found.append(np.searchsorted(offsets, starts, side="right") - 1)
        rows = np.concatenate(found)
        begins = np.flatnonzero(np.append(True, rows[1:] != rows[:-1])[: len(rows)])
        return rows[begins], np.diff(np.append(begins, len(rows)))


def write_part_index(directory: Location, texts: pa.Array, check: Check) -> int:
    """Write the search index of a part, and return the size of its data files in bytes. `texts` are those of
    all documents of the part, as `shown_texts` returns them. `check` must raise an error once writing is no
    longer allowed. Raises ConflictError if another command removes the directory in the meantime.
    """
    try:
        return _write(directory, texts, check)
    except FileNotFoundError:
        raise _removed(directory) from None


def _removed(directory: Location) -> ConflictError:
    return ConflictError(f"{directory}: was removed by another command while it was written; run the command again")


def _write(directory: Location, texts: pa.Array, check: Check) -> int:
    offsets, data = text_buffers(texts)
    segments: list[_Segment] = []

    def write_places(sink: BinaryIO) -> None:
        segments.clear()
        for first, after, _, block in blocks(offsets, data, MOST_NARROW):
            places = sort_places(block)
            sink.write(places.tobytes())
            segments.append(_Segment(after - first, len(places), places.shape[1]))

    files = [
        directory.write_file(_TEXTS, _write_texts(texts), check),
        directory.write_file(_PLACES, write_places, check),
    ]
    value = {"files": [asdict(file) for file in files], "segments": [asdict(segment) for segment in segments]}

    def check_files() -> None:
        check()
        if not all((directory / file.path).exists() for file in files):
            raise _removed(directory)

    write_json(directory / _MANIFEST, {"format": INDEX_FORMAT, **value}, check_files)
    return sum(file.bytes for file in files)


def _write_texts(texts: pa.Array) -> Callable[[BinaryIO], None]:
    table = pa.table({"text": texts})

    def write(sink: BinaryIO) -> None:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)

    return write


def open_part_index(directory: Location) -> PartIndex | None:
    """Open and verify the index in a directory. Returns None if it does not exist or is unfinished. Raises
    CorruptFileError if it is damaged.
    """
    try:
        value = read_json(directory / _MANIFEST)
        texts, places = (_map(directory, FileRecord(**file)) for file in value["files"])
    except FileNotFoundError:
        return None
    except CorruptFileError:
        raise CorruptFileError(
            f"{directory}: this search index is damaged; remove the directory, then run `python -m pipelines index` again"
        ) from None
    table = pa.ipc.open_file(texts).read_all()
    column = table["text"].chunk(0) if table.num_rows else pa.array([], pa.large_string())
    flat = np.frombuffer(places, np.uint8)
    segments, row, at = [], 0, 0
    for segment in (_Segment(**each) for each in value["segments"]):
        size = segment.places * segment.width
        segments.append((row, row + segment.rows, flat[at : at + size].reshape(segment.places, segment.width)))
        row, at = row + segment.rows, at + size
    return PartIndex(column, segments)


def _map(directory: Location, record: FileRecord) -> pa.Buffer:
    path = directory.verify(record)
    return pa.memory_map(lent(path)).read_buffer() if record.bytes else pa.py_buffer(b"")


def is_finished(directory: Location) -> bool:
    """Return whether a directory contains a finished index."""
    return (directory / _MANIFEST).exists()


def text_bytes(texts: pa.Array) -> int:
    """Return the total length of the texts in UTF-8 bytes."""
    return int(pc.sum(pc.binary_length(texts)).as_py() or 0)
