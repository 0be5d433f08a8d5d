"""Topics: planted clusters at two levels are found, labelled with their most telling words, and shown in the
report.
"""

import json
import random
from collections import Counter
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError
from gristmill.storage.store import read_json
from pipelines.__main__ import main
from pipelines.stages.measure.topics.topic_names import LEAST_DOCUMENTS, name_of, telling_words, words_of
from pipelines.stages.measure.topics.topics import Topics
from tests.pipelines.scored_corpora import build_corpus, plan_corpus, rows_of
from tests.pipelines.stages.dedup.test_dedup_spans import Backwards
from tests.pipelines.stages.score.small_encoder import save_encoder

pytestmark = pytest.mark.long

PLANTED = {"milla": ("stona", "floura"), "sacka": ("breada", "geara"), "winda": ("saila", "roofa")}
TOPICS = "topics: {topics: 3, subtopics: 2, sample: 500}"
MAIL = "jane.doe@example.org"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with an encoder and two sources, whose documents mostly repeat one topic word and one
    subtopic word.
    """
    place, draw = tmp_path_factory.mktemp("topics"), random.Random(1)
    save_encoder(place / "encoder")
    for name, topics in (("ref", ["milla", "sacka"]), ("web", ["milla", "sacka", "winda"])):
        lines = []
        for number in range(90):
            topic = topics[number % len(topics)]
            words = [topic] * 6 + [PLANTED[topic][number // len(topics) % 2]] * 3
            draw.shuffle(words)
            lines.append({"text": f"{' '.join(words)} {number} {MAIL if topic == 'winda' else ''}"})
        (place / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return place


def steps(folder, *more):
    pii = "pii: {entities: [EMAIL_ADDRESS]}"
    return [pii, f"transformer_embeddings: {{model: {folder}/encoder, max_tokens: 32}}", *more]


COLUMNS = ("text", "topic", "subtopic", "topic_similarity")


@pytest.fixture(scope="module")
def built(folder):
    return build_corpus(plan_corpus(folder, "out", steps(folder, TOPICS)))


def test_planted_topics_and_subtopics_are_found_and_named(built):
    rows = rows_of(built, COLUMNS)
    pairs = Counter()
    for row in rows.values():
        words = row["text"].split()
        topic = next(word for word in PLANTED if word in words)
        subtopic = next(word for word in PLANTED[topic] if word in words)
        assert topic in row["topic"].split("_")
        assert subtopic in row["subtopic"].split("_")
        assert topic not in row["subtopic"].split("_")
        assert 0.8 < row["topic_similarity"] <= 1
        pairs[row["topic"], row["subtopic"]] += 1
    assert len(pairs) == 6
    assert sum(pairs.values()) == 180
    step = next(step for step in built.steps if step.stage == "topics")
    facts = step.manifest.facts
    assert (facts["documents"], facts["without_topic"]) == (180, 0)
    sizes = [topic["sampled"] for topic in facts["topics"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == 180


def test_names_have_nothing_that_edits_removed(folder, built):
    stored = build_corpus(plan_corpus(folder, "stored", steps(folder, TOPICS.replace("3,", "3, text: text,"))))
    assert "jane" in str(next(step for step in stored.steps if step.stage == "topics").manifest.facts)
    assert "jane" not in str(next(step for step in built.steps if step.stage == "topics").manifest.facts)


@pytest.mark.parametrize("part_bytes", [900, 100_000])
def test_parts_and_the_order_of_tasks_change_nothing(folder, built, part_bytes):
    plan = plan_corpus(folder, f"parts{part_bytes}", steps(folder, TOPICS), part_bytes=part_bytes)
    again = build_corpus(plan, Backwards())
    assert rows_of(again, COLUMNS) == rows_of(built, COLUMNS)
    facts = [next(step for step in corpus.steps if step.stage == "topics").manifest.facts for corpus in (built, again)]
    assert facts[0] == facts[1]


def test_the_report_shows_topics_with_their_sources_and_documents(folder):
    plan_corpus(folder, "page", steps(folder, TOPICS, "filter: [{signal: topic_similarity, at_least: 0, null: drop}]"))
    assert main(["build", str(folder / "page.yaml"), "--in-process"]) == 0
    (entry,) = read_json(folder / "page" / "report.json")["topics"]
    assert [topic["documents"] for topic in entry["topics"]] == [75, 75, 30]
    assert [topic["sources"] for topic in entry["topics"]] == [
        {"ref": 45, "web": 30},
        {"ref": 45, "web": 30},
        {"web": 30},
    ]
    assert entry["without_topic"] == 0
    for topic in entry["topics"]:
        assert sum(part["documents"] for part in topic["subtopics"]) == topic["documents"]
        assert len(topic["samples"]) == 3
        assert all(any(word in sample["text"] for word in topic["words"]) for sample in topic["samples"])
        assert MAIL not in str(topic)
    page = (folder / "page" / "report.html").read_text()
    assert '<section id="topics">' in page
    assert all(sample["id"] in page for topic in entry["topics"] for sample in topic["samples"])


def test_topics_are_domains_at_two_levels(folder):
    shards = ["learn_tokenizer: {kind: bytes}", "shards: {tokenizer: learn_tokenizer, group_by: [topic, subtopic]}"]
    corpus = build_corpus(plan_corpus(folder, "domains", steps(folder, TOPICS, *shards)))
    rows = rows_of(corpus, ("topic", "subtopic"))
    expected = {f"{name[:3]}:{row['topic']}:{row['subtopic']}" for name, row in rows.items()}
    assert len(expected) == 10
    assert set(corpus.manifest.mixtures["proportional"]) == expected


def test_telling_words_are_those_of_the_cluster():
    """The words equal those of the z-score of the log-odds ratio, evaluated one word at a time."""
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 3, 300)
    texts = []
    for cluster in clusters:
        own = [f"own{'abc'[cluster]}"] * (rng.random() < 0.8)
        texts.append(" ".join([*own, "the", "and", *(f"word{'xyzuvw'[w]}" for w in rng.integers(0, 6, 3))]))
    words = words_of(pa.array(texts, pa.large_string()))
    found = telling_words(words, clusters, 3)
    assert [each[0] for each in found] == ["owna", "ownb", "ownc"]
    documents = [set(each) for each in words.to_pylist()]
    vocabulary = sorted(set().union(*documents))
    counts = {w: sum(w in d for d in documents) for w in vocabulary}
    total = sum(counts.values())
    for cluster in range(3):
        scores = {}
        inside = {w: sum(w in d for d, c in zip(documents, clusters, strict=True) if c == cluster) for w in vocabulary}
        for w in vocabulary:
            a, prior_total = 100 * counts[w] / total, 100
            (y_i, n_i), (y_j, n_j) = (
                (inside[w], sum(inside.values())),
                (counts[w] - inside[w], total - sum(inside.values())),
            )
            ratio = np.log((y_i + a) / (n_i + prior_total - y_i - a)) - np.log(
                (y_j + a) / (n_j + prior_total - y_j - a)
            )
            scores[w] = ratio / np.sqrt(1 / (y_i + a) + 1 / (y_j + a))
        best = [
            w
            for w in sorted(scores, key=lambda w: (-scores[w], w))
            if scores[w] >= 1.96 and inside[w] >= LEAST_DOCUMENTS
        ]
        assert found[cluster] == best[:10]


def test_words_are_lower_case_letters_and_no_rare_word_is_in_a_name():
    words = words_of(pa.array(["The Mill, the mill! It is 2024 x2 über 水", "", " "], pa.large_string())).to_pylist()
    assert words == [["mill", "the", "über", "水"], [], []]
    rare = words_of(pa.array(["secret name"] * (LEAST_DOCUMENTS - 1) + ["other text"] * 20, pa.large_string()))
    assert telling_words(rare, np.array([0] * (LEAST_DOCUMENTS - 1) + [1] * 20), 2)[0] == []


def test_names_are_short_and_differ():
    words = ["film", "actor", "award", "star"]
    assert name_of(words, 0, ()) == "film_actor_award"
    assert name_of(words, 0, {"film_actor_award"}) == "film_actor_star"
    assert name_of([], 4, ()) == "topic_5"
    assert name_of(words, 4, {"film_actor_award", "film_actor_star"}) == "topic_5"
    long = ["Überraschungseffekt" * 2, "вода", "огонь", "земля"]
    assert len(quote(name_of(long, 0, ()), safe="")) <= 60


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"topics": 0}, "topics: got 0, expected 1 to 1,000"),
        ({"subtopics": 1}, "subtopics: got 1, expected 2 to 1,000, or 0"),
        ({"topics": 30, "sample": 20}, "sample: got 20, expected at least one document per topic, 30"),
        ({"text": "txt"}, "text: got 'txt', allowed: text"),
    ],
)
def test_knobs_out_of_range(knobs, message):
    with pytest.raises(ConfigError, match=message):
        parse(Topics, knobs, "c.yaml")


def test_topics_need_vectors(folder):
    with pytest.raises(ConfigError, match="reads the column 'embedding', which no earlier step writes"):
        plan_corpus(folder, "none", [TOPICS])
    numbers = "record_fields: {columns: {embedding: {field: size, type: float}}}"
    with pytest.raises(ConfigError, match=r"the column embedding holds .*, expected vectors"):
        plan_corpus(folder, "numbers", [numbers, TOPICS])


def test_more_topics_than_vectors_and_documents_without_a_vector(tmp_path, folder):
    (tmp_path / "encoder").symlink_to(folder / "encoder")
    for name, texts in (("few", ["milla", "sacka", "milla"]), ("none", ["winda", "saila"])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    pii, embed, topics = steps(tmp_path, "topics: {topics: 9, subtopics: 2}")
    plan = plan_corpus(tmp_path, "out", [pii, f"{embed}\n    sources: [few]", topics], ("few", "none"))
    corpus = build_corpus(plan)
    rows = list(rows_of(corpus, ("topic", "subtopic", "topic_similarity")).values())
    assert [row["topic"] for row in rows] == ["topic_1", "topic_2", "topic_1", None, None]
    assert [row["subtopic"] for row in rows] == ["topic_1", "topic_1", "topic_1", None, None]
    assert [row["topic_similarity"] is None for row in rows] == [False] * 3 + [True] * 2
    facts = next(step for step in corpus.steps if step.stage == "topics").manifest.facts
    assert (facts["documents"], facts["without_topic"]) == (5, 2)
