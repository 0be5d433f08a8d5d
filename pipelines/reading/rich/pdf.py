"""The text layer of a PDF, read with pdfium, without running heads and page numbers.

pdfium returns the text of a page in the order in which the page draws it. For files made by word processors
and TeX this is usually the reading order, columns included.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pipelines.reading.rich.page_lines import join_pages
from pipelines.reading.web.extraction import PageLimits

_BAD_PAGES = 100  # pages that cannot be loaded before the file counts as corrupt: a page tree may claim billions
_HEAD_BYTES = 1024  # in which the header of a PDF may begin (PDF 32000-1, annex H, note 13)
_CODE_PASSWORD, _CODE_SECURITY = 4, 5  # FPDF_ERR_PASSWORD, FPDF_ERR_SECURITY
_COUNT = re.compile(rb"/Count\s+(\d+)")  # of pages, for which pdfium takes memory; one is longer than a byte
_DATE = re.compile(r"D:(\d{4})(\d\d)?(\d\d)?(\d\d)?(\d\d)?(\d\d)?")
_TEXTS = {"Title": "title", "Author": "author"}


def pdf_text(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """Return ({"meta": ...}, text) of a PDF, or ({"reason": ...}, "") if the PDF is to be set aside. `label`
    is not used.

    `meta` holds the counts `pages`, `pages_without_text` and, unless it is 0, `pages_unreadable`. `title`,
    `author` and `created` are added if the file has them.

    The reasons are `not_pdf`, `encrypted` (it needs a password), `corrupt` (the file, every page, or more
    than 100 pages cannot be loaded), `no_text_layer` (as in a scan), and `oversized` (it has more text than
    `limits` allows).
    """
    import pypdfium2

    if b"%PDF-" not in data[:_HEAD_BYTES]:
        return {"reason": "not_pdf"}, ""
    if any(int(count) > len(data) for count in _COUNT.findall(data)):
        return {"reason": "corrupt"}, ""
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        locked = error.err_code in (_CODE_PASSWORD, _CODE_SECURITY)
        return {"reason": "encrypted" if locked else "corrupt"}, ""
    with document:
        pages: list[str] = []
        size = bad = 0
        for page in _pages(document, pypdfium2.PdfiumError):
            if page is None:
                bad += 1
                if bad > _BAD_PAGES:
                    return {"reason": "corrupt"}, ""
                continue
            pages.append(page)
            size += len(page)
            if size > limits.text_bytes:
                return {"reason": "oversized"}, ""
        empty = sum(not page.strip() for page in pages)
        if not pages or empty == len(pages):
            return {"reason": "no_text_layer" if pages else "corrupt"}, ""
        meta = {**_information(document), "pages": len(pages) + bad, "pages_without_text": empty}
    return {"meta": {**meta, **({"pages_unreadable": bad} if bad else {})}}, join_pages(pages)


def _pages(document: Any, error: type[Exception]) -> Iterator[str | None]:
    for number in range(len(document)):
        try:
            page = document[number]
        except error:
            yield None
            continue
        try:
            yield page.get_textpage().get_text_bounded()
        except error:
            yield None
        finally:
            page.close()  # and its text


def _information(document: Any) -> dict[str, str]:
    found = document.get_metadata_dict(skip_empty=True)
    texts = {name: found[key].strip("\0 \t\r\n") for key, name in _TEXTS.items() if key in found}
    created = _date(found.get("CreationDate", ""))
    return {**{name: text for name, text in texts.items() if text}, **({"created": created} if created else {})}


def _date(written: str) -> str | None:
    """Return a PDF date (PDF 32000-1, 7.9.4) in ISO 8601 without its time zone, or None if it is not valid."""
    match = _DATE.match(written)
    if match is None:
        return None
    parts = [int(part) for part in match.groups() if part]
    try:
        return datetime(*[*parts, *(1, 1)[len(parts) - 1 :]]).isoformat()  # type: ignore[arg-type]
    except ValueError:
        return None
