"""Domains: `group_by` splits sources into groups, loses no document, does not depend on parts or task order,
and affects only the shards.
"""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import pipelines.stages.materialise.shards as stage
from gristmill.errors import ConfigError, UserError
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.commands.show_funnel import show_funnel
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import load_corpus, load_step, without_validation
from pipelines.contracts.shard_set import open_shard
from pipelines.erasure.forget import _new_name, forget
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.planning.rule_checks import undivided_notices
from pipelines.stages.materialise.group_by import DomainGroups, GroupBy
from tests.conftest import paragraph

# Names that the data must not be able to make up: separators, paths, and the names of missing and of empty values.
TOPICS = ["law", "a:b", "../up", "null", "", None, "Ärzte & Co", "law"]
COUNT = 48
GROUPED = "[topic, {column: score, quantiles: 5}]"


def records():
    """Return the documents of `web`. Every eighth is a copy of its predecessor, and some have no score."""
    made = []
    for number in range(COUNT):
        text = paragraph(number - (number % 8 == 7), 30)
        topic = TOPICS[number % 8] if number % 8 != 7 else TOPICS[6]
        made.append({"text": text, "topic": topic, "score": None if number % 11 == 0 else (number * 7) % COUNT / 8})
    return made


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records()))
    (tmp_path / "code.jsonl").write_text("".join(json.dumps({"text": paragraph(n + 900, 20)}) + "\n" for n in range(8)))

    def plan(group_by=None, name="out", part_bytes=4000, more=""):
        grouped = "" if group_by is None else f", group_by: {group_by}"
        path = tmp_path / "corpus.yaml"
        path.write_text(f"""\
name: c
output: {tmp_path}/{name}
sources:
  - {{name: web, root: {tmp_path}/web.jsonl, format: jsonl, part_bytes: {part_bytes}}}
  - {{name: code, root: {tmp_path}/code.jsonl, format: jsonl}}
steps:
  - record_fields: {{columns: {{topic: {{field: topic}}, score: {{field: score, type: float}}}}}}
    sources: [web]
  - text_hash: {{}}
{more}  - dedup_exact: {{}}
  - learn_tokenizer: {{kind: bytes}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0.2, shard_bytes: 4000{grouped}}}
""")
        config = load_corpus_config(path)
        return make_plan(config, take_inventory(config.sources, config.place))

    def make(*arguments, cluster=None, **named):
        return build(plan(*arguments, **named), cluster or LocalCluster(), lambda line: None)

    make.plan, make.root = plan, tmp_path / "out"
    return make


def domains(root, manifest):
    """Return {(domain, split): texts} read from the shards, after checking each shard against its record."""
    texts = {
        row["id"]: row["text"] for part in open_corpus(root).parts() for row in part.table(("id", "text")).to_pylist()
    }
    held = {}
    for record in manifest.shard_sets["shards"].shards:
        shard = open_shard(root, record.file)
        own = [texts[each] for each in shard.doc_ids.to_pylist()]
        held.setdefault((record.domain, record.split), []).extend(own)
        assert (record.documents, record.tokens) == (len(own), len(shard.tokens))
        assert record.text_bytes == sum(len(text.encode()) for text in own)
        assert (shard.facts["source"], shard.facts.get("group", "")) == (record.source, record.group)
    return held


def expected():
    """Return {text: domain} for the texts of `web` that are kept."""
    kept = [record for number, record in enumerate(records()) if number % 8 != 7]
    scores = sorted(record["score"] for record in kept if record["score"] is not None)
    bounds = [scores[int(share * len(scores))] for share in (0.2, 0.4, 0.6, 0.8)]
    names = {"law": "law", "a:b": "a%3Ab", "../up": "%2E.%2Fup", "null": "%6Eull", "": "empty", None: "null"}
    names["Ärzte & Co"] = "%C3%84rzte%20%26%20Co"
    domain = {}
    for record in kept:
        score = record["score"]
        level = "null" if score is None else f"q{1 + sum(score >= bound for bound in bounds)}"
        domain[record["text"]] = f"web:{names[record['topic']]}:{level}"
    return domain


@pytest.mark.long
def test_every_kept_document_is_in_the_domain_of_its_values(corpus):
    plain, manifest = corpus(name="plain"), corpus(GROUPED)
    held = domains(corpus.root, manifest)
    found = {text: domain for (domain, _), texts in held.items() for text in texts if domain != "code"}
    assert found == expected()
    assert sum(len(texts) for (domain, _), texts in held.items() if domain == "code") == 8
    for field in ("documents", "tokens", "text_bytes"):
        sums = {}
        for each in (plain, manifest):
            for shard in each.shard_sets["shards"].shards:
                counts = sums.setdefault((shard.source, shard.split), [])
                counts.append(getattr(shard, field) if each is manifest else -getattr(shard, field))
        assert all(sum(counts) == 0 for counts in sums.values())
    paths = [shard.path for shard in manifest.shard_sets["shards"].shards]
    assert len(set(paths)) == len(paths)
    assert all(".." not in path.split("/") for path in paths)


@pytest.mark.long
def test_the_best_quantile_is_what_the_rule_of_that_quantile_keeps(corpus):
    rule = "  - filter: [{signal: score, at_least_quantile: 0.8, per: source, 'null': drop}]\n    sources: [web]\n"
    grouped, filtered = corpus("[{column: score, quantiles: 5}]"), corpus(name="filtered", more=rule)
    best = {t for (d, _), texts in domains(corpus.root, grouped).items() if d == "web:q5" for t in texts}
    root = corpus.root.parent / "filtered"
    kept = {t for (d, _), texts in domains(root, filtered).items() if d == "web" for t in texts}
    assert best
    # The rule judges copies too, which are dropped later: it may set its bound a document lower or higher.
    assert len(best ^ kept) <= 2


@pytest.mark.long
def test_without_group_by_nothing_changes_and_with_it_only_the_shards(corpus):
    plain = {step.label: step for step in corpus.plan().steps}
    assert {step.label: step.fingerprint for step in corpus.plan("[]").steps} == {
        label: step.fingerprint for label, step in plain.items()
    }
    assert "group_by" not in plain["shards"].identity["knobs"]
    grouped = {step.label: step.fingerprint for step in corpus.plan(GROUPED).steps}
    changed = {label for label in grouped if label not in plain or grouped[label] != plain[label].fingerprint}
    assert changed == {"shards", "shards_quantiles"}
    by_topic = {step.label: step.fingerprint for step in corpus.plan("[topic]").steps}
    assert {label for label in by_topic if by_topic[label] != plain[label].fingerprint} == {"shards"}
    manifest = corpus()
    record = json.loads((corpus.root / "manifest.json").read_text())["shard_sets"]["shards"]["shards"][0]
    assert list(record) == ["path", "bytes", "xxh3_128", "source", "split", "documents", "tokens", "text_bytes"]
    assert manifest.mixtures["proportional"].keys() == {"web", "code"}
    facts = load_step(corpus.root, next(s["directory"] for s in manifest.steps if s["step"] == "shards")).facts
    assert "groups" not in facts
    own = [
        "path",
        "source",
        "split",
        "documents",
        "tokens",
        "text_bytes",
        "bytes",
        "xxh3_128",
    ]  # as before there were groups
    assert [list(shard) for shard in facts["shards"]] == [own] * len(facts["shards"])


@pytest.mark.long
def test_parts_and_the_order_of_tasks_do_not_matter(corpus):
    class Backwards(LocalCluster):
        def map(self, function, items, label):
            return reversed([(n, function(item)) for n, item in reversed(list(enumerate(items)))])

    first, again = corpus(GROUPED), corpus(GROUPED, name="again", cluster=Backwards())
    assert first == again
    large = corpus(GROUPED, name="large", part_bytes=100_000)
    held = [domains(corpus.root.parent / name, each) for name, each in (("out", first), ("large", large))]
    assert {key: sorted(texts) for key, texts in held[0].items()} == {k: sorted(t) for k, t in held[1].items()}


@pytest.mark.long
def test_a_build_that_dies_between_shards_goes_on_with_the_same_bytes(corpus, monkeypatch):
    whole = corpus(GROUPED, name="whole")
    share, done = stage._shard, []

    def dies(task, docs, split, group):
        done.append(task.unit)
        if len(set(done)) == 3:
            raise KeyboardInterrupt
        return share(task, docs, split, group)

    with monkeypatch.context() as patch:
        patch.setattr(stage, "_shard", dies)
        with pytest.raises(KeyboardInterrupt):
            corpus(GROUPED)
    finished = set(done[:-1])
    patched = []
    monkeypatch.setattr(stage, "_shard", lambda *a: patched.append(a[0].unit) or share(*a))
    assert corpus(GROUPED) == whole
    assert len(finished) == 2
    assert not finished & set(patched)


@pytest.mark.long
def test_a_document_of_a_domain_is_found_and_forgotten(corpus):
    before = corpus("[topic]")
    opened = open_corpus(corpus.root)
    rows = {
        each: opened.shard_rows(each) for part in opened.parts("web") for each in part.table(("id",))["id"].to_pylist()
    }
    held = {
        identifier: record
        for record in before.shard_sets["shards"].shards
        for identifier in open_shard(corpus.root, record.file).doc_ids.to_pylist()
    }
    assert {each: [row.path for row in found] for each, found in rows.items()} == {
        each: [held[each].path] if each in held else [] for each in rows
    }
    victim = next(each for each, record in held.items() if record.domain == "web:law" and record.documents > 1)
    forget(corpus.root, [victim.hex()], [])
    after, size = load_corpus(corpus.root), held[victim].documents
    changed = set(before.shard_sets["shards"].shards) ^ set(after.shard_sets["shards"].shards)
    assert {(record.domain, record.split) for record in changed} == {(held[victim].domain, held[victim].split)}
    assert sorted(record.documents for record in changed) == [size - 1, size]
    assert sum(after.mixtures["proportional"].values()) == pytest.approx(1)
    said = []
    build(corpus.plan("[topic]"), LocalCluster(), said.append)
    assert "nothing is recomputed" in said[0]
    assert victim not in {
        e for r in after.shard_sets["shards"].shards for e in open_shard(corpus.root, r.file).doc_ids.to_pylist()
    }


@pytest.mark.long
def test_what_shows_a_corpus_shows_its_domains(corpus, capsys):
    manifest = corpus(GROUPED)
    names = sorted({shard.domain for shard in manifest.shard_sets["shards"].shards})
    assert set(manifest.mixtures["unimax"]) == set(names)
    show_funnel(manifest)
    lines = capsys.readouterr().out.splitlines()
    web = [shard for shard in manifest.shard_sets["shards"].shards if shard.source == "web"]
    assert [line.split()[0] for line in lines if line.startswith("    web:")] == [n for n in names if n != "code"][:20]
    train = next(line for line in lines if line.startswith("  shards: train"))
    assert f"{sum(shard.tokens for shard in web if shard.split == 'train'):,}" in train
    report = json.loads((corpus.root / "report.json").read_text())["shard_sets"][0]
    assert {(each["domain"], each["split"]) for each in report["domains"]} == {
        (shard.domain, shard.split) for shard in manifest.shard_sets["shards"].shards
    }
    assert [level["column"] for level in report["groups"]["web"]] == ["topic", "score"]
    assert len(report["groups"]["web"][1]["bounds"]) == 4
    assert report["groups"]["code"] == []
    page = (corpus.root / "report.html").read_text()
    assert "web:law:q1" in re.sub(r"<wbr>|&#8203;|\u200b", "", page)
    silent = without_validation(manifest)["shards"]
    assert set(silent) == set(names) - {
        s.domain for s in manifest.shard_sets["shards"].shards if s.split == "validation"
    }


def test_the_plan_says_which_sources_a_column_does_not_split(corpus):
    notices = list(undivided_notices(corpus.plan(GROUPED).config))
    assert notices == [
        f"shards: no step writes {name} for code, which it therefore does not split" for name in ("topic", "score")
    ]
    assert list(undivided_notices(corpus.plan().config)) == []


@pytest.mark.parametrize(
    ("group_by", "message"),
    [
        ("[topi]", "reads the column 'topi', which no earlier step writes; did you mean 'topic'"),
        ("[language]", "the stage language writes it: put `language: {}` before shards"),
        ("[url]", r"group_by\[0\]: column: got 'url', expected a column that a step writes: record_fields"),
        ("[topic, topic]", r"group_by\[1\]: the column 'topic' occurs twice"),
        (
            "[{column: score, quantile: 5}]",
            r"group_by\[0\].quantile: no such field in GroupBy; did you mean 'quantiles'",
        ),
        ("[{column: score, quantiles: 1}]", r"group_by\[0\].quantiles: got 1, expected 2 to 100"),
        ("[{column: topic, quantiles: 5}]", "group_by: topic: quantiles need numbers, the column holds string"),
        ("[score]", "group_by: score: a column of double has no groups of equal values; add `quantiles`"),
        ("[text_hash]", "group_by: text_hash: a column of fixed_size_binary.* name a column of texts"),
    ],
)
def test_groups_that_cannot_be_are_refused_by_the_plan(corpus, group_by, message):
    with pytest.raises(ConfigError, match=message):
        corpus.plan(group_by)


def test_too_many_groups_and_too_long_names_stop_the_build_before_it_encodes(corpus, monkeypatch):
    monkeypatch.setattr("pipelines.stages.materialise.group_by.MAX_GROUPS", 6)
    with pytest.raises(UserError, match="source web has more than 6 groups, most of them by topic; group by columns"):
        corpus(GROUPED)
    monkeypatch.setattr("pipelines.stages.materialise.group_by._LONGEST", 8)
    with pytest.raises(
        UserError, match=r"source web: group_by: topic: a value has [0-9]+ characters, percent-encoded, and"
    ):
        corpus(GROUPED)
    assert not list(corpus.root.glob("shards-*/units/*"))


@pytest.mark.parametrize(
    ("values", "kind", "quantiles", "bounds", "names"),
    [
        ([True, None, False], pa.bool_(), None, (), ["true", "null", "false"]),
        ([2021, -5, None], pa.int64(), None, (), ["2021", "-5", "null"]),
        (["en", "de", None], pa.dictionary(pa.int32(), pa.string()), None, (), ["en", "de", "null"]),
        ([-0.0, np.nan, None, 1.5, 9.0], pa.float32(), 3, (0.0, 1.5), ["q2", "null", "null", "q3", "q3"]),
        ([2**62, 2**62 + 1], pa.int64(), 2, (2**62 + 1,), ["q1", "q2"]),  # exact beyond 2^53
        ([1.0, 2.0], pa.float64(), 10, (), ["q01", "q01"]),
        ([], pa.string(), None, (), []),
        ([], pa.float64(), 5, (1.0, 2.0, 3.0, 4.0), []),
        ([None, None], pa.string(), None, (), ["null", "null"]),
    ],
)
def test_names_of_values(values, kind, quantiles, bounds, names):
    column = pa.chunked_array([pa.array(values, kind)])
    assert GroupBy("x", quantiles).names(column, bounds).to_pylist() == names


def test_names_are_injective_whatever_the_values():
    values = ["a", "a:b", "a%3Ab", "null", "%6Eull", "empty", "%65mpty", "", ".", "%2E", "..", "é", "e\u0301", "A", " "]
    names = GroupBy("x").names(pa.chunked_array([pa.array(values)]), ()).to_pylist()
    assert len(set(names)) == len(values)
    assert "null" not in names
    assert all(name and not name.startswith(".") and not {":", "/", " "} & set(name) for name in names)


def test_a_source_without_any_column_is_one_domain():
    class Bare:
        source = "code"

        def has(self, column):
            return False

    grouping = DomainGroups((GroupBy("x"),), {})
    assert grouping.assign(pa.table({"x": pa.nulls(2, pa.string())}), Bare()).to_pylist() == ["", ""]
    assert replace(grouping, columns=()).levels(Bare()) == ()


def test_rewritten_files_of_groups_with_a_tilde_do_not_collide():
    assert GroupBy("c").names(pa.chunked_array([["a~1"]]), ()).to_pylist() == ["a~1"]
    paths = [f"web/{group}/{split}-00000" for group in ("a~1", "a~2") for split in ("train", "validation")]
    once = [_new_name(f"{path}.arrow", "0" * 32) for path in paths]
    assert once == [f"{path}~{'0' * 12}.arrow" for path in paths]
    assert [_new_name(path, "1" * 32) for path in once] == [f"{path}~{'1' * 12}.arrow" for path in paths]
    assert _new_name("tokenizer.json", "1" * 32) == f"tokenizer~{'1' * 12}.json"
