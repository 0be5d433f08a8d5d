"""Read Project Gutenberg books as plain text, without the project's header, licence
(https://www.gutenberg.org/policy/license.html) and credits.

The lines that mark the start and the end of a book have been worded in several ways since 1991. In files up
to about 2003, the licence comes before the book and is called the "small print".
"""

import re
from collections.abc import Iterator
from contextlib import suppress

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.normalise import cut
from pipelines.reading.entries.records import Bad, TextRecord, to_json
from pipelines.reading.sources.source import Source

_LINE_END = re.compile(r"\r\n|\r|\n")
_NAME = r"(?:the |this )?project gutenberg(?:'s|(?: of)? australia)?(?:tm|™)?"
_EDITION = r"(?:e-?book|e-?text|edition|etext-no\. \d+)"

# `***START OF THE PROJECT GUTENBERG EBOOK EMMA***`; a long title continues on further lines up to the last asterisks.
_START = re.compile(
    rf"^[ \t]*\*{{2,}}[ \t]*start of {_NAME} {_EDITION}[^*]{{0,600}}\*{{2,}}[^\n]*$", re.IGNORECASE | re.MULTILINE
)
# `*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*` ended the licence, which came first, up to about 2003.
_SMALL_PRINT = re.compile(
    r"^[ \t]*\*[ \t]*end[ \t]*\*?[ \t]*the small print![^\n]*(?:\n[^\n]*\*END\*[^\n]*)?$", re.IGNORECASE | re.MULTILINE
)
_END = re.compile(
    rf"^[ \t]*\*{{2,}}[ \t]*end of {_NAME} {_EDITION}"
    r"|^[ \t]*(?:this is the )?end of (?:the |this )?project gutenberg\b",
    re.IGNORECASE | re.MULTILINE,
)
_CREDIT = re.compile(
    r"[ \t]*(?:(?:this (?:e-?book|e-?text|file) was )?"
    r"(?:produced|prepared|transcribed|scanned|created|typed|proofread) (?:by|from)\b"
    r"|e-?text (?:produced|prepared|scanned|transcribed) by\b|(?:credits|produced):|character set (?:for html|encoding):)",
    re.IGNORECASE,
)
_BLANK = re.compile(r"\n(?:[ \t]*\n)+")
_FIELD = re.compile(r"^([A-Z][A-Za-z -]{2,30}):[ \t]+(\S[^\n]*(?:\n[ \t]{4,}\S[^\n]*)*)", re.MULTILINE)
_NUMBER = re.compile(r"\[(?:ebook|etext|e-text)[ \t]*#?[ \t]*(\d{1,7})\]", re.IGNORECASE)
_FIELDS = {
    "title": "title", "author": "author", "translator": "translator", "editor": "editor", "language": "language",
    "release date": "released", "posting date": "released",
}  # fmt: skip
_ENCODINGS = {
    **dict.fromkeys(("iso-8859-1", "iso latin-1", "latin-1", "latin1", "ascii", "us-ascii"), "cp1252"),  # as in HTML
    **dict.fromkeys(("windows-1252", "cp1252", "cp-1252", "windows code page 1252"), "cp1252"),
    **{name: name for name in ("iso-8859-2", "iso-8859-7", "iso-8859-15", "koi8-r", "big5", "gb2312", "shift_jis", "euc-jp")},
}  # fmt: skip
_SMALL_PRINT_WITHIN = 30_000  # characters after the line of the start: files of about 2003 have both marks
_DECLARED = re.compile(
    rb"^Character set encoding:[ \t]*([A-Za-z0-9 _-]{2,30}?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE
)
_HEAD_BYTES = 20_000


def read_gutenberg(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield the book in a file as one document: the text between the line that marks its start and the line
    that marks its end, without the credits at its beginning.

    A file is decoded as UTF-8 or, if that fails, in the encoding that its line `Character set encoding:`
    names. Only the names in `_ENCODINGS` are known; Latin-1 and ASCII are read as Windows-1252, as in HTML. A
    file that cannot be decoded is set aside as `undecodable`, an empty file as `empty`, any other file
    without a start line as `not_gutenberg`, and a book without an end line as `truncated`.

    `meta` gets `title`, `author`, `translator`, `editor`, `language`, `released` and `ebook` (the number of
    the book), each if the file states it.

    A file over `max_document_bytes` is set aside as `oversized`. If the source splits documents (`oversized:
    split`), the limit for a file is `max_file_bytes` instead, and a book over `max_document_bytes` is cut
    into several documents.
    """
    most = source.max_document_bytes if source.oversized == "quarantine" else source.max_file_bytes
    held = entry.read(most)
    if held is None:
        yield Bad("oversized", entry.size)
        return
    text = _decode(held)
    if text is None:
        yield Bad("undecodable", len(held))
        return
    start = _START.search(text)
    small_print = _SMALL_PRINT.search(text, *((start.end(), start.end() + _SMALL_PRINT_WITHIN) if start else ()))
    start = small_print or start
    if start is None:
        yield Bad("not_gutenberg" if held else "empty", len(held))
        return
    end = _END.search(text, start.end())
    if end is None:
        yield Bad("truncated", len(held))
        return
    body = _without_credits(text[start.end() : end.start()])
    meta = to_json(_fields(text[: start.end()]))
    pieces = cut(body.encode(), source.max_document_bytes) if source.oversized == "split" else [body.encode()]
    for number, piece in enumerate(pieces):
        yield TextRecord(piece.decode(), len(held) if number == 0 else 0, None, meta)


def _decode(data: bytes) -> str | None:
    declared = _DECLARED.search(data[:_HEAD_BYTES])
    name = declared[1].decode().lower() if declared else ""
    for encoding in ("utf-8", _ENCODINGS.get(name)):
        with suppress(UnicodeDecodeError):
            if encoding:
                return _LINE_END.sub("\n", data.decode(encoding).removeprefix("\ufeff"))
    return None


def _without_credits(body: str) -> str:
    body = body.strip("\n")
    place = 0
    while _CREDIT.match(body, place) and (blank := _BLANK.search(body, place)):
        place = blank.end()
    return body[place:]


def _fields(head: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in _FIELD.findall(head):
        if key := _FIELDS.get(name.lower()):
            found.setdefault(key, " ".join(_NUMBER.sub("", value).split()))
    if number := _NUMBER.search(head):
        found["ebook"] = number[1]
    return found
