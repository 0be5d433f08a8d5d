"""MediaWiki XML dumps: pages as records, and harmless handling of malicious XML."""

import bz2
import json
from collections.abc import Callable

import pytest

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
 <siteinfo><sitename>Wikipedia</sitename><base>https://de.wikipedia.org/wiki/Wikipedia:Hauptseite</base>
 <namespaces><namespace key="0" case="first-letter" /><namespace key="6">Datei</namespace>
 <namespace key="14">Kategorie</namespace></namespaces></siteinfo>
"""


def page(title: str, text: str, ns: int = 0, extra: str = "", model: str = "wikitext") -> str:
    return f"""<page><title>{title}</title><ns>{ns}</ns><id>7</id>{extra}
    <revision><id>70</id><parentid>69</parentid><timestamp>2026-01-02T03:04:05Z</timestamp>
    <contributor><username>x</username><id>5</id></contributor><model>{model}</model><format>text/x-wiki</format>
    <text bytes="9" xml:space="preserve">{text}</text></revision></page>"""


def dump(*pages: str) -> bytes:
    return (HEAD + "\n".join(pages) + "</mediawiki>\n").encode()


def test_pages_are_records(read: Callable) -> None:
    data = dump(
        page(
            "Größe &amp; Maß?", "'''Größe''' &lt;ref&gt;x&lt;/ref&gt;ist [[Datei:A.jpg|mini|B]]viel.\n\n[[Kategorie:X]]"
        ),
        page("Alt", "#REDIRECT [[Neu]]", extra='<redirect title="Neu" />'),
        page("Diskussion:A", "talk", ns=1),
        page("Modul:A", "return 1", model="Scribunto"),
        page("Leer", ""),
        page("B", "text"),
    )
    found = read("a.xml", data, format="mediawiki")
    assert found.texts == ["Größe ist viel.", "text"]
    assert found.urls[0] == "https://de.wikipedia.org/wiki/Gr%C3%B6%C3%9Fe_%26_Ma%C3%9F%3F"
    assert json.loads(found.metas[0]) == {
        "title": "Größe & Maß?", "id": "7", "revision": "70", "timestamp": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    assert [bad[1:3] for bad in found.bad] == [(1, "redirect"), (2, "not_article"), (3, "not_wikitext"), (4, "empty")]
    assert (
        read("b.xml.bz2", bz2.compress(data[:300]) + bz2.compress(data[300:]), format="mediawiki").texts == found.texts
    )


def test_the_last_revision_counts(read: Callable) -> None:
    both = page("A", "old").replace("</page>", "<revision><id>71</id><text>new</text></revision></page>")
    found = read("a.xml", dump(both), format="mediawiki")
    assert (found.texts, json.loads(found.metas[0])["revision"]) == (["new"], "71")
    long = page("A", "x" * 5000).replace("</page>", "<revision><id>71</id><text>new</text></revision></page>")
    assert read("a.xml", dump(long), format="mediawiki", max_document_bytes=100).texts == ["new"]
    hidden = page("A", "old", model="x").replace(
        "</page>", "<revision><id>71</id><text deleted='deleted' /></revision></page>"
    )
    missing = page("B", "old", model="x").replace("</page>", "<revision><id>71</id></revision></page>")
    found = read("a.xml", dump(hidden, missing), format="mediawiki")
    assert (found.texts, [bad[1:] for bad in found.bad]) == ([], [(0, "empty", 0), (1, "no_text", 0)])


def test_long_pages_are_not_held(read: Callable) -> None:
    found = read("a.xml", dump(page("A", "x y " * 5000), page("B", "b")), format="mediawiki", max_document_bytes=100)
    assert (found.texts, [bad[1:] for bad in found.bad]) == (["b"], [(0, "oversized", 20_000)])


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "texts", "reason"),
    [
        (b"", 0, "truncated"),
        (b"plain text", 0, "not_mediawiki"),
        (b"<html><body>x</body></html>", 0, "not_mediawiki"),
        (dump(page("A", "a"), page("B", "b"))[:-300], 1, "truncated"),
        (dump(page("A", "a"), "</oops>", page("B", "b")), 1, "corrupt"),
        (dump(page("A", "a"), page("B", "b &undefined; c")), 1, "corrupt"),
        (b'<!DOCTYPE m [<!ENTITY a "x">]>' + dump(page("A", "&a;")), 0, "xml_doctype"),
        (b'<!DOCTYPE m SYSTEM "file:///etc/passwd">' + dump(page("A", "a")), 0, "xml_doctype"),
        (b"<mediawiki><" + b"x" * (17 << 20), 0, "corrupt"),
        (dump("<page><title>" + "x" * 70_000 + "</title></page>"), 0, "corrupt"),
    ],
    ids=range(10),
)
def test_broken_xml(read: Callable, data: bytes, texts: int, reason: str) -> None:
    found = read("a.xml", data, format="mediawiki")
    assert (len(found.texts), [bad[2] for bad in found.bad]) == (texts, [reason])


def test_billion_laughs(read: Callable) -> None:
    entities = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
    data = f'<?xml version="1.0"?><!DOCTYPE m [<!ENTITY l0 "lol">{entities}]>'.encode() + dump(page("A", "&l9;"))
    assert [bad[2] for bad in read("a.xml", data, format="mediawiki").bad] == ["xml_doctype"]
