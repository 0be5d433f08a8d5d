"""Count the words, lines, characters and n-grams of documents. pipelines/stages/measure/signal_columns.py
computes the quality signals from these counts, which are integers except for `entropy`.

To add a signal, count it in the kernel that walks the spans in question, add its name to that kernel's tuple
of names, and add its formula to pipelines/stages/measure/signal_columns.py.
"""

from collections.abc import Sequence

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.signals.c4 import count_paper_pages
from pipelines.kernels.signals.distinct import number_spans
from pipelines.kernels.signals.line_signals import count_lines
from pipelines.kernels.signals.repetition import SIZES, ngram_chars
from pipelines.kernels.text.eight_bytes import load_eight
from pipelines.kernels.text.phrases import find_phrases
from pipelines.kernels.text.segment import Segments, pack
from pipelines.kernels.text.tables import LETTER, LOWER, SPACE
from pipelines.kernels.text.units import find_kinds, ngram_sizes
from pipelines.kernels.text.words import Spans

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")  # Rae et al. 2021, appendix A.1.1

_CHARACTERS = (
    "continuations",  # bytes that continue a character
    "hashes",  # characters '#'
    "braces",  # characters '{' and '}'
    "numbers",  # characters of the categories N*
    "capitals",  # characters of the category Lu
    "ellipses",  # non-overlapping '...' and characters U+2026
    "letters",  # characters of the categories L*
)
_WORDS = (
    "word_chars",  # code points in words
    "stop_words",  # how many of STOP_WORDS occur, case ignored
    "stop_word_occurrences",
    "capital_words",  # words with a capital letter and no lower-case one
)
_CHUNKS = (
    "chunks",  # maximal runs of characters that are not white space
    "letter_chunks",  # chunks with a letter
)
_ONES, _ALL, _LOWER_CASE = np.uint64(0x0101010101010101), np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0x2020202020202020)
_SEVEN, _PAIRS = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x00FF00FF00FF00FF)
_FLUSH = 255 * 8


def _hash_stop_words() -> tuple[np.ndarray, np.uint64]:
    """Return a perfect hash table of the stop words as little-endian integers, and its factor: the index of a
    word w is (w * factor mod 2^64) >> 61.
    """
    packed = np.array([pack(word[::-1]) for word in STOP_WORDS], np.uint64)
    factor = 1
    while len({(int(word) * factor & 0xFFFFFFFFFFFFFFFF) >> 61 for word in packed}) < len(packed):
        factor = factor * 6364136223846793005 + 1442695040888963407 & 0xFFFFFFFFFFFFFFFF
    table = np.zeros(len(packed), np.uint64)
    table[(packed * np.uint64(factor)) >> np.uint64(61)] = packed
    table.flags.writeable = False
    return table, np.uint64(factor)


STOP_TABLE, _STOP_FACTOR = _hash_stop_words()


def count(segments: Segments) -> dict[str, np.ndarray]:
    """Return the counts for every document in a block, as int64 arrays [documents] keyed by name. Only
    `entropy` is float64: the sum of c ln c over the counts c of a document's distinct words.
    """
    offsets, data, classes, words, lines, paragraphs, sentences = segments
    hits = find_phrases(offsets, data)
    chunks = np.zeros((len(offsets) - 1, len(_CHUNKS)), np.int64)
    _count_chunks(offsets, classes, chunks)
    return {
        "words": np.diff(words.offsets),
        "lines": np.diff(lines.offsets),
        "paragraphs": np.diff(paragraphs.offsets),
        "sentences": np.where(np.diff(lines.offsets) > 0, np.diff(sentences.offsets), 0),
        **count_lines(segments, hits),
        **count_paper_pages(segments, hits),
        **count_characters(offsets, data, classes),
        **split_columns(_CHUNKS, chunks),
        **_count_words_and_ngrams(data, classes, words),
    }


def count_characters(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray) -> dict[str, np.ndarray]:
    """Count the characters of every document in a block, in all (`chars`) and by kind (_CHARACTERS). Return
    the counts keyed by name, int64 [documents] each.
    """
    out = np.zeros((len(offsets) - 1, len(_CHARACTERS)), np.int64)
    _count_characters(offsets, data, classes, out)
    counts = split_columns(_CHARACTERS, out)
    return {**counts, "chars": np.diff(offsets) - counts["continuations"]}


def _count_words_and_ngrams(data: np.ndarray, classes: np.ndarray, words: Spans) -> dict[str, np.ndarray]:
    numbered = number_spans(data, words)
    out = np.zeros((len(words.offsets) - 1, len(_WORDS)), np.int64)
    _count_words(data, classes, words.starts, words.ends, words.offsets, numbered.chars, STOP_TABLE, out)
    counts = split_columns(_WORDS, out)
    counts["distinct_words"] = numbered.distinct
    sizes = ngram_sizes(find_kinds(data, words.starts), words.offsets, SIZES)
    ngrams, counts["entropy"] = ngram_chars(numbered.ids, numbered.chars, words.offsets, sizes)
    return counts | split_columns([f"ngram{n}" for n in range(2, 11)], ngrams)


def split_columns(names: Sequence[str], table: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of an array [rows, names], keyed by name."""
    return {name: table[:, column] for column, name in enumerate(names)}


@kernel(inline="always")
def _first(data: np.ndarray, i: int, size: int) -> np.uint64:
    """Return the bytes data[i : i + size] as a little-endian integer; `size` is 1 to 8."""
    if i + 8 <= len(data):
        return load_eight(data, i) & (_ALL >> np.uint64(64 - 8 * size))
    value = np.uint64(0)
    for k in range(size):
        value |= np.uint64(data[i + k]) << np.uint64(8 * k)
    return value


@kernel(inline="always")
def _sum(flags: np.uint64) -> int:
    """Sum eight bytes, each 0 or 1."""
    return np.int64((flags * _ONES) >> np.uint64(56))


@kernel(inline="always")
def _wide_sum(bytes_: np.uint64) -> int:
    """Sum eight bytes of any value."""
    pairs = (bytes_ & _PAIRS) + ((bytes_ >> np.uint64(8)) & _PAIRS)
    return np.int64((pairs * np.uint64(0x0001000100010001)) >> np.uint64(48))


@kernel(inline="always")
def _equal(eight: np.uint64, byte: int) -> np.uint64:
    """Return eight bytes: 1 where the byte of `eight` equals `byte`, else 0."""
    differs = eight ^ (_ONES * np.uint64(byte))
    return (~(((differs & _SEVEN) + _SEVEN) | differs) >> np.uint64(7)) & _ONES


@kernel()
def _count_characters(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> None:
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        hashes, braces, ellipses, dots = 0, 0, 0, 0
        for first in range(begin, end, _FLUSH):
            # Each integer holds eight sums, one per byte, of up to 255.
            others, numbers, capitals, letters = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
            for i in range(first, min(first + _FLUSH, end), 8):
                size = min(end - i, 8)
                eight, kinds = _first(data, i, size), _first(classes, i, size)
                follows = (eight >> np.uint64(7)) & ~(eight >> np.uint64(6)) & _ONES
                # Class bits, see tables.py: WORD 0, LETTER 1, CLOSE 6, EXTEND 7.
                letter, closing = kinds >> np.uint64(1), kinds >> np.uint64(6)
                others += follows
                numbers += kinds & ~letter & ~closing & ~(kinds >> np.uint64(7)) & ~follows & _ONES
                capitals += letter & closing & ~follows & _ONES
                letters += letter & ~follows & _ONES
                hash_signs, brace_signs = _equal(eight, 35), _equal(eight, 0x7B) | _equal(eight, 0x7D)
                if hash_signs | brace_signs:
                    hashes += _sum(hash_signs)
                    braces += _sum(brace_signs)
                if _equal(eight, 46) | _equal(eight, 0xA6):
                    dots, new = _count_ellipses(data, begin, i, i + size, dots)
                    ellipses += new
                else:
                    dots = 0
            out[d, 0] += _wide_sum(others)
            out[d, 3] += _wide_sum(numbers)
            out[d, 4] += _wide_sum(capitals)
            out[d, 6] += _wide_sum(letters)
        out[d, 1], out[d, 2], out[d, 5] = hashes, braces, ellipses


@kernel()
def _count_ellipses(data: np.ndarray, begin: int, i: int, end: int, dots: int) -> tuple[int, int]:
    """Count the ellipses that end in data[i:end]. Return (number of full stops at the end that may begin a
    '...', number of ellipses). `dots` is the number of such full stops just before i.
    """
    ellipses = 0
    for k in range(i, end):
        if data[k] == 46:
            dots += 1
            if dots == 3:
                ellipses += 1
                dots = 0
        else:
            dots = 0
            ellipses += data[k] == 0xA6 and k - begin >= 2 and data[k - 1] == 0x80 and data[k - 2] == 0xE2
    return dots, ellipses


@kernel(inline="always")
def stop_word_bit(data: np.ndarray, start: int, size: int, lower: np.uint64, table: np.ndarray) -> int:
    """Return 1 shifted left by the index of a stop word in the table, or 0 for any other word. Only the first
    8 bytes of the word are compared, after a bitwise OR with `lower`: 0x2020202020202020 makes the comparison
    ignore the case of ASCII letters, 0 keeps it exact.
    """
    size = min(size, 8)
    packed = _first(data, start, size) | (lower & (_ALL >> np.uint64(64 - 8 * size)))
    index = (packed * _STOP_FACTOR) >> np.uint64(61)
    return np.int64(table[index] == packed) << np.int64(index)


@kernel()
def count_bits(value: int) -> int:
    """Return the number of bits that are set in `value`, which must not be negative."""
    count = 0
    while value:
        count += value & 1
        value >>= 1
    return count


@kernel()
def _count_words(
    data: np.ndarray, classes: np.ndarray, starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray,
    word_chars: np.ndarray, stop_words: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    for d in range(len(offsets) - 1):
        chars, seen, occurrences, capital_words = 0, 0, 0, 0
        for word in range(offsets[d], offsets[d + 1]):
            i, end = np.int64(starts[word]), np.int64(ends[word])
            chars += word_chars[word]
            stop = stop_word_bit(data, i, end - i, _LOWER_CASE, stop_words)
            seen |= stop
            occurrences += stop != 0
            any_of, capitals = np.uint64(0), np.uint64(0)
            # Most words have a lower-case letter in their first bytes, which ends the loop.
            while i < end and not any_of & (_ONES * np.uint64(LOWER)):
                kinds = _first(classes, i, min(end - i, 8))
                any_of |= kinds
                capitals |= (kinds >> np.uint64(1)) & (kinds >> np.uint64(6)) & _ONES
                i += 8
            capital_words += capitals != 0 and not any_of & (_ONES * np.uint64(LOWER))
        out[d, 0], out[d, 1], out[d, 2], out[d, 3] = chars, count_bits(seen), occurrences, capital_words


@kernel()
def _count_chunks(offsets: np.ndarray, classes: np.ndarray, out: np.ndarray) -> None:
    for d in range(len(offsets) - 1):
        chunks, letter_chunks, inside, letter = 0, 0, 0, 0
        for i in range(offsets[d], offsets[d + 1]):
            kind = np.int64(classes[i])
            text = np.int64(kind & SPACE == 0)
            chunks += text & ~inside
            new = np.int64(kind & LETTER != 0) & ~letter
            letter_chunks += new
            inside, letter = text, (letter | new) & text
        out[d, 0], out[d, 1] = chunks, letter_chunks
