"""Find lines, line breaks and paragraphs as the filters of other projects define them. Lines are separated by
line feeds only, or by every line break that `str.splitlines` recognises. Paragraphs are separated by two or
more line feeds.
"""

from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.text.eight_bytes import load_eight
from pipelines.kernels.text.tables import SPACE
from pipelines.kernels.text.words import Spans

BY_FEEDS, BY_BREAKS = 1, 2  # a line between line feeds; a line between any breaks of str.splitlines
_LINE_FEED, _RETURN = 10, 13
_HIGH, _TO_HIGH = np.uint64(0x8080808080808080), np.uint64(0x6060606060606060)  # 0x20 + 0x60 sets the highest bit


class StrippedLines(NamedTuple):
    """Non-blank lines of a block without the white space at their ends, disjoint and in text order."""

    starts: np.ndarray  # int32, into the block's bytes
    ends: np.ndarray  # int32
    documents: np.ndarray  # int32
    kinds: np.ndarray  # uint8, of BY_FEEDS and BY_BREAKS


class SplitLines(NamedTuple):
    """The lines and paragraphs of a block, split at line feeds. `feeds` and `breaks` count the line feeds and
    the lines of `str.splitlines` in each document.
    """

    lines: Spans  # re.split("\n+", text), with white space and empty lines at the ends
    paragraphs: Spans  # re.split("\n{2,}", text.strip())
    feeds: np.ndarray  # int64 [documents], line feeds
    breaks: np.ndarray  # int64 [documents], lines of str.splitlines, blank ones included


def find_stripped_lines(data: np.ndarray, classes: np.ndarray, lines: Spans) -> tuple[StrippedLines, StrippedLines]:
    """Return two sets of stripped lines of a block. `lines` are the block's lines between line feeds
    (`segment.find_lines`). The first set holds the lines between line breaks of any kind. The second holds
    those of `lines` that contain a break other than a line feed, without dividing them there.
    """
    most = len(data) // 2 + len(lines.offsets)
    rows = [
        StrippedLines(*(np.empty(most, kind) for kind in (np.int32, np.int32, np.int32, np.uint8))) for _ in range(2)
    ]
    counts = np.zeros(2, np.int64)
    _strip_lines(data, classes, *lines, *rows[0], *rows[1], counts)
    first, second = (
        StrippedLines(*(column[:count] for column in some)) for some, count in zip(rows, counts, strict=True)
    )
    return first, second


def split_lines(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray) -> SplitLines:
    """Split a block of documents at line feeds into lines and paragraphs, and count the line feeds and the
    lines of `str.splitlines` in each document. An empty document has no lines and no paragraphs.
    """
    lines, paragraphs = (
        Spans(np.empty(most, np.int32), np.empty(most, np.int32), np.zeros(len(offsets), np.int64))
        for most in (len(data) // 2 + 2 * len(offsets), len(data) // 3 + 2 * len(offsets))
    )
    feeds, breaks = np.zeros(len(offsets) - 1, np.int64), np.zeros(len(offsets) - 1, np.int64)
    _split_lines(offsets, data, classes, *lines, *paragraphs, feeds, breaks)
    first, second = (
        Spans(spans.starts[: spans.offsets[-1]], spans.ends[: spans.offsets[-1]], spans.offsets)
        for spans in (lines, paragraphs)
    )
    return SplitLines(first, second, feeds, breaks)


def find_breaks(
    data: np.ndarray, ends: np.ndarray, limits: np.ndarray, by_feeds: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Find, for each line k, the first line break in data[ends[k]:limits[k]], where ends[k] is the end of the
    line. Return the starts and the ends of these breaks, int64 [lines] each; both are limits[k] if there is
    none.

    With `by_feeds`, only line feeds are breaks; otherwise every break of str.splitlines is one.
    """
    starts, past = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.int64)
    _find_breaks(data, ends, limits, by_feeds, starts, past)
    return starts, past


@kernel()
def _break(data: np.ndarray, i: int, end: int) -> int:
    """Return the size in bytes of the line break at i, or 0 if there is none. Line breaks are those of
    str.splitlines except line feeds.
    """
    byte = data[i]
    if byte < 0x20:
        return (11 <= byte <= 13) | (28 <= byte <= 30)
    if byte == 0xC2 and i + 1 < end and data[i + 1] == 0x85:
        return 2
    if byte == 0xE2 and i + 2 < end and data[i + 1] == 0x80 and data[i + 2] & 0xFE == 0xA8:
        return 3
    return 0


@kernel()
def _find_breaks(
    data: np.ndarray, ends: np.ndarray, limits: np.ndarray, by_feeds: bool, starts: np.ndarray, past: np.ndarray
) -> None:
    for k in range(len(ends)):
        i, end, size = np.int64(ends[k]), limits[k], 0
        while i < end and not size:
            size = 1 if data[i] == _LINE_FEED else (0 if by_feeds else _break(data, i, end))
            both = size and data[i] == _RETURN and i + 1 < end and data[i + 1] == _LINE_FEED
            starts[k] = i if size else i + 1
            i += max(size, 1) + np.int64(both)
        starts[k] = min(max(starts[k], ends[k]), end)
        past[k] = i


@kernel(inline="always")
def _is_plain(eight: np.uint64) -> bool:
    """Return whether eight bytes are ASCII and none is below 0x20."""
    return (eight | ~(eight + _TO_HIGH)) & _HIGH == 0


@kernel()
def _next_break(data: np.ndarray, i: int, end: int) -> int:
    """Return the position of the first break other than a line feed from i on; `end` if there is none."""
    while i < end:
        while i + 8 <= end and _is_plain(load_eight(data, i)):
            i += 8
        stop = min(i + 8, end)
        while i < stop:
            if (data[i] < 0x20 or data[i] >= 0xC2) and _break(data, i, end):
                return i
            i += 1
    return end


@kernel()
def _strip_lines(
    data: np.ndarray, classes: np.ndarray, line_starts: np.ndarray, line_ends: np.ndarray, line_counts: np.ndarray,
    starts: np.ndarray, ends: np.ndarray, documents: np.ndarray, kinds: np.ndarray, feed_starts: np.ndarray,
    feed_ends: np.ndarray, feed_documents: np.ndarray, feed_kinds: np.ndarray, counts: np.ndarray,
) -> None:  # fmt: skip
    row, feed_row = 0, 0
    for d in range(len(line_counts) - 1):
        for line in range(line_counts[d], line_counts[d + 1]):
            start, end = line_starts[line], line_ends[line]
            if _next_break(data, start, end) == end:
                starts[row], ends[row], documents[row], kinds[row] = start, end, d, BY_FEEDS | BY_BREAKS
                row += 1
                continue
            i, inside, last = start, False, start
            while i < end:
                size = _break(data, i, end) if data[i] < 0x20 or data[i] == 0xC2 or data[i] == 0xE2 else 0
                if size:
                    if inside:
                        ends[row - 1] = last
                        inside = False
                    i += size
                    continue
                if not classes[i] & SPACE:
                    last = i + 1
                    if not inside:
                        starts[row], documents[row], kinds[row] = i, d, BY_BREAKS
                        row += 1
                        inside = True
                i += 1
            ends[row - 1] = end
            feed_starts[feed_row], feed_ends[feed_row] = start, end
            feed_documents[feed_row], feed_kinds[feed_row] = d, BY_FEEDS
            feed_row += 1
    counts[0], counts[1] = row, feed_row


@kernel()
def _split_lines(
    offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, line_starts: np.ndarray, line_ends: np.ndarray,
    line_counts: np.ndarray, paragraph_starts: np.ndarray, paragraph_ends: np.ndarray, paragraph_counts: np.ndarray,
    feeds: np.ndarray, breaks: np.ndarray,
) -> None:  # fmt: skip
    line, paragraph = 0, 0
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        strip_begin, strip_end = begin, end
        while strip_begin < end and classes[strip_begin] & SPACE:
            strip_begin += 1
        while strip_end > strip_begin and classes[strip_end - 1] & SPACE:
            strip_end -= 1
        i, line_begin, paragraph_begin, found, last = begin, begin, strip_begin, 0, begin
        while i < end:
            while i + 8 <= end and _is_plain(load_eight(data, i)):
                i += 8
            if i == end:
                break
            byte = data[i]
            if not (byte < 0x20 or byte == 0xC2 or byte == 0xE2):
                i += 1
                continue
            if byte != _LINE_FEED:
                size = _break(data, i, end)
                # A carriage return and the line feed after it are one break.
                if size and not (byte == _RETURN and i + 1 < end and data[i + 1] == _LINE_FEED):
                    found += 1
                    last = i + size
                i += max(size, 1)
                continue
            run = i + 1
            while run < end and data[run] == _LINE_FEED:
                run += 1
            line_starts[line], line_ends[line] = line_begin, i
            line += 1
            if run - i > 1 and strip_begin < i < strip_end:
                paragraph_starts[paragraph], paragraph_ends[paragraph] = paragraph_begin, i
                paragraph += 1
                paragraph_begin = run
            feeds[d] += run - i
            i = line_begin = last = run
        if begin < end:
            line_starts[line], line_ends[line] = line_begin, end
            paragraph_starts[paragraph], paragraph_ends[paragraph] = paragraph_begin, strip_end
            line += 1
            paragraph += 1
        breaks[d] = found + feeds[d] + (last < end)
        line_counts[d + 1], paragraph_counts[d + 1] = line, paragraph
