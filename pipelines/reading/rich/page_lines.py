"""Join the pages of a printed document into one text: keep the lines, remove running heads and page numbers,
and rejoin words that are hyphenated at the end of a line.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice

EDGE_LINES = 2
"""How many lines at the top, and at the bottom, of a page may be a running head or a page number."""
REPEATED = 3
"""On how many pages a line at an edge must occur to be a running head. In a document of two pages, two suffice."""

_LINE_END = re.compile(r"\r\n|[\r\n\v\f\x85\u2028\u2029]")
_DIGITS = re.compile(r"\d+")
_ROMAN = re.compile(r"(?i)[ivxlc]+")
_LIGATURES = {
    "\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl", "\ufb05": "st", "\ufb06": "st",
}  # fmt: skip
_LIGATURE = re.compile("[\ufb00-\ufb06]")
# Where a word may be divided: a hyphen, or a soft one, at the end of a line; or the mark that pdfium puts in place of the
# two, which may be anywhere.
_BREAK = re.compile("[-\u2010\u00ad\ufffe\x02]\n[ \t]*|[\ufffe\x02]")
_REST = re.compile(r"\S*")
_PART = re.compile(r"[^\W\d_]+")
_LAST_PART = re.compile(r"[^\W\d_]+\Z")
_WORD = re.compile(r"\w+(?:[-\u2010]\w+)*")
_PART_CHARACTERS = 40  # of the first part of a divided word


def join_pages(pages: Sequence[str]) -> str:
    """Join the pages of a document into one text that keeps their lines.

    - Running heads and page numbers are removed: lines that recur, apart from their digits, among the first two
      or last two non-blank lines of at least three pages (or of both pages, if there are only two). A line that
      is a Roman numeral counts as a number.
    - A word that is hyphenated at the end of a line is rejoined on the line where it begins, if its second part
      begins with a lower-case letter. Its hyphen is removed, unless the word occurs elsewhere within a line with
      the hyphen, and nowhere without it.
    - Ligatures become letters.
    """
    lines = _without_heads([page for page in map(_lines, pages) if page])
    return _join_words("\n".join("\n".join(page) for page in lines if page))


def _lines(page: str) -> list[str]:
    if not page.isascii():
        page = _LIGATURE.sub(lambda found: _LIGATURES[found[0]], page)
    return _trim([line.rstrip(" \t\xa0") for line in _LINE_END.split(page)])


def _trim(lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines.pop()
    first = next((place for place, line in enumerate(lines) if line), len(lines))
    return lines[first:]


def _without_heads(pages: Sequence[list[str]]) -> list[list[str]]:
    edges = [{place: _mask(page[place]) for place in _edges(page)} for page in pages]
    seen = Counter(mask for masks in edges for mask in set(masks.values()))
    enough = min(REPEATED, max(2, len(pages)))
    kept = []
    for page, masks in zip(pages, edges, strict=True):
        gone = {place for place, mask in masks.items() if seen[mask] >= enough}
        kept.append(_trim([line for place, line in enumerate(page) if place not in gone]) if gone else page)
    return kept


def _edges(page: Sequence[str]) -> set[int]:
    top = islice((place for place, line in enumerate(page) if line), EDGE_LINES)
    bottom = islice((place for place in range(len(page) - 1, -1, -1) if page[place]), EDGE_LINES)
    return {*top, *bottom}


def _mask(line: str) -> str:
    """Return a line with numbers masked, so that a running head or page number is the same on every page."""
    line = " ".join(line.split())
    return "#" if _ROMAN.fullmatch(line) else _DIGITS.sub("#", line)


def _join_words(text: str) -> str:
    pieces: list[str] = []
    at = 0
    words: set[str] | None = None
    for found in _BREAK.finditer(text):
        start, end = found.span()
        pieces.append(text[at:start])
        at = end
        first = _LAST_PART.search(text[max(0, start - _PART_CHARACTERS) : start])
        second = _PART.match(text, end)
        if not first or not second or not second[0][0].islower():
            hyphen = text[start] if text[start] in "-\u2010" else "-"
            pieces.append(f"{hyphen}{text[start + 1 : end]}")
            continue
        if words is None:
            words = set(_WORD.findall(text.lower()))
        compound, joined = f"{first[0]}-{second[0]}".lower(), f"{first[0]}{second[0]}".lower()
        pieces.append("-" if compound in words and joined not in words else "")
        rest = _REST.match(text, end)
        if end > start + 1 and rest and not _BREAK.match(text, rest.end() - 1):
            pieces.append(rest[0])
            at = rest.end()
            if text[at : at + 1] in (" ", "\t"):  # the line goes on after the word
                pieces.append("\n")
                at += 1
    return "".join([*pieces, text[at:]])
