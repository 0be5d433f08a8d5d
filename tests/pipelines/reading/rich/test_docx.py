"""Word documents: paragraphs, lists, tables and notes, and malformed or malicious packages."""

import json
import random
from collections.abc import Callable

import pytest
from lxml import etree

from tests.pipelines.reading.rich.handmade import W, docx, paragraph, zipped

CORE = """<cp:coreProperties xmlns:cp="a" xmlns:dc="b" xmlns:dcterms="c"><dc:title>On Mills</dc:title>
<dc:creator>Éva</dc:creator><dcterms:created>2015-03-04T05:06:07Z</dcterms:created></cp:coreProperties>"""


def item(text: str, level: int = 0) -> str:
    return paragraph(text, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="1"/></w:numPr>')


def cell(*paragraphs: str) -> str:
    return f"<w:tc>{''.join(paragraphs)}</w:tc>"


INNER = f"<w:tbl><w:tr>{cell(paragraph('in'))}{cell(paragraph('side'))}</w:tr></w:tbl>"
BODY = "".join([
    paragraph("Heading", '<w:pStyle w:val="Heading1"/><w:tabs><w:tab w:val="left" w:pos="9"/></w:tabs>'),
    "<w:p><w:r><w:t>A </w:t></w:r><w:r><w:t>text</w:t><w:tab/><w:t>with</w:t><w:br/><w:t>lines</w:t>",
    "<w:noBreakHyphen/></w:r></w:p>",
    paragraph(" "), item("one"), item("deeper", 1), item("two"), paragraph("after"),
    paragraph("no item", '<w:numPr><w:ilvl w:val="0"/><w:numId w:val="0"/></w:numPr>'),
    f"<w:tbl><w:tr>{cell(paragraph('a'), paragraph('b'))}{cell(paragraph('c'))}</w:tr>",
    f"<w:tr>{cell(INNER)}{cell()}</w:tr></w:tbl>",
    "<w:p><w:r><w:instrText>PAGE</w:instrText></w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>",
    "<w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom><w:ins><w:r><w:t>new</w:t></w:r></w:ins>",
    f"<mc:AlternateContent><mc:Choice><w:txbxContent>{paragraph('box')}</w:txbxContent></mc:Choice>",
    f"<mc:Fallback><w:txbxContent>{paragraph('box again')}</w:txbxContent></mc:Fallback></mc:AlternateContent></w:p>",
])  # fmt: skip
NOTES = (
    f'<w:footnotes {W}><w:footnote w:type="separator">{paragraph("---")}</w:footnote>'
    f"<w:footnote>{paragraph('a note')}</w:footnote></w:footnotes>"
)
TEXT = "Heading\n\nA text\twith\nlines-\n\n• one\n  • deeper\n• two\n\nafter\n\nno item\n\na b\tc\nin side\t\n\n"
TEXT += "box\n\nnew\n\na note"


def test_paragraphs_lists_tables_and_notes(read: Callable) -> None:
    found = read("a.docx", docx(BODY, {"docProps/core.xml": CORE, "word/footnotes.xml": NOTES}), format="docx")
    assert (found.texts, found.bad) == ([TEXT], [])
    assert json.loads(found.metas[0]) == {"title": "On Mills", "author": "Éva", "created": "2015-03-04T05:06:07Z"}


def test_the_words_are_those_that_lxml_finds(read: Callable) -> None:
    rng = random.Random(7)
    body = "".join(paragraph(" ".join(rng.choices(["mill", "wheel & stone", "γάμμα", "a<b"], k=15))) for _ in range(90))
    tree = etree.fromstring(f"<w:body {W}>{body}</w:body>")
    expected = " ".join("".join(each.itertext()) for each in tree).split()
    assert read("a.docx", docx(body), format="docx").texts[0].split() == expected


def test_documents_by_their_relations_and_in_archives(read: Callable) -> None:
    relations = '<Relationships><Relationship Type="http://x/officeDocument" Target="/word/main.xml"/></Relationships>'
    moved = zipped({"_rels/.rels": relations, "word/main.xml": f"<w:document {W}>{paragraph('moved')}</w:document>"})
    assert read("report", moved, format="docx").texts == ["moved"]
    found = read("all.zip", zipped({"in/a.docx": docx(paragraph("one")), "b.docx": moved}), format="docx")
    assert found.texts == ["one", "moved"]


BOMB = paragraph(" " * (20 << 20))


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"no zip", "not_docx"),
        (docx(BODY)[:-30], "corrupt"),
        (zipped({"[Content_Types].xml": "<Types/>"}), "not_docx"),
        (
            zipped({"_rels/.rels": '<a><Relationship Type="/officeDocument" Target="../../../etc/passwd"/></a>'}),
            "not_docx",
        ),
        (docx("<w:p>"), "corrupt"),
        (docx(paragraph("x"), head='<!DOCTYPE a [<!ENTITY a "aaaa">]>'), "xml_doctype"),
        (docx(paragraph("x"), head='<!DOCTYPE a SYSTEM "file:///etc/passwd">'), "xml_doctype"),
        (docx(" "), "no_text_extracted"),
        (docx(BOMB), "html_bytes"),
        (docx(paragraph("word " * 50_000)), "oversized"),
        (b"\xd0\xcf\x11\xe0" + "EncryptedPackage".encode("utf-16-le"), "encrypted"),
        (b"\xd0\xcf\x11\xe0 Word 97", "not_docx"),
    ],
    ids=range(13),
)
def test_broken_documents_have_a_reason(read: Callable, data: bytes, reason: str) -> None:
    found = read("a.docx", data, format="docx", max_document_bytes=100_000)
    assert (found.texts, [bad[2] for bad in found.bad]) == ([], [reason])


def test_deep_nesting_needs_no_stack(read: Callable) -> None:
    deep = "<w:sdt>" * 100_000 + paragraph("deep") + "</w:sdt>" * 100_000
    assert read("a.docx", docx(deep), format="docx").texts == ["deep"]


def test_any_damage_gives_a_text_or_a_reason() -> None:
    from pipelines.reading.entries.reasons import REASONS
    from pipelines.reading.rich.docx import docx_text
    from pipelines.reading.web.extraction import PageLimits

    limits = PageLimits("", "", 1 << 20, 1000, 100, 1 << 20, 1 << 20, 60, 1 << 30)
    rng, whole = random.Random(8), docx(BODY, {"docProps/core.xml": CORE})
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        head, text = docx_text(bytes(data), "", limits)
        assert bool(text) != (head.get("reason") in REASONS)
