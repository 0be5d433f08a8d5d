"""C4's line rules (Raffel et al. 2020, section 2.2): which test each line of a document meets first.

Three sources, three variants: the paper's words, tensorflow_datasets' text/c4_utils.py and datatrove 0.10.1. All remove
citation markers before they look, and compare phrases in any case of ASCII letters. A line meets, in this order:

| test | paper | tfds | datatrove |
|---|---|---|---|
| lines end at | line feeds | what ends a line for str.splitlines | as tfds |
| long_word: a word of more than 1,000 characters | not tested | tested | tested |
| no_end_mark: it does not end with | `.` `!` `?` `"` U+201D | `.` `?` `!` `"`, or it ends with `...` | as tfds, and `'` |
| few_words: fewer words than | 5 of ours, without markers | 5 between white space, without markers | 3, with markers |
| lorem_ipsum: the page is dropped | by any line at all | by a line that came so far | as tfds |
| javascript: holds "javascript" | tested | tested | tested |
| curly_bracket: `{`, the page is dropped | by any line at all | by a line that came so far | as tfds |
| policy: holds one of the six phrases in `_PHRASES` | tested | tested | tested |

In the codes a line without its markers is not stripped again: "text. [1]" ends with a space and is dropped. The paper's
is.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from pipelines.kernels.segment import Spans
from pipelines.kernels.tables import SPACE

VARIANTS = ("paper", "tfds", "datatrove")
VERDICTS = (
    "kept", "long_word", "no_end_mark", "few_words", "lorem_ipsum", "javascript", "curly_bracket", "policy",
)  # fmt: skip
KEPT, LONG_WORD, NO_END_MARK, FEW_WORDS, LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, POLICY = range(len(VERDICTS))
LONGEST_WORD = 1000
LEAST_WORDS = {"paper": 5, "tfds": 5, "datatrove": 3}

_PAPER, _TFDS, _DATATROVE = range(len(VARIANTS))
_LINE_FEED, _RETURN, _OPENING, _CLOSING = 10, 13, 91, 93
_PHRASES = (
    b"lorem ipsum", b"javascript", b"terms of use", b"privacy policy", b"cookie policy", b"uses cookies", b"use of cookies",
    b"use cookies", b"{", b"[",
)  # fmt: skip
# Where in each phrase its rarest letter stands, for which texts are scanned.
_ANCHORS = np.array([phrase.index(b) for phrase, b in zip(_PHRASES, b"pjfvkkkk{[", strict=True)])
_LOREM, _SCRIPT, _CURLY, _OPENING_BRACKET = 1, 2, 1 << 8, 1 << 9  # bits of the phrases that a line holds
_POLICIES = sum(1 << k for k in range(2, 8))


def _packed(phrases: tuple[bytes, ...]) -> np.ndarray:
    packed = np.zeros((len(phrases), max(map(len, phrases)) + 1), np.uint8)
    for row, phrase in zip(packed, phrases, strict=True):
        row[: len(phrase)] = np.frombuffer(phrase, np.uint8)
    packed.flags.writeable = False
    return packed


def _anchor_bytes() -> np.ndarray:
    """Which bytes may be the anchor of a phrase."""
    table = np.zeros(256, np.bool_)
    for phrase, anchor in zip(_PHRASES, _ANCHORS, strict=True):
        table[[phrase[anchor], ord(chr(phrase[anchor]).upper())]] = True
    return table


_PACKED_PHRASES, _PACKED_MARKERS = _packed(_PHRASES), _packed((b"[edit]", b"[citation needed]"))
_ANCHOR_BYTES = _anchor_bytes()
for _array in (_ANCHORS, _ANCHOR_BYTES):
    _array.flags.writeable = False


class Phrases(NamedTuple):
    """Where a block holds phrases that the tests look for, in the order of their anchors."""

    starts: np.ndarray  # int32
    ends: np.ndarray  # int32
    kinds: np.ndarray  # uint8, into _PHRASES


class C4Lines(NamedTuple):
    """The lines of a block: line k is data[starts[k]:ends[k]], its terminator data[ends[k]:nexts[k]]."""

    offsets: np.ndarray  # int64 [documents + 1]: document d has the lines offsets[d] .. offsets[d + 1] - 1
    starts: np.ndarray  # int32 [lines]
    ends: np.ndarray  # int32 [lines]
    nexts: np.ndarray  # int32 [lines]
    verdicts: np.ndarray  # uint8 [lines], into VERDICTS: the first test that the line meets
    lorem_ipsum: np.ndarray  # int64 [documents], lines that drop the page for the phrase
    curly_brackets: np.ndarray  # int64 [documents], lines that drop the page for the bracket
    clean: np.ndarray  # uint8, the kept lines one after the other, stripped, without citation markers
    clean_classes: np.ndarray  # uint8, like clean: class bits of its characters
    clean_offsets: np.ndarray  # int64 [kept lines + 1], into clean

    def per_document(self, per_kept_line: np.ndarray) -> np.ndarray:
        """Sums over the kept lines of each document, int64 [documents]."""
        before = np.concatenate([[0], np.cumsum(self.verdicts == KEPT)])[self.offsets]
        sums: np.ndarray = np.diff(np.concatenate([[0], np.cumsum(per_kept_line)])[before])
        return sums


def find_phrases(data: np.ndarray) -> Phrases:
    """The phrases of a block, for all variants."""
    room = len(data) // 4 + 1
    while True:
        # np.empty takes pages only as they are written, so room for the worst case costs nothing on ordinary text.
        found = Phrases(np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.uint8))
        count = _find(data, _PACKED_PHRASES, _ANCHORS, _ANCHOR_BYTES, *found)
        if count <= room:
            return Phrases(*(array[:count] for array in found))
        room = count


def c4_lines(
    offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, words: Spans, phrases: Phrases, variant: str
) -> C4Lines:
    """The lines of a block of documents under one variant's tests. `words` are the block's, used by the paper's."""
    room = len(data) + 1
    starts, ends, nexts = (np.empty(room, np.int32) for _ in range(3))
    counts = np.zeros(len(offsets), np.int64)
    _split(offsets, data, variant != "paper", starts, ends, nexts, counts)
    lines = counts[-1]
    starts, ends, nexts = starts[:lines], ends[:lines], nexts[:lines]
    verdicts, held = np.empty(lines, np.uint8), np.zeros(lines, np.uint16)
    clean, clean_classes, clean_ends = np.empty(room, np.uint8), np.empty(room, np.uint8), np.zeros(lines + 1, np.int64)
    kept = _judge(
        data, classes, words.starts, *phrases, _PACKED_PHRASES, _PACKED_MARKERS, VARIANTS.index(variant),
        LEAST_WORDS[variant], starts, ends, verdicts, held, clean, clean_classes, clean_ends,
    )  # fmt: skip
    clean_ends = clean_ends[: kept + 1]
    clean, clean_classes = clean[: clean_ends[-1]], clean_classes[: clean_ends[-1]]
    for array in (clean, clean_classes, clean_ends):  # kernels are compiled for read-only buffers
        array.flags.writeable = False
    drops = (held & _LOREM != 0, held & _CURLY != 0)
    if variant != "paper":
        drops = (verdicts == LOREM_IPSUM, verdicts == CURLY_BRACKET)
    lorem, curly = (np.diff(np.concatenate([[0], np.cumsum(drop)])[counts]) for drop in drops)
    return C4Lines(counts, starts, ends, nexts, verdicts, lorem, curly, clean, clean_classes, clean_ends)


def find_markers(data: np.ndarray, phrases: Phrases, lines: C4Lines) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(line, start, end) of the citation markers in the kept lines of a block, int64, in their order."""
    places = phrases.starts[phrases.kinds == len(_PHRASES) - 1]
    line: np.ndarray = np.searchsorted(lines.starts, places, side="right") - 1
    kept = (lines.verdicts[line] == KEPT) & (places < lines.ends[line])
    line, places = line[kept], places[kept].astype(np.int64)
    sizes = np.zeros(len(places), np.int64)
    _marker_sizes(data, places, lines.ends[line], _PACKED_MARKERS, sizes)
    return line[sizes > 0], places[sizes > 0], (places + sizes)[sizes > 0]


@njit(cache=True)
def _terminator(data: np.ndarray, i: int, end: int) -> int:
    """Bytes of what ends a line for str.splitlines at i; 0 where nothing does."""
    byte = data[i]
    if byte == _RETURN:
        return 2 if i + 1 < end and data[i + 1] == _LINE_FEED else 1
    if 10 <= byte <= 12 or 28 <= byte <= 30:
        return 1
    if byte == 0xC2 and i + 1 < end and data[i + 1] == 0x85:
        return 2
    if byte == 0xE2 and i + 2 < end and data[i + 1] == 0x80 and 0xA8 <= data[i + 2] <= 0xA9:
        return 3
    return 0


@njit(cache=True)
def _split(
    offsets: np.ndarray, data: np.ndarray, universal: bool, starts: np.ndarray, ends: np.ndarray, nexts: np.ndarray,
    counts: np.ndarray,
) -> None:  # fmt: skip
    line = 0
    for d in range(len(offsets) - 1):
        i, start, end = offsets[d], offsets[d], offsets[d + 1]
        while i < end:
            size = 0
            if data[i] == _LINE_FEED:
                size = 1
            elif universal and (data[i] < 32 or data[i] >= 0xC2):
                size = _terminator(data, i, end)
            if size:
                starts[line], ends[line], nexts[line] = start, i, i + size
                line += 1
                start = i + size
            i += max(size, 1)
        if start < end:
            starts[line], ends[line], nexts[line] = start, end, end
            line += 1
        counts[d + 1] = line


@njit(cache=True)
def _marker(data: np.ndarray, i: int, end: int, markers: np.ndarray) -> int:
    """Bytes of a citation marker at the bracket at i; 0 where there is none."""
    k = i + 1
    while k < end and 48 <= data[k] <= 57:
        k += 1
    if k < end and data[k] == _CLOSING:
        return k + 1 - i
    for m in range(len(markers)):
        size = 0
        while size < markers.shape[1] and i + size < end and markers[m, size] and data[i + size] == markers[m, size]:
            size += 1
        if size == markers.shape[1] or markers[m, size] == 0:
            return size
    return 0


@njit(cache=True)
def _marker_sizes(
    data: np.ndarray, places: np.ndarray, ends: np.ndarray, markers: np.ndarray, sizes: np.ndarray
) -> None:
    for k in range(len(places)):
        sizes[k] = _marker(data, places[k], ends[k], markers)


@njit(cache=True)
def _holds(data: np.ndarray, i: int, end: int, phrase: np.ndarray) -> bool:
    """Is the phrase at i, in any case?"""
    for k in range(len(phrase)):
        if phrase[k] == 0:
            return True
        if i + k >= end:
            return False
        byte = data[i + k]
        if byte != phrase[k] and not (65 <= byte <= 90 and byte + 32 == phrase[k]):
            return False
    return True


@njit(cache=True)
def _find(
    data: np.ndarray, phrases: np.ndarray, anchors: np.ndarray, anchor_bytes: np.ndarray, starts: np.ndarray,
    ends: np.ndarray, kinds: np.ndarray,
) -> int:  # fmt: skip
    count = 0
    for i in range(len(data)):
        if not anchor_bytes[data[i]]:
            continue
        byte = data[i] + (32 if 65 <= data[i] <= 90 else 0)
        for k in range(len(phrases)):
            start = i - anchors[k]
            if byte == phrases[k, anchors[k]] and start >= 0 and _holds(data, start, len(data), phrases[k]):
                if count < len(starts):
                    starts[count], ends[count], kinds[count] = start, start + np.sum(phrases[k] != 0), k
                count += 1
    return count


@njit(cache=True)
def _held(data: np.ndarray, begin: int, end: int, phrases: np.ndarray) -> int:
    """Bits of the phrases that [begin, end) holds."""
    found = 0
    for i in range(begin, end):
        for k in range(len(phrases)):
            found |= np.int64(_holds(data, i, end, phrases[k])) << k
    return found


@njit(cache=True)
def _has_long_word(data: np.ndarray, classes: np.ndarray, begin: int, end: int) -> bool:
    length = 0
    for i in range(begin, end):
        length = 0 if classes[i] & SPACE else length + (data[i] & 0xC0 != 0x80)
        if length > LONGEST_WORD:
            return True
    return False


@njit(cache=True)
def _end_mark(data: np.ndarray, begin: int, end: int, variant: int, ellipsis_is_none: bool) -> bool:
    if begin == end:
        return False
    last = data[end - 1]
    if variant == _PAPER and end - begin >= 3 and last == 0x9D and data[end - 2] == 0x80 and data[end - 3] == 0xE2:
        return True
    if variant == _DATATROVE and last == 39:
        return True
    if ellipsis_is_none and last == 46 and end - begin >= 3 and data[end - 2] == 46 and data[end - 3] == 46:
        return False
    return last == 33 or last == 34 or last == 46 or last == 63


@njit(cache=True)
def _judge(
    data: np.ndarray, classes: np.ndarray, word_starts: np.ndarray, phrase_starts: np.ndarray, phrase_ends: np.ndarray,
    phrase_kinds: np.ndarray, phrases: np.ndarray, markers: np.ndarray, variant: int, least_words: int, starts: np.ndarray,
    ends: np.ndarray, verdicts: np.ndarray, held: np.ndarray, clean: np.ndarray, clean_classes: np.ndarray,
    clean_ends: np.ndarray,
) -> int:  # fmt: skip
    kept, word, phrase = 0, 0, 0
    for line in range(len(starts)):
        begin, end = np.int64(starts[line]), np.int64(ends[line])
        while begin < end and classes[begin] & SPACE:
            begin += 1
        while begin < end and classes[end - 1] & SPACE:
            end -= 1
        # In the order of their anchors. One that reaches from one document into the next belongs to no line.
        bits = 0
        while phrase < len(phrase_starts) and phrase_starts[phrase] < end:
            if phrase_starts[phrase] >= begin and phrase_ends[phrase] <= end:
                bits |= 1 << np.int64(phrase_kinds[phrase])
            phrase += 1
        held[line] = bits
        if variant != _PAPER and end - begin > LONGEST_WORD and _has_long_word(data, classes, begin, end):
            verdicts[line] = LONG_WORD
            continue
        if begin == end or (data[end - 1] != _CLOSING and not _end_mark(data, begin, end, variant, False)):
            verdicts[line] = NO_END_MARK
            continue
        while variant == _PAPER and word < len(word_starts) and word_starts[word] < begin:
            word += 1
        # The line without its markers goes to `clean`, where it stays if it is kept.
        first = clean_ends[kept]
        to = first + end - begin
        if bits & _OPENING_BRACKET:
            to, words = _cleaned(
                data, classes, begin, end, markers, word_starts, word, variant, clean, clean_classes, first
            )
            bits = _held(clean, first, to, phrases)
        else:
            clean[first:to], clean_classes[first:to] = data[begin:end], classes[begin:end]
            words = _words(classes, begin, end, word_starts, word, least_words, variant)
        verdicts[line] = _verdict(clean, first, to, words, least_words, bits, variant)
        if verdicts[line] == KEPT:
            kept += 1
            clean_ends[kept] = to
    return kept


@njit(cache=True)
def _words(
    classes: np.ndarray, begin: int, end: int, word_starts: np.ndarray, word: int, enough: int, variant: int
) -> int:
    """The words of a line, but no more than enough; `word` is the first one of ours that may be in it."""
    words = 0
    if variant == _PAPER:
        while words < enough and word + words < len(word_starts) and word_starts[word + words] < end:
            words += 1
        return words
    space = True
    for i in range(begin, end):
        here = classes[i] & SPACE != 0
        words += space and not here
        if words == enough:
            break
        space = here
    return words


@njit(cache=True)
def _cleaned(
    data: np.ndarray, classes: np.ndarray, begin: int, end: int, markers: np.ndarray, word_starts: np.ndarray, word: int,
    variant: int, clean: np.ndarray, clean_classes: np.ndarray, first: int,
) -> tuple[int, int]:  # fmt: skip
    """Copy a line without its markers to `clean`: (where it ends there, its words)."""
    to, last, words, space, i = first, first, 0, True, begin
    while i < end:
        size = _marker(data, i, end, markers) if data[i] == _OPENING else 0
        if size == 0:
            size = 1
            here = classes[i] & SPACE != 0
            words += variant != _PAPER and space and not here
            space = here
            if to > first or not here:
                clean[to], clean_classes[to] = data[i], classes[i]
                to += 1
                last = last if here else to
        elif variant == _DATATROVE:
            for k in range(i, i + size):
                words += space and not classes[k] & SPACE
                space = classes[k] & SPACE != 0
        while variant == _PAPER and word < len(word_starts) and word_starts[word] < i + size:
            words += size == 1
            word += 1
        i += size
    return (last if variant == _PAPER else to), words


@njit(cache=True)
def _verdict(clean: np.ndarray, begin: int, end: int, words: int, least_words: int, held: int, variant: int) -> int:
    if not _end_mark(clean, begin, end, variant, variant != _PAPER):
        return NO_END_MARK
    if words < least_words:
        return FEW_WORDS
    if held & _LOREM and variant != _PAPER:
        return LOREM_IPSUM
    if held & _SCRIPT:
        return JAVASCRIPT
    if held & _CURLY and variant != _PAPER:
        return CURLY_BRACKET
    return POLICY if held & _POLICIES else KEPT
