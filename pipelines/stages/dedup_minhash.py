"""Near-duplicate removal: MinHash LSH (Broder 1997; Lee et al. 2022, appendix A) and clusters of what collides.

Signatures are cut into `bands` of `rows` values; two documents whose values agree in any band are linked. Two documents of
Jaccard similarity s are linked with probability 1 - (1 - s^rows)^bands: 0.565, 0.772, 0.924, 0.988 at s = 0.7, 0.75, 0.8, 0.85
for 14 x 8. Clusters are the connected components of the links, so a chain of near-copies is one cluster.

The keep rule: the source that stands first in `prefer`, then the lowest document id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.clustering import members, settle
from pipelines.contracts.annotations import Part
from pipelines.contracts.document import ID
from pipelines.contracts.errors import UserError
from pipelines.contracts.manifest import StepOutput, records_of
from pipelines.contracts.stage import DROP, Cluster, CorpusStage, in_order, library_versions
from pipelines.contracts.store import FileRecord
from pipelines.shuffle import gathered, partitions_for, scattered


@dataclass(frozen=True)
class DedupMinhash(CorpusStage):
    """Drop near-copies by MinHash LSH. Only documents that no earlier step dropped compete."""

    bands: int = 14
    """Bands; bands x rows values of the signature are used."""
    rows: int = 8
    """Values in a band that must all agree."""
    prefer: tuple[str, ...] = ()
    """Sources in order of preference; sources not named come last and are equal."""

    version: ClassVar[int] = 1

    def check(self) -> None:
        """Positive numbers."""
        for name in ("bands", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 1 or more")

    def reads(self) -> tuple[str, ...]:
        """The signatures and the drops so far."""
        return ("minhash", DROP)

    def writes(self) -> pa.Schema:
        """`minhash_cluster`: id of the kept document, null outside clusters; its size; estimated similarity to the kept one."""
        columns = [("minhash_cluster", ID), ("minhash_cluster_size", pa.int32()), ("minhash_similarity", pa.float32())]
        return pa.schema([(DROP, pa.string()), *columns])

    def depends(self) -> dict[str, str]:
        """scipy finds the components."""
        return library_versions("scipy")

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Bands to links, links to components, components to winners."""
        first = np.concatenate([[0], np.cumsum([part.rows for part in parts])]).tolist()
        partitions = partitions_for(first[-1] * self.bands)
        tasks = [_BandTask(out, part, first[i], partitions, self.bands, self.rows) for i, part in enumerate(parts)]
        bands = in_order(
            cluster.map(scatter_bands, tasks, lambda task: f"dedup_minhash: part {task.part.name}"), len(tasks)
        )
        links = [_LinkTask(out, tuple(bands), partition) for partition in range(partitions)]
        edges = in_order(
            cluster.map(link_buckets, links, lambda task: f"dedup_minhash: bucket {task.partition}"), partitions
        )
        components = next(
            iter(
                cluster.map(find_components, [_ComponentTask(out, tuple(edges))], lambda _: "dedup_minhash: components")
            )
        )[1]
        owners = [
            _MemberTask(out, part, i, first[i], components, partitions_for(first[-1]), self.prefer)
            for i, part in enumerate(parts)
        ]
        files = in_order(
            cluster.map(scatter_members, owners, lambda task: f"dedup_minhash: part {task.part.name}"), len(owners)
        )
        return settle(out, parts, files, partitions_for(first[-1]), "dedup_minhash", self.writes(), cluster)


@dataclass(frozen=True)
class _BandTask:
    out: StepOutput
    part: Part
    first: int
    partitions: int
    bands: int
    rows: int


def band_keys(signatures: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """One uint64 per document and band, [n, bands], from uint32 signatures [n, at least bands * rows].

    A polynomial over the band's values with an odd multiplier, finished as in splitmix64 (Steele et al. 2014) and salted by the
    band's number. Two different bands collide with probability 2^-64.
    """
    keys = np.empty((len(signatures), bands), np.uint64)
    for band in range(bands):
        key = np.full(len(signatures), 0x9E3779B97F4A7C15 * (band + 1) & 0xFFFFFFFFFFFFFFFF, np.uint64)
        for column in range(band * rows, (band + 1) * rows):
            key = (key ^ signatures[:, column].astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
            key ^= key >> np.uint64(31)
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0x94D049BB133111EB)
        keys[:, band] = key ^ (key >> np.uint64(31))
    return keys


def signatures_of(column: pa.Array) -> np.ndarray:
    """Signatures as uint32 [n, num_perm] without a copy."""
    return column.flatten().to_numpy().reshape(len(column), -1) if len(column) else np.zeros((0, 1), np.uint32)


def scatter_bands(task: _BandTask) -> FileRecord:
    """Commit (band key, document number) of a part's competing documents by bucket partition."""
    unit = f"bands-{task.part.source}-{task.part.index:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        rows, table = _competing(task.part)
        signatures = signatures_of(table["minhash"].combine_chunks())
        if len(rows) and signatures.shape[1] < task.bands * task.rows:
            raise UserError(
                f"dedup_minhash: bands x rows is {task.bands * task.rows}, the signatures hold {signatures.shape[1]} values; "
                "lower bands or rows, or raise num_perm of minhash_signatures"
            )
        keys = band_keys(signatures, task.bands, task.rows) if len(rows) else np.zeros((0, task.bands), np.uint64)
        entries = pa.table(
            {"band": pa.array(keys.ravel()), "document": pa.array(np.repeat(rows + task.first, task.bands))}
        )
        partition = (keys.ravel() >> np.uint64(32)) % np.uint64(task.partitions)
        content = scattered(entries, partition.astype(np.int64), task.partitions)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {})
    return records_of(receipt)[0]


def _competing(part: Part) -> tuple[np.ndarray, pa.Table]:
    table = part.table(("id", "minhash", DROP))
    rows = np.flatnonzero(pc.is_null(table[DROP]).to_numpy() & pc.is_valid(table["minhash"]).to_numpy())
    return rows, table.take(pa.array(rows)).combine_chunks()


@dataclass(frozen=True)
class _LinkTask:
    out: StepOutput
    files: tuple[FileRecord, ...]
    partition: int


def link_buckets(task: _LinkTask) -> FileRecord:
    """Link each document of a bucket to the bucket's first: a star, so a bucket of n costs n - 1 links, never n squared."""
    unit = f"links-{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        table = gathered(task.out.directory, task.files, task.partition)
        band, document = table["band"].to_numpy(), table["document"].to_numpy()
        order = np.lexsort((document, band))
        band, document = band[order], document[order]
        starts = np.flatnonzero(np.concatenate([[True], band[1:] != band[:-1]])) if len(band) else np.zeros(0, np.int64)
        hub = np.repeat(document[starts], np.diff(np.append(starts, len(band))))
        pairs = np.unique(np.stack([hub, document], axis=1)[hub != document], axis=0)
        links = pa.table({"hub": pa.array(pairs[:, 0]), "document": pa.array(pairs[:, 1])})
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": scattered(links, np.zeros(len(pairs), np.int64), 1)}, {})
    return records_of(receipt)[0]


@dataclass(frozen=True)
class _ComponentTask:
    out: StepOutput
    files: tuple[FileRecord, ...]


def find_components(task: _ComponentTask) -> FileRecord:
    """Connected components over all links: each linked document's number with the lowest number of its component, sorted."""
    receipt = task.out.receipt("components")
    if receipt is None:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        links = gathered(task.out.directory, task.files, 0)
        nodes, inverse = np.unique(
            np.concatenate([links["hub"].to_numpy(), links["document"].to_numpy()]), return_inverse=True
        )
        half = len(inverse) // 2
        graph = coo_array((np.ones(half, np.int8), (inverse[:half], inverse[half:])), shape=(len(nodes), len(nodes)))
        count, labels = connected_components(graph, directed=False) if len(nodes) else (0, np.zeros(0, np.int64))
        lowest = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(lowest, labels, nodes)
        table = pa.table({"document": pa.array(nodes, pa.int64()), "component": pa.array(lowest[labels], pa.int64())})
        content = scattered(table, np.zeros(len(nodes), np.int64), 1)
        receipt = task.out.commit("components", {"work/components.arrow": content}, {})
    return records_of(receipt)[0]


@dataclass(frozen=True)
class _MemberTask:
    out: StepOutput
    part: Part
    number: int
    first: int
    components: FileRecord
    partitions: int
    prefer: tuple[str, ...]


def scatter_members(task: _MemberTask) -> FileRecord:
    """Commit the clustered documents of a part with their component and signature."""
    unit = f"members-{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        components = gathered(task.out.directory, [task.components], 0)
        document = components["document"].to_numpy()
        low, high = np.searchsorted(document, [task.first, task.first + task.part.rows])
        rows = document[low:high] - task.first
        component = components["component"].to_numpy()[low:high]
        table = task.part.table(("id", "minhash")).take(pa.array(rows)).combine_chunks()
        found = members(task.part, task.number, table["id"], rows, pa.array(component), task.prefer)
        found = found.append_column("signature", table["minhash"])
        partition = (component % task.partitions).astype(np.int64)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": scattered(found, partition, task.partitions)}, {})
    return records_of(receipt)[0]
