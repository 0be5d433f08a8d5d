"""Near-duplicate removal: MinHash LSH (Broder 1997; Lee et al. 2022, appendix A) and clusters of colliding
documents.

Signatures are cut into `bands` bands of `rows` values each. Two documents are linked if they agree in all
values of at least one band. Documents of Jaccard similarity s are linked with probability 1 - (1 -
s^rows)^bands: for 14 x 8 that is 0.565, 0.772, 0.924, 0.988 at s = 0.7, 0.75, 0.8, 0.85.

Clusters are the connected components of the links, so a chain of near-copies is one cluster, whose ends may
have nothing in common.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from gristmill.config import parse
from gristmill.errors import UserError
from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, gather_rows, partitions_for, scatter_rows, write_list
from pipelines.contracts.columns import DROP
from pipelines.contracts.document import ID
from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import GivenSplits, Input, column_named
from pipelines.contracts.stage import Cluster, CorpusStage, gather
from pipelines.stages.dedup.components import bucket_links, find_components, scatter_edges, spanning_stars
from pipelines.stages.dedup.dedup_inputs import Candidates, candidates, check_against, fingerprints, writer
from pipelines.stages.dedup.elect_winners import elect_and_write
from pipelines.stages.dedup.grouping import DedupPolicy
from pipelines.stages.dedup.keep_rule import KeepKey, columns_read
from pipelines.stages.dedup.lsh import band_keys, best_bands, signatures_of
from pipelines.stages.measure.minhash_signatures import MinhashSignatures

_RULE = "dedup_minhash"
_DEFAULT = (14, 8)


@dataclass(frozen=True)
class DedupMinhash(CorpusStage):
    """Find clusters of near-copies by MinHash LSH. In each cluster, keep the documents that `keep` prefers
    and drop the others or, with `verify`, only those that are similar enough to kept ones. Documents that an
    earlier step dropped do not compete, nor do documents of this corpus that their source assigns to
    validation or test.
    """

    bands: int | None = None
    """Number of bands; bands x rows values of the signature are used. Default: 14, or derived from
    `threshold`.
    """
    rows: int | None = None
    """Values per band, which must all agree. Default: 8, or derived from `threshold`."""
    threshold: float | None = None
    """Jaccard similarity at or above which documents are near-copies. If neither `bands` nor `rows` is given,
    both are derived from it and the signature's length, as in datasketch. `verify` compares similarities with it.
    """
    verify: Literal["none", "signature", "jaccard"] = "none"
    """none: keep only the first `keep_up_to` documents of a cluster. signature: in the order of preference,
    drop a document if its similarity to a kept document of the cluster reaches the threshold; the similarity
    is estimated from the signatures. jaccard: the same with the exact similarity, computed from the shingles,
    for which the text is read again. If the comparison with the preferred document leaves more than 10,000
    members of a cluster undecided, those after the first 10,000 (fewer if their signatures or shingles exceed
    64 MiB) are compared only with the kept documents among these first ones.
    """
    keep: tuple[KeepKey, ...] = ()
    """Preferred documents: keys `{sources: [...]}` or `{column: ..., order: highest | lowest}`, most important first. Ties
    go to the earlier source, then to the lowest id."""
    keep_up_to: int = 1
    """How many documents of a cluster are kept. With `verify`, a document is dropped only if this many kept
    documents are similar to it, or one document of a corpus in `against`.
    """
    scope: Literal["across_sources", "within_source"] = "across_sources"
    """Whether documents of different sources are compared."""
    against: tuple[str, ...] = ()
    """Output directories or URLs of finished corpora: documents that competed there take part and win every cluster they are
    in, so near-copies here are dropped. Their signatures are read, not their text. URLs are opened as on a command line,
    with AWS_ENDPOINT_URL for a store other than AWS."""

    version: ClassVar[int] = 4
    elects: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = ("against",)
    places: ClassVar[tuple[str, ...]] = paths

    def check(self) -> None:
        check_against(self.against)
        for name in ("bands", "rows", "keep_up_to"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}, expected 1 or more")
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise ValueError(f"threshold: got {self.threshold}, expected more than 0, at most 1")
        if self.verify != "none" and self.threshold is None:
            raise ValueError(
                f"verify: {self.verify!r} compares with `threshold`, which is missing; give for example 0.8"
            )
        if self.verify == "jaccard" and self.against:
            raise ValueError("verify: 'jaccard' would read the text of the corpora in `against`; use 'signature'")

    def reads(self) -> tuple[Input, ...]:
        text = ("text",) if self.verify == "jaccard" else ()
        return (*map(column_named, dict.fromkeys(("minhash", *columns_read(self.keep), *text, DROP))), GivenSplits())

    def writes(self) -> pa.Schema:
        """Return `drop` and the following columns. `minhash_cluster` is the id of the preferred document of
        the cluster, `minhash_cluster_size` the number of its documents, and `minhash_similarity` the
        similarity to the preferred document, exact if `verify` is `jaccard`, otherwise estimated from the
        signatures. All three are null outside clusters.

        `minhash_copies` is the number of documents that a kept document represents: itself and those dropped
        in its favour. With `verify`, `minhash_winner` is the id of the document in whose favour this one was
        dropped; the similarity of a dropped document is then its similarity to the winner.
        """
        columns = [("minhash_cluster", ID), ("minhash_cluster_size", pa.int32()), ("minhash_copies", pa.int32())]
        winner = [("minhash_winner", ID)] if self.verify != "none" else []
        return pa.schema([(DROP, pa.string()), *columns, ("minhash_similarity", pa.float32()), *winner])

    def depends(self) -> dict[str, str]:
        return fingerprints(self.against)

    def cut(self, num_perm: int) -> tuple[int, int]:
        """Return (bands, rows) for signatures of `num_perm` values. Raises UserError if the signatures are
        too short.
        """
        if self.threshold is not None and self.bands is None and self.rows is None:
            return best_bands(self.threshold, num_perm)
        bands, rows = self.bands or _DEFAULT[0], self.rows or _DEFAULT[1]
        if bands * rows > num_perm:
            raise UserError(
                f"dedup_minhash: bands x rows is {bands * rows}, the signatures hold {num_perm} values; "
                "lower bands or rows, or raise num_perm of minhash_signatures"
            )
        return bands, rows

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        inputs = candidates(parts, self.against, "minhash")
        bands, rows = self.cut(parts[0].types.field("minhash").type.list_size)
        documents = sum(one.part.rows for one in inputs)
        partitions = partitions_for(documents * bands)
        within = self.scope == "within_source"
        tasks = [_BandTask(out, one, partitions, bands, rows, within) for one in inputs]
        banded = gather(cluster, scatter_bands, tasks, lambda task: f"{_RULE}: {task.one.part.name}")
        entries = write_list(out, "bands", [files[0] for files in banded])
        links = [_LinkTask(out, entries, p, partitions) for p in range(partitions)]
        linked = gather(cluster, link_buckets, links, lambda task: f"{_RULE}: {task.partition}")
        files, edges = [record for record, _ in linked], sum(count for _, count in linked)
        bounds = [one.first for one in inputs]
        named = find_components(out, files, edges, partitions, bounds, cluster, _RULE)
        threshold = None if self.verify == "none" else self.threshold
        verdict = DedupPolicy(
            _RULE, self.writes(), self.keep, self.keep_up_to, threshold, sets=self.verify == "jaccard"
        )
        local = write_list(out, "groups", [files[1] for files in banded])
        shingling = self._shingling(parts) if self.verify == "jaccard" else None
        grouping = _Components(local, write_list(out, "components", named), shingling)
        facts = elect_and_write(out, inputs, grouping, verdict, partitions_for(documents), cluster)
        return {"bands": bands, "rows": rows, **facts}

    def _shingling(self, parts: Sequence[Part]) -> MinhashSignatures:
        written = writer(parts[0], "minhash")
        if written is None or written["stage"] != "minhash_signatures":
            raise UserError("dedup_minhash: verify: 'jaccard' needs signatures by minhash_signatures; use 'signature'")
        if written["knobs"]["text"] != "text":  # type: ignore[index]
            raise UserError(
                "dedup_minhash: verify: 'jaccard' compares stored texts, but the signatures are of edited ones; use "
                "'signature'"
            )
        return parse(MinhashSignatures, written["knobs"], "minhash_signatures")


@dataclass(frozen=True)
class _BandTask:
    out: StepOutput
    one: Candidates
    partitions: int
    bands: int
    rows: int
    within: bool


def scatter_bands(task: _BandTask) -> tuple[FileRecord, ...]:
    """Group the documents of a part that share a band key, directly or through other documents. Each document
    is a node, numbered by its row across all competing parts.

    Commits and returns two files. The first has the distinct band keys, grouped by partition, each with the
    lowest node of its group. The second gives this lowest node for every other node of a group.
    """
    one = task.one
    unit = f"bands.{one.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        rows, column = one.competing("minhash", "minhash_cluster")
        keys = band_keys(signatures_of(column), task.bands, task.rows) if len(rows) else np.zeros((0, 1), np.uint64)
        if task.within:
            from xxhash import xxh3_64_intdigest

            keys ^= np.uint64(xxh3_64_intdigest(one.part.source.encode()))
        nodes = np.repeat(rows + one.first, keys.shape[1])
        links, distinct, representative = bucket_links(keys.ravel(), nodes)
        leaf, lowest = spanning_stars(*links)
        indices = np.minimum(np.searchsorted(leaf, representative), max(0, len(leaf) - 1))
        if len(leaf):
            representative = np.where(leaf[indices] == representative, lowest[indices], representative)
        entries = pa.table({"key": distinct, "node": representative})
        partition = ((distinct >> np.uint64(32)) % np.uint64(task.partitions)).astype(np.int64)
        contents = {
            f"work/{unit}.arrow": scatter_rows(entries, partition, task.partitions),
            f"work/groups-{unit}.arrow": scatter_rows(
                pa.table({"node": leaf, "lowest": lowest}), np.zeros(len(leaf), np.int64), 1
            ),
        }
        receipt = task.out.commit(unit, contents, {})
    return receipt.files


@dataclass(frozen=True)
class _LinkTask:
    out: StepOutput
    files: FileList
    partition: int
    partitions: int


def link_buckets(task: _LinkTask) -> tuple[FileRecord, int]:
    """Link the documents that share a band key of one partition, and commit the links as a spanning forest.
    Returns the file and the number of links.
    """
    unit = f"links.{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        table = task.files.gather_rows(task.partition)
        links, _, _ = bucket_links(table["key"].to_numpy(), table["node"].to_numpy())
        edges = spanning_stars(*links)
        content = scatter_edges(edges, task.partitions)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {"edges": len(edges[0])})
    return receipt.files[0], receipt.counts["edges"]


@dataclass(frozen=True)
class _Components:
    """The clusters of linked documents, found in two steps: within parts, then across parts. A document is a
    node, numbered by its row across all competing parts.

    `local` maps each linked node of a part to the lowest node of its group within the part. `named` maps that
    node to the lowest node of its component across all parts. `shingling` computes the shingle sets to
    compare; if it is None, signatures are compared.
    """

    local: FileList
    named: FileList
    shingling: MinhashSignatures | None

    def groups(self, candidates: Candidates) -> tuple[np.ndarray, pa.Array]:
        inside = gather_rows(self.local.directory, [self.local.files[candidates.number]], 0)
        outside = self.named.gather_rows(candidates.number)
        leaf, lowest = inside["node"].to_numpy(), inside["lowest"].to_numpy()
        centres = np.unique(lowest)
        node, indices = np.unique(outside["node"].to_numpy(), return_index=True)
        component = outside["lowest"].to_numpy()[indices]
        nodes = np.concatenate([leaf, centres, np.setdiff1d(node, centres)])
        label = np.concatenate([lowest, nodes[len(leaf) :]])
        if len(node):
            indices = np.minimum(np.searchsorted(node, label), len(node) - 1)
            label = np.where(node[indices] == label, component[indices], label)
        order = np.argsort(nodes)
        words = np.zeros((len(nodes), 2), np.int64)
        words[:, 1] = label[order]
        return nodes[order] - candidates.first, pa.FixedSizeBinaryArray.from_buffers(
            ID, len(nodes), [None, pa.py_buffer(words)]
        )

    def evidence(self, candidates: Candidates, rows: np.ndarray) -> pa.Array:
        if self.shingling is None:
            return candidates.part.table(("minhash",))["minhash"].take(pa.array(rows)).combine_chunks()
        text = candidates.part.table(("text",))["text"].take(pa.array(rows)).combine_chunks()
        return self.shingling.shingle_sets(text)

    def similarity(self, members: pa.Array, winners: pa.Array, indices: np.ndarray) -> np.ndarray:
        """Return the similarity of members[i] to winners[indices[i]], for each i, as float32: the exact
        Jaccard similarity if the evidence is shingles, otherwise the share of equal signature values.
        """
        if self.shingling is not None:
            from pipelines.kernels.search.minhash import jaccard

            return jaccard(*_ragged(members), *_ragged(winners), indices)
        own, theirs = signatures_of(members), signatures_of(winners)
        estimates = np.empty(len(own) if len(members) else 0, np.float32)
        for start in range(0, len(estimates), 8192):
            batch = slice(start, start + 8192)
            estimates[batch] = (own[batch] == theirs[indices[batch]]).mean(axis=1)
        return estimates


def _ragged(lists: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    return lists.offsets.to_numpy().astype(np.int64), lists.values.to_numpy()
