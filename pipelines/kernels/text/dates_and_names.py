"""Patterns that find dates and names in English text, the spans of salient span masking (REALM: Guu et al.,
2020, section 3.4, where a tagger finds the names).

A date is one of these:

- a month with its day, its year or both; a day of the week before the day belongs to the date
  (`Friday, 4 July 1969`, `July 4th`, `Sept. 1969`)
- an ISO date (`1969-07-04`)
- a year from 1000 to 2099, a decade (`1960s`), or two years with a dash between them (`1914-18`)

A number is not a year if it follows a letter, a digit, a point, a comma, a hyphen, a slash, a hash or one of
`$£€¥₹₩₽`, or if it comes before a letter, a percent sign, or a point, comma, slash or hyphen with a digit
after it. Any other four-digit number in that range counts as a year, even if it is a quantity.

A name is a run of capitalised words outside dates, with single spaces between them. A word begins with an
upper-case letter, has two or more characters, and may contain hyphens and apostrophes (`Jean-Luc`,
`O'Brien`). A possessive `'s` is not part of it. Initials (`J. R. R. Tolkien`) and a title (`Mr. Smith`)
belong to the run that follows.

A word that begins a sentence, a line or a quotation, or follows a colon, is capitalised anyway. It is
therefore left out of its run if the document also has it in lower case (`The United States`). If it is the
whole run, it is a name only if the document also has it, capitalised, in the middle of a sentence.

The patterns make mistakes: they take capitalised words in headings, adjectives (`French`) and days of the
week for names, they divide a name at `of`, and where every word is capitalised, they find one name after
another. A tagger would do better, at many times the cost.

No date or name continues on the next line.
"""

import re
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.contracts.shard_set import SPAN_TYPES, SpanType

PATTERNS = 2
"""Version of the patterns. Increase it if the spans that they find change."""
_MONTH = (
    r"(?:Jan(?:uary|\.)?|Feb(?:ruary|\.)?|Mar(?:ch|\.)?|Apr(?:il|\.)?|May|Jun(?:e|\.)?|Jul(?:y|\.)?|Aug(?:ust|\.)?|"
    r"Sep(?:tember|t?\.|t)?|Oct(?:ober|\.)?|Nov(?:ember|\.)?|Dec(?:ember|\.)?)(?!\w)"
)
_DAY = r"(?:3[01]|[12][0-9]|0?[1-9])(?:st|nd|rd|th)?(?!\w)"
_YEAR = r"(?:1[0-9]{3}|20[0-9]{2})"
_WEEKDAY = r"(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day,? )?(?:the )?"
_DATE = re.compile(
    rf"(?<![\w.,/#$£€¥₹₩₽-])(?=[0-9JFMASONDTW])(?:"
    rf"{_YEAR}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])(?![\w-])"
    rf"|{_WEEKDAY}{_DAY} (?:of )?{_MONTH}(?:,? {_YEAR}(?!\w))?"
    rf"|{_WEEKDAY}{_MONTH} {_DAY}(?:,? {_YEAR}(?!\w))?"
    rf"|{_MONTH},? {_YEAR}(?!\w)"
    rf"|{_YEAR}(?:s|[-–](?:{_YEAR}|[0-9]{{2}}))?(?![\w%]|[.,/-][0-9])"
    rf")"
)
_OPENING = frozenset('\n\r\u2028\u2029"“”„«»‘:')


class FoundSpans(NamedTuple):
    """Spans in documents. The spans of document d are those from offsets[d] to offsets[d + 1] - 1, ascending
    and disjoint.

    `begins` and `lasts` are the byte offsets of a span's first and last character within its document; `ends`
    is the offset after the last character. `types` are indices into SPAN_TYPES. All are int64.
    """

    offsets: np.ndarray
    begins: np.ndarray
    lasts: np.ndarray
    ends: np.ndarray
    types: np.ndarray

    @classmethod
    def of(cls, documents: Iterable[tuple[np.ndarray, Sequence[tuple[int, int, int]]]]) -> "FoundSpans":
        """Convert the spans of documents from characters to bytes. Each document is given as its
        `byte_offsets` and its spans, (start, end, index of the type) in characters, ascending and disjoint.
        """
        counts, found = [0], [np.zeros((4, 0), np.int64)]
        for bytes_of, spans in documents:
            counts.append(len(spans))
            if spans:
                firsts, ends, kinds = np.array(spans, np.int64).T
                found.append(np.stack([bytes_of[firsts], bytes_of[ends - 1], bytes_of[ends], kinds]))
        return cls(np.cumsum(counts), *np.concatenate(found, axis=1))


def byte_offsets(document: str) -> np.ndarray:
    """Return the byte offset in UTF-8 at which each character begins, followed by the number of bytes, int64
    [characters + 1].
    """
    data = np.frombuffer(document.encode(), np.uint8)
    return np.append(np.flatnonzero((data & 0xC0) != 0x80), len(data)).astype(np.int64)


def find_dates_and_names(
    text: pa.LargeStringArray, types: Collection[SpanType], sentences: tuple[np.ndarray, np.ndarray]
) -> FoundSpans:
    """Return the dates and names in each document, limited to the given types. `sentences` is the result of
    `segment.sentence_starts`.
    """
    start_offsets, starts = sentences

    def found() -> Iterator[tuple[np.ndarray, list[tuple[int, int, int]]]]:
        for number in range(len(text)):
            document = text[number].as_py()
            bytes_of = byte_offsets(document)
            begins = np.searchsorted(bytes_of, starts[start_offsets[number] : start_offsets[number + 1]]).tolist()
            yield bytes_of, [span for span in _spans_of(document, begins) if SPAN_TYPES[span[2]] in types]

    return FoundSpans.of(found())


def _spans_of(text: str, sentences: list[int]) -> list[tuple[int, int, int]]:
    """Return (start, end, index in SPAN_TYPES) of every date and name in a document, in order. `sentences`
    lists where its sentences start. All positions count characters.
    """
    dates = [match.span() for match in _DATE.finditer(text)]
    gaps = zip([0, *(end for _, end in dates)], [*(begin for begin, _ in dates), len(text)], strict=True)
    runs = [match.span() for begin, end in gaps for match in _name().finditer(text, begin, end)]
    first = [_begins(text, begin, sentences) for begin, _ in runs]
    words = [text[begin:end].split(" ") for begin, end in runs]
    inside = {word for run, is_first in zip(words, first, strict=True) for word in run[is_first:]}
    lower: set[str] | None = None
    names = []
    for (begin, end), run, is_first in zip(runs, words, first, strict=True):
        if is_first and not run[0].endswith("."):
            if len(run) == 1 and run[0] not in inside:
                continue
            lower = set(_LOWER.findall(text)) if lower is None else lower
            begin += len(run[0]) + 1 if run[0].lower() in lower else 0
        if begin < end:
            names.append((begin, end))
    numbers = {kind: number for number, kind in enumerate(SPAN_TYPES)}
    spans = [(*span, numbers["dates"]) for span in dates] + [(*span, numbers["names"]) for span in names]
    return sorted(spans)


def _begins(text: str, start: int, sentences: list[int]) -> bool:
    """Return whether the word at `start` begins a sentence or a line, or follows a quotation mark or a colon,
    ignoring any other characters before it that are neither letters nor digits.
    """
    before = start
    while before > 0 and not text[before - 1].isalnum():
        before -= 1
        if text[before] in _OPENING:
            return True
    return before == 0 or bisect_right(sentences, start) > bisect_right(sentences, before)


_LOWER = re.compile(r"(?<!\w)[^\W\d_A-Z]\w*")


@cache
def _name() -> re.Pattern[str]:
    upper = "".join(_ranges(("Lu", "Lt")))
    word = rf"(?:[{upper}]['’])?[{upper}]\w+(?:['’](?!s(?!\w))\w+|-\w+)*"
    initials = rf"(?:[{upper}]\. ?|(?:Mr|Mrs|Ms|Dr|St|Prof|Rev|Sir|Lord)\. )*"
    return re.compile(rf"(?<!\w){initials}(?<!\w)(?!I['’]){word}(?: {initials}{word})*")


def _ranges(categories: tuple[str, ...]) -> Iterator[str]:
    first = None
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) in categories:
            first = code if first is None else first
        elif first is not None:
            yield chr(first) if code - first == 1 else f"{chr(first)}-{chr(code - 1)}"
            first = None
