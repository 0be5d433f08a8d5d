"""Segmentation: the words, lines, paragraphs and sentences of documents as byte spans over Arrow buffers.

Characters are decoded and classified once (`characters.classify`). The segmentations below walk those
classes, and no text is turned into Python objects.

**Word**: a maximal run of letters, numbers (N*), connectors (`_`), marks and format characters that does not begin
with a mark or format character. An apostrophe (' or U+2019) between two letters stays inside, and so does `.` or `,`
between two ASCII digits: "don't" and "3.14" are one word each, "well-known" is two. In scripts without spaces between
words (Han, kana, Thai, Lao, Khmer, Burmese and the others of `tables`) every letter with its marks is a word, because
splitting words there takes a dictionary of the language; pipelines/kernels/text/units.py says how many such letters
equal a word. Hangul has spaces. Peers differ: `str.split` (dolma, NeMo Curator) keeps punctuation in the word and
takes a Chinese sentence for one word; NLTK and spaCy (datatrove) make each punctuation mark a word and split "don't";
Unicode's default word boundaries (UAX 29) are closest, but they join `U.S.A` and runs of katakana.

**Token**: a maximal run of characters other than white space, which is a word in the sense of `str.split`. Tokens are
not stored as spans.

**Line**: non-blank text between line feeds, without the white space at its ends. Blank lines do not count. Peers
count them, so double spacing halves their line ratios.

**Paragraph**: consecutive lines without a blank line between them.

**Sentence**: sentences cover the document; white space between two sentences belongs to the first. A sentence ends
- at every blank line; a single line feed is white space, because texts are wrapped;
- after a run of stops (. ! ? … and those of other scripts) and closing quotes or brackets, before white
  space, unless a lower-case letter follows, or the stop is a single full stop after a title or abbreviation of
  `ABBREVIATIONS`, after a single letter other than I (initials, "e.g.", "U.S."), or after a number in
  ASCII digits that begins the sentence (list items);
- after the stops 。！？．｡ and closing quotes or brackets, regardless of what follows.

Peers use NLTK's Punkt, which learns abbreviations. The list here is deliberately short; an abbreviation that
is not in it ends a sentence before a capital or a digit ("approx. 5 km").
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.compilation import kernel
from pipelines.kernels.text.buffers import blocks, text_buffers
from pipelines.kernels.text.characters import classify
from pipelines.kernels.text.eight_bytes import count_before_first, load_eight
from pipelines.kernels.text.tables import ALONE, CLOSE, EXTEND, LETTER, LOWER, SPACE, STOP, WORD
from pipelines.kernels.text.words import Spans, find_words

ABBREVIATIONS = (
    *("adm", "brig", "capt", "cf", "cmdr", "col", "cpl", "det", "dr", "esq", "fig", "figs", "gen", "gov", "hon", "lt"),
    *(
        "maj",
        "messrs",
        "mlle",
        "mme",
        "mr",
        "mrs",
        "ms",
        "msgr",
        "mt",
        "prof",
        "rep",
        "rev",
        "sen",
        "sgt",
        "st",
        "supt",
    ),
    "vs",
)
_LINE_FEED, _FULL_STOP, _APOSTROPHE = 10, 46, 39
_LAST_OF_QUOTE, _SMALL_I = 0x99, 105  # the last byte of U+2019; i
_NONE, _PLAIN, _WIDE = 0, 1, 2
_ONES, _SEVEN = np.uint64(0x0101010101010101), np.uint64(0x7F7F7F7F7F7F7F7F)


class Segments(NamedTuple):
    """A block of documents with its words, lines, paragraphs and sentences. `classes` holds, for each byte,
    the class bits of its character.
    """

    offsets: np.ndarray  # int64 [documents + 1], into data
    data: np.ndarray  # uint8
    classes: np.ndarray  # uint8, like data
    words: Spans
    lines: Spans
    paragraphs: Spans
    sentences: Spans


def segment(offsets: np.ndarray, data: np.ndarray) -> Segments:
    """Find the words, lines, paragraphs and sentences of a block of documents (`buffers.blocks`)."""
    classes = classify(offsets, data)
    lines, paragraphs = find_lines(offsets, data, classes)
    words, sentences = find_words(offsets, data, classes), find_sentences(offsets, data, classes)
    return Segments(offsets, data, classes, words, lines, paragraphs, sentences)


def sentence_starts(text: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """Return where sentences start: (offsets int64 [documents + 1], starts int64 [sentences]).

    The sentences of document d start at starts[offsets[d]:offsets[d + 1]]. These are byte offsets within the
    document, ascending from 0.
    """
    offsets, data = text_buffers(text)
    starts = [np.zeros(0, np.int64)]
    counts = np.zeros(len(offsets), np.int64)
    for first, last, block_offsets, block in blocks(offsets, data):
        spans = find_sentences(block_offsets, block, classify(block_offsets, block))
        per_document = np.diff(spans.offsets)
        starts.append(spans.starts - np.repeat(block_offsets[:-1], per_document))
        counts[first + 1 : last + 1] = per_document
    return np.cumsum(counts), np.concatenate(starts)


def find_lines(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray) -> tuple[Spans, Spans]:
    """Return the lines and the paragraphs of a block."""
    lines = _allocate(len(data) // 2 + len(offsets), len(offsets))
    paragraphs = _allocate(len(data) // 3 + len(offsets), len(offsets))
    _lines(offsets, data, classes, *lines, *paragraphs)
    return _trim(lines), _trim(paragraphs)


def find_sentences(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray) -> Spans:
    """Return the sentences of a block."""
    spans = _allocate(len(data) // 2 + len(offsets), len(offsets))
    _sentences(offsets[:-1], offsets[1:], data, classes, _PACKED_ABBREVIATIONS, *spans)
    return _trim(spans)


def count_sentences(starts: np.ndarray, ends: np.ndarray, data: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the number of sentences in each of a block's spans, which must be disjoint, int64 [spans]. Each
    span is treated as a whole document.
    """
    begins, stops = starts.astype(np.int64), ends.astype(np.int64)
    begins.flags.writeable = stops.flags.writeable = False
    sentences = _allocate(len(data) // 2 + len(starts) + 1, len(starts) + 1)
    _sentences(begins, stops, data, classes, _PACKED_ABBREVIATIONS, *sentences)
    return np.diff(sentences.offsets)


def pack(word: str) -> int:
    """Pack an ASCII word of up to 8 letters into one integer: its lower-cased bytes, big-endian."""
    assert word.isascii()
    assert len(word) <= 8
    return int.from_bytes(word.lower().encode(), "big")


_PACKED_ABBREVIATIONS = np.array([pack(word) for word in ABBREVIATIONS], np.uint64)
_PACKED_ABBREVIATIONS.flags.writeable = False


def _allocate(spans: int, offsets: int) -> Spans:
    # np.empty commits pages only as they are written, so room for the worst case costs nothing on ordinary
    # text.
    return Spans(np.empty(spans, np.int32), np.empty(spans, np.int32), np.zeros(offsets, np.int64))


def _trim(spans: Spans) -> Spans:
    count = spans.offsets[-1]
    return Spans(spans.starts[:count], spans.ends[:count], spans.offsets)


@kernel()
def _lines(
    offsets: np.ndarray,
    data: np.ndarray,
    classes: np.ndarray,
    line_starts: np.ndarray,
    line_ends: np.ndarray,
    line_counts: np.ndarray,
    paragraph_starts: np.ndarray,
    paragraph_ends: np.ndarray,
    paragraph_counts: np.ndarray,
) -> None:
    line, paragraph = 0, 0
    for d in range(len(offsets) - 1):
        i, end, blank, any_line = offsets[d], offsets[d + 1], False, False
        while i < end:
            stop = _line_end(data, i, end)
            first, last = i, stop
            while first < last and classes[first] & SPACE:
                first += 1
            while first < last and classes[last - 1] & SPACE:
                last -= 1
            i = stop + 1
            if first == last:
                blank = True
                continue
            line_starts[line], line_ends[line] = first, last
            line += 1
            if blank or not any_line:
                paragraph_starts[paragraph] = first
                paragraph += 1
            paragraph_ends[paragraph - 1] = last
            blank, any_line = False, True
        line_counts[d + 1] = line
        paragraph_counts[d + 1] = paragraph


@kernel()
def _line_end(data: np.ndarray, i: int, end: int) -> int:
    while i + 8 <= end:
        differs = load_eight(data, i) ^ (_ONES * np.uint64(_LINE_FEED))
        found = (~(((differs & _SEVEN) + _SEVEN) | differs) >> np.uint64(7)) & _ONES
        if found:
            return i + count_before_first(found)
        i += 8
    while i < end and data[i] != _LINE_FEED:
        i += 1
    return i


@kernel()
def _is_abbreviation(data: np.ndarray, classes: np.ndarray, opening: int, stop: int, abbreviations: np.ndarray) -> bool:
    """Return whether the word before the full stop at `stop` is a title, another abbreviation, an initial, or
    the number of a list item.
    """
    i, packed, characters, digits = stop, np.uint64(0), 0, True
    while i > opening and classes[i - 1] & WORD and stop - i < 9:
        i -= 1
        byte = np.uint64(data[i])
        digits = digits and 48 <= byte <= 57
        characters += byte & 0xC0 != 0x80 and not classes[i] & EXTEND
        if stop - i <= 8:
            packed |= (byte + np.uint64(32 if 65 <= byte <= 90 else 0)) << np.uint64(8 * (stop - i - 1))
    if i == stop or (i > opening and classes[i - 1] & WORD):
        return False
    if digits:
        return i == opening
    if characters == 1:
        after_apostrophe = i > opening and (data[i - 1] == _APOSTROPHE or data[i - 1] == _LAST_OF_QUOTE)
        return classes[i] & LETTER != 0 and not classes[i] & ALONE and packed != _SMALL_I and not after_apostrophe
    for abbreviation in abbreviations:  # noqa: SIM110 - numba compiles no generator in any()
        if packed == abbreviation:
            return True
    return False


@kernel()
def _sentences(
    begins: np.ndarray,
    stops: np.ndarray,
    data: np.ndarray,
    classes: np.ndarray,
    abbreviations: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    counts: np.ndarray,
) -> None:
    # One long function because it is one state machine over the characters of a document.
    sentence = 0
    for d in range(len(begins)):
        begin, end = begins[d], stops[d]
        ending, gap, feeds, opening = _NONE, False, 0, -1
        if begin < end:
            starts[sentence] = begin
            sentence += 1
        i = begin - 1
        while i + 1 < end:
            i += 1
            kind = np.int64(classes[i])
            if kind & SPACE:
                gap = True
                feeds += data[i] == _LINE_FEED
                continue
            if ending == _NONE and feeds < 2 and not kind & STOP and opening >= 0:
                gap, feeds = False, 0
                # Inside a sentence: skip to the byte before the next stop or line feed.
                while i + 9 <= len(data):
                    differs = load_eight(data, i + 1) ^ (_ONES * np.uint64(_LINE_FEED))
                    found = (~(((differs & _SEVEN) + _SEVEN) | differs) >> np.uint64(7)) & _ONES
                    found |= (load_eight(classes, i + 1) >> np.uint64(5)) & _ONES  # bit 5 is STOP
                    if found:
                        i += count_before_first(found)
                        break
                    i += 8
                continue
            if data[i] & 0xC0 == 0x80:
                continue
            attached = kind & STOP or (kind & (CLOSE | WORD) == CLOSE and not gap)
            ended = ending == _WIDE or (ending == _PLAIN and gap and not kind & LOWER)
            if opening < 0:
                opening = i
            elif feeds > 1 or (ended and not attached):
                ends[sentence - 1] = i
                starts[sentence] = i
                sentence += 1
                ending, opening = _NONE, i
            if kind & STOP and kind & ALONE:
                ending = _WIDE
            elif kind & STOP:
                single = ending == _NONE and data[i] == _FULL_STOP
                if ending == _NONE and not (single and _is_abbreviation(data, classes, opening, i, abbreviations)):
                    ending = _PLAIN
            elif not attached:
                ending = _NONE
            gap, feeds = False, 0
        if begin < end:
            ends[sentence - 1] = end
        counts[d + 1] = sentence
