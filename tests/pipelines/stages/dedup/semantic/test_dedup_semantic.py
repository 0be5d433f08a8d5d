"""Semantic deduplication against brute force on the same embeddings, and on paraphrases planted for a small
encoder.
"""

import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import pipelines
from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts
from pipelines.explore.inspect_cluster import show_cluster
from pipelines.explore.inspect_document import show_document
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.stages.dedup.keep_rule import KeepKey
from pipelines.stages.dedup.semantic import cells
from pipelines.stages.dedup.semantic.dedup_semantic import DedupSemantic
from tests.conftest import write_texts_corpus
from tests.pipelines.stages.dedup.test_dedup import Bench
from tests.pipelines.stages.dedup.test_dedup_spans import Backwards, Dies
from tests.pipelines.stages.score.small_encoder import SYNONYMS, save_encoder

WIDTH = 8
KIND = pa.list_(pa.float16(), WIDTH)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def planted(seed, groups=40, spread=0.15):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(groups, WIDTH))
    vectors = np.repeat(centres, rng.integers(1, 9, groups), axis=0)
    vectors = vectors + spread * rng.normal(size=vectors.shape)
    vectors = np.concatenate([vectors, vectors[::7]])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return rng.permutation(vectors).astype(np.float16)


def parts_of(bench, vectors, sizes, dropped=None, prefix="s"):
    result, first = [], 0
    dropped = dropped or [None] * len(vectors)
    for number, size in enumerate(sizes):
        rows = slice(first, first + size)
        column = pa.array([None if v is None else list(v) for v in vectors[rows]], KIND)
        result.append(bench.part(f"{prefix}{number}", 0, "embedding", column, KIND, dropped[rows]))
        first += size
    return result


def cosines_of(vectors):
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    return (exact @ exact.T).astype(np.float32)


def greedy(vectors, order, threshold):
    """Return, for each document, the first kept document that is similar enough, or the document itself if it
    is kept. Every document is compared with all documents kept before it.
    """
    cosines, kept, winner = cosines_of(vectors), [], {}
    for document in order:
        like = [other for other in kept if cosines[document, other] >= np.float32(threshold)]
        winner[document] = like[0] if like else document
        if not like:
            kept.append(document)
    return winner


def by_centroid(bench, vectors, name="step"):
    """Return the rows in order of preference when all are in one cell: those least similar to the centroid
    first, and ties by row.
    """
    out = StepOutput(bench.root, name)
    schema = pa.schema([("centroid", pa.list_(pa.float32(), WIDTH))])
    table = read_table(out.directory, out.receipt("centroids").files[0], schema.names, schema_facts(schema))
    (centroid,) = np.array(table["centroid"].to_pylist(), np.float64)
    exact = vectors.astype(np.float64)
    lengths = np.sqrt((exact * exact).sum(axis=1) * (centroid * centroid).sum())
    mean = (exact / np.linalg.norm(exact, axis=1, keepdims=True)).sum(axis=0)
    assert centroid == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)
    similarity = ((exact * centroid).sum(axis=1) / lengths).astype(np.float32)
    return sorted(range(len(vectors)), key=lambda row: (similarity[row], row))


@pytest.mark.long
@pytest.mark.parametrize("threshold", [0.8, 0.95, 0.99, 1.0])
def test_winners_are_those_of_brute_force(bench, threshold):
    vectors = planted(1)
    sizes = (70, 1, len(vectors) - 71)
    rows, facts = bench.run(
        DedupSemantic(threshold, keep=(KeepKey(sources=("s2", "s0")),)), parts_of(bench, vectors, sizes)
    )
    source = np.repeat([1, 2, 0], sizes)
    preferred = {row: place for place, row in enumerate(by_centroid(bench, vectors))}
    order = sorted(range(len(vectors)), key=lambda row: (source[row], preferred[row]))
    winner = greedy(vectors, order, threshold)
    sizes_of = np.bincount(list(winner.values()), minlength=len(vectors))
    assert facts["dropped"] == sum(winner[row] != row for row in winner) > 0
    assert facts["clusters"] == int((sizes_of > 1).sum())
    assert facts["cells"] == 1
    assert facts["largest_cell"] == len(vectors)
    assert facts["not_all_compared"] == 0
    assert {int(k): v for k, v in facts["cluster_sizes"].items()} == {
        size: int((sizes_of == size).sum()) for size in set(sizes_of.tolist()) if size > 1
    }
    cosines = cosines_of(vectors)
    for row, found in enumerate(rows):
        head = winner[row]
        alone = sizes_of[head] == 1
        assert found["drop"] == (None if head == row else "dedup_semantic")
        assert found["semantic_cluster"] == (None if alone else rows[head]["id"])
        assert found["semantic_cluster_size"] == (None if alone else sizes_of[head])
        assert found["semantic_copies"] == (sizes_of[row] if head == row else None)
        if alone:
            assert found["semantic_similarity"] is None
        else:
            assert found["semantic_similarity"] == pytest.approx(1 if head == row else cosines[row, head], abs=1e-6)


def test_the_document_least_like_the_centroid_is_kept(bench):
    """The choice follows section 3 of the SemDeDup paper. Without `keep`, distance from the centroid takes
    precedence over source and id.
    """
    vectors = np.zeros((3, WIDTH))
    vectors[0, :2], vectors[1, :2], vectors[2, 1] = (1, 0.1), (1, 0.0), 1
    rows, _ = bench.run(DedupSemantic(0.99), parts_of(bench, vectors.astype(np.float16), [3]))
    assert [row["drop"] for row in rows] == ["dedup_semantic", None, None]
    first, _ = bench.run(
        DedupSemantic(0.99, keep=(KeepKey(sources=("s0",)),)),
        parts_of(bench, vectors[[0, 2, 1]].astype(np.float16), [1, 2]),
        "other",
    )
    assert [row["drop"] for row in first] == [None, None, "dedup_semantic"]


def test_no_chain_drops_a_document_that_is_unlike_every_kept_one(bench):
    angles = np.radians([0, 10, 20, 30, 40])
    vectors = np.zeros((5, WIDTH))
    vectors[:, 0], vectors[:, 1] = np.cos(angles), np.sin(angles)
    rows, _ = bench.run(DedupSemantic(float(np.cos(np.radians(12)))), parts_of(bench, vectors.astype(np.float16), [5]))
    assert [row["drop"] is None for row in rows] == [True, False, True, False, True]


def test_documents_in_many_cells_are_compared_within_theirs(bench):
    """Well-separated groups are found whole, even with several cells."""
    vectors = planted(4, groups=30, spread=0.01)
    whole, facts = bench.run(DedupSemantic(0.99), parts_of(bench, vectors, [len(vectors)]), "one")
    assert facts["cells"] == 1
    apart, facts = bench.run(DedupSemantic(0.99, cells=6), parts_of(bench, vectors, [len(vectors)]), "six")
    assert facts["cells"] == 6
    assert facts["largest_cell"] < len(vectors)

    def sizes(rows):
        return sorted(row["semantic_copies"] for row in rows if row["drop"] is None)

    assert sizes(apart) == sizes(whole)
    cosines = cosines_of(vectors)
    place = {row["id"]: number for number, row in enumerate(apart)}
    for number, row in enumerate(apart):
        if row["drop"]:
            assert cosines[number, place[row["semantic_cluster"]]] >= np.float32(0.99)


def test_large_cells_compare_with_the_kept_of_their_electorate(bench, monkeypatch):
    vectors = planted(5)
    sizes = [50, 50, len(vectors) - 100]
    keep = (KeepKey(sources=("s0", "s1", "s2")),)
    monkeypatch.setattr(cells, "ELECTORATE", 60)
    monkeypatch.setattr(cells, "PARTITION_BYTES", 4000)
    rows, facts = bench.run(DedupSemantic(0.9, cells=1, keep=keep), parts_of(bench, vectors, sizes))
    preferred = {row: place for place, row in enumerate(by_centroid(bench, vectors))}
    order = sorted(range(len(vectors)), key=lambda row: (np.repeat([0, 1, 2], sizes)[row], preferred[row]))
    winner = greedy(vectors[order[:60]], range(60), 0.9)
    kept = [order[i] for i in range(60) if winner[i] == i]
    cosines = cosines_of(vectors)
    expected = {order[i]: order[winner[i]] for i in range(60)}
    for row in order[60:]:
        like = [other for other in kept if cosines[row, other] >= np.float32(0.9)]
        expected[row] = like[0] if like else row
    place = {row["id"]: number for number, row in enumerate(rows)}
    heads = {number: place[row["semantic_cluster"]] for number, row in enumerate(rows) if row["drop"]}
    assert heads == {row: head for row, head in expected.items() if row != head}
    assert facts["not_all_compared"] == sum(expected[row] == row for row in order[60:]) > 0


def test_nulls_and_documents_dropped_earlier_do_not_compete(bench):
    vector = [1.0] + [0.0] * (WIDTH - 1)
    vectors = [vector, None, vector, vector, None]
    rows, facts = bench.run(
        DedupSemantic(0.9), parts_of(bench, vectors, [2, 3], dropped=[None, None, "rule", None, None])
    )
    assert [row["drop"] for row in rows] == [None, None, None, "dedup_semantic", None]
    assert [row["semantic_copies"] for row in rows] == [2, 1, 1, None, 1]
    assert rows[3]["semantic_cluster"] == rows[0]["id"]
    assert facts["largest_cell"] == 2


@pytest.mark.parametrize(("vectors", "cells_made"), [([None], 1), ([[0.5] * WIDTH], 1), ([[0.5] * WIDTH] * 3, 1)])
def test_more_cells_than_documents(bench, vectors, cells_made):
    rows, facts = bench.run(DedupSemantic(0.9, cells=50), parts_of(bench, vectors, [len(vectors)]))
    assert facts["cells"] == cells_made
    assert facts["dropped"] == len(vectors) - 1
    assert sum(row["drop"] is None for row in rows) == 1


def test_cells_are_no_more_than_distinct_embeddings(bench):
    vectors = np.eye(WIDTH, dtype=np.float16)[[0, 1, 2, 0, 1, 2]]
    rows, facts = bench.run(DedupSemantic(0.9, cells=50), parts_of(bench, vectors, [6]))
    assert facts["cells"] == 3
    assert facts["dropped"] == 3
    assert len({row["semantic_cluster"] for row in rows}) == 3


def test_any_order_of_tasks_and_any_interruption_gives_the_same_files(bench, tmp_path):
    vectors = planted(6)
    sizes = [30, 60, len(vectors) - 90]
    stage = DedupSemantic(0.9, cells=5)
    parts = parts_of(bench, vectors, sizes)

    def files(name):
        root = tmp_path / name
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*.arrow"))}

    facts = stage.run(parts, StepOutput(tmp_path, "forward"), LocalCluster())
    assert stage.run(parts, StepOutput(tmp_path, "backward"), Backwards()) == facts
    for place in range(1, 100):
        try:
            assert stage.run(parts, StepOutput(tmp_path, "resumed"), Dies(place)) == facts
        except KeyboardInterrupt:
            continue
        break
    assert place > 5
    assert files("forward") == files("backward") == files("resumed")
    assert len(files("forward")) > 10


def sentence(rng, synonyms):
    return [rng.choice(synonyms) for _ in range(12)]


@pytest.mark.long
def test_planted_paraphrases_are_found_and_explained(tmp_path, capsys):
    model = save_encoder(tmp_path / "model")
    rng = random.Random(3)
    originals = [sentence(rng, SYNONYMS) for _ in range(6)]
    texts = [" ".join(word[0] for word in original) for original in originals]
    texts += [" ".join(word[1] for word in original) for original in originals[:3]]
    path = write_texts_corpus(
        tmp_path,
        texts,
        [f"transformer_embeddings: {{model: {model}, max_tokens: 64}}", "dedup_semantic: {threshold: 0.97}"],
        "c",
    )
    config = load_corpus_config(path)
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    corpus = open_corpus(config.place)
    (part,) = corpus.parts()
    docs = part.table(("id", "drop", "semantic_cluster", "semantic_similarity"))
    ids, clusters = docs["id"].to_pylist(), docs["semantic_cluster"].to_pylist()
    dropped = [rule is not None for rule in docs["drop"].to_pylist()]
    for number in range(3):
        assert dropped[number] != dropped[number + 6]
        head = number if dropped[number + 6] else number + 6
        assert clusters[number] == clusters[number + 6] == ids[head]
    assert not any(dropped[3:6])
    assert clusters[3:6] == [None] * 3
    loser = next(row for row in range(9) if dropped[row])
    show_document(config.place, corpus.printed_id(ids[loser]), raw=False)
    shown = capsys.readouterr().out
    assert "dedup_semantic" in shown
    assert f"in favour of {corpus.printed_id(clusters[loser])}" in shown
    show_cluster(config.place, corpus.printed_id(ids[loser]), 3, raw=False)
    shown = capsys.readouterr().out
    assert "semantic_cluster: 2 members" in shown
    assert f"similarity to the kept {docs['semantic_similarity'][loser].as_py():.4f}" in " ".join(shown.split())


def test_the_corpus_file_of_the_page_builds(tmp_path, monkeypatch):
    page = Path(__file__).parents[5] / "docs/judgement.md"
    (example,) = re.findall(r"```yaml\n(name: news\n.*?)```", page.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    save_encoder(tmp_path / "models/encoder")
    rng = random.Random(5)
    originals = [sentence(rng, SYNONYMS) for _ in range(4)]
    texts = [" ".join(pair[0] for pair in original) for original in originals]
    texts += [" ".join(pair[1] for pair in originals[0]) + " milla", texts[1]]
    (tmp_path / "news").mkdir()
    (tmp_path / "news/a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "corpus.yaml").write_text(example)
    corpus = pipelines.build("corpus.yaml", in_process=True)
    assert Counter(corpus.verdicts().read_all()["drop"].to_pylist()) == {None: 4, "dedup_exact": 1, "dedup_semantic": 1}
    assert texts[4] in corpus.documents().read_all()["text"].to_pylist()  # the longer one, as `keep` says


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({}, "threshold"),
        ({"threshold": 0}, "threshold: got 0"),
        ({"threshold": 1.1}, "threshold: got 1.1"),
        ({"threshold": 0.9, "cells": 0}, "cells: got 0"),
    ],
)
def test_knobs_out_of_range(knobs, message):
    with pytest.raises(ConfigError, match=message):
        parse(DedupSemantic, knobs, where="corpus.yaml")


def test_embeddings_are_required(tmp_path):
    path = write_texts_corpus(tmp_path, ["a"], ["dedup_semantic: {threshold: 0.9}"], "c")
    config = load_corpus_config(path)
    with pytest.raises(UserError, match="embedding"):
        make_plan(config, take_inventory(config.sources, config.place))
    with pytest.raises(ConfigError, match="column 'embedding' is string, expected vectors"):
        DedupSemantic(0.9).check_types(pa.schema([("embedding", pa.string())]))
