"""Deduplicate within cells of similar embeddings: bring the documents of each cell together, and elect those
to keep.

Every part sends its documents to the partitions of their cells, each partition elects, and the results return
to the parts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, partitions_for, scatter_rows, write_list
from pipelines.contracts.document import ID
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.manifest import StepOutput, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.stage import Cluster, gather
from pipelines.kernels.search.cosine import (
    STAYS,
    elect_by_cosine,
    follow_by_cosine,
    nearest_centroids,
    on_one_thread,
    pair_cosines,
)
from pipelines.stages.dedup.dedup_inputs import NEW, Candidates, candidates
from pipelines.stages.dedup.grouping import cut_to_electorate, others, partition_of, read_tables, runs
from pipelines.stages.dedup.keep_rule import KeepKey, key_columns, key_types, order_by_preference
from pipelines.stages.dedup.semantic.cell_centroids import EMBEDDING, Centroids, competing, find_centroids
from pipelines.stages.score.embedding_values import vectors_of

ELECTORATE = 100_000
"""Maximum number of documents in the electorate of a cell: those that are compared with one another."""
PARTITION_BYTES = 256 << 20
"""Approximate bytes of a partition. If its documents exceed this size while they are read, each cell is cut to
its electorate.
"""
_BY_CENTROID = KeepKey(column="centroid_similarity", order="lowest")
_RESULT = pa.schema(
    [("part", pa.int32()), ("row", pa.int64()), ("cluster", ID), ("size", pa.int64()), ("similarity", pa.float32()),
     ("dropped", pa.bool_())]
)  # fmt: skip
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class _PartTask:
    """The arguments of `scatter_cells` and `write_columns` for one part. Only `scatter_cells` needs
    `partitions` and `centroids`, and only `write_columns` needs `results`.
    """

    out: StepOutput
    one: Candidates
    schema: pa.Schema
    keep: tuple[KeepKey, ...]
    partitions: int = 1
    centroids: Centroids | None = None
    results: FileList | None = None


@dataclass(frozen=True)
class CellSearch:
    """The search for duplicates within cells. It writes the columns of `schema` for every part."""

    rule: str
    schema: pa.Schema
    threshold: float
    keep: tuple[KeepKey, ...]
    parts: Sequence[Part]
    out: StepOutput
    cluster: Cluster

    def run(self, cells: int | None) -> dict[str, Any]:
        """Find the duplicates, write the columns of every part, and return the facts of the step. `cells` is
        the number of cells, or None for the default of `find_centroids`.
        """
        inputs = candidates(self.parts, (), EMBEDDING)
        kind = self.parts[0].types.field(EMBEDDING).type
        key_types(self.parts[0].types, self.keep)
        centroids = find_centroids(self.out, inputs, kind, cells, self.cluster)
        documents = centroids.documents
        # besides its vector, a document has about 100 bytes of ids, numbers and keys
        partitions = partitions_for(
            documents, max(1, PARTITION_BYTES // (kind.list_size * kind.value_type.bit_width // 8 + 100))
        )
        sent = self._over(inputs, scatter_cells, partitions=partitions, centroids=centroids)
        files = write_list(self.out, "cells", sent)
        elections = [_CellTask(self.out, files, p, len(inputs), self.threshold, self.keep) for p in range(partitions)]
        elected = gather(self.cluster, elect_in_cells, elections, lambda task: f"{self.rule}: {task.partition}")
        results = write_list(self.out, "elected", [record for record, _ in elected])
        dropped = sum(self._over(inputs, write_columns, results=results))
        sizes: dict[int, int] = {}
        for _, counts in elected:
            for size, number in counts["sizes"].items():
                sizes[int(size)] = sizes.get(int(size), 0) + number
        return {
            "clusters": sum(sizes.values()),
            "dropped": dropped,
            "cluster_sizes": {str(size): sizes[size] for size in sorted(sizes)},
            "cells": centroids.cells,
            "largest_cell": max((counts["largest"] for _, counts in elected), default=0),
            "not_all_compared": sum(counts["beyond"] for _, counts in elected),
        }

    def _over(self, inputs: Sequence[Candidates], step: Callable[[_PartTask], _Result], **more: Any) -> list[_Result]:
        tasks = [_PartTask(self.out, one, self.schema, self.keep, **more) for one in inputs]
        return gather(self.cluster, step, tasks, lambda task: f"{self.rule}: part {task.one.part.name}")


def scatter_cells(task: _PartTask) -> FileRecord:
    """Commit the competing documents of a part, grouped by the partition of their cell. Returns the file."""
    one = task.one
    unit = f"cells.{one.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        assert task.centroids is not None
        rows, embeddings = competing(one)
        centroids = task.centroids.load(task.out, embeddings.type.list_size)
        vectors = vectors_of(embeddings)
        with on_one_thread():
            cells = nearest_centroids(vectors, centroids)
        words: np.ndarray = np.zeros((len(cells), 2), np.int64)
        words[:, 1] = cells
        cell_ids = pa.FixedSizeBinaryArray.from_buffers(ID, len(cells), [None, pa.py_buffer(words)])
        table = pa.table(
            {
                "cluster": cell_ids,
                "standing": np.full(len(rows), NEW, np.int8),
                **key_columns(one.part, rows, task.keep),
                f"key{len(task.keep)}": pair_cosines(vectors, centroids[cells]),
                "rank": np.full(len(rows), one.rank, np.int32),
                "id": one.ids().take(pa.array(rows)),
                "part": np.full(len(rows), one.number, np.int32),
                "row": rows.astype(np.int64),
                EMBEDDING: embeddings,
            }
        )
        content = scatter_rows(table, partition_of(cell_ids, task.partitions), task.partitions)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {})
    return receipt.files[0]


@dataclass(frozen=True)
class _CellTask:
    out: StepOutput
    files: FileList
    partition: int
    parts: int
    threshold: float
    keep: tuple[KeepKey, ...]


def elect_in_cells(task: _CellTask) -> tuple[FileRecord, dict[str, Any]]:
    """Elect the documents to keep in each cell of a partition. Commit the members of all clusters, dropped or
    kept, grouped by part.

    Returns the file and three facts: `sizes`, the number of clusters by size; `largest`, the number of
    documents in the largest cell; and `beyond`, the number of kept documents outside the electorates.
    """
    unit = f"elected.{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        with on_one_thread():
            result, facts = _elect(task)
        content = scatter_rows(result, result["part"].to_numpy().astype(np.int64), task.parts)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, facts)
    return receipt.files[0], receipt.counts


def _elect(task: _CellTask) -> tuple[pa.Table, dict[str, Any]]:
    table, sizes = _electorates(task)
    starts, lengths, _ = runs(table["cluster"])
    vectors, winner = vectors_of(table[EMBEDDING]), np.full(len(table), STAYS, np.int64)
    for start, length in zip(starts, lengths, strict=True):
        own = elect_by_cosine(vectors[start : start + length], task.threshold)
        winner[start : start + length] = np.where(own == STAYS, STAYS, start + own)
    stays = np.flatnonzero(winner == STAYS)
    lost, beyond = [_lost(table, vectors, winner)], 0
    if sum(sizes.values()) > len(table):
        for later in others(read_tables(task.out, task.files, task.partition), table):
            winner = _follow(later, table, stays, task.threshold)
            lost.append(_lost(later, vectors, winner))
            beyond += int((winner == STAYS).sum())
    result, counts = _results(table, pa.concat_tables(lost))
    return result, {"sizes": counts, "largest": max(sizes.values(), default=0), "beyond": beyond}


def _electorates(task: _CellTask) -> tuple[pa.Table, dict[bytes, int]]:
    sizes: dict[bytes, int] = {}

    def counted() -> Iterator[pa.Table]:
        for table in read_tables(task.out, task.files, task.partition):
            for entry in pc.value_counts(table["cluster"]).to_pylist():
                sizes[entry["values"]] = sizes.get(entry["values"], 0) + entry["counts"]
            yield table

    return cut_to_electorate(counted(), lambda table: _cut(table, task.keep), PARTITION_BYTES), sizes


def _cut(table: pa.Table, keep: tuple[KeepKey, ...]) -> pa.Table:
    keys = (*keep, _BY_CENTROID)
    table = table.take(order_by_preference(table, keys)).combine_chunks()
    _, _, position = runs(table["cluster"])
    return table.filter(pa.array(position < ELECTORATE)).combine_chunks()


def _follow(later: pa.Table, table: pa.Table, stays: np.ndarray, threshold: float) -> np.ndarray:
    """Return the winner of each document of `later`, as a row of `table`: the most preferred kept document
    that is in the same cell and similar to the document, or STAYS if there is none. `stays` contains the rows
    of `table` that are kept.
    """
    winner = np.full(len(later), STAYS, np.int64)
    vectors, kept = vectors_of(later[EMBEDDING]), table.take(pa.array(stays)).combine_chunks()
    kept_vectors = vectors_of(kept[EMBEDDING])
    for cell in pc.unique(later["cluster"]):
        rows = np.flatnonzero(pc.equal(later["cluster"], cell).to_numpy())
        some = np.flatnonzero(pc.equal(kept["cluster"], cell).to_numpy())
        found = follow_by_cosine(vectors[rows], kept_vectors[some], threshold)
        winner[rows] = np.where(found == STAYS, STAYS, stays[some[found]])
    return winner


def _lost(documents: pa.Table, winners: np.ndarray, winner: np.ndarray) -> pa.Table:
    """Return a table of the dropped documents. winner[i] is the row in `winners` of the vector of document
    i's winner, or STAYS if document i is kept.
    """
    lose = np.flatnonzero(winner != STAYS)
    similarity = pair_cosines(vectors_of(documents[EMBEDDING])[lose], winners[winner[lose]])
    rows = documents.select(["part", "row"]).take(pa.array(lose))
    return rows.append_column("winner", pa.array(winner[lose])).append_column("similarity", pa.array(similarity))


def _results(table: pa.Table, lost: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """Return the members of all clusters, each with its verdict, and the number of clusters by size."""
    losers = np.bincount(lost["winner"].to_numpy(), minlength=len(table))
    heads = np.flatnonzero(losers)
    rows = np.concatenate([heads, lost["winner"].to_numpy()])
    ids = table["id"].combine_chunks().take(pa.array(rows))
    columns = {
        "part": np.concatenate([table["part"].to_numpy()[heads], lost["part"].to_numpy()]),
        "row": np.concatenate([table["row"].to_numpy()[heads], lost["row"].to_numpy()]),
        "cluster": ids,
        "size": losers[rows] + 1,
        "similarity": np.concatenate([np.ones(len(heads), np.float32), lost["similarity"].to_numpy()]),
        "dropped": np.arange(len(rows)) >= len(heads),
    }
    sizes, counts = np.unique(losers[heads] + 1, return_counts=True)
    by_size = {str(size): int(count) for size, count in zip(sizes, counts, strict=True)}
    return pa.table([columns[name] for name in _RESULT.names], schema=_RESULT), by_size


def write_columns(task: _PartTask) -> int:
    """Commit the columns of a part, and return the number of dropped documents."""
    part = task.one.part
    receipt = task.out.receipt(part.unit)
    if receipt is None:
        assert task.results is not None
        results = task.results.gather_rows(task.one.number)
        place = pc.index_in(pa.array(np.arange(part.rows)), value_set=results["row"].combine_chunks())
        found = results.take(place)
        lost = pc.fill_null(found["dropped"], False)
        copies = pc.if_else(lost, pa.scalar(None, pa.int64()), pc.fill_null(found["size"], 1))
        drop = pc.if_else(lost, "dedup_semantic", pa.scalar(None, pa.string()))
        columns = [drop, found["cluster"], found["size"], copies, found["similarity"]]
        table = pa.table(columns, names=task.schema.names).cast(task.schema).combine_chunks()
        counts = count_drops(table).facts()
        receipt = task.out.commit(part.unit, {f"parts/{part.unit}.arrow": write_table(table)}, counts)
    return sum(receipt.counts["dropped"].values())
