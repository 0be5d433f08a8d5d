"""Link density and boilerplate share of pages, and reader comments switched on or off."""

import json
from collections.abc import Callable

import pytest
from resiliparse.parse.html import HTMLTree

from pipelines.reading.sources.source import Source
from pipelines.reading.web.page_measures import page_letters, page_measures

SENTENCE = "The mill grinds the grist of the whole village, and the miller keeps a sixteenth part of it. "
ARTICLE = f"<article><h1>The mill</h1>{''.join(f'<p>{n} {SENTENCE * 3}</p>' for n in range(4))}</article>"
REPLY = "I have been there last summer, and the wheel did not turn at all."
COMMENTS = f'<div id="comments" class="comments"><div class="comment"><p>{REPLY}</p></div></div>'
PAGE = f"<html><body><nav><a href='/'>Home</a> <a href='/b'>Mills</a></nav>{ARTICLE}{COMMENTS}</body></html>"


def measured(body: str, text: str) -> dict[str, float]:
    return page_measures(page_letters(HTMLTree.parse(f"<html><body>{body}</body></html>")), text)


@pytest.mark.parametrize(
    ("body", "text", "expected"),
    [
        ("<p>abcd</p><a href='/'>efgh</a>", "abcd", (0.5, 0.5)),
        ("<p>abcd, <b>ef</b> 12</p>", "ab... cd\n| ef | 12 |", (0.0, 0.0)),
        ("<a href='/'>ab <b>cd</b></a><p>磨坊</p>", "磨坊", (0.6667, 0.6667)),
        ("<p>abcd</p><script>let x = 1</script><style>p {}</style>", "abcd", (0.0, 0.0)),
        ("<p>abcd</p>", "abcd and what only JSON-LD has", (0.0, 0.0)),
        ("", "what only JSON-LD has", (0.0, 0.0)),
    ],
)
def test_shares_of_letters(body: str, text: str, expected: tuple[float, float]) -> None:
    assert tuple(measured(body, text).values()) == expected


@pytest.mark.long
@pytest.mark.parametrize("markup", ["text", "markdown"])
def test_measures_are_fields_and_columns(read: Callable, markup: str) -> None:
    found = read("a.html", PAGE.encode(), format="html", page_measures=True, page_fields=True, markup=markup)
    meta = json.loads(found.metas[0])
    letters = {"nav": len("HomeMills"), "replies": sum(map(str.isalnum, REPLY))}
    text = sum(map(str.isalnum, "The mill")) + sum(map(str.isalnum, SENTENCE)) * 12 + 4
    everything = text + sum(letters.values())
    assert meta["page_title"] == "The mill"
    assert meta["page_link_density"] == round(letters["nav"] / everything, 4)
    assert meta["page_boilerplate"] == round(1 - text / everything, 4)
    typed = read("a.html", PAGE.encode(), format="html", page_measures=True, columns={"page_boilerplate": "float"})
    assert json.loads(typed.metas[0])["page_boilerplate"] == meta["page_boilerplate"]
    assert "page_boilerplate" not in json.loads(read("a.html", PAGE.encode(), format="html").metas[0])


@pytest.mark.long
@pytest.mark.parametrize("extract", ["resiliparse", "trafilatura", "best"])
@pytest.mark.parametrize("markup", ["text", "markdown"])
def test_comments_are_left_out_unless_they_are_wanted(read: Callable, extract: str, markup: str) -> None:
    pytest.importorskip("resiliparse" if extract == "resiliparse" else "trafilatura")
    without, with_comments = (
        read("a.html", PAGE.encode(), format="html", extract=extract, markup=markup, comments=wanted).texts[0]
        for wanted in (False, True)
    )
    assert SENTENCE.strip() in without
    assert SENTENCE.strip() in with_comments
    assert REPLY not in without
    assert REPLY in with_comments


@pytest.mark.parametrize("name", ["page_measures", "comments"])
def test_only_pages_have_them(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: got true; format jsonl holds no pages"):
        Source(name="s", root="x", format="jsonl", **{name: True}).check()
