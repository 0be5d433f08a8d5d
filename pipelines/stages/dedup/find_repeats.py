"""Find the substrings that occur before, in an earlier part or earlier in the same one, in two shuffles.

Each part compares its windows of `size` bytes by their minimizers (pipelines/kernels/search/substrings.py), of
which there is one for about size / 4 bytes of text.

1. A part sends each of its minimizers, with the hash of the block around it, to the partition of the
   minimizer, which says which ones occur elsewhere and whether all their blocks are equal.
2. Of these, a part sends a **unit** for each block if all are equal, otherwise for each window in it. The
   partition of a unit elects the first part that has it.
3. A part cuts all units whose first occurrence is in an earlier part, or before in its own text.

Units are compared by two hashes of 64 bits, their own and their minimizer. Two different ones are taken for
equal in one of 2^64 cases if they share the size / 2 bytes of the minimizer, otherwise in one of 2^128.
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
_KNOWN = pa.schema([("minimum", pa.uint64()), ("many", pa.bool_())])
_MINIMA = pa.schema([*_KNOWN, ("block", pa.uint64()), ("windows", pa.int64()), ("part", pa.int64())])
_FIRSTS = pa.schema([("minimum", pa.uint64()), ("hash", pa.uint64()), ("row", pa.int64()), ("start", pa.int64())])
_UNITS = pa.schema([("minimum", pa.uint64()), ("hash", pa.uint64()), ("part", pa.int64()), ("id", ID)])
_WINNERS = pa.schema([("minimum", pa.uint64()), ("hash", pa.uint64()), ("winner", ID)])
CUTS = pa.schema([("row", pa.int64()), ("start", pa.int64()), ("end", pa.int64()), ("winner", ID)])
"""Ranges of documents in order, in bytes of the text that is compared, and the document with the first occurrence
of each."""
GONE = pa.schema([("row", pa.int64())])
"""The documents of a part that do not take part in the second election, ascending."""


@dataclass(frozen=True)
class PartTask:
    """A phase for one part. `election` is 1 among all documents, and 2 without those of `GONE`."""

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
        """Return the name of the unit of work of a phase."""
        return f"{phase}{self.election}.{self.number:05d}"

    def table(self, unit: str, schema: pa.Schema, file: int = 0) -> pa.Table:
        """Read a file of a finished unit of this part."""
        receipt = self.out.receipt(unit)
        assert receipt is not None
        return read_table(self.out.directory, receipt.files[file], schema.names, schema_facts(schema))


@dataclass(frozen=True)
class _PartitionTask:
    out: StepOutput
    files: FileList
    partition: int
    parts: int
    election: int


@dataclass(frozen=True)
class RepeatSearch:
    """The phases over all parts: those that find the repeats of at least `size` bytes in one of their texts, and
    those of the stage.
    """

    rule: str
    text: Text
    size: int
    min_left_words: int
    parts: Sequence[Part]
    out: StepOutput
    cluster: Cluster

    def find(self, election: int) -> None:
        """Find the repeats of an election, 1 or 2 (see `PartTask`), and commit them as the `CUTS` of every part."""
        from pipelines.kernels.search.substrings import average_windows

        size = sum(part.text_bytes for part in self.parts)
        partitions = partitions_for(int(size / average_windows(self.size)))
        votes = self.over_parts(vote_minima, election, (), partitions)
        shared = self._over_partitions(share_minima, election, self._list("minima", election, votes), partitions)
        known = self._list("shared", election, [file for file, _ in shared])
        partitions = partitions_for(sum(units for _, units in shared))
        votes = self.over_parts(vote_units, election, (known,), partitions)
        won = self._over_partitions(elect_firsts, election, self._list("units", election, votes), partitions)
        self.over_parts(find_cuts, election, (known, self._list("winners", election, won)))

    def over_parts(
        self, function: Any, election: int, inputs: tuple[FileList, ...] = (), partitions: int = 1
    ) -> list[Any]:
        """Run a phase for every part."""
        knobs = (self.rule, self.text, self.size, self.min_left_words)
        tasks = [
            PartTask(*knobs, self.out, part, number, election, inputs, partitions)
            for number, part in enumerate(self.parts)
        ]
        return gather(self.cluster, function, tasks, lambda task: f"{self.rule}: part {task.part.name}")

    def _over_partitions(self, function: Any, election: int, files: FileList, partitions: int) -> list[Any]:
        tasks = [_PartitionTask(self.out, files, p, len(self.parts), election) for p in range(partitions)]
        return gather(self.cluster, function, tasks, lambda task: f"{self.rule}: partition {task.partition}")

    def _list(self, phase: str, election: int, files: Sequence[FileRecord]) -> FileList:
        return write_list(self.out, f"{phase}{election}", files)


class _Texts(NamedTuple):
    """The competing documents of a part: their rows, offsets and bytes."""

    rows: np.ndarray
    offsets: np.ndarray
    data: np.ndarray

    def pieces(self, size: int) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """Yield (first document, position in it, offsets, bytes) of runs of documents, and of pieces of long
        documents, which overlap so that each window is in one piece.
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

    table = task.part.table((task.text, DROP))
    compete = pc.is_null(table[DROP]).to_numpy() & ~task.part.held_out()
    if task.election > 1:
        compete[gone_rows(task)] = False
    rows = np.flatnonzero(compete)
    return _Texts(rows, *text_buffers(table[task.text.name].take(pa.array(rows))))


def gone_rows(task: PartTask) -> np.ndarray:
    """Return the rows of a part that do not take part in the second election."""
    if not task.min_left_words:
        return np.zeros(0, np.int64)
    return task.table(f"gone.{task.number:05d}", GONE)["row"].to_numpy()


def vote_minima(task: PartTask) -> FileRecord:
    """Commit the distinct minimizers of a part, by partition, and those that occur in it more than once."""
    from pipelines.kernels.search.substrings import find_blocks

    unit, size = task.unit("minima"), task.size
    receipt = task.out.receipt(unit)
    if receipt is None:
        found = [
            _distinct_blocks(blocks.minima, blocks.hashes, blocks.counts, np.ones(len(blocks.counts), np.int64))
            for blocks in (find_blocks(offsets, data, size) for _, _, offsets, data in _texts(task).pieces(size))
        ]
        empty = (np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))
        minima, hashes, windows, times = _distinct_blocks(*map(np.concatenate, zip(empty, *found, strict=True)))
        starts = np.flatnonzero(_changes(minima))
        many = np.diff(np.append(starts, len(minima))) > 1
        times, windows = (_sums(values, starts) for values in (times, windows))
        columns = [minima[starts], many, hashes[starts], windows, np.full(len(starts), task.number, np.int64)]
        votes = _table(columns, _MINIMA)
        partition = (minima[starts] % np.uint64(task.partitions)).astype(np.int64)
        files = {
            f"work/{unit}.arrow": scatter_rows(votes, partition, task.partitions),
            f"work/own-{unit}.arrow": write_table(votes.select(_KNOWN.names).filter(pa.array(times > 1))),
        }
        receipt = task.out.commit(unit, files, {})
    return receipt.files[0]


def _distinct_blocks(
    minima: np.ndarray, hashes: np.ndarray, windows: np.ndarray, times: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct blocks by minimizer and hash, with the sums of `times`."""
    order = np.lexsort((hashes, minima))
    minima, hashes = minima[order], hashes[order]
    starts = np.flatnonzero(_changes(minima) | _changes(hashes))
    return minima[starts], hashes[starts], windows[order][starts], _sums(times[order], starts)


def _changes(values: np.ndarray) -> np.ndarray:
    """Whether each value is the first or differs from the one before it, bool [n]."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def _sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return np.add.reduceat(values, starts) if len(starts) else values[:0]


def _table(columns: Sequence[Any], schema: pa.Schema) -> pa.Table:
    return pa.table(
        [pa.array(column) if isinstance(column, np.ndarray) else column for column in columns], schema=schema
    )


def share_minima(task: _PartitionTask) -> tuple[FileRecord, int]:
    """Commit, by part, the minimizers of a partition that several parts have. Returns the file and the number of
    units that the parts will send, or a few more.
    """
    unit = f"shared{task.election}.{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        votes = task.files.gather_rows(task.partition)
        votes = votes.take(pa.array(np.argsort(votes["minimum"].to_numpy(), kind="stable")))
        minima, blocks, windows, part = (votes[name].to_numpy() for name in ("minimum", "block", "windows", "part"))
        starts = np.flatnonzero(_changes(minima))
        sizes = np.diff(np.append(starts, len(minima)))
        group = np.repeat(np.arange(len(starts)), sizes)
        differs = votes["many"].to_numpy(zero_copy_only=False) | (blocks != blocks[starts][group])
        many = _sums(differs.astype(np.int64), starts) > 0
        shared = (sizes > 1)[group]
        table = _table([minima[shared], many[group][shared]], _KNOWN)
        units = int(np.where(many, _sums(windows, starts), sizes)[sizes > 1].sum())
        content = scatter_rows(table, part[shared], task.parts)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {"units": units})
    return receipt.files[0], receipt.counts["units"]


class _Known(NamedTuple):
    """The minimizers that occur in several places, ascending; whether their blocks differ; whether another part
    has them.
    """

    minima: np.ndarray
    many: np.ndarray
    elsewhere: np.ndarray

    @classmethod
    def of(cls, task: PartTask) -> "_Known":
        """Combine those that other parts have too with those that only this part has more than once."""
        shared = task.inputs[0].gather_rows(task.number)
        own = task.table(task.unit("minima"), _KNOWN, 1)
        minima, many = shared["minimum"].to_numpy(), shared["many"].to_numpy(zero_copy_only=False)
        alone = ~np.isin(own["minimum"].to_numpy(), minima)
        minima = np.concatenate([minima, own["minimum"].to_numpy()[alone]])
        many = np.concatenate([many, own["many"].to_numpy(zero_copy_only=False)[alone]])
        order = np.argsort(minima)
        return cls(minima[order], many[order], order < len(shared))

    def units(self, task: PartTask, texts: _Texts) -> Iterator[tuple["Blocks", np.ndarray]]:
        """Yield the units of the texts, in order, and whether other parts may have them; `documents` are rows of
        the part.
        """
        from pipelines.kernels.search.substrings import Blocks, find_blocks, split_blocks

        size = task.size
        for first, low, offsets, data in texts.pieces(size):
            blocks = find_blocks(offsets, data, size)
            places = np.minimum(np.searchsorted(self.minima, blocks.minima), max(0, len(self.minima) - 1))
            known = np.flatnonzero(self.minima[places] == blocks.minima) if len(self.minima) else places[:0]
            many = self.many[places[known]] if len(known) else known.astype(bool)
            whole = Blocks(*(values[known[~many]] for values in blocks))
            split = split_blocks(offsets, data, Blocks(*(values[known[many]] for values in blocks)), size)
            units = [np.concatenate(pair) for pair in zip(whole, split, strict=True)]
            order = np.lexsort((units[1], units[0]))
            documents, starts, counts, minima, hashes = (values[order] for values in units)
            elsewhere = self.elsewhere[np.searchsorted(self.minima, minima)]
            yield Blocks(texts.rows[first + documents], low + starts, counts, minima, hashes), elsewhere


def vote_units(task: PartTask) -> FileRecord:
    """Commit the distinct units of a part that others may have, by partition, and the first occurrence of all."""
    unit = task.unit("units")
    receipt = task.out.receipt(unit)
    if receipt is None:
        found: list[Sequence[np.ndarray]] = [
            (np.zeros(0, np.uint64), np.zeros(0, np.uint64), *[np.zeros(0, np.int64)] * 2, np.zeros(0, bool))
        ]
        for units, elsewhere in _Known.of(task).units(task, _texts(task)):
            columns = (units.minima, units.hashes, units.documents, units.starts, elsewhere)
            found.append(_first_units(columns))
        minima, hashes, rows, starts, elsewhere = _first_units([*map(np.concatenate, zip(*found, strict=True))])
        ids = task.part.table(("id",))["id"].take(pa.array(rows[elsewhere]))
        here = np.full(int(elsewhere.sum()), task.number, np.int64)
        votes = _table([minima[elsewhere], hashes[elsewhere], here, ids.combine_chunks()], _UNITS)
        partition = (hashes[elsewhere] % np.uint64(task.partitions)).astype(np.int64)
        files = {
            f"work/{unit}.arrow": scatter_rows(votes, partition, task.partitions),
            f"work/own-{unit}.arrow": write_table(_table([minima, hashes, rows, starts], _FIRSTS)),
        }
        receipt = task.out.commit(unit, files, {})
    return receipt.files[0]


def _first_units(columns: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Return the first of the units with equal minimizer and hash, sorted by hash, then by minimizer."""
    order = np.lexsort((columns[0], columns[1]))
    columns = [values[order] for values in columns]
    first = _changes(columns[0]) | _changes(columns[1])
    return [values[first] for values in columns]


def elect_firsts(task: _PartitionTask) -> FileRecord:
    """Commit, by part, the units of a partition that an earlier part has, with the document that holds the
    first.
    """
    unit = f"winners{task.election}.{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        votes = task.files.gather_rows(task.partition)
        order = np.lexsort((votes["minimum"].to_numpy(), votes["hash"].to_numpy()))
        votes = votes.take(pa.array(order)).combine_chunks()
        first = _changes(votes["minimum"].to_numpy()) | _changes(votes["hash"].to_numpy())
        leader = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
        winners = votes["id"].take(pa.array(leader))
        table = pa.table([votes["minimum"], votes["hash"], winners], schema=_WINNERS).filter(pa.array(~first))
        content = scatter_rows(table, votes["part"].to_numpy()[~first], task.parts)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {})
    return receipt.files[0]


def find_cuts(task: PartTask) -> None:
    """Commit what is cut out of the documents of a part."""
    unit = task.unit("cuts")
    if task.out.receipt(unit) is None:
        task.out.commit(unit, {f"work/{unit}.arrow": write_table(_find_cuts(task))}, {})


def _find_cuts(task: PartTask) -> pa.Table:
    from pipelines.kernels.search.substrings import find_pairs, join_ranges, whole_characters

    size, texts = task.size, _texts(task)
    firsts = task.table(task.unit("units"), _FIRSTS, 1)
    won = task.inputs[1].gather_rows(task.number)
    won = won.take(pa.array(np.lexsort((won["minimum"].to_numpy(), won["hash"].to_numpy())))).combine_chunks()
    own, others = ((table["minimum"].to_numpy(), table["hash"].to_numpy()) for table in (firsts, won))
    first_rows, first_starts = firsts["row"].to_numpy(), firsts["start"].to_numpy()
    nothing = np.zeros(0, np.int64)
    found: list[tuple[np.ndarray, ...]] = [(nothing, nothing, nothing, nothing)]
    for units, _ in _Known.of(task).units(task, texts):
        earlier = find_pairs(units.minima, units.hashes, *others)
        here = find_pairs(units.minima, units.hashes, *own)
        same = first_rows[here] == units.documents
        repeats = (earlier >= 0) | ~same | (first_starts[here] + size <= units.starts)
        winners = np.where(earlier >= 0, earlier, len(won) + first_rows[here])[repeats]
        rows, starts = units.documents[repeats], units.starts[repeats]
        # Runs of neighbouring windows: a character inside is whole in one of them, as windows are longer than one.
        index, starts, ends = join_ranges(rows, starts, starts + units.counts[repeats])
        rows, winners = rows[index], winners[index]
        places = np.searchsorted(texts.rows, rows)
        starts, ends = whole_characters(texts.offsets, texts.data, places, starts, ends + size - 1)
        some = starts < ends
        found.append(_joined(rows[some], starts[some], ends[some], winners[some]))
    rows, starts, ends, winners = _joined(*map(np.concatenate, zip(*found, strict=True)))
    ids = pa.concat_arrays([won["winner"].combine_chunks(), task.part.table(("id",))["id"].combine_chunks()])
    return _table([rows, starts, ends, ids.take(pa.array(winners))], CUTS)


def _joined(
    rows: np.ndarray, starts: np.ndarray, ends: np.ndarray, winners: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Unite ranges that overlap or touch; the winner is that of the first."""
    from pipelines.kernels.search.substrings import join_ranges

    index, starts, ends = join_ranges(rows, starts, ends)
    return rows[index], starts, ends, winners[index]
