"""Exact deduplication: keep only one document, or `keep_up_to`, of those with the same normalised text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from pipelines.cluster.shuffle import partitions_for
from pipelines.contracts.columns import DROP
from pipelines.contracts.document import ID
from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import GivenSplits, Input, column_named
from pipelines.contracts.stage import Cluster, CorpusStage
from pipelines.stages.dedup.dedup_inputs import Candidates, candidates, check_against, fingerprints
from pipelines.stages.dedup.elect_winners import elect_and_write
from pipelines.stages.dedup.grouping import DedupPolicy
from pipelines.stages.dedup.keep_rule import KeepKey, columns_read


@dataclass(frozen=True)
class DedupExact(CorpusStage):
    """Of the documents with the same `text_hash`, keep the first `keep_up_to` in the order of `keep`, and
    drop the others. Documents that an earlier step dropped do not compete, nor do this corpus's documents in
    their source's own validation or test split.
    """

    keep: tuple[KeepKey, ...] = ()
    """Preferred copies: keys `{sources: [...]}` or `{column: ..., order: highest | lowest}`, most important first. Ties go
    to the earlier source, then to the lowest id."""
    keep_up_to: int = 1
    """How many copies are kept."""
    scope: Literal["across_sources", "within_source"] = "across_sources"
    """Whether documents of different sources are compared."""
    against: tuple[str, ...] = ()
    """Output directories or URLs of finished corpora: copies of documents that competed there are dropped. Their columns are
    read, not their text. URLs are opened as on a command line, with AWS_ENDPOINT_URL for a store other than AWS."""

    version: ClassVar[int] = 3
    elects: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = ("against",)
    places: ClassVar[tuple[str, ...]] = paths
    rule: ClassVar[str] = "dedup_exact"
    compared: ClassVar[str] = "text_hash"
    cluster: ClassVar[str] = "exact_cluster"

    def check(self) -> None:
        check_against(self.against)
        if self.keep_up_to < 1:
            raise ValueError(f"keep_up_to: got {self.keep_up_to}, expected 1 or more")

    def reads(self) -> tuple[Input, ...]:
        return (*map(column_named, (self.compared, *columns_read(self.keep), DROP)), GivenSplits())

    def writes(self) -> pa.Schema:
        """Return `drop` and three columns; for `dedup_url`, their names begin with `url` instead of `exact`.
        `exact_cluster` is the id of the preferred copy, and `exact_cluster_size` the number of all copies,
        including this one; both are null for a document without copies. `exact_copies` is the number of
        documents that a kept document represents: itself and those dropped in its favour.
        """
        columns = [(f"{self.cluster}_size", pa.int32()), (self.cluster.replace("cluster", "copies"), pa.int32())]
        return pa.schema([(DROP, pa.string()), (self.cluster, ID), *columns])

    def depends(self) -> dict[str, str]:
        return fingerprints(self.against)

    def hashes(self, values: pa.Array) -> pa.FixedSizeBinaryArray:
        """Return 16 bytes for each value of the compared column; equivalent values have equal bytes."""
        return values

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        inputs = candidates(parts, self.against, self.compared)
        verdict = DedupPolicy(self.rule, self.writes(), self.keep, self.keep_up_to)
        partitions = partitions_for(sum(one.part.rows for one in inputs))
        return elect_and_write(out, inputs, _EqualHashes(self), verdict, partitions, cluster)


@dataclass(frozen=True)
class _EqualHashes:
    stage: DedupExact

    def groups(self, candidates: Candidates) -> tuple[np.ndarray, pa.Array]:
        rows, values = candidates.competing(self.stage.compared, self.stage.cluster)
        hashes = self.stage.hashes(values)
        if self.stage.scope == "across_sources":
            return rows, hashes
        from xxhash import xxh3_128_digest

        own = np.frombuffer(xxh3_128_digest(candidates.part.source.encode()), np.uint8)
        salted = np.frombuffer(hashes.buffers()[1] or b"", np.uint8, 16 * len(hashes), hashes.offset * 16)
        salted = salted.reshape(-1, 16) ^ own
        return rows, pa.FixedSizeBinaryArray.from_buffers(ID, len(rows), [None, pa.py_buffer(salted)])

    def evidence(self, candidates: Candidates, rows: np.ndarray) -> None:
        """Return None: copies are equal, so no similarity is computed."""

    def similarity(self, members: pa.Array, winners: pa.Array, indices: np.ndarray) -> np.ndarray:
        raise AssertionError("exact copies have no similarity to compute")
