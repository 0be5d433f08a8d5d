"""Extract the text of a Word document (Office Open XML, ECMA-376, part 1): paragraphs, lists and tables in
document order, then footnotes and endnotes.
"""

from collections.abc import Callable
from functools import partial

from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.rich.plain_xml import NotPlain, read_plain
from pipelines.reading.rich.zip_package import Attributes, ZipPackage, read_elements, read_values, read_xml, resolve
from pipelines.reading.web.extraction import PageLimits

_RELATIONS, _DEFAULT = "_rels/.rels", "word/document.xml"
_DOCUMENT_TYPE, _PROPERTIES_TYPE = "/officeDocument", "/core-properties"  # ends of the types of relations
_FIELDS = {"title": "title", "creator": "author", "language": "language", "created": "created"}
_NOTES = ("footnotes", "endnotes")
# Elements left out with their contents: text that was moved away, the copy for programs that do not know a drawing, and the
# stops of tabs, whose elements have the name of a tab in the text.
_LEFT_OUT = frozenset(("moveFrom", "Fallback", "tabs"))
_CHARACTERS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "ptab": "\t"}


def docx_text(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """Return ({"meta": ...}, text) of a Word document, or ({"reason": ...}, "") if it is to be set aside.
    `label` is not used.

    Paragraphs and headings are separated by blank lines. A list item is a line that begins with `• `,
    indented by its level. A table row is a line, with a tab between cells. Footnotes and endnotes follow at
    the end. Page headers and footers, comments, deleted text and field codes are left out.

    `meta` gets `title`, `author`, `language` and `created`, each if the document has it. Reasons: `not_docx`,
    `encrypted`, `xml_doctype`, `corrupt`, `truncated`, `unsupported_compression`, `html_bytes` (a member of
    the package is too long), `decoded_limit`, `oversized`, and `no_text_extracted`.
    """
    if data.startswith(b"\xd0\xcf\x11\xe0"):  # a compound file: an encrypted document, or one of Word 97
        return {"reason": "encrypted" if "EncryptedPackage".encode("utf-16-le") in data else "not_docx"}, ""
    try:
        package = ZipPackage(data, limits)
        main, properties = _members(package)
        body = _Body(limits.text_bytes)
        body.read(package.member(main))
        for notes in (resolve(main, f"{name}.xml") for name in _NOTES):
            if notes in package:
                body.read(package.member(notes))
        meta = read_values(package.member(properties), _FIELDS) if properties in package else {}
    except BrokenInput as broken:
        return {"reason": "not_docx" if broken.reason == "not_package" else broken.reason}, ""
    text = body.text()
    return ({"meta": meta}, text) if text.strip() else ({"reason": "no_text_extracted"}, "")


def _members(package: ZipPackage) -> tuple[str, str]:
    found = {_DOCUMENT_TYPE: _DEFAULT, _PROPERTIES_TYPE: "docProps/core.xml"}

    def relation(name: str, attributes: Attributes) -> None:
        for ending in found:
            if name == "Relationship" and attributes.get("Type", "").endswith(ending):
                found[ending] = resolve("", attributes.get("Target", ""))

    if _RELATIONS in package:
        read_xml(package.member(_RELATIONS), relation)
    if found[_DOCUMENT_TYPE] not in package:
        raise BrokenInput("not_docx")
    return found[_DOCUMENT_TYPE], found[_PROPERTIES_TYPE]


class _Body:
    """The text of a document under construction."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._blocks: list[tuple[str, str]] = []  # kind, text
        self._paragraphs: list[list[str]] = []  # pieces of the open ones: a text box is a paragraph inside another
        self._levels: list[int | None] = []  # of the lists to which they belong
        self._rows: list[list[str]] = []  # cells of the open rows: tables nest
        self._cells: list[list[str]] = []  # paragraphs of the open cells
        self._is_separator = False
        self._starts: dict[str, Callable[[Attributes], None]] = {
            "p": self._start_paragraph, "ilvl": self._level, "numId": self._number,
            "tr": lambda _: self._rows.append([]), "tc": lambda _: self._cells.append([]),
            "footnote": self._note, "endnote": self._note,
            **{name: partial(self._character, text) for name, text in _CHARACTERS.items()},
        }  # fmt: skip
        self._ends = {"p": self._end_paragraph, "tc": self._end_cell, "tr": self._end_row}
        self._texts = {"t": self._text}

    def read(self, data: bytes) -> None:
        blocks, size = len(self._blocks), self._size
        for read in (read_plain, read_elements):
            self._paragraphs, self._levels, self._rows, self._cells = [], [], [], []
            self._is_separator = False
            del self._blocks[blocks:]
            self._size = size
            try:
                read(data, self._starts, self._ends, self._texts, _LEFT_OUT)
            except NotPlain:
                continue
            return

    def text(self) -> str:
        pieces: list[str] = []
        before = ""
        for kind, block in self._blocks:
            pieces += ["" if not pieces else "\n" if kind == before != "paragraph" else "\n\n", block]
            before = kind
        return "".join(pieces)

    def _start_paragraph(self, attributes: Attributes) -> None:
        self._paragraphs.append([])
        self._levels.append(None)

    def _character(self, text: str, attributes: Attributes) -> None:
        if self._paragraphs:
            self._paragraphs[-1].append(text)

    def _level(self, attributes: Attributes) -> None:
        if self._levels:
            level = attributes.get("val", "")
            self._levels[-1] = min(int(level), 8) if level.isdecimal() else 0

    def _number(self, attributes: Attributes) -> None:
        if self._levels:
            self._levels[-1] = None if attributes.get("val") == "0" else self._levels[-1] or 0

    def _note(self, attributes: Attributes) -> None:
        self._is_separator = attributes.get("type", "normal") != "normal"

    def _text(self, text: str) -> None:
        if self._paragraphs and not self._is_separator:
            self._paragraphs[-1].append(text)
            self._size += len(text)
            if self._size > self._limit:
                raise BrokenInput("oversized")

    def _end_paragraph(self) -> None:
        if self._paragraphs:
            text, level = "".join(self._paragraphs.pop()).strip("\n"), self._levels.pop()
            if text and not text.isspace():
                if level is None:
                    self._add("paragraph", text)
                else:
                    self._add("item", f"{'  ' * level}• {text}")

    def _end_cell(self) -> None:
        if self._cells and self._rows:
            self._rows[-1].append(" ".join(" ".join(self._cells.pop()).split()))

    def _end_row(self) -> None:
        if self._rows:
            row = self._rows.pop()
            if any(row):
                self._add("row", "\t".join(row))

    def _add(self, kind: str, text: str) -> None:
        if self._cells:
            self._cells[-1].append(text)
        else:
            self._blocks.append((kind, text))
