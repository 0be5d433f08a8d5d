"""Datasheets: the figures are those of the report, notes are shown unchanged, and nothing unmeasured is
claimed.
"""

import html
import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from gristmill.config import plain
from gristmill.storage.store import read_json
from pipelines.__main__ import main
from pipelines.report.datasheet import LEVELS_MODEL, MEASURED_LEVELS, DatasheetNotes, datasheet
from pipelines.report.datasheet_page import datasheet_markdown, datasheet_page
from pipelines.stages.pii.pii import Pii

ROOT = Path(__file__).parents[3]
HOSTILE = "<b>x</b> [a](javascript:1) | 1. `c` {{ 7 * 7 }} \u202e"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("datasheet")
    texts = [
        "One text that is long enough.",
        "One text that is long enough.",
        "short",
        "Mail me@example.org, please do.",
    ]
    (root / "web.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + "not json\n")
    (root / "corpus.yaml").write_text(f"""\
name: sheet
output: {root}/out
sources:
  - {{name: web, root: {root}/web.jsonl, format: jsonl, licence: CC0-1.0, origin: "here | <there>"}}
  - {{name: more, root: {root}/web.jsonl, format: jsonl}}
steps:
  - quality_signals: {{}}
  - filter: [{{signal: word_count, at_least: 3}}, {{signal: n_chars, at_most: 1000}}]
  - text_hash: {{}}
  - dedup_exact: {{}}
  - pii: {{level: contact}}
    sources: [web]
""")
    assert main(["build", str(root / "corpus.yaml"), "--in-process"]) == 0
    return root / "out"


@pytest.fixture
def report(corpus):
    return read_json(corpus / "report.json")


def tables(markdown):
    page = MarkdownIt("commonmark").enable("table").render(markdown)
    return [
        [
            [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
            for row in re.findall(r"<tr>(.*?)</tr>", table, re.S)
        ]
        for table in re.findall(r"<table>(.*?)</table>", page, re.S)
    ]


def test_a_source_of_very_many_languages_is_listed(report):
    """Of more than 256 values, the report has no counts."""
    many = {**report, "values": {**report["values"], "web": {"language": None}, "more": {"language": [["en", 4, 4]]}}}
    found = next(
        table
        for table in tables(datasheet_markdown("sheet", datasheet(many, DatasheetNotes())))
        if "language" in table[0]
    )
    assert [row[:2] for row in found[1:]] == [["web", "more than 256"], ["more", "en"]]


def test_figures_are_those_of_the_report(report):
    found = tables(datasheet_markdown("sheet", datasheet(report, DatasheetNotes())))
    sources = next(table for table in found if "licence" in table[0])
    names = ("documents", "documents_kept", "text_bytes", "text_bytes_kept")
    assert sources[1:] == [
        [name, "jsonl", licence, *(str(source[each]) for each in names)]
        for name, licence, source in zip(("web", "more"), ("CC0-1.0", "not stated"), report["sources"], strict=True)
    ]
    assert [int(row[3]) for row in sources[1:]] == [4, 4]
    origins = next(table for table in found if "origin" in table[0])
    assert origins[1] == ["web", "here | <there>", "1", "5", "1"]
    rules = next(table for table in found if "keeps" in table[0])
    assert ["filter", "word_count", "word_count ≥ 3", "web", "1"] in rules
    assert ["filter", "n_chars", "n_chars ≤ 1,000", "web", "0"] in rules  # a rule that dropped nothing is listed, too
    dropped = sum(int(row[4]) for row in rules[1:])
    assert dropped == report["totals"]["dropped"] > 0


def test_both_forms_say_the_same(report):
    notes = DatasheetNotes(uses="First.\n\nSecond.", contacts=("a@example.org", "b"))
    sections = datasheet(report, notes)
    markdown, page = datasheet_markdown("sheet", sections), datasheet_page("sheet", sections)
    assert "<script" not in page
    words = [
        re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]*>", " ", text[text.index("Motivation</h2>") :])))
        for text in (MarkdownIt("commonmark").enable("table").render(markdown), page[page.index("</nav>") :])
    ]
    assert words[0].strip() == words[1].partition("Made by gristmill")[0].strip()


def test_notes_are_shown_as_they_are(report):
    sections = datasheet(report, DatasheetNotes(motivation=HOSTILE, contacts=(HOSTILE,)))
    shown = HOSTILE.replace("\u202e", "\\u202e")
    rendered = MarkdownIt("commonmark").enable("table").render(datasheet_markdown("<i>", sections))
    for page in (rendered, datasheet_page("<i>", sections)):
        assert "<i>" not in page
        assert 'javascript:1"' not in page
        assert html.unescape(page).count(shown) == 2
    assert "Not stated (key uses of the notes)." in datasheet_page("x", sections)
    assert "Not stated (key motivation" not in datasheet_page("x", sections)


def pii_lines(report, **settings):
    step = {"pii": plain(Pii(**settings))}
    return str(datasheet({**report, "config": {"steps": [step]}}, DatasheetNotes())["Personal data"])


def test_recall_is_stated_for_a_level_that_was_measured(report):
    assert "level contact replaced 6.9% of all" in str(datasheet(report, DatasheetNotes())["Personal data"])
    assert "in more." in str(datasheet(report, DatasheetNotes())["Personal data"])
    assert "68.5%" in pii_lines(report, level="identity", ner_model=LEVELS_MODEL)
    for other in (
        {"entities": ("EMAIL_ADDRESS",)},
        {"level": "identity", "ner_model": "another"},
        {"level": "contact", "phone_regions": ("US",)},
        {"level": "contact", "score_threshold": 0.9},
        {"level": "contact", "action": "annotate"},
        {"level": "contact", "actions": {"IBAN_CODE": "annotate"}},
    ):
        assert "Recall: not stated" in pii_lines(report, **other)
    nothing = datasheet({**report, "config": {"steps": []}}, DatasheetNotes())
    assert nothing["Personal data"] == ["No step looked for personal data."]


def test_measured_recall_is_that_of_the_documentation():
    table = (ROOT / "docs" / "benchmarks.md").read_text().partition("### Levels")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|$", table, re.M))
    for level, figures in MEASURED_LEVELS.items():
        cells = rows[level].split(" | ")
        assert (float(cells[1]), float(cells[3])) == figures
    assert f"pii_levels {LEVELS_MODEL}`" in table


def test_the_command(corpus, tmp_path, capsys):
    notes = tmp_path / "notes.yaml"
    notes.write_text("contacts: [corpus@example.org]\n")
    words = ["datasheet", str(corpus), "--notes", str(notes)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "corpus@example.org" in printed
    assert main([*words, "--output", str(tmp_path / "sheet.md")]) == 0
    assert (tmp_path / "sheet.md").read_text() == printed
    assert main([*words, "--output", str(tmp_path / "sheet.html")]) == 0
    assert (tmp_path / "sheet.html").read_text().startswith("<!DOCTYPE html>")
    capsys.readouterr()
    assert main([*words, "--output", str(tmp_path / "sheet.pdf")]) == 2
    assert "expected a name that ends in .md or .html" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ("contact: [a]", "contact: no such field in DatasheetNotes; did you mean 'contacts'?"),
        ("contacts: a", "contacts: got 'a', expected a list"),
        ("uses: [a]", "uses: got a list, expected text"),
        ("- a", "expected a mapping"),
        ("uses: [", "not valid YAML"),
    ],
)
def test_bad_notes_are_refused_in_one_line(corpus, tmp_path, capsys, notes, message):
    (tmp_path / "notes.yaml").write_text(notes)
    assert main(["datasheet", str(corpus), "--notes", str(tmp_path / "notes.yaml")]) == 2
    error = capsys.readouterr().err
    assert "notes.yaml" in error
    assert message in error
    assert error.count("\n") == 1


def test_a_report_of_another_build_is_refused(corpus, tmp_path, capsys):
    (tmp_path / "manifest.json").write_bytes((corpus / "manifest.json").read_bytes())
    assert main(["datasheet", str(tmp_path)]) == 2
    assert "report.json: not a whole report of this corpus; write it again with" in capsys.readouterr().err
