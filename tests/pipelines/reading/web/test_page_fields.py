"""Metadata that pages declare (title, date, author, language) comes from the declaration of highest
precedence that has a value.
"""

import json

import pytest
from resiliparse.parse.html import HTMLTree

from pipelines.reading.web.page_fields import page_fields


def fields(head: str, body: str = "", attributes: str = "") -> dict[str, str]:
    found = page_fields(HTMLTree.parse(f"<html {attributes}><head>{head}</head><body>{body}</body></html>"))
    return {name.removeprefix("page_"): value for name, value in found.items()}


def linked(content: object) -> str:
    return f'<script type="application/ld+json">{json.dumps(content)}</script>'


ARTICLE = {
    "@type": "NewsArticle",
    "headline": "H",
    "datePublished": "2019-12-31T23:00:00+01:00",
    "author": {"name": "Bo Li"},
}


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("<title> A\n b </title>", {"title": "A b"}),
        ('<title>A | Site</title><meta property="og:title" content="A">', {"title": "A"}),
        ('<meta name="DC.Creator" content="X"><meta name="author" content="Y">', {"author": "Y"}),
        ('<meta name="author" content="https://a.org/y"><meta name="byl" content="By Z">', {"author": "By Z"}),
        ('<meta name="date" content="2020/2/3 10:00">', {"date": "2020-02-03"}),
        ('<meta name="date" content="2020-13-03"><meta name="pubdate" content="2020-12-03">', {"date": "2020-12-03"}),
        ('<meta name="date" content="0987-03-01">', {"date": "0987-03-01"}),
        ('<meta name="date" content="last week">', {}),
        ('<meta http-equiv="Content-Language" content="pt-BR, en">', {"language": "pt-BR"}),
        ('<meta property="og:locale" content="en_US">', {"language": "en-US"}),
        (linked(ARTICLE), {"date": "2019-12-31", "author": "Bo Li"}),
        (linked({"@graph": [{"@type": "WebSite", "name": "S"}, ARTICLE | {"author": ["A", {"name": "B"}, {"name": "A"}, 3]}]}),
         {"date": "2019-12-31", "author": "A; B"}),
        (linked(ARTICLE | {"author": "Lindsey O&#039;Donnell"}), {"date": "2019-12-31", "author": "Lindsey O'Donnell"}),
        ('<script type="application/ld+json">{broken</script>', {}),
        (linked([[[["x"]]]]), {}),
        (f'<script type="application/ld+json">{"[" * 200_000}</script>', {}),
        (f'<meta name="author" content="{"x" * 900}">', {"author": "x" * 500}),
        ("", {}),
    ],
)  # fmt: skip
def test_declarations(head: str, expected: dict[str, str]) -> None:
    assert fields(head) == expected


def test_elements_of_the_page_come_last() -> None:
    body = '<h1>Headline</h1><a rel="author" href="/a">Eve Ö</a><time datetime="2001-02-03T00:00">then</time>'
    assert fields("", body, 'lang="fr"') == {
        "title": "Headline",
        "author": "Eve Ö",
        "date": "2001-02-03",
        "language": "fr",
    }
    assert fields(linked(ARTICLE), body)["author"] == "Bo Li"
    assert "language" not in fields("", "", 'lang="the language of love"')


@pytest.mark.parametrize(
    ("body", "day"),
    [
        (
            '<time datetime="2001-02-03T09:00">a</time><time datetime="2001-02-03">b</time><time datetime="P1D">c</time>',
            "2001-02-03",
        ),
        ('<time datetime="2001-02-03">a</time><div class="comment"><time datetime="2004-05-06">b</time></div>', None),
        (
            '<time datetime="2004-05-06">a</time><time itemprop="datePublished" datetime="2001-02-03">b</time>',
            "2001-02-03",
        ),
        ('<time datetime="2004-05-06">a</time><time pubdate datetime="2001-02-03">b</time>', "2001-02-03"),
    ],
)
def test_times_are_the_date_of_publication_if_marked_or_all_the_same(body: str, day: str | None) -> None:
    assert fields("", body).get("date") == day
