"""Count the lines and paragraphs of documents by their properties: how lines begin and end, how long they
are, whether they contain certain phrases, and which lines and paragraphs are duplicates.
"""

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.signals.distinct import SpanNumbers, number_spans
from pipelines.kernels.text.phrases import JAVASCRIPT, LOREM, Hits
from pipelines.kernels.text.segment import Segments
from pipelines.kernels.text.tables import STOP
from pipelines.kernels.text.words import Spans

# The paper says only "a bullet point". Peers: "•" and "-" (datatrove), "*" and "-" (dolma), a longer list
# (DCLM, NeMo Curator). This is the union.
BULLETS = "•‣⁃▶◀◦●○■□▪▫–*-"
_SHORT = 30  # FineWeb, section 3.6: "shorter than 30 characters"

_LINES = (
    "bullet_lines",  # lines that begin with one of BULLETS
    "ellipsis_lines",  # lines that end with '...' or U+2026
    "terminal_lines",  # lines that end with a sentence stop or a quotation mark
    "short_lines",
    "javascript_lines",
)
_ELLIPSIS, _DOTS, _RIGHT_QUOTE, _RIGHT_QUOTES = 0xE280A6, 0x2E2E2E, 0xE28099, 0xE2809D


def pack_bullets(bullets: str) -> np.ndarray:
    """Pack the UTF-8 bytes of each character into one integer, big-endian, uint64 [characters]."""
    packed = np.array([int.from_bytes(bullet.encode(), "big") for bullet in bullets], np.uint64)
    packed.flags.writeable = False
    return packed


_PACKED_BULLETS = pack_bullets(BULLETS)


def count_lines(segments: Segments, hits: Hits) -> dict[str, np.ndarray]:
    """Measure the lines and paragraphs of every document in a block. Return the counts and lengths keyed by
    name, int64 [documents] each.
    """
    data, lines = segments.data, segments.lines
    numbered = number_spans(data, lines)
    out = np.zeros((len(segments.offsets) - 1, len(_LINES)), np.int64)
    _count(data, segments.classes, *lines, numbered.chars, _PACKED_BULLETS, hits.places, hits.kinds, out)
    return {
        **{name: out[:, column] for column, name in enumerate(_LINES)},
        **count_copies("line", lines, numbered),
        **count_copies("paragraph", segments.paragraphs, number_spans(data, segments.paragraphs)),
        "longest_line": _longest(lines, numbered),
        "lorem_ipsums": _hits_per_document(hits, LOREM),
    }


def _hits_per_document(hits: Hits, kind: int) -> np.ndarray:
    before = np.concatenate([[0], np.cumsum(hits.kinds & kind != 0)])
    return np.diff(before[hits.offsets])


def _longest(spans: Spans, numbered: SpanNumbers) -> np.ndarray:
    filled = np.diff(spans.offsets) > 0
    out = np.zeros(len(filled), np.int64)
    if filled.any():
        out[filled] = np.maximum.reduceat(numbered.chars, spans.offsets[:-1][filled])
    return out


def count_copies(name: str, spans: Spans, numbered: SpanNumbers) -> dict[str, np.ndarray]:
    """Count, for each document, the spans that equal an earlier span (`{name}_copies`), their characters
    (`{name}_chars_copied`) and the characters of all spans (`{name}_chars`). Return the counts keyed by these
    names, int64 [documents] each.
    """
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
def ends_with_ellipsis(data: np.ndarray, start: int, end: int) -> bool:
    """Return whether a span ends with '...' or U+2026."""
    last = _last_three(data, start, end)
    return (last == _ELLIPSIS) | (last == _DOTS)


@kernel()
def _last_three(data: np.ndarray, start: int, end: int) -> np.uint64:
    last = np.uint64(0)
    for i in range(max(start, end - 3), end):
        last = (last << np.uint64(8)) | np.uint64(data[i])
    return last


@kernel()
def has_bullet(data: np.ndarray, start: int, end: int, bullets: np.ndarray) -> bool:
    """Return whether a non-empty span begins with one of `bullets`: characters of one or three bytes in
    UTF-8, packed by `pack_bullets`.
    """
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
            out[d, 0] += has_bullet(data, start, end, bullets)
            out[d, 1] += (last == _ELLIPSIS) | (last == _DOTS)
            out[d, 2] += quoted or classes[end - 1] & STOP != 0
            out[d, 3] += chars[line] < _SHORT
            out[d, 4] += phrases & JAVASCRIPT != 0
