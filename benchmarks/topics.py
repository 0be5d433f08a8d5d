"""Benchmark `topics` on texts whose subject is known, against scikit-learn's clusterings of the same texts.

    python -m benchmarks.topics --model DIRECTORY [--texts forum_20news,news_bbc,sources] [--documents 3000] [--tokens 128]
          data: $GRISTMILL_DATA/prose

`--model` is a sentence encoder in the layout of Hugging Face. The labels are the newsgroup of a post and the
section of a news article, taken from their ids. For `sources`, documents come from ten files, and the label
is the file. Documents are spread evenly over the files. Posts lose their headers, some of which name the
group; quoted text stays.

There are as many topics as labels. With "two levels", there are as many topics as families of labels (the
first word of a newsgroup: comp, rec, sci ...), and just enough subtopics in each to reach the number of
labels. These topics are also compared with the families.

The peers are scikit-learn's KMeans of the same vectors (5 starts, as many as here), KMeans of 100 components
of TF-IDF (TruncatedSVD, as in scikit-learn's own example of 20 newsgroups), and LatentDirichletAllocation of
word counts. The last two leave out English stop words, and words in fewer than 5 documents or in more than
half of them.

NMI is normalised mutual information (arithmetic mean), and ARI is the adjusted Rand index. Purity is the
share of documents whose label is the most frequent in their topic. Seconds are processor time, without the
embeddings. The labels that are spread most are listed with the share of their documents in the topic that has
most of them. Nothing was tuned on these figures.
"""

import argparse
import gzip
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.semantic import parts_of, timed
from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts
from pipelines.stages.measure.topics.topics import Topics
from pipelines.stages.score.transformer_embeddings import TransformerEmbeddings

SOURCES = (
    "wiki_en", "wiki_zh", "wiki_ko", "textbooks", "forum_20news", "forum_stackexchange", "tech_docs", "legal_dc_acts_laws",
    "dialogue", "news_bbc",
)  # fmt: skip
_STARTS = 5
_WEAK = 8  # labels that are listed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="directory of a sentence encoder")
    parser.add_argument("--texts", default="forum_20news,news_bbc,sources", help="names, divided by commas")
    parser.add_argument("--documents", type=int, default=3000, help="documents of each")
    parser.add_argument("--tokens", type=int, default=128, help="tokens read per document")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    prose = Path(os.environ["GRISTMILL_DATA"]) / "prose"
    print(machine())
    stage = TransformerEmbeddings(model=options.model, max_tokens=options.tokens)
    stage.setup()
    for name in options.texts.split(","):
        texts, labels = labelled(prose, name, options.documents)
        column = pa.table({"text": pa.array(texts, pa.large_string())})
        embeddings, seconds = timed(lambda: stage.annotate(column)["embedding"].combine_chunks())  # noqa: B023
        print(f"{name}: {len(texts):,} documents, {len(set(labels))} labels; embeddings {seconds:.0f} s")
        compare(texts, labels, embeddings)


def labelled(prose: Path, name: str, count: int) -> tuple[list[str], list[str]]:
    if name == "sources":
        shares = [(source, records(prose, source, count // len(SOURCES))) for source in SOURCES]
        return [each["text"] for _, rows in shares for each in rows], [source for source, rows in shares for _ in rows]
    rows = records(prose, name, count)
    texts = [each["text"] for each in rows]
    if name == "forum_20news":
        texts = [text.partition("\n\n")[2] or text for text in texts]
    kept = [(text, each["id"].split("/")[1]) for text, each in zip(texts, rows, strict=True) if text.strip()]
    return [text for text, _ in kept], [label for _, label in kept]


def records(prose: Path, name: str, count: int) -> list[dict]:
    with gzip.open(prose / f"{name}.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    return [rows[at] for at in np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows)), dtype=np.int64))]


def compare(texts: list[str], labels: list[str], embeddings: pa.Array) -> None:
    vectors = embeddings.flatten().to_numpy().reshape(len(texts), -1).astype(np.float32)
    families = [label.split(".")[0] for label in labels]
    wide, many = len(set(families)), len(set(labels))
    print("| clustering | clusters | NMI | ARI | purity | seconds |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        (topics, _), spent = timed(lambda: topics_of(LocalPath(place) / "flat", texts, embeddings, (many, 0)))
        print_row("topics", topics, labels, spent)
        peers: dict[str, Callable[[], Sequence]] = {
            "KMeans of the same vectors": lambda: kmeans(vectors, many),
            "KMeans of TF-IDF, 100 components": lambda: kmeans(latent(texts), many),
            "LatentDirichletAllocation": lambda: allocation(texts, many),
        }
        for name, run in peers.items():
            found, spent = timed(run)
            print_row(name, found, labels, spent)
        if 1 < wide < many:
            sizes = (wide, -(-many // wide))
            (tops, pairs), spent = timed(lambda: topics_of(LocalPath(place) / "two", texts, embeddings, sizes))
            print_row("topics, two levels", pairs, labels, spent)
            print_row("their topics, against families", tops, families, spent)
            found, spent = timed(lambda: kmeans(vectors, wide))
            print_row("KMeans of the same vectors, against families", found, families, spent)
    print_labels(topics, labels)


def topics_of(root: LocalPath, texts: list[str], embeddings: pa.Array, sizes: tuple[int, int]) -> tuple[list, list]:
    """Run the stage; return each document's topic, and each document's topic and subtopic as one string."""
    parts = parts_of(root, pa.table({"embedding": embeddings}), texts)
    stage, out = Topics(*sizes, text="text"), StepOutput(root, "topics")
    stage.run(parts, out, LocalCluster())
    names = [name for name in stage.writes().names if name != "topic_similarity"]
    found: list[tuple] = []
    for part in parts:
        receipt = out.receipt(part.unit)
        assert receipt is not None
        table = read_table(out.directory, receipt.files[0], names, schema_facts(stage.writes()))
        found += zip(*(table[name].to_pylist() for name in names), strict=True)
    return [row[0] for row in found], [" / ".join(row) for row in found]


def kmeans(vectors: np.ndarray, clusters: int) -> list[int]:
    from sklearn.cluster import KMeans

    return KMeans(clusters, n_init=_STARTS, random_state=0).fit_predict(vectors).tolist()


def latent(texts: list[str]) -> np.ndarray:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    counts = TfidfVectorizer(stop_words="english", min_df=5, max_df=0.5).fit_transform(texts)
    return normalize(TruncatedSVD(100, random_state=0).fit_transform(counts))


def allocation(texts: list[str], topics: int) -> list[int]:
    from sklearn.decomposition import LatentDirichletAllocation
    from sklearn.feature_extraction.text import CountVectorizer

    counts = CountVectorizer(stop_words="english", min_df=5, max_df=0.5).fit_transform(texts)
    return LatentDirichletAllocation(topics, random_state=0).fit_transform(counts).argmax(1).tolist()


def print_row(name: str, found: Sequence, labels: Sequence[str], seconds: float) -> None:
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    pairs = Counter(zip(found, labels, strict=True))
    most = Counter[str]()
    for (cluster, _), count in pairs.items():
        most[cluster] = max(most[cluster], count)
    figures = (
        normalized_mutual_info_score(labels, found),
        adjusted_rand_score(labels, found),
        most.total() / len(labels),
    )
    print(
        f"| {name} | {len(most)} | " + " | ".join(f"{each:.3f}" for each in figures) + f" | {seconds:.1f} |", flush=True
    )


def print_labels(topics: Sequence[str], labels: Sequence[str]) -> None:
    """Print the labels whose documents are spread most over topics, with the two most frequent labels of
    their main topic.
    """
    pairs = Counter(zip(labels, topics, strict=True))
    sizes = Counter(labels)
    rows = []
    for label, size in sizes.items():
        count, topic = max((count, topic) for (own, topic), count in pairs.items() if own == label)
        others = Counter({own: count for (own, at), count in pairs.items() if at == topic}).most_common(2)
        rows.append((count / size, label, topic, ", ".join(f"{own} {count}" for own, count in others)))
    for share, label, topic, others in sorted(rows)[:_WEAK]:
        print(f"  {label}: {share:.0%} of {sizes[label]} in {topic} (most there: {others})")


if __name__ == "__main__":
    main()
