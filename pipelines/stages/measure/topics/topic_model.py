"""The topics of a corpus, which are clusters of documents at one or two levels: their centroids, names and
characteristic words, learned from a sample.

The sample is drawn by document id, so it does not depend on how the corpus is divided into parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, scatter_rows, write_list
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import Column, Text
from pipelines.contracts.stage import Cluster, gather
from pipelines.kernels.search.cosine import (
    nearest_centroids,
    on_one_thread,
    pair_cosines,
    spherical_kmeans,
    spread_first,
)
from pipelines.stages.decide.uniform_numbers import uniform_numbers
from pipelines.stages.measure.topics.topic_names import name_of, telling_words, words_of
from pipelines.stages.score.embedding_values import vectors_of

ROUNDS = 50
"""Maximum number of k-means iterations."""
STARTS = 5
"""Number of k-means runs, each from different initial vectors far from one another. The run whose centroids
are nearest to the sample is used.
"""
_PURPOSE = b"topics"
EMBEDDING = Column("embedding")


@dataclass(frozen=True)
class TopicName:
    """A topic, that is, a cluster of documents. `sampled` is the number of its documents in the sample, and
    `parts` are its subtopics.
    """

    name: str
    words: tuple[str, ...]
    sampled: int
    parts: tuple["TopicName", ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return the topic as an entry of the step's manifest."""
        return asdict(self)

    @classmethod
    def parse(cls, facts: Mapping[str, Any]) -> "TopicName":
        """Return the topic that an entry of the step's manifest describes."""
        return cls(facts["name"], tuple(facts["words"]), facts["sampled"], tuple(map(cls.parse, facts["parts"])))


@dataclass(frozen=True)
class TopicModel:
    """A trained topic model. `file` holds the centroids: the row of each topic is followed by the rows of its
    subtopics.
    """

    file: FileRecord
    topics: tuple[TopicName, ...]

    def load(self, out: StepOutput, width: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, for each topic, its centroid, float32 [1, width], and the centroids of its subtopics,
        float32 [parts, width].
        """
        schema = _schema(width)
        rows = vectors_of(read_table(out.directory, self.file, schema.names, schema_facts(schema))["centroid"])
        result, first = [], 0
        for topic in self.topics:
            last = first + 1 + len(topic.parts)
            result.append((rows[first : first + 1], rows[first + 1 : last]))
            first = last
        return result


def learn_topics(
    parts: Sequence[Part],
    text: Text,
    width: int,
    sizes: tuple[int, int],
    sample: int,
    out: StepOutput,
    cluster: Cluster,
) -> TopicModel:
    """Learn up to `sizes[0]` topics, and up to `sizes[1]` subtopics of each, from up to `sample` documents.
    Commit their centroids and return the model. Topics are named after words of the column `text`.
    """
    rows = sum(part.rows for part in parts)
    share = min(1.0, 1.2 * sample / max(1, rows))  # somewhat more, because the number drawn is random
    tasks = [_SampleTask(out, part, number, text, share) for number, part in enumerate(parts)]
    files = gather(cluster, sample_topics, tasks, lambda task: f"{out.name}: sample of part {task.part.name}")
    training = _TrainingTask(out, write_list(out, "samples", files), width, sizes, sample)
    (model,) = gather(cluster, train_topics, [training], lambda task: f"{task.out.name}: k-means")
    return model


@dataclass(frozen=True)
class _SampleTask:
    out: StepOutput
    part: Part
    number: int
    text: Text
    share: float


def sample_topics(task: _SampleTask) -> FileRecord:
    """Commit the hashes, vectors and words of a sample of a part's documents: those that have a vector and
    whose id, hashed to [0, 1), is below `share`. Returns the file.
    """
    unit = f"sample.{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        docs = task.part.table(("id", EMBEDDING))
        numbers = uniform_numbers(docs["id"], 0, _PURPOSE)
        known = docs[EMBEDDING.name].is_valid().to_numpy()
        rows = pa.array(np.flatnonzero(known & (numbers < task.share)))
        texts = task.part.table((task.text,), rows)[task.text.name]
        table = pa.table({
            "number": numbers[rows.to_numpy()], "vector": docs[EMBEDDING.name].take(rows).combine_chunks(),
            "words": words_of(texts),
        })  # fmt: skip
        content = scatter_rows(table, np.zeros(len(table), np.int64), 1)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, {})
    return receipt.files[0]


@dataclass(frozen=True)
class _TrainingTask:
    out: StepOutput
    samples: FileList
    width: int
    sizes: tuple[int, int]
    sample: int


def _schema(width: int) -> pa.Schema:
    return pa.schema([("centroid", pa.list_(pa.float32(), width))])


def train_topics(task: _TrainingTask) -> TopicModel:
    """Train the topic model, commit its centroids, and return the model."""
    unit = "centroids"
    receipt = task.out.receipt(unit)
    if receipt is None:
        sample = task.samples.gather_rows(0)
        order = np.argsort(sample["number"].to_numpy(), kind="stable")[: task.sample]
        vectors = vectors_of(sample["vector"])[order]
        words = sample["words"].combine_chunks().take(pa.array(order))
        if isinstance(words, pa.ChunkedArray):
            words = pa.concat_arrays(words.chunks) if words.num_chunks else pa.array([], words.type)
        with on_one_thread():
            rows, topics = _divide(vectors, words, task.sizes)
        centroids = np.concatenate(rows) if rows else np.zeros((0, task.width), np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(centroids.ravel()), task.width)
        content = write_table(pa.table([column], schema=_schema(task.width)))
        facts = {"topics": [topic.facts() for topic in topics]}
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": content}, facts)
    return TopicModel(receipt.files[0], tuple(map(TopicName.parse, receipt.counts["topics"])))


def _divide(vectors: np.ndarray, words: pa.Array, sizes: tuple[int, ...]) -> tuple[list[np.ndarray], list[TopicName]]:
    """Divide a sample into up to `sizes[0]` clusters, and each cluster into up to `sizes[1]` subclusters.
    Return two lists, each with one entry per cluster, from the largest to the smallest. The first list holds
    arrays, float32 [1 + parts, width]: the centroid of the cluster, then those of its subclusters. The second
    list holds the clusters as topics.
    """
    if not len(vectors) or sizes[0] < 1:
        return [], []
    centroids, nearest = _cluster(vectors, sizes[0])
    counts = np.bincount(nearest, minlength=len(centroids))
    order = [at for at in np.argsort(-counts, kind="stable").tolist() if counts[at]]
    telling = telling_words(words, nearest, len(centroids))
    rows: list[np.ndarray] = []
    topics: list[TopicName] = []
    for number, at in enumerate(order):
        inside = np.flatnonzero(nearest == at)
        below, parts = _divide(vectors[inside], words.take(pa.array(inside)), sizes[1:]) if sizes[1:] else ([], [])
        name = name_of(telling[at], number, {topic.name for topic in topics})
        topics.append(TopicName(name, tuple(telling[at]), int(counts[at]), tuple(parts)))
        rows.append(np.concatenate([centroids[at : at + 1], *below]))
    return rows, topics


def _cluster(vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Run spherical k-means from STARTS initialisations. Return the centroids with the highest total cosine
    similarity to their vectors, float32 [k, width], and the index of the centroid nearest to each vector,
    int64 [n].
    """
    best, result = -np.inf, (np.zeros((0, vectors.shape[1]), np.float32), np.zeros(0, np.int64))
    for start in range(STARTS):
        centroids = spherical_kmeans(spread_first(vectors, count, start), count, ROUNDS)
        nearest = nearest_centroids(vectors, centroids)
        similarity = float(pair_cosines(vectors, centroids[nearest]).sum(dtype=np.float64))
        if similarity > best:
            best, result = similarity, (centroids, nearest)
    return result
