"""The text of an EPUB (https://www.w3.org/TR/epub-33/): its chapters in the order of the spine."""

import re

from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.rich.zip_package import Attributes, ZipPackage, read_values, read_xml, resolve
from pipelines.reading.web.charset import decode_page
from pipelines.reading.web.extraction import PageLimits, fragment_text

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_FIELDS = {
    "title": "title", "creator": "author", "language": "language", "date": "date", "publisher": "publisher", "rights": "rights",
}  # fmt: skip
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "")
# HTML knows no empty elements but these: in a chapter read as HTML, <title/> would swallow all that follows.
_VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
_EMPTY_TAG = re.compile(rf"<(?!(?:{'|'.join(_VOID)})\b)([A-Za-z][\w:.-]*)([^<>]*)(?<=/)>")


def epub_text(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """Return ({"meta": ...}, text) of an EPUB, or ({"reason": ...}, "") if it is to be set aside. `label` is
    not used. The text consists of the chapters in reading order. Blank lines separate chapters, headings and
    paragraphs; each list item and each table row is one line. The navigation document (the table of contents)
    is left out.

    `meta` gets `title`, `author`, `language`, `date`, `publisher` and `rights`, each if the book has it;
    several values of one field are joined with `; `. Reasons: `not_epub`, `encrypted` (encrypted fonts do not
    matter), `xml_doctype`, `corrupt`, `truncated`, `unsupported_compression`, `html_bytes`, `html_nodes`,
    `html_depth`, `decoded_limit`, `oversized`, and `no_text_extracted`.
    """
    import resiliparse.extract.html2text
    import resiliparse.parse.html  # noqa: F401

    try:
        package = ZipPackage(data, limits)
        description, chapters = _spine(package)
        texts: list[str] = []
        size = 0
        for name in chapters:
            html = decode_page(package.member(name)).text
            head, text = fragment_text(_EMPTY_TAG.sub(_opened, html) if "/>" in html else html, limits)
            if head:
                return head, ""
            size += len(text)
            if size > limits.text_bytes:
                raise BrokenInput("oversized")
            texts.append(text.strip("\n"))
        meta = read_values(description, _FIELDS)
    except BrokenInput as broken:
        return {"reason": "not_epub" if broken.reason == "not_package" else broken.reason}, ""
    if not any(text.strip() for text in texts):
        return {"reason": "no_text_extracted"}, ""
    return {"meta": meta}, "\n\n".join(text for text in texts if text.strip())


def _opened(tag: re.Match[str]) -> str:
    return f"<{tag[1]}{tag[2][:-1]}></{tag[1]}>"


def _spine(package: ZipPackage) -> tuple[bytes, list[str]]:
    if _CONTAINER not in package:
        raise BrokenInput("not_epub")
    roots: list[str] = []

    def root(name: str, attributes: Attributes) -> None:
        if name == "rootfile" and "full-path" in attributes:
            roots.append(resolve("", attributes["full-path"]))

    read_xml(package.member(_CONTAINER), root)
    if not roots or roots[0] not in package:
        raise BrokenInput("not_epub")
    description = package.member(roots[0])
    items: dict[str, str] = {}
    order: list[str] = []

    def entry(name: str, attributes: Attributes) -> None:
        if (
            name == "item"
            and attributes.get("media-type", "") in _PAGES
            and "nav" not in attributes.get("properties", "").split()
        ):
            items[attributes.get("id", "")] = resolve(roots[0], attributes.get("href", ""))
        elif name == "itemref":
            order.append(attributes.get("idref", ""))

    read_xml(description, entry)
    chapters = [items[each] for each in dict.fromkeys(order) if items.get(each, "") in package]
    if not chapters:
        raise BrokenInput("corrupt")
    if _ENCRYPTION in package:
        _refuse_encrypted(package.member(_ENCRYPTION), set(chapters))
    return description, chapters


def _refuse_encrypted(data: bytes, chapters: set[str]) -> None:
    def entry(name: str, attributes: Attributes) -> None:
        if name == "CipherReference" and resolve("", attributes.get("URI", "")) in chapters:
            raise BrokenInput("encrypted")

    read_xml(data, entry)
