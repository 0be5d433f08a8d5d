"""Semantic deduplication: keep one of several documents with similar embeddings.

The method follows Abbas et al. 2023, "SemDeDup: Data-efficient learning at web-scale through semantic
deduplication" (arXiv 2303.09540), section 3. k-means divides the embeddings into cells, and documents are
compared only within their cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from gristmill.errors import ConfigError
from pipelines.contracts.columns import DROP
from pipelines.contracts.document import ID
from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import GivenSplits, Input, column_named
from pipelines.contracts.stage import Cluster, CorpusStage
from pipelines.stages.dedup.keep_rule import KeepKey, columns_read
from pipelines.stages.dedup.semantic.cell_centroids import EMBEDDING
from pipelines.stages.dedup.semantic.cells import CellSearch


@dataclass(frozen=True)
class DedupSemantic(CorpusStage):
    """Drop documents whose `embedding`, written by `transformer_embeddings`, is similar to that of a kept
    document. Documents that an earlier step dropped do not compete, nor do documents in their source's own
    validation or test split.

    k-means divides the documents into cells of about 10,000 on average, unless `cells` says otherwise.
    Documents are judged in order of preference: a document is dropped if its cosine similarity to a kept
    document of its cell is `threshold` or more. So every dropped document is similar to the one recorded in
    its `semantic_cluster`, and in a cell of up to 100,000 documents no two kept documents are similar.
    Documents of different cells are not compared.

    In a larger cell, the documents after the first 100,000 are compared only with the documents kept among
    the first 100,000. The fact `not_all_compared` counts how many of them are kept.
    """

    threshold: float
    """Cosine similarity at or above which documents are duplicates. It depends on the encoder, so there is no
    default: look at pairs with `inspect --cluster` before you rely on a value.
    """
    cells: int | None = None
    """Number of cells; default: one for each 10,000 documents that compete (the paper's code has 50,000 for
    440 million images). There are never more cells than distinct embeddings in the sample from which cells
    are computed.
    """
    keep: tuple[KeepKey, ...] = ()
    """Preferred documents: keys `{sources: [...]}` or `{column: ..., order: highest | lowest}`, most
    important first. After these keys, the document least similar to the centroid of its cell is preferred, as
    in the paper. Ties go to the earlier source, then to the lowest id.
    """

    version: ClassVar[int] = 1
    elects: ClassVar[bool] = True

    def check(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold: got {self.threshold}, expected more than 0, at most 1")
        if self.cells is not None and self.cells < 1:
            raise ValueError(f"cells: got {self.cells}, expected 1 or more")

    def reads(self) -> tuple[Input, ...]:
        return (*map(column_named, dict.fromkeys((EMBEDDING, *columns_read(self.keep), DROP))), GivenSplits())

    def writes(self) -> pa.Schema:
        """Return `drop` and four columns about clusters. A cluster is a kept document and the documents
        dropped in its favour. `semantic_cluster` is the id of the kept document, `semantic_cluster_size` the
        number of documents in the cluster, and `semantic_similarity` the cosine similarity to the kept
        document. All three are null outside clusters.

        `semantic_copies` is the number of documents that a kept document represents, itself included: 1
        outside clusters, and null for a document that this step drops.
        """
        columns = [("semantic_cluster", ID), ("semantic_cluster_size", pa.int32()), ("semantic_copies", pa.int32())]
        return pa.schema([(DROP, pa.string()), *columns, ("semantic_similarity", pa.float32())])

    def check_types(self, types: pa.Schema) -> None:
        kind = types.field(EMBEDDING).type
        if not (pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)):
            raise ConfigError(f"column {EMBEDDING!r} is {kind}, expected vectors such as transformer_embeddings writes")

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        search = CellSearch("dedup_semantic", self.writes(), self.threshold, self.keep, parts, out, cluster)
        return search.run(self.cells)
