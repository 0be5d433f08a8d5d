"""PDFs: their text layer, and malformed or malicious files."""

import json
import random
import zlib
from collections.abc import Callable

import pytest

from gristmill.errors import PoisonError

pypdfium2 = pytest.importorskip("pypdfium2")

from tests.pipelines.reading.rich.handmade import content, pdf, pdf_objects, stream  # noqa: E402

NUMBERS = ("one", "two", "three")
BODY = ["It is page {} of a text (with parentheses)", "that ends {} in a di-", "vided word; \u201cfine\u201d {}."]
BOOK = [["The Mill", *(line.format(word) for line in BODY), str(number)] for number, word in enumerate(NUMBERS, 1)]
INFORMATION = (
    rb"/Title (On \(Mills\)) /Author (\376\377\000\311\000v\000a) /CreationDate (D:20150304050607+01'00') /Producer (x)"
)
TEXT = "\n".join(
    f"It is page {word} of a text (with parentheses)\nthat ends {word} in a divided word; \u201cfine\u201d {word}."
    for word in NUMBERS
)


def test_the_text_layer_without_heads_and_with_whole_words(read: Callable) -> None:
    found = read("a.pdf", pdf(BOOK, INFORMATION), format="pdf")
    assert (found.texts, found.bad) == ([TEXT], [])
    assert json.loads(found.metas[0]) == {
        "title": "On (Mills)", "author": "Éva", "created": "2015-03-04T05:06:07", "pages": 3, "pages_without_text": 0,
    }  # fmt: skip


def test_the_words_are_those_of_the_library(read: Callable) -> None:
    rng = random.Random(3)
    words = ["mill", "wheel", "stone", "grain", "flour", "naïve", "12.5", "(water)", "e.g.", "A\\B"]
    pages = [[" ".join(rng.choices(words, k=8)) for _ in range(30)] for _ in range(9)]
    data = pdf(pages)
    with pypdfium2.PdfDocument(data) as document:
        expected = " ".join(page.get_textpage().get_text_bounded() for page in document)
    assert read("a.pdf", data, format="pdf").texts[0].split() == expected.split()


def test_a_scan_has_a_reason_and_pages_without_text_are_counted(read: Callable) -> None:
    assert [bad[2] for bad in read("a.pdf", pdf([[], []]), format="pdf").bad] == ["no_text_layer"]
    found = read("b.pdf", pdf([["Text"], []]), format="pdf")
    assert (found.texts, json.loads(found.metas[0])) == (["Text"], {"pages": 2, "pages_without_text": 1})


ENCRYPTED = pdf(
    BOOK,
    trailer=b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -44 /O <%s> /U <%s> >> /ID [<00><00>]"
    % (b"11" * 32, b"22" * 32),
)
CYCLE = [
    b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R 3 0 R] /Count 4 >>",
    b"<< /Type /Pages /Parent 2 0 R /Kids [2 0 R] /Count 2 >>",
]  # fmt: skip
CHAIN = [b"%d 0 R" % (number + 1) for number in range(4, 3000)] + [b"4 0 R"]  # references that end nowhere


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "reasons"),
    [
        (b"", {"empty"}),
        (b"<html>no PDF</html>", {"not_pdf"}),
        (b"%PDF-1.7\n", {"corrupt"}),
        (ENCRYPTED, {"encrypted"}),
        (pdf(BOOK)[:300], {"corrupt"}),
        (pdf(BOOK, kids=b"99 0 R 98 0 R 97 0 R"), {"corrupt"}),
        (pdf_objects(CYCLE), {"corrupt", "no_text_layer"}),
        (pdf(BOOK).replace(b"/Count 3", b"/Count 2000000000"), {"corrupt"}),
        (pdf_objects([b"<< /Type /Catalog /Pages 2 0 R >>", b"4 0 R", b"null", *CHAIN]), {"corrupt"}),
        (pdf_objects([b"[" * 100_000]), {"corrupt"}),
        (pdf_objects([b"<< /Type /Catalog /Pages 2 0 R >>"], b"/Root 1 0 R /Prev 9"), {"corrupt"}),
    ],
    ids=range(11),
)
def test_broken_files_have_a_reason(read: Callable, data: bytes, reasons: set[str]) -> None:
    found = read("a.pdf", data, format="pdf", page_cpu_seconds=20)
    assert found.texts == []
    assert len(found.bad) == 1
    assert found.bad[0][2] in reasons


def test_a_broken_table_of_objects_is_repaired(read: Callable) -> None:
    broken = pdf(BOOK).replace(b"startxref\n", b"startxref\n9")
    assert read("a.pdf", broken, format="pdf").texts == [TEXT]


def drawn_by_itself(times: int) -> bytes:
    """Return a PDF of one page whose text is followed by a form that draws itself `times` times."""
    form = b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 5 0 R >> >>"
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 6 0 R"
    page += b" /Resources << /Font << /F1 4 0 R >> /XObject << /X 5 0 R >> >> >>"
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>", page, font,
        stream(b"/X Do " * times, form), stream(content(["Seen"]) + b" /X Do"),
    ]  # fmt: skip
    return pdf_objects(objects)


def test_forms_that_draw_themselves_end(read: Callable) -> None:
    assert read("a.pdf", drawn_by_itself(1), format="pdf", page_cpu_seconds=20).texts == ["Seen"]


@pytest.mark.long
def test_a_file_beyond_the_limits_of_the_process_is_named(read: Callable) -> None:
    limits = {"page_cpu_seconds": 2, "page_memory_bytes": 128 << 20}
    with pytest.raises(PoisonError, match=r"read: s/a\.pdf#0 breaks its parser: pypdfium2"):
        read("a.pdf", drawn_by_itself(50), format="pdf", **limits)


@pytest.mark.long
def test_limits(read: Callable) -> None:
    many = [["many words of a long page " * 3] * 50] * 40
    assert [bad[2] for bad in read("a.pdf", pdf(many), format="pdf", max_document_bytes=20_000).bad] == ["oversized"]
    assert [bad[2] for bad in read("a.pdf", pdf(many), format="pdf", max_file_bytes=20_000).bad] == ["file_bytes"]
    bomb = zlib.compress(b" " * (64 << 20))
    objects = pdf([["x"]]).split(b"6 0 obj\n")[0].split(b"endobj\n")
    bodies = [each.split(b"obj\n", 1)[1] for each in objects[:5]] + [stream(bomb, b"/Filter /FlateDecode")]
    assert [bad[2] for bad in read("a.pdf", pdf_objects(bodies), format="pdf").bad] == ["no_text_layer"]


def test_any_damage_gives_a_text_or_a_reason() -> None:
    """The parser runs in the test's own process, which a crash would end."""
    from pipelines.reading.entries.reasons import REASONS
    from pipelines.reading.rich.pdf import pdf_text
    from pipelines.reading.web.extraction import PageLimits

    limits = PageLimits("", "", 1 << 20, 1000, 100, 1 << 20, 1 << 20, 60, 1 << 30)
    rng, whole = random.Random(4), pdf(BOOK, INFORMATION)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        head, text = pdf_text(bytes(data[: rng.randint(1, len(data))] if rng.random() < 0.3 else data), "", limits)
        assert bool(text) != (head.get("reason") in REASONS)
