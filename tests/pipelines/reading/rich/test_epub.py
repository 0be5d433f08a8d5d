"""EPUBs: the order of the spine, and malformed or malicious packages."""

import io
import json
import random
import zipfile
from collections.abc import Callable

import pytest
from lxml import etree

from tests.pipelines.reading.rich.handmade import CONTAINER, epub, zipped

METADATA = """<dc:title>On
 Mills</dc:title><dc:creator id="a">Éva Miller</dc:creator><dc:creator>B</dc:creator><dc:language>en</dc:language>
<dc:date>1899-05-01</dc:date><dc:rights>Public domain</dc:rights><meta name="cover" content="x"/>"""
CHAPTERS = {
    "b/two.xhtml": "<h1>Two</h1><p>It <i>turns</i>&#160;&amp; turns.</p><ul><li>one</li><li>two</li></ul>",
    "one%20.xhtml": '<h1>One</h1><p>First<a id="x"/> text.<br/>Line.</p><table><tr><td>1</td><td>2</td></tr></table>',
    "nav.xhtml": "<nav><ol><li>Contents</li></ol></nav>",
}


def renamed(data: bytes) -> bytes:
    """Return the EPUB with each `%20` in the names of its members replaced by a space."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return zipped({name.replace("%20", " "): archive.read(name) for name in archive.namelist()}, ["mimetype"])


def test_chapters_in_the_order_of_the_spine(read: Callable) -> None:
    found = read("book.epub", renamed(epub(CHAPTERS, METADATA, spine=["c1", "gone", "c0", "c1"])), format="epub")
    assert found.bad == []
    assert found.texts == ["One\n\nFirst text.\nLine.\n\n1\t\t2\n\nTwo\n\nIt turns\xa0& turns.\n\n  • one\n  • two"]
    assert json.loads(found.metas[0]) == {
        "title": "On Mills", "author": "Éva Miller; B", "language": "en", "date": "1899-05-01", "rights": "Public domain",
    }  # fmt: skip


def test_books_are_told_from_archives_of_books(read: Callable) -> None:
    books = [epub({"a.html": f"<p>Book {number}"}) for number in (1, 2)]
    assert read("pg1.epub3.images", books[0], format="epub").texts == ["Book 1"]  # by its first member
    unordered = zipped({"x": "y", "META-INF/container.xml": CONTAINER})
    assert [bad[2] for bad in read("b.epub", unordered, format="epub").bad] == ["not_epub"]  # by its name
    found = read(
        "books.zip", zipped({"one.epub": books[0], "two.epub": books[1], "note.txt": "no book"}), format="epub"
    )
    assert (found.texts, [bad[2] for bad in found.bad]) == (["Book 1", "Book 2"], ["not_epub"])
    assert found.paths == ["books.zip!one.epub", "books.zip!two.epub", "books.zip!note.txt"]


def test_the_words_are_those_that_lxml_finds(read: Callable) -> None:
    rng = random.Random(5)
    words = ["mill", "<b>wheel</b>", "stone &amp; sand", "γάμμα", "<span/>", '<a href="x">link</a>', "12.5"]
    chapters = {
        f"{n}.xhtml": "".join(f"<p>{' '.join(rng.choices(words, k=20))}</p>" for _ in range(9)) for n in range(9)
    }
    trees = [etree.fromstring(f"<body>{body.replace('<p>', '<p> ')}</body>") for body in chapters.values()]
    expected = " ".join("".join(tree.itertext()) for tree in trees).split()
    assert read("a.epub", epub(chapters), format="epub").texts[0].split() == expected


def with_member(name: str, data: str | bytes) -> bytes:
    return epub({"a.html": "<p>Text"}, more={name: data})


BOMB = "<p>" + " " * (20 << 20)
ENTITIES = '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
LOCKED = '<e xmlns="x"><CipherReference URI="OEBPS/a.html"/></e>'


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"no zip", "not_epub"),
        (with_member("x", "y")[:-30], "corrupt"),
        (zipped({"mimetype": "application/epub+zip"}), "not_epub"),
        (zipped({"mimetype": "", "META-INF/container.xml": CONTAINER}), "not_epub"),
        (
            zipped(
                {
                    "mimetype": "",
                    "META-INF/container.xml": CONTAINER.replace("OEBPS/content.opf", "../../../etc/passwd"),
                }
            ),
            "not_epub",
        ),
        (zipped({"mimetype": "", "META-INF/container.xml": ENTITIES + "<container/>"}), "xml_doctype"),
        (zipped({"mimetype": "", "META-INF/container.xml": "<container>"}), "corrupt"),
        (epub({}), "corrupt"),
        (epub({"a.html": "  "}), "no_text_extracted"),
        (epub({"a.html": BOMB}), "html_bytes"),
        (epub({"../../a.html": "<p>outside</p>"}), "corrupt"),
        (epub({"a.html": "<b>" * 6000 + "x"}), "html_depth"),
        (epub({f"{n}.html": "word " * 200_000 for n in range(4)}), "oversized"),
        (with_member("META-INF/encryption.xml", LOCKED), "encrypted"),
    ],
    ids=range(15),
)
def test_broken_books_have_a_reason(read: Callable, data: bytes, reason: str) -> None:
    found = read("a.epub", data, format="epub", max_document_bytes=3_000_000)
    assert (found.texts, [bad[2] for bad in found.bad]) == ([], [reason])


def test_many_large_chapters_are_a_bomb(read: Callable) -> None:
    data = epub({f"{n}.html": "<p>" + " " * 900_000 for n in range(9)})
    found = read("a.epub", data, format="epub", max_decoded_bytes=4_000_000)
    assert [bad[2] for bad in found.bad] == ["decoded_limit"]


def test_encrypted_fonts_and_chapters_in_other_encodings(read: Callable) -> None:
    fonts = LOCKED.replace("a.html", "font.otf")
    assert read("a.epub", with_member("META-INF/encryption.xml", fonts), format="epub").texts == ["Text"]
    page = '<?xml version="1.0" encoding="utf-16"?><html><body><p>Größe</p></body></html>'.encode("utf-16")
    assert read("b.epub", epub({"a.html": ""}, more={"OEBPS/a.html": page}), format="epub").texts == ["Größe"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_any_damage_gives_a_text_or_a_reason() -> None:
    from pipelines.reading.entries.reasons import REASONS
    from pipelines.reading.rich.epub import epub_text
    from pipelines.reading.web.extraction import PageLimits

    limits = PageLimits("", "", 1 << 20, 1000, 100, 1 << 20, 1 << 20, 60, 1 << 30)
    rng, whole = random.Random(6), epub(CHAPTERS, METADATA)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        head, text = epub_text(bytes(data), "", limits)
        assert bool(text) != (head.get("reason") in REASONS)
