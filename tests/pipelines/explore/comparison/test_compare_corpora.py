"""The comparison of two builds, against a plain comparison of the documents that each keeps."""

import json
import shutil
from dataclasses import replace

import pytest

import pipelines
from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.erasure.forget import forget
from pipelines.explore.comparison.compare_corpora import compare_corpora
from pipelines.explore.searching.query import Query
from pipelines.explore.searching.search_corpus import search_corpus
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.decide.c4_lines import C4Lines
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.measure.quality_signals import QualitySignals


def configuration(root, texts, output, least=2, rules="paper"):
    """Write `texts`, and return a configuration with a source for each name in it. Only `web` is filtered by
    word count and edited by line.
    """
    for name, records in texts.items():
        (root / name).mkdir(exist_ok=True)
        (root / name / "a.jsonl").write_text("\n".join(records), encoding="utf-8")
    sources = tuple(Source(name, str(root / name), "jsonl", part_bytes=600) for name in texts)
    steps = (
        StepConfig("quality_signals", QualitySignals(), "quality_signals", ("web",)),
        StepConfig("filter", Filter((Rule(signal="word_count", at_least=least),)), "filter", ("web",)),
        StepConfig("c4_lines", C4Lines(rules), "c4_lines", ("web",)),
    )
    return CorpusConfig("compared", str(root / output), sources, steps)


def built(config):
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    return config.place


def text(number):
    lines = ["It rains again today.", "Too short.", "The mill grinds all the grist."][: 1 + number % 3]
    return "\n".join([f"Document {number} has a first line.", *lines])


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    root = tmp_path_factory.mktemp("compared")
    web = [json.dumps({"text": text(number)}) for number in range(40)]
    books = [json.dumps({"text": f"A book, number {number}."}) for number in range(5)]
    old = built(configuration(root, {"web": [*web, "not json"], "books": books}, "old"))
    later = [*web[:30], "broken", *web[31:], "not json", json.dumps({"text": text(2) + " It is new."})]
    new = built(configuration(root, {"web": later, "books": books}, "new", least=11, rules="datatrove"))
    return old, new


def kept(corpus, source):
    opened, found = open_corpus(corpus), {}
    for part in opened.parts(source):
        rows = zip(
            opened.printed_ids(part),
            part.drop().to_pylist(),
            part.table(("edited_text",))["edited_text"].to_pylist(),
            strict=True,
        )
        found |= {name: edited for name, rule, edited in rows if rule is None}
    return found


@pytest.mark.long
def test_figures_are_those_of_a_plain_comparison(corpora):
    old, new = corpora
    comparison = compare_corpora(old, new)
    assert list(comparison.sources) == ["web", "books"]
    for source, change in comparison.sources.items():
        before, now = kept(old, source), kept(new, source)
        both = before.keys() & now.keys()
        assert change.same == sum(before[name] == now[name] for name in both)
        assert change.changed == sum(before[name] != now[name] for name in both)
        assert sum(change.went_out.values()) == len(before.keys() - now.keys())
        assert sum(change.came_in.values()) == len(now.keys() - before.keys())
        assert (change.kept_before, change.kept_now) == (len(before), len(now))
    web = comparison.sources["web"]
    assert web.changed
    assert web.went_out
    assert web.came_in


def test_reasons_are_rules_quarantine_or_absence(corpora):
    old, new = corpora
    web = compare_corpora(old, new).sources["web"]
    assert set(web.went_out) == {"word_count", "quarantine: not_json"}
    assert web.went_out["quarantine: not_json"] == 1
    assert set(web.came_in) == {"not read"}
    back = compare_corpora(new, old).sources["web"]
    assert back.came_in == web.went_out
    assert back.went_out == web.came_in


@pytest.mark.long
def test_documents_have_their_ids_and_reasons(corpora):
    old, new = corpora
    comparison = compare_corpora(old, new)
    before, now = kept(old, "web"), kept(new, "web")
    rows = comparison.documents.to_pylist()
    named = {
        kind: {open_corpus(old if kind == "out" else new).printed_id(row["id"]) for row in rows if row["kind"] == kind}
        for kind in ("in", "out", "changed")
    }
    assert named["out"] == before.keys() - now.keys()
    assert named["in"] == now.keys() - before.keys()
    assert named["changed"] == {name for name in before.keys() & now.keys() if before[name] != now[name]}
    assert all((row["reason"] is None) == (row["kind"] == "changed") for row in rows)
    assert comparison.samples("web", "out", "quarantine: not_json", 3) == ["web/a.jsonl#30"]


def test_a_corpus_does_not_differ_from_itself(corpora):
    comparison = compare_corpora(corpora[0], corpora[0])
    assert not len(comparison.documents)
    assert all(change.distance == 0 for change in comparison.distributions)
    assert all(change.kept_before == change.same for change in comparison.sources.values())


@pytest.mark.long
def test_another_decision_reads_no_text(corpora, tmp_path, monkeypatch):
    """The steps that change texts are the same in both builds, so no digest of a text is computed."""
    root = tmp_path
    texts = {"web": [json.dumps({"text": text(number)}) for number in range(20)]}
    config = configuration(root, texts, "out")
    config = replace(config, steps=(config.steps[0], config.steps[2], config.steps[1]))
    built(config)
    first = config.place / "yesterday.json"
    first.write_bytes((config.place / "manifest.json").read_bytes())
    built(
        replace(
            config,
            steps=(
                *config.steps[:2],
                replace(config.steps[2], stage=Filter((Rule(signal="word_count", at_least=14),))),
            ),
        )
    )
    monkeypatch.setattr("pipelines.explore.comparison.compare_corpora._digests", None)
    monkeypatch.setattr("pipelines.explore.comparison.compare_ngrams.shown_texts", None)
    comparison = compare_corpora(first, config.place)
    assert comparison.sources["web"].changed == 0
    assert comparison.sources["web"].went_out["word_count"] > 0


@pytest.mark.long
def test_the_command_prints_and_writes_the_figures(corpora, tmp_path, capsys):
    old, new = corpora
    words = ["diff", str(old), str(new), "--samples", "1", "--json", str(tmp_path / "diff.json"), "--ngrams", "2"]
    assert main([*words, "--html", str(tmp_path / "diff.html")]) == 0
    shown = capsys.readouterr().out
    assert "N-grams over-represented in the old corpus" in shown
    assert "Distributions of kept documents that differ most" in shown
    assert "now: word_count" in shown
    assert "web/a.jsonl#30" in shown
    figures = json.loads((tmp_path / "diff.json").read_text())
    assert figures["sources"]["books"]["same"] == 5
    assert figures["old"]["fingerprint"] != figures["new"]["fingerprint"]
    assert figures["sources"]["books"]["kept_now"] == 5
    assert figures["ngrams"]["share"] == 1
    page = (tmp_path / "diff.html").read_text()
    assert "<script" not in page
    for text in ("web/a.jsonl#30", "quarantine: not_<wbr>json", figures["new"]["fingerprint"], "median"):
        assert text in page
    assert main([*words[:-1], "6"]) == 2
    assert "--ngrams: got 6, expected 0 to 5 words" in capsys.readouterr().err


def test_corpora_without_a_common_source_are_refused(corpora, tmp_path):
    other = built(configuration(tmp_path, {"web": ['{"text": "one two three four"}']}, "other"))
    renamed = built(replace(configuration(tmp_path, {"mail": ['{"text": "one two"}']}, "other-mail"), steps=()))
    with pytest.raises(UserError, match="has no source of"):
        compare_corpora(other, renamed)


def test_a_source_without_documents_and_sources_of_one_corpus(tmp_path):
    config = configuration(tmp_path, {"web": [], "mail": ['{"text": "A letter."}']}, "first")
    first = built(replace(config, sources=(replace(config.sources[0], allow_empty=True), config.sources[1])))
    texts = {"web": [json.dumps({"text": "The mill grinds all the grist."})], "books": ['{"text": "A book."}']}
    second = built(configuration(tmp_path, texts, "second"))
    changes = compare_corpora(first, second).sources
    assert {name: change.came_in for name, change in changes.items()} == {
        "web": {"not read": 1}, "mail": {}, "books": {"not read": 1},
    }  # fmt: skip
    assert {name: change.went_out for name, change in changes.items()} == {
        "web": {},
        "mail": {"not read": 1},
        "books": {},
    }
    assert not len(compare_corpora(first, first).documents)
    assert search_corpus(first, Query("mill"), ["web"], dropped=True).documents == 0
    opened = pipelines.open_corpus(first.local)
    assert opened.documents(sources=["web"]).read_all().num_rows == 0
    assert opened.verdicts(["word_count"]).read_all()["word_count"].to_pylist() == [None]
    with pytest.raises(UserError, match="the corpus has no shards"):
        next(opened.shards())


def test_a_forgotten_document_went_out(corpora, tmp_path):
    shutil.copytree(corpora[0].local, tmp_path / "later")
    forget(LocalPath(tmp_path / "later"), ["books/a.jsonl#3"], [])
    comparison = compare_corpora(corpora[0], LocalPath(tmp_path / "later"))
    assert comparison.sources["books"].went_out == {"quarantine: forgotten": 1}
    assert comparison.samples("books", "out", "quarantine: forgotten", 9) == ["books/a.jsonl#3"]
    assert len(comparison.documents) == 1
