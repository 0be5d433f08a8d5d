"""`vectors train` on a small corpus: what it reads, its reproducibility, and the input it refuses."""

import json
from collections import Counter
from random import Random

import numpy as np
import pytest

from gristmill.storage.paths import local_path
from gristmill.storage.store import file_checksum, read_json
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.dedup.dedup_exact import DedupExact
from pipelines.stages.measure.text_hash import TextHash
from pipelines.stages.pii.pii import Pii
from pipelines.vectors.corpus_words import write_words
from pipelines.vectors.train_vectors import VectorSettings, fit_vectors
from pipelines.vectors.word_vectors import neighbours, read_vectors

TOPICS = [("cat", "dog", "horse", "sheep", "goat"), ("gold", "iron", "zinc", "tin", "lead")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus of documents on two topics, with email addresses and some copies, and one document of unusual
    tokens.
    """
    root = tmp_path_factory.mktemp("corpus")
    random = Random(0)
    texts = [f"The {', '.join(random.choices(TOPICS[i % 2], k=12))}.\nWrite to a{i}@mail{i}.org!" for i in range(300)]
    texts += texts[:30]
    (root / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (root / "b.jsonl").write_text(json.dumps({"text": "__label__x </s> İstanbul 東京 don't 3.14"}) + "\n")
    sources = (
        Source("topics", str(root / "a.jsonl"), "jsonl", part_bytes=4000), Source("odd", str(root / "b.jsonl"), "jsonl"),
    )  # fmt: skip
    steps = (
        StepConfig("text_hash", TextHash(), "text_hash"),
        StepConfig("pii", Pii(entities=("EMAIL_ADDRESS",)), "pii"),
        StepConfig("dedup_exact", DedupExact(), "dedup_exact"),
    )
    config = CorpusConfig("topics", str(root / "out"), sources, steps)
    build(make_plan(config, take_inventory(config.sources, root / "out")), LocalCluster(), lambda line: None)
    return root / "out"


def train(corpus, output, *settings):
    return main(["vectors", "train", str(corpus), str(output), "--sources", "topics", "--overwrite", "dim=10",
                 "subsample=1", "epoch=20", *settings])  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_words_of_a_topic_are_neighbours_and_the_file_is_reproducible(corpus, tmp_path, capsys, model):
    assert train(corpus, tmp_path / "v", f"model={model}") == 0
    first = (tmp_path / "v" / "vectors.txt").read_bytes()
    vectors = read_vectors(local_path(str(tmp_path / "v")))
    for topic in TOPICS:
        assert {each.word for each in neighbours(vectors, topic[0], 4)} == set(topic[1:])
    facts = read_json(tmp_path / "v" / "vectors.json")
    assert facts["words"]["with_vectors"] == len(vectors.words)
    assert facts["reproducible"] is True
    assert facts["vectors"]["xxh3_128"] == file_checksum(tmp_path / "v" / "vectors.txt")
    assert sorted(path.name for path in (tmp_path / "v").iterdir()) == ["vectors.json", "vectors.txt"]
    assert "another file" not in capsys.readouterr().out
    assert train(corpus, tmp_path / "v", f"model={model}") == 0
    assert (tmp_path / "v" / "vectors.txt").read_bytes() == first
    assert train(corpus, tmp_path / "v", f"model={model}", "seed=1") == 0
    assert (tmp_path / "v" / "vectors.txt").read_bytes() != first


@pytest.mark.long
def test_several_threads_say_that_they_are_not_reproducible(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path / "v", "thread=2") == 0
    assert "training again gives another file" in capsys.readouterr().out
    assert read_json(tmp_path / "v" / "vectors.json")["reproducible"] is False


def test_the_words_are_those_of_the_kept_edited_text(corpus, tmp_path):
    path = tmp_path / "words.txt"
    with path.open("wb") as sink:
        counts = write_words(open_corpus(local_path(str(corpus))), ["topics"], True, sink)
    lines = path.read_text().splitlines()
    assert len(lines) == 300  # no copies
    assert counts == Counter(" ".join(lines).split())
    assert counts["the"] == counts["email_address"] == 300  # the placeholder <EMAIL_ADDRESS> has replaced the address
    assert not any("mail1" in line.split() for line in lines)


def test_words_that_fasttext_would_read_as_marks_are_words(corpus, tmp_path):
    opened = open_corpus(local_path(str(corpus)))
    path = tmp_path / "words.txt"
    with path.open("wb") as sink:
        counts = write_words(opened, ["odd"], False, sink)
    assert path.read_text() == "__label__x s İstanbul 東 京 don't 3.14\n"
    path.write_text("__label__x s 東\n" * 20)
    vectors, trained = fit_vectors(path, Counter(dict.fromkeys(("__label__x", "s", "東"), 20)), VectorSettings(dim=3))
    assert sorted(vectors.words) == ["__label__x", "s", "東"]
    assert trained == 60
    assert set(counts) == {"__label__x", "s", "İstanbul", "東", "京", "don't", "3.14"}


def test_vectors_begin_where_the_seed_says(tmp_path):
    """The seed determines all initial rows. A learning rate near 0 leaves them unchanged."""
    path = tmp_path / "words.txt"
    path.write_text("a b c d e f g h\n" * 10)
    counts = Counter(dict.fromkeys("abcdefgh", 10))
    vectors, _ = fit_vectors(path, counts, VectorSettings(dim=4, lr=1e-9, seed=7, epoch=1))
    expected = np.random.default_rng(7).uniform(-1 / 4, 1 / 4, (9, 4))[:8]
    np.testing.assert_allclose(vectors.matrix, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("dim=0", "dim: got 0, expected 1 to 2,147,483,647"),
        ("window=1e11", "window: got 100000000000, expected 1 to 2,147,483,647"),
        ("lr=0", "lr: got 0.0, expected a number above 0"),
        ("subsample=2", "subsample: got 2.0, expected a number above 0, at most 1"),
        ("modle=cbow", "modle: no such field in VectorSettings; did you mean 'model'?"),
        ("min_count=100000", "min_count: 0 words occur 100000 times or more, expected at least 2"),
    ],
)
def test_settings_out_of_range_are_refused(corpus, tmp_path, capsys, setting, message):
    assert train(corpus, tmp_path / "v", setting) != 0
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "v" / "vectors.txt").exists()


def test_what_is_there_is_not_replaced(corpus, tmp_path, capsys):
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "mine.txt").write_text("kept")
    assert main(["vectors", "train", str(corpus), str(tmp_path / "v")]) != 0
    assert "exists; name another directory, or use --overwrite" in capsys.readouterr().err
    assert main(["vectors", "train", str(corpus), str(tmp_path / "w"), "--sources", "none"]) != 0
    assert "--sources" in capsys.readouterr().err
