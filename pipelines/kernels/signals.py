"""Counts over segmented documents, from which quality signals are computed. Counts are integers: ratios are the
stage's.

To add a signal: a column in `COUNTS`, the line that counts it in the kernel that already walks those spans, and the
formula in pipelines/stages/quality_signals.py. Signals over repeated spans belong in a kernel of their own over the
same `Segments`.
"""

import numpy as np
from numba import njit

from pipelines.kernels.segment import Segments, pack
from pipelines.kernels.tables import LETTER, SPACE

COUNTS = (
    "chars",  # code points
    "tokens",  # maximal runs of characters that are not white space
    "letter_tokens",  # tokens that hold a letter
    "hashes",  # characters '#'
    "ellipses",  # non-overlapping '...' and characters U+2026
    "words",
    "word_chars",  # code points in words
    "stop_words",  # of STOP_WORDS, how many occur, in any case
    "lines",
    "bullet_lines",  # lines that begin with one of BULLETS
    "ellipsis_lines",  # lines that end with '...' or U+2026
    "paragraphs",
    "sentences",  # 0 where the document is blank
)
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")  # Rae et al. 2021, appendix A.1.1
# The paper says "a bullet point" and no more. Peers: "•" and "-" (datatrove), "*" and "-" (dolma), a longer list (DCLM,
# NeMo Curator). These are the bullets of all of them.
BULLETS = "•‣⁃▶◀◦●○■□▪▫–*-"

_CHARS, _TOKENS, _LETTER_TOKENS, _HASHES, _ELLIPSES, _WORDS, _WORD_CHARS, _STOP_WORDS = range(8)
_LINES, _BULLET_LINES, _ELLIPSIS_LINES, _PARAGRAPHS, _SENTENCES = range(8, 13)
_ELLIPSIS = 0xE280A6
_LONGEST_STOP_WORD = max(map(len, STOP_WORDS))


def _constant(values: list[int]) -> np.ndarray:
    array = np.array(values, np.uint64)
    array.flags.writeable = False
    return array


_PACKED_STOP_WORDS = _constant([pack(word) for word in STOP_WORDS])
_PACKED_BULLETS = _constant([int.from_bytes(bullet.encode(), "big") for bullet in BULLETS])


def count(segments: Segments) -> np.ndarray:
    """The counts of every document of a block, int64 [documents, len(COUNTS)]."""
    out = np.zeros((len(segments.offsets) - 1, len(COUNTS)), np.int64)
    offsets, data, classes, words, lines, paragraphs, sentences = segments
    _count_characters(offsets, data, out)
    _count_ellipses(offsets, data, out)
    _count_tokens(offsets, classes, out)
    _count_words(data, words.starts, words.ends, words.offsets, _PACKED_STOP_WORDS, out)
    _count_lines(data, lines.starts, lines.ends, lines.offsets, _PACKED_BULLETS, out)
    for column, spans in ((_WORDS, words), (_LINES, lines), (_PARAGRAPHS, paragraphs), (_SENTENCES, sentences)):
        out[:, column] = np.diff(spans.offsets)
    out[out[:, _LINES] == 0, _SENTENCES] = 0
    return out


@njit(cache=True)
def _count_characters(offsets: np.ndarray, data: np.ndarray, out: np.ndarray) -> None:
    for d in range(len(offsets) - 1):
        chars, hashes = 0, 0
        for i in range(offsets[d], offsets[d + 1]):
            chars += data[i] & 0xC0 != 0x80
            hashes += data[i] == 35
        out[d, _CHARS], out[d, _HASHES] = chars, hashes


@njit(cache=True)
def _count_ellipses(offsets: np.ndarray, data: np.ndarray, out: np.ndarray) -> None:
    for d in range(len(offsets) - 1):
        begin, dots = offsets[d], 0
        for i in range(begin, offsets[d + 1]):
            if data[i] == 46:
                dots += 1
                if dots == 3:
                    out[d, _ELLIPSES] += 1
                    dots = 0
            else:
                dots = 0
                if data[i] == 0xA6 and i - begin >= 2 and data[i - 1] == 0x80 and data[i - 2] == 0xE2:
                    out[d, _ELLIPSES] += 1


@njit(cache=True)
def _count_tokens(offsets: np.ndarray, classes: np.ndarray, out: np.ndarray) -> None:
    for d in range(len(offsets) - 1):
        tokens, letter_tokens, space, letter = 0, 0, 1, 0
        for i in range(offsets[d], offsets[d + 1]):
            # Counted where a token begins and where it ends, without a branch per byte.
            here = np.int64(classes[i] & SPACE != 0)
            tokens += space & ~here
            letter_tokens += letter & here
            letter = (letter | np.int64(classes[i] & LETTER != 0)) & ~here
            space = here
        out[d, _TOKENS], out[d, _LETTER_TOKENS] = tokens, letter_tokens + letter


@njit(cache=True)
def _count_words(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray, stop_words: np.ndarray, out: np.ndarray
) -> None:
    for d in range(len(offsets) - 1):
        chars, seen = 0, 0
        for word in range(offsets[d], offsets[d + 1]):
            for i in range(starts[word], ends[word]):
                chars += data[i] & 0xC0 != 0x80
            if ends[word] - starts[word] <= _LONGEST_STOP_WORD:
                packed = np.uint64(0)
                for i in range(starts[word], ends[word]):
                    byte = np.uint64(data[i])
                    packed = (packed << np.uint64(8)) | (byte + np.uint64(32 if 65 <= byte <= 90 else 0))
                for k in range(len(stop_words)):
                    seen |= np.int64(packed == stop_words[k]) << k
        out[d, _WORD_CHARS] = chars
        while seen:
            out[d, _STOP_WORDS] += seen & 1
            seen >>= 1


@njit(cache=True)
def _count_lines(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray, bullets: np.ndarray, out: np.ndarray
) -> None:
    for d in range(len(offsets) - 1):
        for line in range(offsets[d], offsets[d + 1]):
            start, end = starts[line], ends[line]
            size = 1 if data[start] < 0x80 else min(3, end - start)
            first, last = np.uint64(0), np.uint64(0)
            for i in range(start, start + size):
                first = (first << np.uint64(8)) | np.uint64(data[i])
            for i in range(max(start, end - 3), end):
                last = (last << np.uint64(8)) | np.uint64(data[i])
            for bullet in bullets:
                out[d, _BULLET_LINES] += first == bullet
            out[d, _ELLIPSIS_LINES] += last == _ELLIPSIS or last == 0x2E2E2E
