"""The rule of `extract: best`: which lines of two extractors are kept, and when the slower extractor runs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from resiliparse.parse.html import HTMLTree

from pipelines.reading.sources.source import Source
from pipelines.reading.web.choice import best_extraction
from pipelines.reading.web.choice.best_extraction import (
    BOUNDS,
    PageEvidence,
    all_features,
    choose_lines,
    extract_best,
    read_page,
    rule_version,
    shipped_weights,
)
from pipelines.reading.web.choice.line_features import BOTH_FEATURES, TEXT_FEATURES, find_prose, text_features
from pipelines.reading.web.choice.merged_lines import Line, merge_lines, split_lines
from pipelines.reading.web.extraction import EXTRACTORS

PROSE = "The mill grinds the grist of the whole village, and the miller keeps a sixteenth part of it. " * 2
ARTICLE = [f"{number}. {PROSE.strip()}" for number in range(6)]


def page(*lines: str, links: tuple[str, ...] = (), prose: tuple[str, ...] = ()) -> PageEvidence:
    return PageEvidence(split_lines("\n".join(lines)), frozenset(links), lambda: find_prose("\n".join(prose or lines)))


def never() -> str:
    raise AssertionError("trafilatura ran")


def test_a_page_of_prose_needs_no_second_extractor() -> None:
    assert extract_best(page(*ARTICLE), never) == "\n".join(ARTICLE)


@pytest.mark.parametrize(
    ("certain", "changed"),
    [
        ("prose", page(ARTICLE[0][:80])),
        ("missing", page(*ARTICLE, prose=(*ARTICLE, "Another paragraph, which is as long as it is good. " * 20))),
        ("unsure", page(*ARTICLE, *["Opening hours of the mill and its museum, by season"] * 30)),
    ],
)
def test_each_bound_of_certainty(certain: str, changed: PageEvidence) -> None:
    calls: list[str] = []

    def second() -> str:
        calls.append(certain)
        return "\n".join(ARTICLE)

    extract_best(changed, second)
    assert calls == [certain]
    assert BOUNDS.prose > 80


def test_lines_of_links_and_notices_are_dropped_and_both_texts_are_used() -> None:
    first = ["Home", "About", "© 2019 The Mill | Imprint | www.mill.example", *ARTICLE[:3]]
    second = [*ARTICLE[:2], "A paragraph that only the other extractor has, because it is in a strange place."]
    menu = page(*first, "More of our stories", links=("home", "about"), prose=(*ARTICLE, *ARTICLE))
    assert extract_best(menu, lambda: "\n".join(second)).split("\n") == [
        *ARTICLE[:3],
        second[2],
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("", "ab", "ab"),
        ("ab | © x.com", "", "ab | © x.com"),
        ("", "", ""),
        ("", "\n".join(ARTICLE), "\n".join(ARTICLE)),
    ],
)
def test_where_one_extractor_gives_nothing_the_other_s_text_stays(first: str, second: str, expected: str) -> None:
    assert extract_best(page(first), lambda: second) == expected


@pytest.mark.parametrize("certain", [True, False])
def test_headings_tables_and_code_next_to_kept_lines_are_kept_in_markdown(certain: bool) -> None:
    inside = ["# MILLS 1", "## MILLS 2", ARTICLE[0], "| A | B |\n|---|---|\n| X | Y |", *ARTICLE[1:], "```\nX\n```"]
    lines = split_lines("\n".join(["| HOME | SHARE |", "© x", *inside, "# SHARE"]), markdown=True)
    shown = PageEvidence(
        lines, frozenset(), lambda: find_prose("\n".join(ARTICLE if certain else ARTICLE * 2 + [PROSE])), markdown=True
    )
    assert extract_best(shown, never if certain else str).split("\n") == "\n".join(inside).split("\n")


def test_what_both_have_between_kept_lines_is_kept() -> None:
    lines = [*ARTICLE[:2], "SELECT | FROM", "© | X", *ARTICLE[2:], "SELECT | ALL"]
    shown = page(*lines, prose=(*ARTICLE, PROSE * 9))
    assert extract_best(shown, lambda: "\n".join(lines)).split("\n") == lines[:-1]
    assert extract_best(shown, lambda: "\n".join(ARTICLE)).split("\n") == ARTICLE


def test_scores_are_the_logistic_regression_of_the_file() -> None:
    """The scores equal the formula, written out feature by feature."""
    found = json.loads(best_extraction._WEIGHTS.read_text())
    assert list(found["alone"]) == ["constant", *TEXT_FEATURES]
    assert list(found["both"]) == ["constant", *TEXT_FEATURES, *BOTH_FEATURES]
    shown = page("Menu", *ARTICLE[:2], "Share", links=("menu",))
    lines = merge_lines(shown.lines, split_lines("\n".join(ARTICLE[1:3])))
    rows = all_features(lines, shown.links)
    names = (*TEXT_FEATURES, *BOTH_FEATURES)
    by_name = [
        found["both"]["constant"] + sum(found["both"][name] * value for name, value in zip(names, row, strict=True))
        for row in rows
    ]
    assert best_extraction._scores(rows, shipped_weights()["both"]) == pytest.approx(by_name)


def test_features_of_lines() -> None:
    lines = merge_lines(
        split_lines(f"Menu\n  • 12 May 2019\n{PROSE}\nwhy?"), split_lines(f"{PROSE}\nonly here: www.x.org")
    )
    rows = [
        dict(zip((*TEXT_FEATURES, *BOTH_FEATURES), row, strict=True))
        for row in all_features(lines, frozenset({"menu"}))
    ]
    menu, date, prose, why, only = rows if lines[3].text == "why?" else [*rows[:3], rows[4], rows[3]]
    assert [row["is_link"] for row in (menu, date, prose, why, only)] == [1, 0, 0, 0, 0]
    assert [row["only_first"] for row in (menu, date, prose, why, only)] == [1, 1, 0, 1, 0]
    assert [row["only_second"] for row in (menu, date, prose, why, only)] == [0, 0, 0, 0, 1]
    assert (date["has_mark"], date["has_date"], date["digits"]) == (1, 1, 6 / 9)
    assert (prose["ends"], prose["sentences"], prose["short"]) == (1, 2, 0)
    assert (why["asks"], why["begins_low"], why["short"]) == (1, 1, 1)
    assert (only["has_address"], only["after_second"]) == (1, 0)
    assert (date["shared_next"], menu["shared_next"]) == (1, 0)
    assert 0 < menu["position"] < date["position"] < prose["position"] < why["position"] < 1


def test_no_lines_have_no_features() -> None:
    assert text_features([], frozenset()) == all_features([], frozenset()) == []
    assert choose_lines(page(), list, shipped_weights()) == []


def test_nested_links_are_read_once() -> None:
    tree = HTMLTree.parse("<a href=/>one</a><p>" + "<a href=/><object>" * 200 + "deep")
    found = read_page(tree, lambda: "text", markdown=False)
    assert (found.lines, found.links) == ([Line("text", "text", False)], frozenset({"one", "deep"}))
    assert found.prose() == []


def test_weights_are_part_of_what_documents_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rule_version()
    (tmp_path / "other.json").write_text("{}")
    monkeypatch.setattr(best_extraction, "_WEIGHTS", tmp_path / "other.json")
    assert rule_version() != before


MENU = "".join(f"<li><a href='/{n}'>Entry {n}</a></li>" for n in range(8))
TABLE = "<table><tr><th>Year</th><th>Sacks of flour</th></tr><tr><td>1801</td><td>three hundred</td></tr></table>"
BODY = f"<nav><ul>{MENU}</ul></nav><main><article><h1>The mill</h1><p>{PROSE}</p>{TABLE}<pre>turn(wheel)\ngrind()</pre>"
BODY += "".join(f"<p>{line}</p>" for line in ARTICLE) + "</article></main>"


@pytest.mark.long
@pytest.mark.parametrize("markup", ["text", "markdown"])
def test_pages_are_read_by_it(read: Callable, markup: str) -> None:
    pytest.importorskip("trafilatura")
    html = f"<html><body>{BODY}</body></html>".encode()
    found = read("a.html", html, format="html", extract="best", markup=markup)
    assert "Entry 3" not in found.texts[0]
    assert all(line in found.texts[0] for line in ARTICLE)
    if markup == "markdown":
        assert "| Year | Sacks of flour |\n|---|---|\n| 1801 | three hundred |" in found.texts[0]
        assert "```\nturn(wheel)\ngrind()\n```" in found.texts[0]
    tree = HTMLTree.parse(html.decode())
    assert found.texts[0] == EXTRACTORS["best"](html.decode(), tree, markup, False)


@pytest.mark.long
def test_a_page_that_neither_extractor_can_read_keeps_its_reason(read: Callable) -> None:
    pytest.importorskip("trafilatura")
    found = read("a.html", b"<html><script>x()</script></html>", format="html", extract="best", max_quarantined=1)
    assert [reason for _, _, reason, _ in found.bad] == ["no_text_extracted"]
    limited = read("b.html", b"<p>" * 300, format="html", extract="best", max_html_nodes=100, max_quarantined=1)
    assert [reason for _, _, reason, _ in limited.bad] == ["html_nodes"]


def test_it_needs_trafilatura_and_says_so() -> None:
    from pipelines.reading.web.page_process import libraries, optional_library

    source = Source(name="s", root="x", format="warc", extract="best")
    assert optional_library(source)[:2] == ("extract", "trafilatura")
    assert set(libraries(source)) >= {"resiliparse", "trafilatura", "lxml"}
