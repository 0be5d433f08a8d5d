"""Elect the documents to keep in each cluster of duplicates, and record for each dropped document the one
that was kept instead.

Each part summarises its clusters: the number of members, and the first `keep_up_to` of them in the order of
preference. The summaries are shuffled by cluster, and the winners are elected from them. The results are
shuffled back to the parts. If a minimum similarity is required, each part compares its members with the
winners, and the members that this comparison does not drop take part in a second election
(pipelines.stages.dedup.verification).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, gather_rows, scatter_rows, write_list
from pipelines.contracts.document import ID
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.manifest import StepOutput, write_table
from pipelines.contracts.stage import Cluster, gather
from pipelines.stages.dedup.dedup_inputs import KEPT_BEFORE, NEW, Candidates
from pipelines.stages.dedup.grouping import (
    DedupPolicy,
    Election,
    Grouping,
    address,
    count_suppressed,
    partition_of,
    runs,
)
from pipelines.stages.dedup.keep_rule import absent_keys, key_columns, key_types, order_by_preference
from pipelines.stages.dedup.verification import Spared, elect_among_spared

_BACK = pa.schema(
    [
        ("cluster", ID),
        ("row", pa.int64()),
        ("kept", pa.bool_()),
        ("winner", ID),
        ("size", pa.int64()),
        ("home", pa.int32()),
        ("home_row", pa.int64()),
        ("enough", pa.bool_()),
    ]
)
_VERDICT = pa.schema(
    [
        ("row", pa.int64()),
        ("kept", pa.bool_()),
        ("winner", ID),
        ("size", pa.int64()),
        ("home", pa.int32()),
        ("home_row", pa.int64()),
        ("similarity", pa.float32()),
        ("dropped", pa.bool_()),
        ("spared", pa.bool_()),
        ("like", pa.int64()),
    ]
)


@dataclass(frozen=True)
class _Task:
    out: StepOutput
    verdict: DedupPolicy
    grouping: Grouping
    candidates: Candidates
    destinations: int
    files: FileList | None
    evidence: FileList | None
    again: FileList | None
    kinds: tuple[pa.DataType, ...]


def summarise_clusters(task: _Task) -> FileRecord:
    """Commit the most preferred documents of each cluster in a part, at most `keep_up_to` per cluster,
    grouped by partition of clusters. Each row also holds the number of the cluster's members in the part.
    Return the record of the file.
    """
    one, keep = task.candidates, task.verdict.keep
    unit = f"members.{one.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        rows, clusters = task.grouping.groups(one)
        keys = absent_keys(task.kinds, len(rows)) if one.finished else key_columns(one.part, rows, keep)
        table = pa.table(
            {
                "cluster": clusters,
                "standing": pa.array(one.priority(rows, task.verdict.schema.names[1])),
                **keys,
                "rank": pa.array(np.full(len(rows), one.rank, np.int32)),
                "id": one.ids().take(pa.array(rows)),
                "part": pa.array(np.full(len(rows), one.number, np.int32)),
                "row": pa.array(rows.astype(np.int64)),
            }
        )
        table = table.take(order_by_preference(table, keep)).combine_chunks()
        _, sizes, position = runs(table["cluster"])
        table = table.append_column("members", pa.array(np.repeat(sizes, sizes)))
        table = table.filter(pa.array(position < task.verdict.keep_up_to)).combine_chunks()
        partition = partition_of(table["cluster"].combine_chunks(), task.destinations)
        content = scatter_rows(table, partition, task.destinations)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {})
    return receipt.files[0]


def elect_winners(task: Election) -> tuple[tuple[FileRecord, ...], dict[str, int]]:
    """Elect the winners of a partition's clusters. Returns two files, and the number of clusters of each
    size. Only clusters of at least two documents, at least one of them new, are counted.

    The first file holds the results, grouped by the members' parts. The second holds the requests for the
    winners' evidence, grouped by the winners' parts.
    """
    unit = f"winners.{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        table = task.files.gather_rows(task.partition)
        table = table.take(order_by_preference(table, task.verdict.keep)).combine_chunks()
        starts, lengths, position = runs(table["cluster"])
        members = table["members"].to_numpy()
        part, row = table["part"].to_numpy(), table["row"].to_numpy()
        first = np.repeat(starts, lengths)
        # Every row repeats its part's member count; count it once per part.
        is_part_leader = np.zeros(len(part), bool)
        is_part_leader[np.unique(first * task.parts + part, return_index=True)[1]] = True
        sizes = np.add.reduceat(np.where(is_part_leader, members, 0), starts) if len(starts) else np.zeros(0, np.int64)
        priority = table["standing"].to_numpy()
        kept = (position < task.verdict.keep_up_to) & ((priority[first] == NEW) | (priority != NEW))
        back = pa.table(
            {
                "cluster": table["cluster"], "row": row, "kept": kept, "winner": table["id"].take(pa.array(first)),
                "size": np.repeat(sizes, lengths), "home": part[first], "home_row": row[first],
                "enough": (priority[first] != NEW) | (task.verdict.keep_up_to == 1),
            },
            schema=_BACK,
        )  # fmt: skip
        has_new = np.logical_or.reduceat(priority == NEW, starts) if len(starts) else np.zeros(0, bool)
        # Documents of finished corpora are judged only if there is a minimum similarity. Others may then
        # resemble one that is unlike the winner.
        judged = np.repeat(has_new, lengths) & ((priority == NEW) | (task.verdict.min_similarity is not None))
        shared = judged & (np.repeat(sizes, lengths) > 1)
        requests = pa.table({"row": row[first], "part": part})
        requesting = shared & is_part_leader
        contents = {
            f"work/{unit}.arrow": scatter_rows(back.filter(pa.array(shared)), part[shared], task.parts),
            f"work/asked-{unit}.arrow": scatter_rows(
                requests.filter(pa.array(requesting)), part[first][requesting], task.parts
            ),
        }
        count = pc.value_counts(pa.array(sizes[(sizes > 1) & has_new])).to_pylist()
        receipt = task.out.commit(unit, contents, {str(entry["values"]): entry["counts"] for entry in count})
    return receipt.files, receipt.counts


def send_evidence(task: _Task) -> FileRecord:
    """Commit the evidence (signatures or shingles) of the winners in a part, grouped by the part that
    requested it. Returns the file.
    """
    unit = f"evidence.{task.candidates.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        assert task.files is not None
        requests = task.files.gather_rows(task.candidates.number)
        row, part = requests["row"].to_numpy(), requests["part"].to_numpy()
        rows, indices = np.unique(row, return_inverse=True)
        evidence = task.grouping.evidence(task.candidates, rows)
        assert evidence is not None
        home = np.full(len(row), task.candidates.number, np.int32)
        table = pa.table({"home": home, "home_row": row, "evidence": evidence.take(pa.array(indices))})
        content = scatter_rows(table, part, task.destinations)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {})
    return receipt.files[0]


def judge_members(task: _Task) -> tuple[tuple[FileRecord, ...], dict[str, int]]:
    """Commit two files: the decisions on the clustered documents of a part, and the number of documents
    dropped in favour of each winner, grouped by the winner's part.

    Returns both files and two numbers: `spared`, how many documents take part in the second election, and
    `evidence_bytes`, the size of their evidence.
    """
    one = task.candidates
    unit = f"judged.{one.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        verdicts, evidence_bytes = _verdicts(task)
        suppressed = count_suppressed(verdicts.filter(verdicts["dropped"]))
        contents = {
            f"work/{unit}.arrow": scatter_rows(verdicts, np.zeros(len(verdicts), np.int64), 1),
            f"work/favours-{unit}.arrow": scatter_rows(suppressed, suppressed["home"].to_numpy(), task.destinations),
        }
        counts = {"spared": pc.sum(verdicts["spared"]).as_py() or 0, "evidence_bytes": evidence_bytes}
        receipt = task.out.commit(unit, contents, counts)
    return receipt.files, receipt.counts


def _verdicts(task: _Task) -> tuple[pa.Table, int]:
    assert task.files is not None
    one, min_similarity = task.candidates, task.verdict.min_similarity
    back = task.files.gather_rows(one.number)
    rows, clusters = task.grouping.groups(one)
    indices = pc.index_in(clusters, value_set=back["cluster"].combine_chunks())
    shared = pc.is_valid(indices).to_numpy(zero_copy_only=False)
    rows, back_of = rows[shared], back.take(indices.drop_null()).combine_chunks()
    kept = np.isin(rows, back["row"].to_numpy()[back["kept"].to_numpy()])
    similarity, sizes = _similarity(task, rows, back_of)
    dropped, spared, like = ~kept, np.zeros(len(rows), bool), np.zeros(len(rows), np.int64)
    if min_similarity is not None:
        priority = one.priority(rows, task.verdict.schema.names[1])
        others = (back_of["home"].to_numpy() != one.number) | (back_of["home_row"].to_numpy() != rows)
        alike = similarity >= np.float32(min_similarity)
        goes = others & alike & back_of["enough"].to_numpy()
        dropped = goes & (priority == NEW)
        spared = others & (~goes | (priority == KEPT_BEFORE))
        like = (alike & spared).astype(np.int64)
    columns = {name: back_of[name] for name in ("winner", "size", "home", "home_row")}
    columns |= {"row": rows, "kept": kept, "similarity": similarity, "dropped": dropped, "spared": spared, "like": like}
    table = pa.table([columns[name] for name in _VERDICT.names], schema=_VERDICT)
    return table, 4 * int(sizes[spared].sum())


def _similarity(task: _Task, rows: np.ndarray, back: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays: the similarity of each of `rows` to its winner, and the number of values in the
    row's evidence. `back` gives the part and the row of each winner (`home`, `home_row`). If the
    deduplication uses no evidence, all similarities are 1 and all numbers are 0.
    """
    if task.evidence is None:
        return np.ones(len(rows), np.float32), np.zeros(len(rows), np.int64)
    sent = task.evidence.gather_rows(task.candidates.number)
    indices = pc.index_in(address(back["home"], back["home_row"]), value_set=address(sent["home"], sent["home_row"]))
    assert not indices.null_count, "a winner's evidence is missing"
    evidence = task.grouping.evidence(task.candidates, rows)
    assert evidence is not None
    similarity = task.grouping.similarity(
        evidence, sent["evidence"].combine_chunks(), indices.to_numpy().astype(np.int64)
    )
    return similarity, pc.list_value_length(evidence).to_numpy(zero_copy_only=False)


def write_verdicts(task: _Task) -> dict[str, int]:
    """Commit the columns of a part, in the order of the schema: `drop`; the preferred document and the size
    of the cluster; the number of documents that a kept document represents, itself included; and, if the
    schema has them, the similarity and the document that was kept instead.

    Returns two counts of documents: `dropped`, and `spared`, those that are kept although the first election
    did not choose them.
    """
    part = task.candidates.part
    unit = part.unit
    judged = task.out.receipt(f"judged.{task.candidates.number:05d}")
    assert judged is not None
    assert task.files is not None
    receipt = task.out.receipt(unit)
    if receipt is None:
        rule, number = task.verdict.rule, task.candidates.number
        verdicts = gather_rows(task.out.directory, [judged.files[0]], 0)
        decided = verdicts.take(pc.index_in(pa.array(np.arange(part.rows)), value_set=verdicts["row"].combine_chunks()))
        lost, suppressed = pc.fill_null(decided["dropped"], False), task.files.gather_rows(number)
        winner, similarity = pc.if_else(lost, decided["winner"], pa.scalar(None, ID)), decided["similarity"]
        if task.again is not None:
            again = task.again.gather_rows(number)
            again = again.take(pc.index_in(pa.array(np.arange(part.rows)), value_set=again["row"].combine_chunks()))
            lost = pc.or_(lost, pc.is_valid(again["winner"]))
            winner, similarity = pc.coalesce(again["winner"], winner), pc.coalesce(again["similarity"], similarity)
        copies = np.ones(part.rows, np.int64)
        np.add.at(copies, suppressed["home_row"].to_numpy(), suppressed["count_all"].to_numpy())
        own = pc.if_else(lost, pa.scalar(None, pa.int64()), pa.array(copies))
        drop = pc.if_else(lost, rule, pa.scalar(None, pa.string()))
        columns = [drop, decided["winner"], decided["size"], own, similarity, winner][: len(task.verdict.schema)]
        table = pa.table(columns, names=task.verdict.schema.names).cast(task.verdict.schema).combine_chunks()
        stays = pc.and_(pc.invert(lost), pc.invert(pc.fill_null(decided["kept"], True)))
        counts = {**count_drops(table).facts(), "spared": pc.sum(stays).as_py() or 0}
        receipt = task.out.commit(unit, {f"parts/{unit}.arrow": write_table(table)}, counts)
    counts = receipt.counts
    return {"dropped": sum(counts["dropped"].values()), "spared": counts["spared"]}


def elect_and_write(
    out: StepOutput,
    inputs: Sequence[Candidates],
    grouping: Grouping,
    verdict: DedupPolicy,
    partitions: int,
    cluster: Cluster,
) -> dict[str, Any]:
    """Elect the winners of all clusters, and write the columns of the new parts. Returns the step's facts.
    The first of `inputs` must be a new part.
    """
    kinds = key_types(inputs[0].part.types, verdict.keep)  # the first part is new

    def tasks(
        ones: Sequence[Candidates],
        destinations: int,
        files: FileList | None = None,
        sent: FileList | None = None,
        again: FileList | None = None,
    ) -> list[_Task]:
        return [_Task(out, verdict, grouping, one, destinations, files, sent, again, kinds) for one in ones]

    def label(task: _Task) -> str:
        return f"{verdict.rule}: part {task.candidates.part.name}"

    new = [one for one in inputs if not one.finished]
    sums = gather(cluster, summarise_clusters, tasks(inputs, partitions), label)
    members = write_list(out, "members", sums)
    elections = [Election(out, verdict, members, partition, len(inputs)) for partition in range(partitions)]
    elected = gather(cluster, elect_winners, elections, lambda task: f"{verdict.rule}: partition {task.partition}")
    back, sent = write_list(out, "winners", [files[0] for files, _ in elected]), None
    if any(name.endswith("_similarity") for name in verdict.schema.names):
        requests = write_list(out, "asked", [files[1] for files, _ in elected])
        evidence = gather(cluster, send_evidence, tasks(inputs, len(inputs), requests), label)
        sent = write_list(out, "evidence", evidence)
    verified = verdict.min_similarity is not None
    judging = inputs if verified else new
    judged = gather(cluster, judge_members, tasks(judging, len(inputs), back, sent), label)
    suppressed, again, beyond = [files[1] for files, _ in judged], None, 0
    spared = [Spared(one, c["spared"], c["evidence_bytes"]) for one, (_, c) in zip(judging, judged, strict=True)]
    if any(one.documents for one in spared):
        results, more, beyond = elect_among_spared(out, verdict, grouping, spared, kinds, len(inputs), cluster)
        suppressed, again = [*suppressed, *more], write_list(out, "again", results)
    listed = write_list(out, "favours", suppressed)
    written = gather(cluster, write_verdicts, tasks(new, len(inputs), listed, None, again), label)
    sizes: dict[int, int] = {}
    for _, counts in elected:
        for size, number in counts.items():
            sizes[int(size)] = sizes.get(int(size), 0) + number
    facts = {
        "clusters": sum(sizes.values()),
        "dropped": sum(counts["dropped"] for counts in written),
        "cluster_sizes": {str(size): sizes[size] for size in sorted(sizes)},
    }
    if verified:
        facts |= {"spared": sum(counts["spared"] for counts in written), "not_all_compared": beyond}
    return facts
