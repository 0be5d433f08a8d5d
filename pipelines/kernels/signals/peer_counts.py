"""Counts over characters, tokens, lines and paragraphs by the rules of datatrove and tfds.

datatrove 0.10.1 counts Gopher's and FineWeb's signals over spaCy's tokens (`tokens`) and over lines and
paragraphs split as in `kernels.text.line_variants`.
"""

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.signals.c4 import count_peer_pages
from pipelines.kernels.signals.counts import STOP_TABLE, count_bits, count_characters, split_columns, stop_word_bit
from pipelines.kernels.signals.distinct import number_spans
from pipelines.kernels.signals.line_signals import count_copies, ends_with_ellipsis, has_bullet, pack_bullets
from pipelines.kernels.signals.repetition import greedy_ngram_chars
from pipelines.kernels.signals.token_tables import HAS_LETTER, IS_SYMBOL, TERMINAL, token_classes
from pipelines.kernels.signals.tokens import Tokens, find_tokens
from pipelines.kernels.text.characters import character_size, classify, code_point
from pipelines.kernels.text.line_variants import StrippedLines, find_stripped_lines, split_lines
from pipelines.kernels.text.phrases import find_phrases
from pipelines.kernels.text.segment import find_lines
from pipelines.kernels.text.tables import SPACE

_PACKED_BULLETS = pack_bullets("•-")
_SHORT = 30  # a line of 30 characters is short; FineWeb's paper says "shorter than 30 characters"

_TOKENS = (
    "tokens_datatrove",
    "letter_tokens_datatrove",
    "words_datatrove",  # tokens other than symbols
    "word_chars_datatrove",
    "stop_words_datatrove",  # how many of counts.STOP_WORDS occur in lower case
)
_UNTRIMMED = (
    "full_lines_datatrove",  # of re.split("\n+"), those that are not blank
    "full_line_chars_copied_datatrove",
    "terminal_lines_datatrove",
    "short_lines_datatrove",
)
_ROWS = ("bullet_rows_datatrove", "ellipsis_rows_datatrove")  # of str.splitlines


def count_peers(offsets: np.ndarray, data: np.ndarray) -> dict[str, np.ndarray]:
    """Count what the rules of datatrove and tfds need for every document in a block. Return the counts keyed
    by name, int64 [documents] each.
    """
    classes = classify(offsets, data)
    tokens = find_tokens(offsets, data, classes)
    lines, _ = find_lines(offsets, data, classes)
    rows, _ = find_stripped_lines(data, classes, lines)
    return {
        **count_characters(offsets, data, classes),
        **_count_tokens_and_ngrams(data, tokens),
        **_count_lines(offsets, data, classes, rows),
        **count_peer_pages(data, classes, tokens, find_phrases(offsets, data), rows, len(offsets) - 1),
    }


def _count_tokens_and_ngrams(data: np.ndarray, tokens: Tokens) -> dict[str, np.ndarray]:
    spans, numbered = tokens.spans, number_spans(data, tokens.spans)
    out = np.zeros((len(spans.offsets) - 1, len(_TOKENS)), np.int64)
    _count_tokens(data, spans.starts, spans.ends, spans.offsets, tokens.kinds, numbered.chars, STOP_TABLE, out)
    ngrams = greedy_ngram_chars(numbered.ids, numbered.chars, spans.offsets)
    return split_columns(_TOKENS, out) | split_columns([f"ngram{n}_datatrove" for n in range(2, 11)], ngrams)


def _count_lines(
    offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, rows: StrippedLines
) -> dict[str, np.ndarray]:
    pieces = split_lines(offsets, data, classes)
    untrimmed = number_spans(data, pieces.lines)
    of_pieces = np.zeros((len(offsets) - 1, len(_UNTRIMMED)), np.int64)
    _count_untrimmed(data, classes, token_classes(), *pieces.lines, untrimmed.ids, untrimmed.chars, of_pieces)
    of_rows = np.zeros((len(offsets) - 1, len(_ROWS)), np.int64)
    _count_rows(data, rows.starts, rows.ends, rows.documents, _PACKED_BULLETS, of_rows)
    return {
        **split_columns(_UNTRIMMED, of_pieces),
        **split_columns(_ROWS, of_rows),
        **count_copies("line_datatrove", pieces.lines, untrimmed),
        **count_copies("paragraph_datatrove", pieces.paragraphs, number_spans(data, pieces.paragraphs)),
        "lines_datatrove": np.diff(pieces.lines.offsets),
        "paragraphs_datatrove": np.diff(pieces.paragraphs.offsets),
        "feeds": pieces.feeds,
        "breaks": pieces.breaks,
    }


@kernel()
def _count_tokens(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray, kinds: np.ndarray,
    token_chars: np.ndarray, stop_words: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    for d in range(len(offsets) - 1):
        with_letter, words, chars, seen = 0, 0, 0, 0
        for token in range(offsets[d], offsets[d + 1]):
            kind = np.int64(kinds[token])
            with_letter += np.int64(kind & HAS_LETTER != 0)
            word = np.int64(kind & IS_SYMBOL == 0)
            words += word
            chars += word * token_chars[token]
            start = np.int64(starts[token])
            seen |= stop_word_bit(data, start, ends[token] - start, np.uint64(0), stop_words)
        out[d, 0], out[d, 1], out[d, 2] = offsets[d + 1] - offsets[d], with_letter, words
        out[d, 3], out[d, 4] = chars, count_bits(seen)


@kernel()
def _count_rows(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, documents: np.ndarray, bullets: np.ndarray, out: np.ndarray
) -> None:
    for row in range(len(starts)):
        out[documents[row], 0] += has_bullet(data, starts[row], ends[row], bullets)
        out[documents[row], 1] += ends_with_ellipsis(data, starts[row], ends[row])


@kernel()
def _last_point(data: np.ndarray, start: int, end: int) -> int:
    """Return the last code point of a non-empty span, or U+FFFD if the span ends in invalid UTF-8."""
    i = end - 1
    if data[i] < 0x80:
        return np.int64(data[i])
    while i > start and end - i < 4 and data[i] & 0xC0 == 0x80:
        i -= 1
    size = end - i
    return code_point(data, i, size) if character_size(data, i, end) == size else 0xFFFD


@kernel()
def _count_untrimmed(
    data: np.ndarray, classes: np.ndarray, table: np.ndarray, starts: np.ndarray, ends: np.ndarray,
    offsets: np.ndarray, ids: np.ndarray, chars: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    for d in range(len(offsets) - 1):
        new = 0
        for line in range(offsets[d], offsets[d + 1]):
            copy = ids[line] < new
            new += not copy
            i, end = starts[line], ends[line]
            while i < end and classes[i] & SPACE:
                i += 1
            if i == end:
                continue
            out[d, 0] += 1
            out[d, 1] += copy * chars[line]
            out[d, 2] += table[_last_point(data, starts[line], end)] & TERMINAL != 0
            out[d, 3] += chars[line] <= _SHORT
