"""Find, in two shuffles, the substrings that already occurred in an earlier part or earlier in the same part.

Windows of `size` bytes are grouped by their minimizers (pipelines/kernels/search/substrings.py). A block is a
run of windows with the same minimizer, about one for each size / 4 bytes of text.

1. A part sends each of its minimizers to a partition, which reports those that occur more than once.
2. For these minimizers, a part sends the text of each distinct block, about 5 bytes for each byte of text. The
   partition compares the windows of all blocks with the same minimizer
   (pipelines/kernels/search/repeated_windows.py) and reports those that have an earlier occurrence.
3. A part cuts all windows whose first occurrence is in an earlier part, or earlier in the same part without
   overlap.

All blocks with the same minimizer are sent to one partition. If their text is estimated to exceed
`_GROUP_BYTES`, a part sends each window as a separate block, with the hash of the window in place of the
minimizer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, partitions_for, scatter_rows, write_list
from pipelines.contracts.columns import DROP
from pipelines.contracts.document import ID
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import Text
from pipelines.contracts.stage import Cluster, gather

if TYPE_CHECKING:
    from pipelines.kernels.search.substrings import Blocks

_PIECE = 1 << 22  # windows of a long document that are read at once, which bounds the memory of a task
_ROW_BYTES = 48  # of a block besides its text, while a partition compares it
_GROUP_BYTES = 1 << 23  # of the blocks with the same minimizer; to compare them takes up to 25 times as much memory
_MINIMA = pa.schema([("minimum", pa.uint64()), ("times", pa.int32()), ("blocks", pa.int32()), ("part", pa.int32())])
_KNOWN = pa.schema([("minimum", pa.uint64()), ("split", pa.bool_())])
_INSTANCES = pa.schema([("row", pa.int32()), ("start", pa.int32()), ("windows", pa.int32()), ("number", pa.int32())])
_BLOCKS = pa.schema(
    [("minimum", pa.uint64()), ("part", pa.int32()), ("number", pa.int32()), ("id", ID), ("text", pa.large_binary())]
)
_RUNS = pa.schema([(name, pa.int32()) for name in ("number", "low", "high", "owner", "shift")] + [("winner", ID)])
CUTS = pa.schema([("row", pa.int64()), ("start", pa.int64()), ("end", pa.int64()), ("winner", ID)])
"""The ranges to cut out of documents, in order, in bytes of the text that is compared. `winner` is the
document with the first occurrence of the beginning of the cut.
"""
GONE = pa.schema([("row", pa.int64())])
"""The rows of the documents of a part that the first election leaves with too few words, ascending."""


@dataclass(frozen=True)
class PartTask:
    """The work of one phase on one part. Documents that are already dropped or held out are ignored; in
    `election` 2, so are those in the part's `GONE` table.
    """

    rule: str
    text: Text
    size: int
    min_left_words: int
    out: StepOutput
    part: Part
    number: int
    election: int
    inputs: tuple[FileList, ...] = ()
    partitions: int = 1

    def unit(self, phase: str) -> str:
        """Return the name of the part's unit of work in a phase of this election."""
        return f"{phase}{self.election}.{self.number:05d}"

    def table(self, unit: str, schema: pa.Schema, file: int = 0) -> pa.Table:
        """Return the table in file number `file` of a finished unit of work."""
        receipt = self.out.receipt(unit)
        assert receipt is not None
        return read_table(self.out.directory, receipt.files[file], schema.names, schema_facts(schema))


@dataclass(frozen=True)
class _PartitionTask:
    size: int
    out: StepOutput
    files: FileList
    partition: int
    parts: int
    election: int


@dataclass(frozen=True)
class RepeatSearch:
    """A search for repeats of at least `size` bytes in the text of all parts."""

    rule: str
    text: Text
    size: int
    min_left_words: int
    parts: Sequence[Part]
    out: StepOutput
    cluster: Cluster

    def find(self, election: int) -> None:
        """Find the repeats of an election, 1 or 2 (see `PartTask`), and commit them as the `CUTS` of every
        part. Election 2 needs the `GONE` table of every part.
        """
        from pipelines.kernels.search.substrings import average_windows

        size = sum(part.text_bytes for part in self.parts)
        partitions = partitions_for(int(size / average_windows(self.size)))
        votes = self.over_parts(vote_minima, election, (), partitions)
        shared = self._over_partitions(share_minima, election, self._list("minimizers", election, votes), partitions)
        known = self._list("known", election, [file for file, _ in shared])
        partitions = partitions_for(sum(sent for _, sent in shared) // _ROW_BYTES)
        votes = self.over_parts(vote_blocks, election, (known,), partitions)
        won = self._over_partitions(elect_firsts, election, self._list("blocks", election, votes), partitions)
        self.over_parts(find_cuts, election, (self._list("runs", election, won),))

    def over_parts(
        self, function: Any, election: int, inputs: tuple[FileList, ...] = (), partitions: int = 1
    ) -> list[Any]:
        """Run a phase for every part, and return the results in the order of the parts."""
        knobs = (self.rule, self.text, self.size, self.min_left_words)
        tasks = [
            PartTask(*knobs, self.out, part, number, election, inputs, partitions)
            for number, part in enumerate(self.parts)
        ]
        return gather(self.cluster, function, tasks, lambda task: f"{self.rule}: part {task.part.name}")

    def _over_partitions(self, function: Any, election: int, files: FileList, partitions: int) -> list[Any]:
        tasks = [_PartitionTask(self.size, self.out, files, p, len(self.parts), election) for p in range(partitions)]
        return gather(self.cluster, function, tasks, lambda task: f"{self.rule}: partition {task.partition}")

    def _list(self, phase: str, election: int, files: Sequence[FileRecord]) -> FileList:
        return write_list(self.out, f"{phase}{election}", files)


class _Texts(NamedTuple):
    """The competing documents of a part: their rows, ids, offsets, and the bytes of their text."""

    rows: np.ndarray
    ids: pa.Array
    offsets: np.ndarray
    data: np.ndarray

    def pieces(self, size: int) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """Yield runs of documents as (index of the first document, 0, offsets, bytes), and long documents in
        pieces, as (index of the document, position of the piece in it, offsets, bytes). Pieces overlap so
        that each window of `size` bytes lies in exactly one piece.
        """
        from pipelines.kernels.text.buffers import blocks

        for first, _, offsets, data in blocks(self.offsets, self.data):
            if len(offsets) > 2 or len(data) < _PIECE + size:
                yield first, 0, offsets, data
                continue
            for low in range(0, len(data) - size + 1, _PIECE):
                piece = data[low : low + _PIECE + size - 1]
                bounds = np.array([0, len(piece)])
                bounds.flags.writeable = False
                yield first, low, bounds, piece


def _texts(task: PartTask) -> _Texts:
    from pipelines.kernels.text.buffers import text_buffers

    table = task.part.table(("id", task.text, DROP))
    compete = pc.is_null(table[DROP]).to_numpy() & ~task.part.held_out()
    if task.election > 1:
        compete[gone_rows(task)] = False
    rows = np.flatnonzero(compete)
    table = table.take(pa.array(rows))
    return _Texts(rows, table["id"].combine_chunks(), *text_buffers(table[task.text.name]))


def gone_rows(task: PartTask) -> np.ndarray:
    """Return the rows of a part's documents that are excluded from the second election."""
    if not task.min_left_words:
        return np.zeros(0, np.int64)
    return task.table(f"gone.{task.number:05d}", GONE)["row"].to_numpy()


def vote_minima(task: PartTask) -> FileRecord:
    """Commit a file of the distinct minimizers of a part, grouped by partition, and return its record. For
    each minimizer, the file holds the number of blocks and the number of distinct blocks.
    """
    from pipelines.kernels.search.repeated_windows import changes, sort_by
    from pipelines.kernels.search.substrings import find_blocks

    unit = task.unit("minimizers")
    receipt = task.out.receipt(unit)
    if receipt is None:
        found = [np.zeros((2, 0), np.uint64)]
        for _, _, offsets, data in _texts(task).pieces(task.size):
            blocks = find_blocks(offsets, data, task.size)
            found.append(np.stack((blocks.minima, blocks.hashes)))
        minima, hashes = np.concatenate(found, axis=1)
        hashes >>= np.uint64(32)  # fewer bytes are sorted faster, and one block less makes no difference
        order = sort_by(minima, hashes)
        minima, hashes = minima[order], hashes[order]
        new = changes(minima)
        starts = np.flatnonzero(new)
        times = np.diff(np.append(starts, len(minima)))
        columns = [minima[starts], times, _sums(new | changes(hashes), starts), np.full(len(starts), task.number)]
        votes = _table(columns, _MINIMA)
        content = scatter_rows(votes, _partitions(minima[starts], task.partitions), task.partitions)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {})
    return receipt.files[0]


def _partitions(keys: np.ndarray, partitions: int) -> np.ndarray:
    return (keys % np.uint64(partitions)).astype(np.int64)


def _sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return np.add.reduceat(values, starts, dtype=np.int64) if len(starts) else np.zeros(0, np.int64)


def _table(columns: Sequence[Any], schema: pa.Schema) -> pa.Table:
    arrays = [
        pa.array(column.astype(field.type.to_pandas_dtype(), copy=False)) if isinstance(column, np.ndarray) else column
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.table(arrays, schema=schema)


def share_minima(task: _PartitionTask) -> tuple[FileRecord, int]:
    """Find the minimizers of a partition that occur more than once, and commit them grouped by part. Each has
    a flag that says whether its blocks must be split into windows. Returns the committed file, and an
    estimate of how many bytes of blocks the parts will send.
    """
    from pipelines.kernels.search.repeated_windows import changes, sort_by
    from pipelines.kernels.search.substrings import average_windows

    unit = f"known{task.election}.{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        votes = task.files.gather_rows(task.partition)
        minima, times, blocks, part = (votes[name].to_numpy() for name in _MINIMA.names)
        order = sort_by(minima)
        starts = np.flatnonzero(changes(minima[order]))
        sizes = np.diff(np.append(starts, len(minima)))
        known = _sums(times[order], starts) > 1
        block_bytes = average_windows(task.size) + task.size
        blocks = _sums(blocks[order], starts)
        split = blocks * block_bytes > _GROUP_BYTES
        sent = blocks * np.where(split, average_windows(task.size) * (task.size + _ROW_BYTES), block_bytes + _ROW_BYTES)
        rows = order[np.repeat(known, sizes)]
        table = _table([minima[rows], np.repeat(split[known], sizes[known])], _KNOWN)
        content = scatter_rows(table, part[rows], task.parts)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {"bytes": int(sent[known].sum())})
    return receipt.files[0], receipt.counts["bytes"]


def vote_blocks(task: PartTask) -> FileRecord:
    """Commit two files for a part: the distinct blocks whose minimizers occur more than once, grouped by
    partition, and all places where each of these blocks occurs. Returns the file of the blocks.
    """
    from pipelines.kernels.search.repeated_windows import copy_ranges, first_equal

    unit = task.unit("blocks")
    receipt = task.out.receipt(unit)
    if receipt is None:
        texts, blocks = _known_blocks(task)
        begins = texts.offsets[blocks.documents] + blocks.starts
        first = first_equal(texts.data, begins, blocks.counts + task.size - 1, blocks.hashes)
        new = first == np.arange(len(first))
        numbers = (np.cumsum(new) - 1)[first]
        rows, lengths = texts.rows[blocks.documents], blocks.counts[new] + task.size - 1
        bounds = np.append(0, np.cumsum(lengths))
        text = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(),
            len(lengths),
            [None, pa.py_buffer(bounds), pa.py_buffer(copy_ranges(texts.data, begins[new], lengths))],
        )
        ids = texts.ids.take(pa.array(blocks.documents[new]))
        minima = blocks.minima[new]
        votes = _table([minima, np.full(len(minima), task.number), numbers[new], ids, text], _BLOCKS)
        instances = _table([rows, blocks.starts, blocks.counts, numbers], _INSTANCES)
        files = {
            f"work/{unit}.arrow": scatter_rows(votes, _partitions(minima, task.partitions), task.partitions),
            f"work/own-{unit}.arrow": write_table(instances),
        }
        receipt = task.out.commit(unit, files, {})
    return receipt.files[0]


def _known_blocks(task: PartTask) -> tuple[_Texts, "Blocks"]:
    """Return the competing texts of a part, and their blocks whose minimizers occur more than once, in text
    order. The blocks of a minimizer that has too many of them are split: each of their windows is returned as
    a block of its own, with its hash in place of the minimizer.
    """
    from pipelines.kernels.search.repeated_windows import find_keys, index_keys
    from pipelines.kernels.search.substrings import Blocks, find_blocks, split_blocks

    known = task.inputs[0].gather_rows(task.number)
    minima, splits = known["minimum"].to_numpy(), known["split"].to_numpy(zero_copy_only=False)
    texts, slots = _texts(task), index_keys(minima)
    found = [Blocks(*([np.zeros(0, np.int64)] * 3 + [np.zeros(0, np.uint64)] * 2))]
    for first, low, offsets, data in texts.pieces(task.size):
        blocks = find_blocks(offsets, data, task.size)
        places = find_keys(minima, slots, blocks.minima)
        rows = np.flatnonzero(places >= 0)
        blocks, split = Blocks(*(values[rows] for values in blocks)), splits[places[rows]]
        if split.any():
            windows = split_blocks(offsets, data, Blocks(*(values[split] for values in blocks)), task.size)
            windows = windows._replace(minima=windows.hashes)
            pairs = zip((values[~split] for values in blocks), windows, strict=True)
            blocks = Blocks(*map(np.concatenate, pairs))
            order = np.lexsort((blocks.starts, blocks.documents))
            blocks = Blocks(*(values[order] for values in blocks))
        found.append(blocks._replace(documents=first + blocks.documents, starts=low + blocks.starts))
    return texts, Blocks(*map(np.concatenate, zip(*found, strict=True)))


def elect_firsts(task: _PartitionTask) -> FileRecord:
    """Find the windows in a partition's blocks that also occur in an earlier block, and commit them as runs,
    grouped by part. Each run has the document of the first occurrence and, if the earlier block is in the
    same part, the number of that block.
    """
    from pipelines.kernels.search.repeated_windows import elect_windows
    from pipelines.kernels.text.buffers import text_buffers

    unit = f"runs{task.election}.{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        votes = task.files.gather_rows(task.partition)
        minima, part, number = (votes[name].to_numpy() for name in _BLOCKS.names[:3])
        text = votes["text"].combine_chunks().view(pa.large_string())  # whose bytes need not be whole characters
        runs = elect_windows(minima, *text_buffers(text), task.size)
        here = part[runs.blocks]
        own = part[runs.owners] == here
        columns = [number[runs.blocks], runs.lows, runs.highs, np.where(own, number[runs.owners], -1), runs.shifts]
        winners = votes["id"].combine_chunks().take(pa.array(runs.owners))
        content = scatter_rows(_table([*columns, winners], _RUNS), here, task.parts)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {})
    return receipt.files[0]


def find_cuts(task: PartTask) -> None:
    """Commit the table, with schema `CUTS`, of the ranges to cut from a part's documents."""
    unit = task.unit("cuts")
    if task.out.receipt(unit) is None:
        task.out.commit(unit, {f"work/{unit}.arrow": write_table(_find_cuts(task))}, {})


def _find_cuts(task: PartTask) -> pa.Table:
    from pipelines.kernels.search.repeated_windows import WindowRuns, find_repeats
    from pipelines.kernels.search.substrings import whole_characters
    from pipelines.kernels.text.buffers import text_buffers

    instances = task.table(task.unit("blocks"), _INSTANCES, 1)
    won = task.inputs[0].gather_rows(task.number)
    order = np.argsort(won["number"].to_numpy(), kind="stable")
    runs = WindowRuns(*(won[name].to_numpy()[order].astype(np.int64) for name in _RUNS.names[:5]))
    rows, starts, windows, numbers = (column.to_numpy().astype(np.int64) for column in instances.columns)
    rows, starts, ends, winners = find_repeats(rows, starts, windows, numbers, runs, task.size)
    table = task.part.table(("id", task.text))
    # A character in a run of windows is whole in one of them, as windows are longer than one.
    starts, ends = whole_characters(*text_buffers(table[task.text.name]), rows, starts, ends + task.size - 1)
    some = starts < ends
    rows, starts, ends, winners = _joined(rows[some], starts[some], ends[some], winners[some])
    ids = pa.concat_arrays([table["id"].combine_chunks(), won["winner"].combine_chunks().take(pa.array(order))])
    places = np.where(winners < 0, len(table) - 1 - winners, winners)
    return _table([rows, starts, ends, ids.take(pa.array(places))], CUTS)


def _joined(
    rows: np.ndarray, starts: np.ndarray, ends: np.ndarray, winners: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Merge ranges that overlap or touch. A merged range has the winner of its first range."""
    from pipelines.kernels.search.substrings import join_ranges

    index, starts, ends = join_ranges(rows, starts, ends)
    return rows[index], starts, ends, winners[index]
