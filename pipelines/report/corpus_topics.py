"""The topics of a corpus for its report: names, sizes by source, subtopics and the most typical documents."""

import heapq
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.lineage import Corpus, PublishedStep
from pipelines.contracts.parts import Part
from pipelines.report.samples import read_samples

TYPICAL = 3
"""Maximum number of documents shown for each topic: the kept documents whose vectors are nearest to its centroid."""


def topics_of(corpus: Corpus) -> list[dict[str, Any]]:
    """Return an entry for each `topics` step, with these fields:

    - `step`: the label of the step
    - `topics`: its topics, ordered by the number of kept documents, the largest first
    - `without_topic`: the number of kept documents that the step assigned to no topic

    A topic has `name`, `words`, `documents` (the number of its kept documents), `sources` (that number for
    each source), `subtopics` (each with `name`, `words` and `documents`) and `samples` (the kept documents
    most similar to the topic, in the form that `read_samples` returns). Topics without a kept document are
    included.
    """
    entries = []
    for step in (step for step in corpus.steps if step.stage == "topics"):
        counts: Counter[tuple[str | None, str | None, str]] = Counter()
        nearest: dict[str, list[tuple[float, bytes, dict[str, Any]]]] = {}
        for part in corpus.parts():
            if any(annotation.step == step.name and annotation.file for annotation in part.annotations):
                _count(part, step, counts, nearest)
        topics = [_topic(topic, counts) for topic in step.manifest.facts.get("topics", ())]
        chosen = [entry for topic in topics for *_, entry in sorted(nearest.get(topic["name"], ()), key=_rank)]
        samples = iter(read_samples(corpus, chosen))
        for topic in topics:
            topic["samples"] = [next(samples) for _ in nearest.get(topic["name"], ())]
        topics.sort(key=lambda topic: (-topic["documents"], topic["name"]))
        without = sum(count for (topic, _, _), count in counts.items() if topic is None)
        entries.append({"step": step.label, "topics": topics, "without_topic": without})
    return entries


def _rank(entry: tuple[float, bytes, dict[str, Any]]) -> tuple[float, bytes]:
    return -entry[0], entry[1]


def _count(
    part: Part,
    step: PublishedStep,
    counts: Counter[tuple[str | None, str | None, str]],
    nearest: dict[str, list[tuple[float, bytes, dict[str, Any]]]],
) -> None:
    below = "subtopic" in step.manifest.schema
    rows = part.kept_rows()
    names = ("id", "topic", "topic_similarity", *(("subtopic",) if below else ()))
    docs = part.table(names, rows)
    subtopics = docs["subtopic"] if below else pa.nulls(len(docs), pa.string())
    grouped = pa.table({"topic": docs["topic"], "subtopic": subtopics}).group_by(["topic", "subtopic"])
    for row in grouped.aggregate([([], "count_all")]).to_pylist():
        counts[row["topic"], row["subtopic"], part.source] += row["count_all"]
    for name in pc.unique(docs["topic"]).drop_null().to_pylist():
        inside = pc.indices_nonzero(pc.equal(docs["topic"], name))
        values = docs["topic_similarity"].take(inside).to_numpy()
        least = np.sort(values)[-min(TYPICAL, len(values))]
        for at in inside.to_numpy()[values >= least].tolist():
            entry = {
                "source": part.source, "part": part.index, "row": rows[at].as_py(), "step": None, "rule": None,
                "id": docs["id"][at].as_py().hex(),
            }  # fmt: skip
            nearest.setdefault(name, []).append((docs["topic_similarity"][at].as_py(), docs["id"][at].as_py(), entry))
        nearest[name] = heapq.nsmallest(TYPICAL, nearest[name], key=_rank)


def _topic(topic: dict[str, Any], counts: Counter[tuple[str | None, str | None, str]]) -> dict[str, Any]:
    sources: Counter[str] = Counter()
    below: Counter[str | None] = Counter()
    for (name, subtopic, source), count in counts.items():
        if name == topic["name"]:
            sources[source] += count
            below[subtopic] += count
    return {
        "name": topic["name"],
        "words": list(topic["words"]),
        "documents": sum(sources.values()),
        "sources": dict(sorted(sources.items())),
        "subtopics": [
            {"name": part["name"], "words": list(part["words"]), "documents": below[part["name"]]}
            for part in topic["parts"]
        ],
    }
