"""Topics of news against its sections, beside k-means of scikit-learn on the same vectors.

    GRISTMILL_DATA=... python -m benchmarks.topic_clusters --model DIRECTORY [--tokens 64] [--work DIRECTORY]

MODEL is a sentence encoder in the layout of Hugging Face; the texts are the BBC's articles of prose/news_bbc, each of one of
five sections, which no step sees. Printed are, for some numbers of topics, the normalised mutual information of topics and
sections, and the purity: the share of articles whose topic has most of its articles in their section. The peer is KMeans of
scikit-learn with ten starts on all vectors. `--work` keeps the corpus, so that a second run need not embed again.
"""

import argparse
import gzip
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import StepOutput
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.stages.measure.topics.topics import Topics
from pipelines.stages.score.embedding_values import vectors_of

COUNTS = (5, 10, 20, 50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="directory of a sentence encoder")
    parser.add_argument("--tokens", type=int, default=64, help="tokens read per document")
    parser.add_argument("--work", help="directory for the corpus (default: a temporary one)")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(options.work or scratch)
        place.mkdir(parents=True, exist_ok=True)
        measure(place, options.model, options.tokens)


def measure(place: Path, model: str, tokens: int) -> None:
    from sklearn.cluster import KMeans

    with gzip.open(Path(os.environ["GRISTMILL_DATA"]) / "prose" / "news_bbc.jsonl.gz", "rt") as lines:
        records = [json.loads(line) for line in lines]
    sections = [record["meta"]["label"] for record in records]
    (place / "news.jsonl").write_text("".join(f"{json.dumps({'text': record['text']})}\n" for record in records))
    (place / "news.yaml").write_text(
        f"name: news\noutput: {place}/news\nsources:\n"
        f"  - {{name: news, root: {place}/news.jsonl, format: jsonl, part_bytes: 500000}}\n"
        f"steps:\n  - transformer_embeddings: {{model: {model}, max_tokens: {tokens}}}\n"
    )
    config = load_corpus_config(LocalPath(place / "news.yaml"))
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    parts = list(open_corpus(config.place).parts())
    vectors = np.concatenate([vectors_of(part.table(("embedding",))["embedding"]) for part in parts]).astype(np.float32)
    print(f"{len(vectors):,} articles, {len(set(sections))} sections; {machine()}")
    print("| topics | NMI | purity | seconds | scikit-learn: NMI | purity | seconds |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for count in COUNTS:
            out = StepOutput(LocalPath(scratch), f"topics-{count}")
            started = time.process_time()
            facts = Topics(topics=count, subtopics=2 if count == COUNTS[0] else 0, text="text").run(
                parts, out, LocalCluster()
            )
            seconds = time.process_time() - started
            topics = [topic for part in parts for topic in topics_of(out, part.unit)]
            started = time.process_time()
            peer = KMeans(count, n_init=10, random_state=0).fit_predict(vectors).tolist()
            other = time.process_time() - started
            cells = [*agreement(topics, sections), f"{seconds:.1f}", *agreement(peer, sections), f"{other:.1f}"]
            print(f"| {count} | {' | '.join(cells)} |")
            if count == COUNTS[0]:
                lines = [describe(topic, topics, sections) for topic in facts["topics"]]
    print("\n".join(lines))


def describe(topic: Mapping[str, Any], topics: Sequence[str], sections: Sequence[str]) -> str:
    """A topic's name, its subtopics, and the sections of its articles."""
    own = Counter(section for name, section in zip(topics, sections, strict=True) if name == topic["name"])
    shares = ", ".join(f"{section} {count}" for section, count in own.most_common())
    return f"{topic['name']} ({', '.join(part['name'] for part in topic['parts'])}): {shares}"


def topics_of(out: StepOutput, unit: str) -> list[str]:
    import pyarrow as pa

    receipt = out.receipt(unit)
    assert receipt is not None
    names: list[str] = pa.ipc.open_file(str(out.directory / receipt.files[0].path)).read_all()["topic"].to_pylist()
    return names


def agreement(clusters: Sequence[object], sections: Sequence[str]) -> list[str]:
    """The normalised mutual information and the purity."""
    from sklearn.metrics import normalized_mutual_info_score

    pairs = Counter(zip(clusters, sections, strict=True))
    largest: dict[object, int] = {}
    for (cluster, _), count in pairs.items():
        largest[cluster] = max(largest.get(cluster, 0), count)
    names = [str(cluster) for cluster in clusters]
    return [f"{normalized_mutual_info_score(list(sections), names):.3f}", f"{sum(largest.values()) / len(names):.1%}"]


if __name__ == "__main__":
    main()
