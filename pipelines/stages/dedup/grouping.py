"""The interface between deduplication stages and the election: how a stage groups and compares its documents
(`Grouping`), its policy (`DedupPolicy`), and the election in one partition (`Election`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.cluster.shuffle import FileList, gather_rows
from pipelines.contracts.document import ID
from pipelines.contracts.manifest import StepOutput
from pipelines.stages.dedup.dedup_inputs import Candidates
from pipelines.stages.dedup.keep_rule import KeepKey


class Grouping(Protocol):
    """How a deduplication stage groups its documents into clusters and compares them."""

    def groups(self, candidates: Candidates) -> tuple[np.ndarray, pa.Array]:
        """Return the documents of a part that may have duplicates: their rows, ascending, and the 16-byte key
        of each document's cluster.
        """
        ...

    def evidence(self, candidates: Candidates, rows: np.ndarray) -> pa.Array | None:
        """Return the data from which the similarity of each of `rows` is computed, as a list of uint32 values
        for each row, or None if all members of a cluster are equal.
        """
        ...

    def similarity(self, members: pa.Array, winners: pa.Array, indices: np.ndarray) -> np.ndarray:
        """Return, for each i, the similarity of members[i] to winners[indices[i]], float32. `members` and
        `winners` contain the evidence of documents.
        """
        ...


@dataclass(frozen=True)
class DedupPolicy:
    """The settings of a deduplication stage that its election needs. `rule` is the `drop` of documents that
    lose the election. `schema` lists the columns to write, in the order of `elect_winners.write_verdicts`.
    `keep` is the order of preference, and `keep_up_to` is the maximum number of copies to keep.

    If `min_similarity` is given, a document is dropped only in favour of documents that are at least that
    similar to it. If `sets` is true, evidence is compared as sets, by Jaccard similarity; otherwise it is
    compared as signatures.
    """

    rule: str
    schema: pa.Schema
    keep: tuple[KeepKey, ...] = ()
    keep_up_to: int = 1
    min_similarity: float | None = None
    sets: bool = False


@dataclass(frozen=True)
class Election:
    """The task of electing the winners of the clusters in one partition. `files` lists the files of the
    documents that take part, and `parts` is the number of competing parts.
    """

    out: StepOutput
    verdict: DedupPolicy
    files: FileList
    partition: int
    parts: int


def partition_of(clusters: pa.Array, partitions: int) -> np.ndarray:
    """Return the partition of each 16-byte key, int64."""
    words = _words(clusters)
    mixed = (words[:, 0] ^ words[:, 1]) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(partitions)).astype(np.int64)


def runs(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the starts and sizes of the runs of equal values in a column of 16-byte keys, and each value's
    position within its run.
    """
    words = _words(column.combine_chunks())
    changed = (words[1:] != words[:-1]).any(axis=1)
    starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(words)), bool), changed]))
    sizes = np.diff(np.append(starts, len(words)))
    return starts, sizes, np.arange(len(words)) - np.repeat(starts, sizes)


def address(parts: pa.ChunkedArray, rows: pa.ChunkedArray) -> pa.Array:
    """Return a 16-byte key for each document, made of its part and row."""
    both = np.stack([parts.to_numpy().astype(np.int64), rows.to_numpy()], axis=1)
    return pa.FixedSizeBinaryArray.from_buffers(ID, len(both), [None, pa.py_buffer(np.ascontiguousarray(both))])


def count_suppressed(dropped: pa.Table) -> pa.Table:
    """Count the documents dropped in favour of each winner. The columns of the result are `home` and
    `home_row` (the winner's part and row) and `count_all` (the number of dropped documents).
    """
    pairs = dropped.select(["home", "home_row"])
    return pairs.group_by(["home", "home_row"], use_threads=False).aggregate([([], "count_all")])


def _words(keys: pa.Array) -> np.ndarray:
    return np.frombuffer(keys.buffers()[1] or b"", np.uint64, 2 * len(keys), keys.offset * 16).reshape(-1, 2)


def read_tables(out: StepOutput, files: FileList, partition: int) -> Iterator[pa.Table]:
    """Yield the documents of a partition, one table per file."""
    for record in files.files:
        yield gather_rows(out.directory, [record], partition)


def cut_to_electorate(tables: Iterable[pa.Table], cut: Callable[[pa.Table], pa.Table], most: int) -> pa.Table:
    """Concatenate the tables, of which there must be at least one, and return the result of `cut` on all
    their rows. To bound memory, the rows held so far are also cut when they exceed both `most` bytes and
    twice their size after the last cut. These earlier cuts must not change the result.
    """
    held: list[pa.Table] = []
    limit = most
    for table in tables:
        held.append(table)
        if sum(each.nbytes for each in held) > limit:
            held = [cut(pa.concat_tables(held))]
            limit = max(most, 2 * held[0].nbytes)
    return cut(pa.concat_tables(held))


def others(tables: Iterable[pa.Table], electorate: pa.Table) -> Iterator[pa.Table]:
    """Yield each table without the rows of documents in `electorate`, which are those that
    `cut_to_electorate` kept. Tables with no other rows are skipped.
    """
    known = address(electorate["part"], electorate["row"])
    for table in tables:
        outside = pc.is_null(pc.index_in(address(table["part"], table["row"]), value_set=known))
        if len(outside) and pc.any(outside).as_py():
            yield table.filter(outside).combine_chunks()
