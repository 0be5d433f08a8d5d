"""Pages as Markdown: the structure is kept, the content is that of the plain text, and HTML from other
formats is treated the same way.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from resiliparse.parse.html import HTMLTree

from gristmill.config import parse
from gristmill.errors import ConfigError
from pipelines.reading.sources.source import Source
from pipelines.reading.web.extraction import PageLimits, page_text
from pipelines.reading.web.page_markdown import extract_markdown, to_markdown

LONG = (
    "This paragraph is long enough to be content, because it has a number of words that no menu has, and a full stop."
)
PAGE = f"""<!doctype html><html lang="de-AT"><head><title>Mills | Site</title>
<meta property="og:title" content="On mills"><meta name="author" content="Ada Müller">
<meta property="article:published_time" content="2021-03-04T05:06:07Z"></head>
<body><nav><a href="/">Home</a></nav><article><h2>Stones</h2><p>{LONG}</p>
<p>{LONG} See <a href="https://example.org/x">this</a> and <code>turn()</code>.</p>
<pre><code>if x &lt; 1:
    turn()</code></pre>
<table><tr><th>Mill</th><th>Year</th></tr><tr><td>Old | new</td><td>1801</td></tr></table>
<h3>More</h3><ol><li>first thing</li><li>second thing</li></ol><p>{LONG}</p></article></body></html>"""
MARKDOWN = f"""## Stones

{LONG}

{LONG} See this and `turn()`.

```
if x < 1:
    turn()
```

| Mill | Year |
|---|---|
| Old \\| new | 1801 |

### More

1. first thing
2. second thing

{LONG}"""


def markdown(body: str) -> str:
    return extract_markdown(HTMLTree.parse(f"<html><body>{body}</body></html>"), main_content=False)


def test_the_structure_of_a_page_is_kept(read: Callable) -> None:
    found = read("a.html", PAGE.encode(), format="html", markup="markdown", page_fields=True)
    assert found.texts == [MARKDOWN]
    meta = json.loads(found.metas[0])
    assert {name: value for name, value in meta.items() if name.startswith("page_")} == {
        "page_title": "On mills", "page_date": "2021-03-04", "page_author": "Ada Müller", "page_language": "de-AT",
    }  # fmt: skip
    plain = read("a.html", PAGE.encode(), format="html")
    assert not any(name.startswith("page_") for name in json.loads(plain.metas[0]))
    words = [
        re.findall(r"[\w.,()<:]+", re.sub(r"\|---.*|^\d+\.|`", "", text, flags=re.M))
        for text in (found.texts[0], plain.texts[0])
    ]
    assert [w for w in words[0] if w not in ("1.", "2.")] == [w for w in words[1] if w not in ("1.", "2.")]


@pytest.mark.long
def test_pages_of_an_archive_and_trafilatura(read: Callable) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"
    block = head + PAGE.encode()
    fields = b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.org/\r\n"
    fields += b"Content-Type: application/http; msgtype=response\r\n"
    archive = (
        fields + b"WARC-Date: 2020-01-01T00:00:00Z\r\nContent-Length: %d\r\n\r\n" % len(block) + block + b"\r\n\r\n"
    )
    found = read("a.warc", archive, format="warc", markup="markdown", page_fields=True)
    assert found.texts == [MARKDOWN]
    meta = json.loads(found.metas[0])
    assert (meta["date"], meta["page_date"]) == ("2020-01-01T00:00:00Z", "2021-03-04")
    pytest.importorskip("trafilatura")
    other = read("a.warc", archive, format="warc", markup="markdown", extract="trafilatura").texts[0]
    for line in ("## Stones", "### More", "    turn()", "| Mill | Year |"):
        assert line in other
    assert "example.org" not in other


def records(*bodies: object, **more: object) -> bytes:
    return b"".join(json.dumps({"text": body, **more}).encode() + b"\n" for body in bodies)


def test_html_in_the_text_field_of_records(read: Callable) -> None:
    data = records(PAGE, "<p>one</p><ul><li>two</li></ul>", "", None, title="of the record", page_title="its own")
    whole = read(
        "a.jsonl", data, format="jsonl", text_is="html_page", page_fields=True, markup="markdown", max_quarantined=1
    )
    assert whole.texts[0] == MARKDOWN
    meta = json.loads(whole.metas[0])
    assert (meta["title"], meta["page_title"], meta["page_author"]) == ("of the record", "its own", "Ada Müller")
    pieces = read("b.jsonl", data, format="jsonl", text_is="html", markup="markdown")
    assert pieces.texts[1] == "one\n\n- two"
    assert pieces.texts[0].startswith("Home")
    assert [reason for _, _, reason, _ in pieces.bad] == ["empty", "no_text"]
    assert read("c.jsonl", data, format="jsonl", text_is="html").texts[1] == "one\n\n  • two"
    assert read("d.jsonl", data, format="jsonl").texts[1] == "<p>one</p><ul><li>two</li></ul>"


@pytest.mark.long
@pytest.mark.parametrize("extract", ["resiliparse", "trafilatura", "best"])
def test_pages_in_a_column_of_parquet_are_read_by_every_extractor(read: Callable, tmp_path: Path, extract: str) -> None:
    pytest.importorskip("resiliparse" if extract == "resiliparse" else "trafilatura")
    table = pa.table({"id": [7, 8], "body": [PAGE, "<script>x</script>"]})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in/a.parquet")
    fields = {"text_field": "body", "text_is": "html_page", "page_fields": True, "max_quarantined": 1}
    found = read("a.parquet", tmp_path / "in/a.parquet", format="parquet", extract=extract, **fields)
    assert LONG.strip()[:40] in found.texts[0]
    assert {"id", "page_title", "page_author"} <= json.loads(found.metas[0]).keys()
    assert [reason for _, _, reason, _ in found.bad] == ["no_text_extracted"]


def test_limits_hold_for_html_in_fields(read: Callable) -> None:
    deep, many = "<div>" * 50 + "x" + "</div>" * 50, "<b>x</b>" * 60
    data = records(deep, many, "<p>" + "x" * 2000 + "</p>", "<p>fine</p>")
    found = read(
        "a.jsonl",
        data,
        format="jsonl",
        text_is="html",
        max_html_depth=40,
        max_html_nodes=58,
        max_html_bytes=1500,
        max_quarantined=1,
    )
    assert found.texts == ["fine"]
    assert [reason for _, _, reason, _ in found.bad] == ["html_depth", "html_nodes", "html_bytes"]


def test_posts_and_mail_keep_markup_too(read: Callable) -> None:
    body = "&lt;h2&gt;Why&lt;/h2&gt;&lt;p&gt;use &lt;code&gt;x&lt;/code&gt;&lt;/p&gt;"
    row = f'<row Id="1" PostTypeId="1" Title="T" Body="{body}" />'
    posts = f'<?xml version="1.0" encoding="utf-8"?>\n<posts>\n{row}\n</posts>\n'.encode()
    assert read("a-Posts.xml", posts, format="stack_exchange", markup="markdown").texts == ["Q: T\n\n## Why\n\nuse `x`"]
    mail = b"Subject: s\nContent-Type: text/html\n\n<h1>Hi</h1><ul><li>a</li></ul>"
    assert read("a.eml", mail, format="mail", markup="markdown").texts == ["# Hi\n\n- a"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<h6>a <em>b</em>\n c</h6>x", "###### a b c\n\nx"),
        ("<ul><li>a<ul><li>b<ol><li>c</li><li>d</li></ol></li></ul></li><li>e</li></ul>",
         "- a\n    - b\n        1. c\n        2. d\n- e"),
        ("<p>a</p><ol><li>b</li></ol><ol><li>c</li></ol><p>d</p>", "a\n\n1. b\n\n1. c\n\nd"),
        ("<ul><li>a</li>b</ul><ul><li>c</li> <span>d</span><li>e</li></ul>", "- a b\n\n- c d\n- e"),
        ("<p>a<br>b</p>", "a\nb"),
        ("<pre>a\n\n\n  b ``` c</pre>", "````\na\n\n\n  b ``` c\n````"),
        ("<p>x <code>a `b` c</code> y <kbd>`q`</kbd></p>", "x ``a `b` c`` y `` `q` ``"),
        ("<table><tr><td>a</td><td></td></tr><tr><td>b</td></tr></table>", "| a |  |\n|---|---|\n| b |  |"),
        ("<table><tr><td>one cell</td></tr></table>", "one cell"),
        ("<p>1 &lt; 2 &amp;amp; *</p>", "1 < 2 &amp; *"),
        ("<p>a\ufdd0b\ufdd2 0\ufdd2</p>", "ab 0"),
        ("", ""),
    ],
)  # fmt: skip
def test_elements(body: str, expected: str) -> None:
    assert markdown(body) == expected


def test_tables_that_lay_out_a_page_are_no_tables() -> None:
    layout = f"<table><tr><td><h2>Menu</h2></td><td>{LONG}</td></tr><tr><td>x</td><td>y</td></tr></table>"
    assert "|" not in markdown(layout)
    long = f"<table><tr><td>{LONG * 6}</td><td>b</td></tr><tr><td>x</td><td>y</td></tr></table>"
    assert "|" not in markdown(long)
    inner = "<table><tr><td>1</td><td>2</td></tr><tr><td>3</td><td>4</td></tr></table>"
    nested = f"<table><tr><td>{inner}</td><td>b</td></tr><tr><td>c</td></tr></table>"
    assert "| 1 | 2 |\n|---|---|\n| 3 | 4 |" in markdown(nested)


def test_any_minimal_html_is_converted() -> None:
    assert to_markdown("</ul></li></pre><li>x<pre>y") == "- x\n\n```\ny\n```"
    assert to_markdown("<ul><li>" * 3000 + "x").endswith("- x")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "jsonl", "markup": "markdown"}, "markup: got 'markdown'; the text of format jsonl is no HTML"),
        ({"format": "jsonl", "page_fields": True}, "page_fields: got true; format jsonl holds no pages"),
        (
            {"format": "jsonl", "text_is": "html", "page_fields": True},
            "page_fields: got true; format jsonl holds no pages",
        ),
        (
            {"format": "jsonl", "text_is": "html", "extract": "trafilatura"},
            "extract: got 'trafilatura'; format jsonl holds no pages",
        ),
        (
            {"format": "warc", "text_is": "html"},
            "text_is: got 'html'; records of format warc have no field with the text, only those of jsonl, parquet",
        ),
        ({"format": "jsonl", "text_is": "html", "oversized": "split"}, "oversized: got 'split' with text_is: html"),
        ({"format": "jsonl", "text_is": "htm"}, "text_is: got 'htm'"),
        ({"format": "pdf", "markup": "markdown"}, "the text of format pdf is no HTML"),
    ],
)
def test_fields_that_do_not_fit_the_format(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Source, {"name": "s", "root": "x", **fields}, where="corpus.yaml")


@pytest.mark.long
@pytest.mark.parametrize(
    "element",
    [
        "<code>x</code>",
        "<math></math>",
        "<table><tr><td>1</td></tr></table>",
        "<pre>x</pre>",
        "<meta name=a content=b>",
    ],
)
def test_the_time_of_a_page_grows_with_its_length(element: str) -> None:
    """Pages with many deeply nested elements stay far below `page_cpu_seconds`. Iterating over resiliparse's
    collections would take longer.
    """
    page = "<html><body>" + "<div>" * 500 + element * 4_000
    limits = PageLimits("", "resiliparse", 1 << 24, 1 << 20, 4096, 1 << 26, 1 << 26, 60, 1 << 30, "markdown", True)
    begin = time.process_time()
    page_text(page.encode(), "", limits)
    assert time.process_time() - begin < 20
