"""Hold a second election in each cluster, among the members that were not dropped when they were compared
with the cluster's preferred document.

Links between documents form chains, so a cluster can hold many documents that have little in common with its
preferred document. The members that remain are considered again, in order of preference. A new document is
dropped if its similarity to at least `keep_up_to` kept documents, or to one document of a finished corpus,
reaches the minimum.

In a large cluster, only the first documents in this order, the electorate, are compared with each other. The
others are compared only with the kept documents of the electorate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import gather_rows, partitions_for, scatter_rows, write_list
from pipelines.contracts.document import ID
from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.stage import Cluster, gather
from pipelines.stages.dedup.dedup_inputs import KEPT_BEFORE, NEW, Candidates
from pipelines.stages.dedup.grouping import (
    DedupPolicy,
    Election,
    Grouping,
    count_suppressed,
    cut_to_electorate,
    others,
    partition_of,
    read_tables,
    runs,
)
from pipelines.stages.dedup.keep_rule import absent_keys, key_columns, order_by_preference

ELECTORATE = 10_000
"""Maximum number of documents of a cluster that are compared with one another: at most 50 million
comparisons, which take seconds for signatures of 112 values.
"""
ELECTORATE_BYTES = 64 << 20
"""Maximum size in bytes of the electorate's evidence: 150,000 signatures of 112 values, or the shingles of 20,000
documents of 800 words.
"""
_PARTITION_BYTES = 256 << 20
_RESULT = pa.schema(
    [("row", pa.int64()), ("winner", ID), ("similarity", pa.float32()), ("home", pa.int32()), ("home_row", pa.int64())]
)


@dataclass(frozen=True)
class _PartTask:
    out: StepOutput
    verdict: DedupPolicy
    grouping: Grouping
    candidates: Candidates
    kinds: tuple[pa.DataType, ...]
    partitions: int


@dataclass(frozen=True)
class Spared:
    """The documents of a part that enter the second election: their number, and the size of their evidence in
    bytes.
    """

    candidates: Candidates
    documents: int
    evidence_bytes: int


def elect_among_spared(
    out: StepOutput,
    verdict: DedupPolicy,
    grouping: Grouping,
    spared: Sequence[Spared],
    kinds: tuple[pa.DataType, ...],
    parts: int,
    cluster: Cluster,
) -> tuple[list[FileRecord], list[FileRecord], int]:
    """Run the second election. `kinds` are the types of the columns of `key_columns`, and `parts` is the
    number of competing parts. Returns the files of dropped documents, grouped by part; the files with the
    number of documents dropped in favour of each winner, grouped by the winner's part; and the number of new
    documents kept outside the electorates.
    """
    partitions = partitions_for(sum(one.evidence_bytes for one in spared), _PARTITION_BYTES)
    tasks = [_PartTask(out, verdict, grouping, one.candidates, kinds, partitions) for one in spared if one.documents]
    sent = gather(cluster, send_spared, tasks, lambda task: f"{verdict.rule}: part {task.candidates.part.name}")
    files = write_list(out, "spared", sent)
    elections = [Election(out, verdict, files, partition, parts) for partition in range(partitions if tasks else 0)]
    elected = gather(cluster, elect_again, elections, lambda task: f"{verdict.rule}: partition {task.partition}")
    results, favours = [files[0] for files, _ in elected], [files[1] for files, _ in elected]
    return results, favours, sum(beyond for _, beyond in elected)


def send_spared(task: _PartTask) -> FileRecord:
    """Commit the spared documents of a part with their evidence, grouped by the partition of their cluster.
    Returns the file.
    """
    one, verdict = task.candidates, task.verdict
    unit = f"spared.{one.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        judged = task.out.receipt(f"judged.{one.number:05d}")
        assert judged is not None
        table = gather_rows(task.out.directory, [judged.files[0]], 0)
        table = table.filter(table["spared"]).combine_chunks()
        rows = table["row"].to_numpy()
        keys = absent_keys(task.kinds, len(rows)) if one.finished else key_columns(one.part, rows, verdict.keep)
        evidence = task.grouping.evidence(one, rows)
        assert evidence is not None
        columns = {
            "cluster": table["winner"], "standing": one.priority(rows, verdict.schema.names[1]), **keys,
            "rank": np.full(len(rows), one.rank, np.int32), "id": one.ids().take(pa.array(rows)),
            "part": np.full(len(rows), one.number, np.int32), "row": rows, "like": table["like"],
            "similarity": table["similarity"], "home": table["home"], "home_row": table["home_row"], "evidence": evidence,
        }  # fmt: skip
        spared = pa.table(columns)
        partition = partition_of(spared["cluster"].combine_chunks(), task.partitions)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": scatter_rows(spared, partition, task.partitions)}, {})
    return receipt.files[0]


def elect_again(task: Election) -> tuple[tuple[FileRecord, ...], int]:
    """Elect among the spared documents of a partition. Returns the two files and the number that
    `elect_among_spared` collects from every partition.
    """
    unit = f"again.{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        table, documents = _electorates(task)
        winner, similarity = _elect(table, task.verdict)
        gone, beyond = [_dropped(table, table, winner, similarity)], 0
        if documents > table.num_rows:
            stay = table.filter(pa.array(winner == -1)).combine_chunks()
            for later in others(read_tables(task.out, task.files, task.partition), table):
                winner, similarity = _follow(later, stay, task.verdict)
                gone.append(_dropped(later, stay, winner, similarity))
                beyond += int(((winner == -1) & (later["standing"].to_numpy() == NEW)).sum())
        result = pa.concat_tables(gone).combine_chunks()
        suppressed = count_suppressed(result)
        contents = {
            f"work/{unit}.arrow": scatter_rows(result.select(_RESULT.names), result["part"].to_numpy(), task.parts),
            f"work/favours-{unit}.arrow": scatter_rows(suppressed, suppressed["home"].to_numpy(), task.parts),
        }
        receipt = task.out.commit(unit, contents, {"beyond": beyond})
    return receipt.files, receipt.counts["beyond"]


def _electorates(task: Election) -> tuple[pa.Table, int]:
    documents = 0

    def counted() -> Iterator[pa.Table]:
        nonlocal documents
        for table in read_tables(task.out, task.files, task.partition):
            documents += table.num_rows
            yield table

    table = cut_to_electorate(counted(), lambda table: _cut(table, task.verdict, 1), _PARTITION_BYTES)
    return _cut(table, task.verdict, 0), documents


def _cut(table: pa.Table, verdict: DedupPolicy, beyond: int) -> pa.Table:
    """Return the rows of each cluster's electorate, grouped by cluster, most preferred first. The electorate
    is the cluster's most preferred documents: at most ELECTORATE documents, with at most ELECTORATE_BYTES of
    evidence in total. The first document is always included.

    If `beyond` is 1 rather than 0, the document whose evidence brings the total above ELECTORATE_BYTES is
    included too. The rows can then be cut again together with further rows, and the electorate is the same as
    from one cut of all rows.
    """
    table = table.take(order_by_preference(table, verdict.keep)).combine_chunks()
    starts, sizes, position = runs(table["cluster"])
    own = np.diff(_vectors(table)[0]) * 4
    ends = np.cumsum(own)
    before = np.repeat(ends[starts - 1] * (starts > 0), sizes)
    return table.filter(
        pa.array((position < ELECTORATE) & (ends - own * beyond - before <= ELECTORATE_BYTES) | (position == 0))
    ).combine_chunks()


def _vectors(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return (offsets, values): the evidence of document i is values[offsets[i]:offsets[i + 1]]."""
    lists = table["evidence"].combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.chunk(0) if lists.num_chunks else pa.array([], lists.type)
    sizes = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]), lists.flatten().to_numpy()


def _elect(table: pa.Table, verdict: DedupPolicy) -> tuple[np.ndarray, np.ndarray]:
    """Decide which documents of each cluster stay. Return `winner`, int64 [documents], and `similarity`,
    float32 [documents], as defined in the kernel `elect`.
    """
    from pipelines.kernels.search.election import elect

    starts, _, _ = runs(table["cluster"])
    winner, similarity = np.empty(table.num_rows, np.int64), np.zeros(table.num_rows, np.float32)
    elect(
        *_vectors(table), verdict.sets, np.append(starts, table.num_rows), table["like"].to_numpy(),
        table["standing"].to_numpy() == KEPT_BEFORE, _is_finished(table), verdict.keep_up_to,
        np.float32(verdict.min_similarity or 0), winner, similarity,
    )  # fmt: skip
    return winner, similarity


def _is_finished(table: pa.Table) -> np.ndarray:
    return table["standing"].to_numpy() != NEW


def _follow(table: pa.Table, stay: pa.Table, verdict: DedupPolicy) -> tuple[np.ndarray, np.ndarray]:
    """Decide which documents outside the electorate stay, by comparing each with the documents of its cluster
    in `stay`. Return `winner` and `similarity` as `_elect` does; winners are rows of `stay`.
    """
    from pipelines.kernels.search.election import follow

    starts, sizes, _ = runs(stay["cluster"])
    indices = pc.index_in(table["cluster"].combine_chunks(), value_set=stay["cluster"].combine_chunks().take(starts))
    cluster = indices.to_numpy()
    winner, similarity = np.empty(table.num_rows, np.int64), np.zeros(table.num_rows, np.float32)
    follow(
        *_vectors(table), *_vectors(stay), verdict.sets, starts[cluster], (starts + sizes)[cluster],
        table["like"].to_numpy(), table["standing"].to_numpy() == KEPT_BEFORE, _is_finished(stay), verdict.keep_up_to,
        np.float32(verdict.min_similarity or 0), winner, similarity,
    )  # fmt: skip
    return winner, similarity


def _dropped(table: pa.Table, stay: pa.Table, winner: np.ndarray, similarity: np.ndarray) -> pa.Table:
    """Return the new documents of a table that are dropped, each with its winner."""
    goes = (winner != -1) & (table["standing"].to_numpy() == NEW)
    table, winner, similarity = table.filter(pa.array(goes)).combine_chunks(), winner[goes], similarity[goes]
    rows, of_first = pa.array(np.maximum(winner, 0)), pa.array(winner < 0)
    columns = [table["row"]]
    for first, other in (("cluster", "id"), ("similarity", None), ("home", "part"), ("home_row", "row")):
        values = pa.array(similarity) if other is None else stay[other].take(rows).combine_chunks()
        columns.append(pc.if_else(of_first, table[first].combine_chunks(), values))
    result = pa.table(columns, schema=_RESULT)
    return result.append_column("part", table["part"])
