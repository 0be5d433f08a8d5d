"""Find the centroids of the cells into which similar embeddings are grouped, by k-means on a sample of the
corpus.

The sample is drawn by document id, so it does not depend on the division into parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, partitions_for, scatter_rows, write_list
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table
from pipelines.contracts.stage import Cluster, gather
from pipelines.kernels.search.cosine import on_one_thread, spherical_kmeans
from pipelines.stages.decide.uniform_numbers import uniform_numbers
from pipelines.stages.dedup.dedup_inputs import Candidates
from pipelines.stages.score.embedding_values import vectors_of

EMBEDDING = "embedding"
CELL_DOCUMENTS = 10_000
"""Documents per cell, on average. SemDeDup has 8,800 (440 million images of LAION, and 50,000 centroids in
its code).
"""
SAMPLE_PER_CELL = 256
"""Maximum size of the sample, in vectors per cell, as in faiss."""
SAMPLE_BYTES = 1 << 30
"""Approximate maximum size of the sample in bytes, in single precision."""
ROUNDS = 20
"""Maximum number of k-means iterations."""


@dataclass(frozen=True)
class Centroids:
    """The centroids of the cells: their file, their number (`cells`), and the number of competing documents."""

    file: FileRecord
    cells: int
    documents: int

    def load(self, out: StepOutput, width: int) -> np.ndarray:
        """Return the centroids, float32 [cells, width]."""
        schema = _centroid_schema(width)
        return vectors_of(read_table(out.directory, self.file, schema.names, schema_facts(schema))["centroid"])


def competing(one: Candidates) -> tuple[np.ndarray, pa.Array]:
    """Return the rows and the embeddings of a part's competing documents (see `Candidates.competing`)."""
    return one.competing(EMBEDDING, "semantic_cluster")


def find_centroids(
    out: StepOutput, inputs: Sequence[Candidates], kind: pa.DataType, cells: int | None, cluster: Cluster
) -> Centroids:
    """Compute the centroids of `cells` cells by k-means, commit them, and return them. If `cells` is None,
    there is one cell for every CELL_DOCUMENTS competing documents. There are never more cells than distinct
    embeddings in the sample. `kind` is the type of the embeddings.
    """
    rows = sum(one.part.rows for one in inputs)
    share = min(1.0, SAMPLE_BYTES / (4 * kind.list_size) / max(1, rows))
    tasks = [_SampleTask(out, one, share) for one in inputs]
    sampled = gather(cluster, sample_embeddings, tasks, lambda task: f"dedup_semantic: part {task.one.part.name}")
    documents = sum(count for _, count in sampled)
    samples = write_list(out, "samples", [record for record, _ in sampled])
    wanted = partitions_for(documents, CELL_DOCUMENTS) if cells is None else cells
    training = _TrainingTask(out, samples, kind, wanted)
    (trained,) = gather(cluster, train_cells, [training], lambda task: "dedup_semantic: k-means")
    return Centroids(*trained, documents)


@dataclass(frozen=True)
class _SampleTask:
    out: StepOutput
    one: Candidates
    share: float


def sample_embeddings(task: _SampleTask) -> tuple[FileRecord, int]:
    """Commit a part's sample: the embedding of each sampled document, and the random number by which it was
    drawn. Returns the file and the number of the part's competing documents, sampled or not.
    """
    unit = f"sample.{task.one.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        rows, embeddings = competing(task.one)
        numbers = uniform_numbers(task.one.ids().take(pa.array(rows)), 0, b"dedup_semantic")
        table = pa.table({"number": numbers, EMBEDDING: embeddings}).filter(pa.array(numbers < task.share))
        content = scatter_rows(table.combine_chunks(), np.zeros(len(table), np.int64), 1)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {"documents": len(rows)})
    return receipt.files[0], receipt.counts["documents"]


@dataclass(frozen=True)
class _TrainingTask:
    out: StepOutput
    files: FileList
    kind: pa.DataType
    cells: int


def _centroid_schema(width: int) -> pa.Schema:
    return pa.schema([("centroid", pa.list_(pa.float32(), width))])


def train_cells(task: _TrainingTask) -> tuple[FileRecord, int]:
    """Commit the centroids of the cells, and return their file and their number."""
    unit = "centroids"
    receipt = task.out.receipt(unit)
    if receipt is None:
        sample = task.files.gather_rows(0)
        order = np.argsort(sample["number"].to_numpy(), kind="stable")[: task.cells * SAMPLE_PER_CELL]
        vectors = vectors_of(sample[EMBEDDING])[order]
        with on_one_thread():
            centroids = spherical_kmeans(vectors, task.cells, ROUNDS)
        if not len(centroids):  # few documents compete, and none of them is in the sample
            centroids = np.zeros((1, task.kind.list_size), np.float32)
        schema = _centroid_schema(task.kind.list_size)
        column = pa.FixedSizeListArray.from_arrays(pa.array(centroids.ravel()), task.kind.list_size)
        content = write_table(pa.table([column], schema=schema))
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {"cells": len(centroids)})
    return receipt.files[0], receipt.counts["cells"]
