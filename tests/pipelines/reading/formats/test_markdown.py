"""Markdown: each file is one document, and its YAML front matter becomes `meta`."""

import json
from collections.abc import Callable

import pytest


def test_front_matter_is_meta(read: Callable) -> None:
    head = "\ufeff---\ntitle: Café *\ndraft: no\ntags: [a, 1]\nurl: http://x\ndate: 2026-01-02\n---\n"
    data = (head + "# Title\n\n---\nText\n").encode()
    found = read("a.md", data, format="markdown")
    assert (found.texts, found.urls) == (["# Title\n\n---\nText\n"], ["http://x"])
    assert json.loads(found.metas[0]) == {"title": "Café *", "draft": "no", "tags": ["a", "1"], "date": "2026-01-02"}


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "# Title\n\n*text*\n",
        "---\n\nbetween rules\n\n---\n",
        "---\nkey: [unclosed\n---\ntext\n",
        "---\na: &x [1]\nb: [*x, *x]\n---\ntext\n",
        "---\n" + "[" * 1500 + "\n---\ntext\n",
        "---\nkey: value\nno end\n",
        '---\ntitle: "\\UFFFFFFFF"\n---\ntext\n',
        "text\n---\nkey: value\n---\n",
        # `---` ends at character 65,536, where the search for the end does, and its line goes on.
        "---\ntitle: " + "x" * 65_521 + "\n--- and more\n",
    ],
    ids=range(9),
)
def test_what_is_no_front_matter_stays(read: Callable, text: str) -> None:
    found = read("a.md", text.encode(), format="markdown")
    assert (found.texts, found.metas, found.bad) == ([text], [None], [])


def test_every_piece_of_a_long_document_has_the_meta(read: Callable) -> None:
    data = b"---\r\ntitle: t\r\n...\r\n" + b"0123456789\n" * 10
    found = read("a.md", data, format="markdown", max_document_bytes=60, oversized="split")
    assert "".join(found.texts) == "0123456789\n" * 10
    assert set(found.metas) == {'{"title":"t"}'}
    assert [bad[2] for bad in read("a.md", data, format="markdown", max_document_bytes=60).bad] == ["oversized"]
    assert [bad[2] for bad in read("b.md", b"---\na: b\n---\n", format="markdown").bad] == ["empty"]
