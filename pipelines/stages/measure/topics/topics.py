"""Learn the topics of a corpus, clusters of the embeddings of its documents at one or two levels, and write
the topic of each document.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.errors import ConfigError
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.manifest import StepOutput, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import Input
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import Cluster, CorpusStage, gather
from pipelines.kernels.search.cosine import nearest_centroids, on_one_thread, pair_cosines
from pipelines.stages.measure.topics.topic_model import EMBEDDING, TopicModel, learn_topics
from pipelines.stages.score.embedding_values import vector_width, vectors_of

_MOST = 1000


@dataclass(frozen=True)
class Topics(ReadsText, CorpusStage):
    """Write the topic of each document. `group_by` of `shards`, rules and the report can use this column.

    The topic is the nearest of `topics` clusters of the vectors in the column `embedding`, which
    `transformer_embeddings` writes. With `subtopics`, the subtopic is the nearest of the clusters within that
    topic. A document without a vector has no topic.

    Clusters are those of spherical k-means (Dhillon and Modha 2001) over a sample of the documents, drawn by
    document id. A topic's name consists of up to three words that best distinguish its documents from all
    others, such as `film_actor_award`; a subtopic's name consists of the words that best distinguish it from
    the rest of its topic (Monroe, Colaresi and Quinn 2008). A topic without such words is named `topic_N`.
    Names are learned from the text, so another corpus has other names. A word in fewer than 5 of the topic's
    documents in the sample is never part of its name. With `edited_text`, after `pii`, no name contains what
    that step removes.

    Names and columns are the same for any number of workers and parts. They may differ between kinds of
    processors, because embeddings and floating-point sums do.
    """

    topics: int = 20
    """Number of topics, 1 to 1,000; fewer if the sample has fewer distinct vectors."""
    subtopics: int = 0
    """Number of subtopics of each topic, 2 to 1,000; 0 for a single level. `shards` takes at most 1,000
    groups per source.
    """
    sample: int = 50_000
    """Maximum number of documents from which clusters and names are learned. One task holds their vectors and words:
    about 300 MB for 50,000 documents and vectors of 384 numbers.
    """
    text: str = field(default="edited_text", kw_only=True)
    """The text whose words name the topics: `text`, `edited_text` or `text@STEP`."""

    version: ClassVar[int] = 3

    def check(self) -> None:
        if not 1 <= self.topics <= _MOST:
            raise ValueError(f"topics: got {self.topics}, expected 1 to {_MOST:,}")
        if self.subtopics != 0 and not 2 <= self.subtopics <= _MOST:
            raise ValueError(f"subtopics: got {self.subtopics}, expected 2 to {_MOST:,}, or 0 for one level")
        if self.sample < self.topics:
            raise ValueError(f"sample: got {self.sample}, expected at least one document per topic, {self.topics:,}")
        super().check()

    def reads(self) -> tuple[Input, ...]:
        return (EMBEDDING, self.input_text)

    def writes(self) -> pa.Schema:
        """Return the schema of the step's columns. `topic_similarity` is the cosine similarity of the
        document to the centroid of its topic.
        """
        below = [("subtopic", pa.string())] if self.subtopics else []
        return pa.schema([("topic", pa.string()), *below, ("topic_similarity", pa.float32())])

    def check_types(self, types: pa.Schema) -> None:
        kind = types.field(EMBEDDING.name).type
        if vector_width(kind) is None:
            raise ConfigError(
                f"topics: the column {EMBEDDING.name} holds {kind}, expected vectors such as transformer_embeddings writes"
            )

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        if not parts:
            return {"documents": 0, "without_topic": 0, "topics": []}
        width = vector_width(parts[0].types.field(EMBEDDING.name).type)
        assert width is not None
        sizes = (self.topics, self.subtopics)
        model = learn_topics(parts, self.input_text, width, sizes, self.sample, out, cluster)
        tasks = [_AssignTask(self, out, part, width, model) for part in parts]
        without = gather(cluster, assign_topics, tasks, lambda task: f"{out.name}: part {task.part.name}")
        return {
            "documents": sum(part.rows for part in parts),
            "without_topic": sum(without),
            "topics": [topic.facts() for topic in model.topics],
        }


@dataclass(frozen=True)
class _AssignTask:
    stage: Topics
    out: StepOutput
    part: Part
    width: int
    model: TopicModel


def assign_topics(task: _AssignTask) -> int:
    """Commit the columns of a part, and return how many of its documents have no topic."""
    receipt = task.out.receipt(task.part.unit)
    if receipt is None:
        table = _topics_of(task)
        counts = {**count_drops(table).facts(), "without_topic": table["topic"].null_count}
        receipt = task.out.commit(task.part.unit, {f"parts/{task.part.unit}.arrow": write_table(table)}, counts)
    return int(receipt.counts["without_topic"])


def _topics_of(task: _AssignTask) -> pa.Table:
    column = task.part.table((EMBEDDING,))[EMBEDDING.name]
    known = np.flatnonzero(column.is_valid().to_numpy())
    vectors = vectors_of(column.take(pa.array(known)))
    topic = np.full(task.part.rows, -1, np.int64)
    subtopic, similarity = topic.copy(), np.zeros(task.part.rows, np.float32)
    if len(known) and task.model.topics:
        centroids = task.model.load(task.out, task.width)
        tops = np.concatenate([own for own, _ in centroids])
        with on_one_thread():
            nearest = nearest_centroids(vectors, tops)
            for number, (_, below) in enumerate(centroids):
                inside = np.flatnonzero(nearest == number)
                if len(below) and len(inside):
                    subtopic[known[inside]] = nearest_centroids(vectors[inside], below)
        topic[known] = nearest
        similarity[known] = pair_cosines(vectors, tops[nearest])
    names = [each.name for each in task.model.topics]
    columns = [pa.array([names[at] if at >= 0 else None for at in topic.tolist()], pa.string())]
    if task.stage.subtopics:
        below_names = [[part.name for part in each.parts] for each in task.model.topics]
        pairs = zip(topic.tolist(), subtopic.tolist(), strict=True)
        columns.append(pa.array([below_names[at][sub] if sub >= 0 else None for at, sub in pairs], pa.string()))
    columns.append(pa.array(similarity, mask=topic < 0))
    return pa.table(columns, schema=task.stage.writes())
