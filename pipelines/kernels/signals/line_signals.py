"""Counts over lines and paragraphs: bullets, endings, lengths, duplicates."""

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.signals.distinct import SpanNumbers, number_spans
from pipelines.kernels.signals.token_tables import TERMINAL, token_classes
from pipelines.kernels.text.line_variants import StrippedLines, split_lines
from pipelines.kernels.text.phrases import JAVASCRIPT, LOREM, Hits
from pipelines.kernels.text.segment import Segments
from pipelines.kernels.text.tables import SPACE, STOP
from pipelines.kernels.text.words import Spans

# The paper says only "a bullet point". Peers: "•" and "-" (datatrove), "*" and "-" (dolma), a longer list
# (DCLM, NeMo Curator). This is the union.
BULLETS = "•‣⁃▶◀◦●○■□▪▫–*-"
_BULLETS_DATATROVE = "•-"
_SHORT = 30  # FineWeb, section 3.6: "shorter than 30 characters"; datatrove: 30 or fewer

_LINES = (
    "bullet_lines",  # lines that begin with one of BULLETS
    "ellipsis_lines",  # lines that end with '...' or U+2026
    "terminal_lines",  # lines that end with a sentence stop or a quotation mark
    "short_lines",
    "javascript_lines",
)
_UNTRIMMED = (
    "full_lines_datatrove",  # of re.split("\n+"), those that are not blank
    "full_line_chars_copied_datatrove",
    "terminal_lines_datatrove",
    "short_lines_datatrove",
)
_ROWS = ("bullet_rows_datatrove", "ellipsis_rows_datatrove")  # of str.splitlines
_ELLIPSIS, _DOTS, _RIGHT_QUOTE, _RIGHT_QUOTES = 0xE280A6, 0x2E2E2E, 0xE28099, 0xE2809D


def _pack_bullets(bullets: str) -> np.ndarray:
    packed = np.array([int.from_bytes(bullet.encode(), "big") for bullet in bullets], np.uint64)
    packed.flags.writeable = False
    return packed


_PACKED_BULLETS, _PACKED_BULLETS_DATATROVE = _pack_bullets(BULLETS), _pack_bullets(_BULLETS_DATATROVE)


def count_lines(segments: Segments, rows: StrippedLines, hits: Hits) -> dict[str, np.ndarray]:
    """Counts over the lines and paragraphs of every document of a block, int64 [documents] each.

    `rows` are the lines by any break, from `line_variants.find_stripped_lines`.
    """
    documents = len(segments.offsets) - 1
    data, classes, lines = segments.data, segments.classes, segments.lines
    pieces, numbered = split_lines(segments.offsets, data, classes), number_spans(data, lines)
    untrimmed = number_spans(data, pieces.lines)
    out, theirs = np.zeros((documents, len(_LINES)), np.int64), np.zeros((documents, len(_UNTRIMMED)), np.int64)
    _count(data, classes, *lines, numbered.chars, _PACKED_BULLETS, hits.places, hits.kinds, out)
    _count_untrimmed(data, classes, token_classes(), *pieces.lines, untrimmed.ids, untrimmed.chars, theirs)
    by_breaks = np.zeros((documents, len(_ROWS)), np.int64)
    _count_rows(data, rows.starts, rows.ends, rows.documents, _PACKED_BULLETS_DATATROVE, by_breaks)
    return {
        **{name: out[:, column] for column, name in enumerate(_LINES)},
        **{name: theirs[:, column] for column, name in enumerate(_UNTRIMMED)},
        **{name: by_breaks[:, column] for column, name in enumerate(_ROWS)},
        **_copy_counts("line", lines, numbered),
        **_copy_counts("paragraph", segments.paragraphs, number_spans(data, segments.paragraphs)),
        **_copy_counts("line_datatrove", pieces.lines, untrimmed),
        **_copy_counts("paragraph_datatrove", pieces.paragraphs, number_spans(data, pieces.paragraphs)),
        "longest_line": _longest(lines, numbered),
        "lines_datatrove": np.diff(pieces.lines.offsets),
        "paragraphs_datatrove": np.diff(pieces.paragraphs.offsets),
        "feeds": pieces.feeds,
        "breaks": pieces.breaks,
        "lorem_ipsums": _hits_per_document(hits, LOREM),
    }


def _hits_per_document(hits: Hits, kind: int) -> np.ndarray:
    before = np.concatenate([[0], np.cumsum(hits.kinds & kind != 0)])
    return np.diff(before[hits.offsets])


def _longest(spans: Spans, numbered: SpanNumbers) -> np.ndarray:
    """Code points of the longest span of each document; 0 if it has none."""
    filled = np.diff(spans.offsets) > 0
    out = np.zeros(len(filled), np.int64)
    if filled.any():
        out[filled] = np.maximum.reduceat(numbered.chars, spans.offsets[:-1][filled])
    return out


def _copy_counts(name: str, spans: Spans, numbered: SpanNumbers) -> dict[str, np.ndarray]:
    """Counts of spans that equal an earlier one, of their characters, and of the characters of all spans."""
    out = np.zeros((len(spans.offsets) - 1, 3), np.int64)
    _count_copies(spans.offsets, numbered.ids, numbered.chars, out)
    return {f"{name}_copies": out[:, 0], f"{name}_chars_copied": out[:, 1], f"{name}_chars": out[:, 2]}


@kernel()
def _count_copies(offsets: np.ndarray, ids: np.ndarray, chars: np.ndarray, out: np.ndarray) -> None:
    for d in range(len(offsets) - 1):
        new = 0
        for k in range(offsets[d], offsets[d + 1]):
            copy = ids[k] < new
            new += not copy
            out[d, 0] += copy
            out[d, 1] += copy * chars[k]
            out[d, 2] += chars[k]


@kernel()
def _last_three(data: np.ndarray, start: int, end: int) -> np.uint64:
    last = np.uint64(0)
    for i in range(max(start, end - 3), end):
        last = (last << np.uint64(8)) | np.uint64(data[i])
    return last


@kernel()
def _has_bullet(data: np.ndarray, start: int, end: int, bullets: np.ndarray) -> bool:
    size = 1 if data[start] < 0x80 else min(3, end - start)
    first, equal = np.uint64(0), False
    for i in range(start, start + size):
        first = (first << np.uint64(8)) | np.uint64(data[i])
    for bullet in bullets:
        equal |= first == bullet
    return equal


@kernel()
def _count(
    data: np.ndarray, classes: np.ndarray, starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray,
    chars: np.ndarray, bullets: np.ndarray, places: np.ndarray, hit_kinds: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    hit = 0
    for d in range(len(offsets) - 1):
        for line in range(offsets[d], offsets[d + 1]):
            start, end = starts[line], ends[line]
            last = _last_three(data, start, end)
            byte = data[end - 1]
            quoted = (byte == 34) | (byte == 39) | (last == _RIGHT_QUOTE) | (last == _RIGHT_QUOTES)
            phrases = 0
            while hit < len(places) and places[hit] < end:
                phrases |= hit_kinds[hit]
                hit += 1
            out[d, 0] += _has_bullet(data, start, end, bullets)
            out[d, 1] += (last == _ELLIPSIS) | (last == _DOTS)
            out[d, 2] += quoted or classes[end - 1] & STOP != 0
            out[d, 3] += chars[line] < _SHORT
            out[d, 4] += phrases & JAVASCRIPT != 0


@kernel()
def _count_rows(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, documents: np.ndarray, bullets: np.ndarray, out: np.ndarray
) -> None:
    for row in range(len(starts)):
        last = _last_three(data, starts[row], ends[row])
        out[documents[row], 0] += _has_bullet(data, starts[row], ends[row], bullets)
        out[documents[row], 1] += (last == _ELLIPSIS) | (last == _DOTS)


@kernel()
def _last_point(data: np.ndarray, start: int, end: int) -> int:
    """The last code point of a non-empty span; U+FFFD for invalid UTF-8."""
    i = end - 1
    if data[i] < 0x80:
        return np.int64(data[i])
    while i > start and end - i < 4 and data[i] & 0xC0 == 0x80:
        i -= 1
    size, lead = end - i, np.int64(data[i])
    if (size == 1) | (lead < 0xC2) | (lead > 0xF4) | (size != 2 + (lead >= 0xE0) + (lead >= 0xF0)):
        return 0xFFFD
    point = lead & (0x7F >> size)
    for k in range(1, size):
        point = point << 6 | (np.int64(data[i + k]) & 0x3F)
    return min(point, 0x10FFFF)


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
