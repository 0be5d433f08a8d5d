"""Deduplication in whole builds: planted duplicates, verification, keep rules, comparison with finished
corpora, and independence of how the work is divided.
"""

import json
import re
from collections import defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from pipelines.building import read_step
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.report.samples import read_samples
from pipelines.stages.dedup.dedup_exact import DedupExact
from pipelines.stages.dedup.dedup_minhash import DedupMinhash
from pipelines.stages.dedup.keep_rule import KeepKey, key_types
from pipelines.stages.measure.minhash_signatures import MinhashSignatures
from pipelines.stages.measure.quality_signals import QualitySignals
from pipelines.stages.measure.text_hash import TextHash
from tests.pipelines.stages.dedup.planted_duplicates import plant, words

NEAR = DedupMinhash(threshold=0.7, verify="jaccard")


def steps(*stages):
    names = {
        DedupExact: "dedup_exact",
        DedupMinhash: "dedup_minhash",
        QualitySignals: "quality_signals",
        TextHash: "text_hash",
    }
    return tuple(
        StepConfig(names.get(type(s), "minhash_signatures"), s, names.get(type(s), "minhash_signatures"))
        for s in stages
    )


def corpus(root, sources, *stages, part_bytes=1 << 20):
    """Build a corpus from {source: texts} and return the deduplication columns and `drop` of its rows, by
    `source/number`.
    """
    declared = []
    for name, texts in sources.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        declared.append(Source(name, str(root / name), "jsonl", part_bytes=part_bytes))
    config = CorpusConfig("c", str(root / "out"), tuple(declared), steps(*stages))
    build(make_plan(config, take_inventory(config.sources, root / "out")), LocalCluster(), lambda line: None)
    return read(root / "out")


def read(out):
    opened, rows = open_corpus(out), {}
    columns = [
        n for step in opened.steps if step.stage.startswith("dedup") for n in step.manifest.schema if n != "drop"
    ]
    for part in opened.parts():
        table = part.table(("id", *columns, "drop"))
        for row in table.to_pylist():
            name = short(opened.printed_id(row.pop("id")))
            rows[name] = row
    return rows


def short(printed):
    return printed.replace("t.jsonl#", "")


def winners(out, rows, column="minhash_cluster"):
    opened = open_corpus(out)
    return {name: row[column] and short(opened.printed_id(row[column])) for name, row in rows.items()}


def kept(rows):
    return sorted(name for name, row in rows.items() if row["drop"] is None)


def shingles(text, n=5):
    found = re.findall(r"\w+", text.lower())
    return {tuple(found[i : i + n]) for i in range(max(1, len(found) - n + 1))}


def similarity(a, b):
    one, other = shingles(a), shingles(b)
    return len(one & other) / len(one | other)


def test_exactly_the_planted_duplicates_are_dropped(tmp_path):
    planted = plant(3)
    stages = (TextHash(), DedupExact(), MinhashSignatures(), NEAR)
    rows = corpus(tmp_path, {"web": [document.text for document in planted]}, *stages)
    groups = defaultdict(list)
    for number, document in enumerate(planted):
        apart = document.kind in ("far", "templated")
        groups[number if apart else document.of].append(f"web/{number}")
    for group in groups.values():
        assert sum(rows[name]["drop"] is None for name in group) == 1
    dropped = {planted[int(n.partition("/")[2])].kind for n in rows if rows[n]["drop"] == "dedup_minhash"}
    assert "near" in dropped
    assert rows[f"web/{[d.kind for d in planted].index('templated')}"]["drop"] is None


def test_verification_spares_what_is_unlike_the_winner(tmp_path):
    import random

    rng = random.Random(0)
    chain = [words(rng, 100)]
    for _ in range(12):
        chain.append([*chain[-1][12:], *words(rng, 12)])
    texts = [" ".join(text) for text in chain] + ["apart " * 40]
    knobs = {"bands": 28, "rows": 4, "threshold": 0.5}
    plain = corpus(tmp_path / "none", {"s": texts}, MinhashSignatures(), DedupMinhash(**knobs))
    assert kept(plain) == ["s/0", "s/13"]
    for verify in ("jaccard", "signature"):
        rows = corpus(tmp_path / verify, {"s": texts}, MinhashSignatures(), DedupMinhash(verify=verify, **knobs))
        stay = []
        for number in range(13):
            row = rows[f"s/{number}"]
            like = [other for other in stay if similarity(texts[number], texts[other]) >= 0.5]
            if verify == "jaccard":
                assert (row["drop"] is not None) == bool(like)
            if row["drop"] is None:
                stay.append(number)
                assert row["minhash_winner"] is None
                exact = similarity(texts[number], texts[0])
            else:
                winner = int(
                    winners(tmp_path / verify / "out", rows, "minhash_winner")[f"s/{number}"].partition("/")[2]
                )
                assert winner in stay
                exact = similarity(texts[number], texts[winner])
            assert row["minhash_similarity"] == pytest.approx(exact, abs=1e-6 if verify == "jaccard" else 0.15)
            assert row["minhash_cluster_size"] == 13
        opened = open_corpus(tmp_path / verify / "out")
        where = {"source": "s", "part": 0, "step": "dedup_minhash", "rule": "dedup_minhash"}
        table = next(opened.parts()).table(("id", "drop"))
        dropped = [(row, each["id"].hex()) for row, each in enumerate(table.to_pylist()) if each["drop"] is not None]
        samples = read_samples(opened, [where | {"row": row, "id": identifier} for row, identifier in dropped])
        kept_instead = {short(sample["id"]): short(sample["kept_instead"]) for sample in samples}
        winner_of = winners(tmp_path / verify / "out", rows, "minhash_winner")
        assert kept_instead == {name: winner_of[name] for name in rows if rows[name]["drop"] is not None}
        step = next(s for s in opened.steps if s.stage == "dedup_minhash")
        assert step.manifest.facts["spared"] == len(kept(rows)) - 2
        assert sum(rows[name]["minhash_copies"] for name in kept(rows)) == len(texts)
        assert rows["s/13"]["minhash_copies"] == 1


TEXT = " ".join(words(__import__("random").Random(5), 80))
LONG = TEXT + " " + TEXT[:90]


@pytest.mark.long
@pytest.mark.parametrize(
    ("keep", "best"),
    [
        ([], "a/0"),
        ([{"sources": ["c", "b"]}], "c/0"),
        ([{"column": "length"}], "b/1"),
        ([{"column": "length", "order": "lowest"}, {"sources": ["b"]}], "b/0"),
        ([{"column": "word_count"}, {"sources": ["c"]}], "b/1"),
    ],
)
def test_the_order_of_preference_decides_who_stays(tmp_path, keep, best):
    knobs = {"keep": keep, "bands": 28, "rows": 4}
    sources = {"a": [TEXT, "other " * 30], "b": [TEXT, LONG], "c": [TEXT]}
    near = parse(DedupMinhash, knobs, "t")
    measured = (QualitySignals(),) if any(key.get("column") == "word_count" for key in keep) else ()
    rows = corpus(tmp_path, sources, *measured, MinhashSignatures(), near)
    expected = {"a/0", "b/0", "b/1", "c/0"}
    ids = {n for n, w in winners(tmp_path / "out", rows).items() if w}
    assert ids == expected
    first = {row["minhash_cluster"] for row in rows.values() if row["minhash_cluster"]}
    assert len(first) == 1
    assert kept(rows) == sorted([best, "a/1"])
    assert rows[best]["minhash_copies"] == 4


@pytest.mark.long
@pytest.mark.parametrize("stage", [DedupExact(), DedupMinhash(bands=14, rows=8, threshold=0.7, verify="signature")])
def test_of_copies_in_several_sources_the_first_source_keeps_its_own(tmp_path, stage):
    rng = __import__("random").Random(7)
    texts = [" ".join(words(rng, 60)) for _ in range(6)]
    sources = {"b": texts[:4], "c": texts[1:5], "a": texts[2:]}
    rows = corpus(tmp_path / "0", sources, TextHash(), MinhashSignatures(), stage)
    assert kept(rows) == ["a/3", "b/0", "b/1", "b/2", "b/3", "c/3"]
    turned = corpus(tmp_path / "1", dict(reversed(sources.items())), TextHash(), MinhashSignatures(), stage)
    assert kept(turned) == ["a/0", "a/1", "a/2", "a/3", "b/0", "c/0"]
    more = corpus(tmp_path / "2", {**sources, "z": [*texts, "new " * 9]}, TextHash(), MinhashSignatures(), stage)
    assert kept(more) == [*kept(rows), "z/6"]  # a source at the end takes nothing from the others
    assert {n: row["drop"] for n, row in more.items() if n[0] != "z"} == {n: row["drop"] for n, row in rows.items()}


@pytest.mark.long
def test_up_to_n_stay_and_within_a_source_only(tmp_path):
    sources = {"a": [TEXT] * 4, "b": [TEXT] * 3}
    stages = (TextHash(), DedupExact(keep_up_to=2, keep=(KeepKey(sources=("b",)),)))
    rows = corpus(tmp_path / "n", sources, *stages)
    assert kept(rows) == ["b/0", "b/1"]
    assert [rows[f"b/{i}"]["exact_copies"] for i in range(3)] == [6, 1, None]
    for number, stage in enumerate((DedupExact(scope="within_source"), DedupMinhash(scope="within_source"))):
        rows = corpus(tmp_path / f"{number}", sources, TextHash(), MinhashSignatures(), stage)
        assert kept(rows) == ["a/0", "b/0"]


@pytest.mark.long
def test_the_result_is_the_same_for_any_shares_of_the_work(tmp_path, monkeypatch):
    texts = [document.text for document in plant(9, 14)]
    sources = {"a": texts[::2], "b": texts[1::2]}
    stages = (
        TextHash(),
        DedupExact(keep_up_to=2),
        MinhashSignatures(),
        replace(NEAR, keep=(KeepKey(column="length"),)),
    )
    first = corpus(tmp_path / "0", sources, *stages)
    monkeypatch.setattr("pipelines.cluster.shuffle.partitions_for.__defaults__", (150,))
    other = corpus(tmp_path / "1", sources, *stages, part_bytes=16_000)
    assert len(list((tmp_path / "1" / "out").glob("read.a-*/parts/*"))) > 1
    assert first == other
    assert {"dedup_exact", "dedup_minhash"} <= {row["drop"] for row in first.values()}


def test_names_of_sources_are_no_names_of_rounds(tmp_path, monkeypatch):
    """Components are found in rounds whose files are named `stars-0.00000`."""
    texts = [document.text for document in plant(9, 14)]
    stages = (MinhashSignatures(), NEAR)
    expected = corpus(tmp_path / "0", {"a": texts}, *stages)
    monkeypatch.setattr("pipelines.cluster.shuffle.partitions_for.__defaults__", (20,))
    found = corpus(tmp_path / "1", {"stars-0": texts}, *stages, part_bytes=16_000)
    assert [row["drop"] for row in expected.values()] == [row["drop"] for row in found.values()]
    assert "dedup_minhash" in {row["drop"] for row in found.values()}


def test_records_that_sampling_leaves_out_may_fill_several_files(tmp_path, monkeypatch):
    """They are in the quarantine, whose rows a read task writes in files of a million."""
    texts = [f"{TEXT} {number // 2}" for number in range(120)]
    monkeypatch.setattr(read_step, "_HELD_ROWS", 10)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = Source("a", str(tmp_path), "jsonl", sample=0.5, part_bytes=1000)
    config = CorpusConfig("c", str(tmp_path / "out"), (source,), steps(TextHash(), DedupExact()))
    build(make_plan(config, take_inventory(config.sources, tmp_path / "out")), LocalCluster(), lambda line: None)
    (record,) = (step for step in open_corpus(tmp_path / "out").steps if step.stage == "read")
    assert sum(file.path.startswith("quarantine/") for file in record.manifest.files) > 3
    rows = read(tmp_path / "out")
    assert 30 < len(rows) < 90
    numbers = [int(name.removeprefix("a/")) for name in rows]
    assert len(kept(rows)) == len({number // 2 for number in numbers})


class Dying(LocalCluster):
    left = 0

    def map(self, function, items, label):
        for position, result in super().map(function, items, label):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield position, result


@pytest.mark.long
def test_a_build_that_is_killed_at_any_task_ends_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.cluster.shuffle.partitions_for.__defaults__", (400,))
    texts = [document.text for document in plant(6)]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = Source("a", str(tmp_path / "a"), "jsonl", part_bytes=20_000)

    def run(name, cluster):
        config = CorpusConfig("c", str(tmp_path / name), (source,), steps(MinhashSignatures(), NEAR))
        plan = make_plan(config, take_inventory(config.sources, tmp_path / name))
        build(plan, cluster, lambda line: None)
        return (tmp_path / name / plan.step("dedup_minhash").directory / "manifest.json").read_bytes()

    whole, deaths = run("whole", LocalCluster()), 0
    while True:
        try:
            dying = Dying()
            dying.left = 8 * deaths  # what is finished passes again
            assert run("killed", dying) == whole
            break
        except KeyboardInterrupt:
            deaths += 1
    assert deaths > 3


@pytest.mark.long
@pytest.mark.parametrize("verify", ["none", "signature"])
def test_against_a_finished_corpus_equals_one_build(tmp_path, monkeypatch, verify):
    texts = [document.text for document in plant(4, 24)]
    new = {"b": [*texts[50:], "", texts[0]]}
    old = {"a": [*texts[:50], ""]}
    prefer = (KeepKey(sources=("a",)),)

    def stages(**knobs):
        return (
            TextHash(), DedupExact(keep=prefer, **knobs),
            MinhashSignatures(), DedupMinhash(bands=28, rows=4, threshold=0.7, verify=verify, keep=prefer, **knobs),
        )  # fmt: skip

    batch = corpus(tmp_path / "batch", {**old, **new}, *stages())
    corpus(tmp_path / "old", old, *stages(), part_bytes=4000)
    finished = str(tmp_path / "old" / "out")
    touched = []
    from pipelines.contracts import manifest

    plain = manifest.read_table
    for module in ("parts", "lineage"):
        monkeypatch.setattr(
            f"pipelines.contracts.{module}.read_table",
            lambda directory, record, *rest: touched.append(directory / record.path) or plain(directory, record, *rest),
        )
    found = corpus(tmp_path / "new", new, *stages(against=(finished,)))
    documents = set((tmp_path / "old" / "out").glob("read.*/parts/*"))
    assert documents
    assert not documents & set(touched), "the text of the finished corpus was read"
    assert kept(found) == [name for name in kept(batch) if name.startswith("b/")]
    assert {name: row["drop"] for name, row in found.items()} == {n: batch[n]["drop"] for n in found}
    for column in ("exact_cluster", "minhash_cluster", "minhash_similarity"):
        assert {n: row[column] for n, row in found.items()} == {n: batch[n][column] for n in found}


def test_a_corpus_is_not_compared_with_itself_nor_twice_with_another(tmp_path):
    corpus(tmp_path, {"a": [TEXT, "another"]}, TextHash(), DedupExact())
    (tmp_path / "link").symlink_to(tmp_path / "out")
    message = r"against: .*: is the corpus that is being built, or occurs twice; remove it"
    for itself in ("out", "out/../out", "link", "out/manifest.json"):
        with pytest.raises(UserError, match=message):
            corpus(tmp_path, {"a": [TEXT, "another"]}, TextHash(), DedupExact(against=(f"{tmp_path}/{itself}",)))
    twice = DedupExact(against=(str(tmp_path / "out"), str(tmp_path / "link")))
    with pytest.raises(UserError, match=message):
        corpus(tmp_path / "new", {"a": [TEXT, "another"]}, TextHash(), twice)


def test_a_finished_corpus_needs_no_column_of_the_keep_rule(tmp_path):
    corpus(tmp_path / "old", {"a": [TEXT]}, TextHash(), DedupExact())
    keep = (KeepKey(column="url"), KeepKey(column="word_count"), KeepKey(column="length"))
    stages = (QualitySignals(), TextHash(), DedupExact(keep=keep, against=(str(tmp_path / "old" / "out"),)))
    assert kept(corpus(tmp_path / "new", {"b": [TEXT, "another", "another"]}, *stages)) == ["b/1"]


def test_a_keep_rule_over_a_column_without_an_order_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"an order of sources is a key `sources: \[\.\.\.\]`"):
        KeepKey(column="source").check()
    stages = (MinhashSignatures(num_perm=4), TextHash(), DedupExact(keep=(KeepKey(column="minhash"),)))
    with pytest.raises(UserError, match=r"keep: column 'minhash' is fixed_size_list.*expected numbers, times or text"):
        corpus(tmp_path, {"b": [TEXT]}, *stages)
    with pytest.raises(UserError, match="keep: column 'half' is halffloat, expected numbers, times or text"):
        key_types(pa.schema([("half", pa.float16())]), [KeepKey(column="half")])


@pytest.mark.long
def test_where_a_new_document_joins_two_old_clusters(tmp_path):
    """Incremental and batch deduplication differ for a document similar to two old winners: a finished corpus
    keeps both winners, a single build keeps only one.
    """
    import random

    rng = random.Random(1)
    left, right = words(rng, 60), words(rng, 60)
    old = {"a": [" ".join(left + words(rng, 6)), " ".join(right + words(rng, 6))]}
    new = {"b": [" ".join(left + right), " ".join(words(rng, 50))]}
    stages = (MinhashSignatures(), DedupMinhash(bands=100, rows=1, keep=(KeepKey(sources=("a",)),)))
    batch = corpus(tmp_path / "batch", {**old, **new}, *stages)
    assert len([n for n in kept(batch) if n.startswith("a/")]) == 1
    assert kept(corpus(tmp_path / "old", old, *stages)) == ["a/0", "a/1"]
    against = replace(stages[1], against=(str(tmp_path / "old" / "out"),))
    rows = corpus(tmp_path / "new", new, stages[0], against)
    assert kept(rows) == ["b/1"]
    assert rows["b/0"]["minhash_cluster_size"] == 3
    assert rows["b/0"]["minhash_cluster"] == batch["b/0"]["minhash_cluster"]


def test_a_finished_corpus_with_other_signatures_is_refused(tmp_path):
    corpus(tmp_path / "old", {"a": [TEXT]}, MinhashSignatures(ngram=3), DedupMinhash())
    against = DedupMinhash(against=(str(tmp_path / "old" / "out"),))
    with pytest.raises(UserError, match="were not computed in the same way"):
        corpus(tmp_path / "new", {"b": [TEXT]}, MinhashSignatures(), against)
    with pytest.raises(UserError, match="has no column 'text_hash'"):
        corpus(tmp_path / "hash", {"b": [TEXT]}, TextHash(), DedupExact(against=against.against))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"verify": "jaccard"}, "verify: 'jaccard' compares with `threshold`, which is missing"),
        ({"verify": "jaccard", "threshold": 0.8, "against": ["x"]}, "use 'signature'"),
        ({"threshold": 1.5}, "threshold: got 1.5"),
        ({"keep_up_to": 0}, "keep_up_to: got 0"),
        ({"keep": [{"column": "x", "sources": ["a"]}]}, "either `sources` or `column`"),
    ],
)
def test_knobs_that_do_not_go_together(knobs, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(DedupMinhash, knobs, "demo.yaml")
