"""Search against Python's own search of the texts that users are shown, with an index and without."""

import json
import re

import pytest

from gristmill.errors import UserError
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.explore.searching.index_corpus import index_corpus
from pipelines.explore.searching.query import Query
from pipelines.explore.searching.search_corpus import search_corpus
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.measure.quality_signals import QualitySignals
from pipelines.stages.pii.pii import Pii

TEXTS = [
    "Größe und Maß: the mill, the Mill and the windmill.\nA second line.",
    "Write to jane.roe@example.org about the mill.",
    "Mill.",  # dropped: too short
    "Mail jane.roe@example.org",  # dropped before the pii step sees it
    "東京の水車小屋 and \U0001f468\u200d\U0001f469 the mill\u202e again and again",
    *(f"Nothing of that kind is to be found in document number {number}." for number in range(30)),
]


@pytest.fixture(scope="module", params=["read", "indexed"])
def corpus(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("searched")
    for name, texts in (("web", TEXTS), ("books", ["A book about a mill and its miller, who was poor."])):
        (root / name).mkdir()
        (root / name / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    sources = tuple(Source(name, str(root / name), "jsonl", part_bytes=500) for name in ("web", "books"))
    steps = (
        StepConfig("quality_signals", QualitySignals(), "quality_signals"),
        StepConfig("filter", Filter((Rule(signal="word_count", at_least=4),)), "filter"),
        StepConfig("pii", Pii(), "pii", None, "filter"),
    )
    config = CorpusConfig("searched", str(root / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, config.place)), LocalCluster(), lambda line: None)
    if request.param == "indexed":
        assert index_corpus(config.place).written > 2
    return config.place


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "documents", "hits"),
    [
        (Query("mill"), 4, 6),
        (Query("mill", ignore_case=True), 4, 7),
        (Query(r"\bmill\b", regex=True), 4, 4),
        (Query(r"\Bmill", regex=True), 1, 1),
        (Query(r"(the|windm?) ?(Mill|ill)", regex=True), 1, 2),
        (Query("Maß"), 1, 1),
        (Query("水車"), 1, 1),
        (Query("a.b"), 0, 0),
        (Query("line.$", regex=True), 1, 1),
        (Query("mill", words=True), 3, 3),
        (Query("again and again", words=True), 1, 1),
        (Query("Write to <EMAIL_ADDRESS> about", words=True), 1, 1),
    ],
)
def test_counts(corpus, query, documents, hits):
    found = search_corpus(corpus, query)
    assert (found.documents, found.hits) == (documents, hits)
    flags = re.IGNORECASE if query.ignore_case else 0
    pattern = query.text if query.regex else re.escape(query.text)
    for hit in found.first:
        assert re.search(pattern, f"{hit.before}{hit.found}{hit.after}", flags)
        assert len(hit.before) <= query.context >= len(hit.after)


def test_dropped_documents_are_searched_only_on_request(corpus):
    found = search_corpus(corpus, Query("Mill."), dropped=True)
    assert [(hit.document, hit.rule) for hit in found.first] == [("web/a.jsonl#2", "word_count")]
    assert search_corpus(corpus, Query("Mill.")).documents == 0


@pytest.mark.parametrize("dropped", [False, True])
def test_personal_data_cannot_be_searched(corpus, dropped):
    """Documents that were dropped before the step that redacts are covered, too."""
    assert search_corpus(corpus, Query("jane.roe"), dropped=dropped).documents == 0
    assert search_corpus(corpus, Query("Mail ", context=30), dropped=True).first[0].after.startswith("<EMAIL")


@pytest.mark.parametrize("guess", ["jane", "john"])
def test_the_value_behind_a_placeholder_cannot_be_guessed(corpus, guess):
    """A query that also matches the placeholder gives the same result whether the guess is right or wrong."""
    query = Query(f"Mail (<EMAIL|{guess})", regex=True)
    assert [hit.found for hit in search_corpus(corpus, query, dropped=True).first] == ["Mail <EMAIL"]


def test_a_source_is_searched_once(corpus):
    assert search_corpus(corpus, Query("mill"), ["books", "books"]) == search_corpus(corpus, Query("mill"), ["books"])
    with pytest.raises(UserError, match="--sources: names no source; there are: web, books"):
        search_corpus(corpus, Query("mill"), [])


def test_limit_and_sources(corpus):
    found = search_corpus(corpus, Query("mill"), limit=2)
    assert (found.documents, len(found.first)) == (4, 2)
    assert {hit.source for hit in search_corpus(corpus, Query("mill"), ["books"]).first} == {"books"}
    with pytest.raises(UserError, match="no source 'book'; did you mean 'books'"):
        search_corpus(corpus, Query("mill"), ["book"])


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query(""), "empty text"),
        (Query("(", regex=True), "--regex: '\\('"),
        (Query("x", context=-1), "--context: got -1"),
        (Query("\udcff"), "not valid UTF-8"),
        (Query(r"a\Qb", regex=True), "missing \\)"),
        (Query(r"z*", regex=True), "matches nothing at all"),
        (Query(r"\b", regex=True), "matches nothing at all"),
        (Query(r"\C", regex=True), "matches a part of a character"),
        (Query("a b", words=True, regex=True), "--words: .* leave out --regex"),
        (Query("a b", words=True, ignore_case=True), "leave out --ignore-case"),
        (Query("a b ", words=True), "without white space around"),
    ],
)
def test_bad_queries(corpus, query, message):
    with pytest.raises(UserError, match=message):
        search_corpus(corpus, query)


def test_a_pattern_that_explodes_elsewhere_takes_linear_time(corpus):
    assert search_corpus(corpus, Query("(a*)*(b*)*z{1,40}q", regex=True)).documents == 0


def test_the_command_escapes_what_it_shows(corpus, capsys):
    assert main(["search", str(corpus), "the mill", "--limit", "3"]) == 0
    shown = capsys.readouterr().out
    assert "\u202e" not in shown
    assert "[the mill]" in shown
    assert "3 hits in 3 documents" in shown
    assert main(["search", str(corpus), "windmill"]) == 0
    assert "1 hit in 1 document\n" in capsys.readouterr().out
