"""Deduplication against brute force: which documents are kept, their winners, and chains of near-duplicates
as one cluster.
"""

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill.errors import UserError
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.document import DOCUMENT, document_id, file_key
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table
from pipelines.contracts.parts import Annotation, Part
from pipelines.stages.dedup.dedup_exact import DedupExact
from pipelines.stages.dedup.dedup_minhash import DedupMinhash
from pipelines.stages.dedup.dedup_url import DedupUrl
from pipelines.stages.dedup.keep_rule import KeepKey
from pipelines.stages.dedup.lsh import band_keys


def _array(values, kind):
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


@dataclass
class Bench:
    """Writes parts with one measured column, and runs a deduplication stage over them."""

    root: Path

    def part(
        self, source: str, index: int, column: str, values: list[Any], kind: pa.DataType, dropped: list[str | None]
    ) -> Part:
        ids = [document_id(file_key(source, f"{index}.txt"), row) for row in range(len(values))]
        documents = pa.table(
            {
                "id": ids,
                "text": [""] * len(values),
                "source": pa.array([source] * len(values)).dictionary_encode(),
                "url": [None] * len(values),
                "meta": [None] * len(values),
            },
            schema=DOCUMENT,
        )
        notes = pa.table(
            {
                column: values if isinstance(values, pa.Array) else pa.array(values, kind),
                "drop": pa.array(dropped, pa.string()),
            }
        )
        records = []
        for name, table in ((f"{source}{index}.docs", documents), (f"{source}{index}.notes", notes)):
            (self.root / name).write_atomic(write_table(table))
            records.append(self.root.record(name))
        note = Annotation("measured", self.root, records[1], schema_facts(notes.schema))
        return Part(
            source,
            index,
            len(values),
            0,
            self.root,
            records[0],
            schema_facts(DOCUMENT),
            pa.schema([(column, kind)]),
            ("measured",),
            (note,),
        )

    def run(self, stage, parts, name="step"):
        out = StepOutput(self.root, name)
        facts = stage.run(parts, out, LocalCluster())
        tables = []
        for part in parts:
            receipt = out.receipt(f"{part.source}-{part.index:05d}")
            found = read_table(out.directory, receipt.files[0], stage.writes().names, schema_facts(stage.writes()))
            tables.append(found.append_column("id", part.table(["id"])["id"]))
        return pa.concat_tables(tables).to_pylist(), facts


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def hashed(values):
    return [value.ljust(16).encode() for value in values]


def test_one_of_each_text_is_kept_and_the_others_name_it(bench):
    texts = [["a", "b", "a", "c"], ["a", "d"], ["b", "e", "d", "b"]]
    parts = [
        bench.part(source, 0, "text_hash", hashed(t), pa.binary(16), [None] * len(t))
        for source, t in zip("xyz", texts, strict=True)
    ]
    rows, facts = bench.run(DedupExact(keep=(KeepKey(sources=("z",)),)), parts)
    groups = defaultdict(list)
    for row, text in zip(rows, itertools.chain(*texts), strict=True):
        groups[text].append(row)
    first = {"a": ("x", 0), "b": ("z", 0), "c": ("x", 3), "d": ("z", 2), "e": ("z", 1)}
    for text, members in groups.items():
        winner = document_id(file_key(first[text][0], "0.txt"), first[text][1])
        assert [row["id"] for row in members if row["drop"] is None] == [winner]
        for row in members:
            expected = (winner, len(members)) if len(members) > 1 else (None, None)
            assert (row["exact_cluster"], row["exact_cluster_size"]) == expected
            assert row["exact_copies"] == (len(members) if row["drop"] is None else None)
    assert facts == {"clusters": 3, "dropped": 5, "cluster_sizes": {"2": 1, "3": 2}}


def test_documents_dropped_earlier_do_not_compete(bench):
    parts = [bench.part("x", 0, "text_hash", hashed(["a", "a", "a"]), pa.binary(16), ["rule", None, None])]
    rows, _ = bench.run(DedupExact(), parts)
    assert [row["drop"] for row in rows] == [None, None, "dedup_exact"]
    assert rows[0]["exact_cluster"] is None
    assert rows[2]["exact_cluster"] == rows[1]["id"]


def test_one_document_of_each_url_is_kept(bench):
    urls = [
        ["http://www.a.org/x", None, "https://b.org/?x=1", "ftp://a.org/x", ""],
        ["https://a.org/x", "http://a.org/X", None, "http://www.www.a.org/x", "http://b.org/?x=1", "http://a.org/x"],
    ]
    dropped = [[None, None, "rule", None, None], [None] * 6]
    parts = [bench.part(s, 0, "url_normal", u, pa.string(), d) for s, u, d in zip("xy", urls, dropped, strict=True)]
    rows, facts = bench.run(DedupUrl(keep=(KeepKey(sources=("y",)),)), parts)
    assert [row["drop"] for row in rows] == ["dedup_url", *[None] * 9, "dedup_url"]
    winner = document_id(file_key("y", "0.txt"), 0)
    assert [(row["url_cluster"], row["url_cluster_size"]) for row in rows if row["url_cluster"]] == [(winner, 3)] * 3
    assert facts == {"clusters": 1, "dropped": 2, "cluster_sizes": {"3": 1}}
    halves = [bench.part("y", 1, "url_normal", urls[0], pa.string(), dropped[0]), parts[1]]
    assert bench.run(DedupUrl(), halves, "other")[1] == facts


def brute_force_clusters(signatures, alive, bands, rows):
    """Return a label for each row, by comparing all pairs of rows that are alive. Rows that equal bands
    connect, directly or through others, have the same label.
    """
    parent = list(range(len(signatures)))

    def find(i):
        while parent[i] != i:
            i = parent[i]
        return i

    for i, j in itertools.combinations(np.flatnonzero(alive), 2):
        equal = (signatures[i, : bands * rows] == signatures[j, : bands * rows]).reshape(bands, rows).all(axis=1)
        if equal.any():
            parent[find(i)] = find(j)
    return [find(i) for i in range(len(signatures))]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("partition_rows", [7, 4_000_000])
def test_clusters_are_the_components_of_shared_bands(bench, monkeypatch, seed, partition_rows):
    monkeypatch.setattr("pipelines.cluster.shuffle.partitions_for.__defaults__", (partition_rows,))
    rng = np.random.default_rng(seed)
    bands, width, n = 3, 2, 60
    signatures = rng.integers(0, 3, (n, bands * width), dtype=np.uint32) + 3 * rng.integers(
        0, 4, (n, 1), dtype=np.uint32
    )
    alive = rng.random(n) > 0.2
    kind = pa.list_(pa.uint32(), bands * width)
    cuts = [0, 20, 21, 60]
    parts = []
    for i, (low, high) in enumerate(itertools.pairwise(cuts)):
        dropped = [None if ok else "rule" for ok in alive[low:high]]
        parts.append(bench.part("s", i, "minhash", signatures[low:high].tolist(), kind, dropped))
    rows, facts = bench.run(DedupMinhash(bands, width), parts)
    labels = brute_force_clusters(signatures, alive, bands, width)
    sizes = Counter(label for label, ok in zip(labels, alive, strict=True) if ok)
    members = defaultdict(list)
    for position, (row, label) in enumerate(zip(rows, labels, strict=True)):
        if alive[position] and sizes[label] > 1:
            members[label].append((row, position))
        else:
            assert (row["drop"], row["minhash_cluster"]) == (None, None)
    for group in members.values():
        winner, place = min(group, key=lambda item: item[0]["id"])
        for row, position in group:
            assert row["minhash_cluster"] == winner["id"]
            assert row["minhash_cluster_size"] == len(group)
            assert row["drop"] == (None if row is winner else "dedup_minhash")
            assert row["minhash_similarity"] == pytest.approx((signatures[position] == signatures[place]).mean())
    assert facts["clusters"] == len(members)
    assert facts["dropped"] == sum(len(group) - 1 for group in members.values())


@pytest.mark.long
def test_a_bucket_of_identical_pages_is_one_entry_per_band_and_part(bench):
    same = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(10_000 * 112, np.uint32)), 112)
    kind = pa.list_(pa.uint32(), 112)
    parts = [bench.part("s", i, "minhash", same, kind, [None] * len(same)) for i in range(3)]
    _, facts = bench.run(DedupMinhash(threshold=0.8, verify="signature", keep_up_to=2), parts)
    assert facts["cluster_sizes"] == {"30000": 1}
    assert facts["dropped"] == 30_000 - 2
    assert facts["spared"] == 0
    shuffled = {path.name: path.stat().st_size for path in (bench.root / "step" / "work").iterdir()}
    for name in ("bands.00000", "members.00000", "evidence.00000", "links.00000"):
        assert shuffled[f"{name}.arrow"] < 10_000


def test_band_keys_differ_where_bands_differ():
    rng = np.random.default_rng(0)
    signatures = rng.integers(0, 2, (4096, 16), dtype=np.uint32)
    keys = band_keys(signatures, 2, 8)
    for band in range(2):
        values = {tuple(row) for row in signatures[:, band * 8 : band * 8 + 8].tolist()}
        assert len(set(keys[:, band].tolist())) == len(values)
    assert not set(keys[:, 0].tolist()) & set(keys[:, 1].tolist())  # equal values in different bands are no link


def test_more_values_than_a_signature_holds_is_an_error(bench):
    part = bench.part("s", 0, "minhash", [[1, 2]], pa.list_(pa.uint32(), 2), [None])
    with pytest.raises(UserError, match="bands x rows is 112, the signatures hold 2 values"):
        bench.run(DedupMinhash(14, 8), [part])


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["news_bbc", "legal_dc_acts_laws"])
def test_recall_follows_the_theoretical_curve_on_real_text(shared_data, tmp_path, domain):
    """Pairs with exact Jaccard s are linked with probability 1 - (1 - s^8)^14 (Broder 1997; Lee et al. 2022, appendix A)."""
    import gzip
    import json

    from pipelines.stages.measure.minhash_signatures import MinhashSignatures

    with gzip.open(shared_data / "prose" / f"{domain}.jsonl.gz", "rt") as lines:
        records = [json.loads(line) for line in lines]
    stage = MinhashSignatures()
    stage.setup()
    texts = pa.array([record["text"] for record in records], pa.large_string())
    column = stage.annotate(pa.table({"id": pa.array([bytes(16)] * len(texts), pa.binary(16)), "text": texts}))[
        "minhash"
    ]
    signatures = column.combine_chunks().flatten().to_numpy().reshape(len(texts), -1)
    keys = band_keys(signatures, 14, 8)
    position = {record["id"]: row for row, record in enumerate(records)}
    with gzip.open(shared_data / "dedup" / f"{domain}.tsv.gz", "rt") as lines:
        pairs = [line.rstrip("\n").split("\t") for line in lines]
    pairs = [
        (position[a], position[b], float(s)) for a, b, s in (p[:3] for p in pairs) if a in position and b in position
    ]
    assert len(pairs) > 50
    similarity = np.array([s for *_, s in pairs])
    linked = np.array([bool((keys[a] == keys[b]).any()) for a, b, _ in pairs])
    expected = 1 - (1 - similarity**8) ** 14
    # Pairs share documents, so the deviation is larger than that of independent draws; 5 points on hundreds of pairs.
    assert abs(linked.mean() - expected.mean()) < 0.05
    assert linked[similarity >= 0.95].all()
