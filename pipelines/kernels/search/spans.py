"""Find the units of documents (lines, paragraphs or sentences), count their words and hash their normalised
text, for stages that compare and remove them. Windows of consecutive units are hashed, too.
"""

from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.text.characters import classify, lower_runs
from pipelines.kernels.text.eight_bytes import load_eight
from pipelines.kernels.text.segment import find_lines, find_sentences
from pipelines.kernels.text.tables import IN_TOKEN, SPACE
from pipelines.kernels.text.words import find_words

_PRIME1, _PRIME2, _PRIME3 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_PRIME4, _PRIME5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)
_LINE_FEED = 10


class Units(NamedTuple):
    """The units of a block of documents (lines, paragraphs or sentences) in text order. All fields are int64
    [units] except `hashes`. Positions are byte offsets within the document.
    """

    documents: np.ndarray  # index of the document in the block
    starts: np.ndarray
    ends: np.ndarray  # without white space
    feeds: np.ndarray  # position after the last line feed between the previous unit and this one; -1 if there is none
    words: np.ndarray
    hashes: np.ndarray  # uint64, xxh64 (seed 0) of `" ".join(unit.lower().split())` in UTF-8


def find_units(offsets: np.ndarray, data: np.ndarray, unit: str) -> Units:
    """Find the lines, paragraphs or sentences of a block, as defined in pipelines/kernels/text/segment.py."""
    classes = classify(offsets, data)
    if unit == "sentence":
        spans = find_sentences(offsets, data, classes)
    else:
        spans = find_lines(offsets, data, classes)[unit == "paragraph"]
    documents = np.repeat(np.arange(len(offsets) - 1), np.diff(spans.offsets))
    starts, ends = spans.starts.astype(np.int64), spans.ends.astype(np.int64)
    feeds = np.empty(len(starts), np.int64)
    _trim(data, classes, offsets, documents, starts, ends, feeds)
    # Only white space separates units, so the text up to the next unit has the same normalised form.
    bounds = np.append(starts, len(data)) if len(starts) else np.zeros(1, np.int64)
    bounds.flags.writeable = False
    runs = lower_runs(bounds, data, IN_TOKEN)
    words = np.diff(np.searchsorted(find_words(offsets, data, classes).starts, bounds))
    base = offsets[documents]
    feeds = np.where(feeds < 0, -1, feeds - base)
    return Units(documents, starts - base, ends - base, feeds, words, hash_spans(runs.offsets, runs.data))


def hash_spans(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return the xxh64 (seed 0) of each data[offsets[k]:offsets[k + 1]], uint64 [n]."""
    out = np.empty(len(offsets) - 1, np.uint64)
    _hash(offsets, data, out)
    return out


def hash_windows(hashes: np.ndarray, documents: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays: the index of the first unit, int64, and the hash, uint64, of every window of `size`
    consecutive units of a document. A document with fewer units is one window. `documents` holds the document
    index of each unit, ascending.

    The hash of a window is the xxh64 of its units' hashes, little-endian and concatenated. If `size` is 1, it
    is the unit's own hash.
    """
    counts = np.bincount(documents)
    left = np.repeat(np.cumsum(counts), counts) - np.arange(len(documents))
    begins = np.append(True, documents[1:] != documents[:-1])[: len(documents)]
    firsts = np.flatnonzero((left >= size) | begins)
    if size == 1:
        return firsts, hashes
    out = np.empty(len(firsts), np.uint64)
    _hash_windows(firsts, np.minimum(left[firsts], size), hashes.view(np.uint8), out)
    return firsts, out


@kernel()
def _trim(
    data: np.ndarray,
    classes: np.ndarray,
    offsets: np.ndarray,
    documents: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    feeds: np.ndarray,
) -> None:
    for k in range(len(starts)):
        while ends[k] > starts[k] and classes[ends[k] - 1] & SPACE:
            ends[k] -= 1
        low = offsets[documents[k]]
        if k > 0 and documents[k - 1] == documents[k]:
            low = ends[k - 1]
        i = starts[k]
        while i > low and data[i - 1] != _LINE_FEED:
            i -= 1
        feeds[k] = i if i > low else -1


@kernel(inline="always")
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@kernel(inline="always")
def _round(lane: np.uint64, value: np.uint64) -> np.uint64:
    return _rotate(lane + value * _PRIME2, 31) * _PRIME1


@kernel()
def xxh64(data: np.ndarray, i: int, end: int) -> np.uint64:
    """Return the xxh64 (seed 0) of data[i:end]."""
    size = np.uint64(end - i)
    if end - i >= 32:
        lane1, lane2 = _PRIME1 + _PRIME2, _PRIME2
        lane3, lane4 = np.uint64(0), np.uint64(0) - _PRIME1
        while end - i >= 32:
            lane1, lane2 = _round(lane1, load_eight(data, i)), _round(lane2, load_eight(data, i + 8))
            lane3, lane4 = _round(lane3, load_eight(data, i + 16)), _round(lane4, load_eight(data, i + 24))
            i += 32
        value = _rotate(lane1, 1) + _rotate(lane2, 7) + _rotate(lane3, 12) + _rotate(lane4, 18)
        for lane in (lane1, lane2, lane3, lane4):
            value = (value ^ _round(np.uint64(0), lane)) * _PRIME1 + _PRIME4
    else:
        value = _PRIME5
    value += size
    while end - i >= 8:
        value = _rotate(value ^ _round(np.uint64(0), load_eight(data, i)), 27) * _PRIME1 + _PRIME4
        i += 8
    if end - i >= 4:
        four = np.uint64(data[i]) | np.uint64(data[i + 1]) << np.uint64(8)
        four |= np.uint64(data[i + 2]) << np.uint64(16) | np.uint64(data[i + 3]) << np.uint64(24)
        value = _rotate(value ^ four * _PRIME1, 23) * _PRIME2 + _PRIME3
        i += 4
    while i < end:
        value = _rotate(value ^ np.uint64(data[i]) * _PRIME5, 11) * _PRIME1
        i += 1
    value = (value ^ (value >> np.uint64(33))) * _PRIME2
    value = (value ^ (value >> np.uint64(29))) * _PRIME3
    return value ^ (value >> np.uint64(32))


@kernel()
def _hash(offsets: np.ndarray, data: np.ndarray, out: np.ndarray) -> None:
    for k in range(len(out)):
        out[k] = xxh64(data, offsets[k], offsets[k + 1])


@kernel()
def _hash_windows(firsts: np.ndarray, sizes: np.ndarray, data: np.ndarray, out: np.ndarray) -> None:
    for k in range(len(out)):
        out[k] = xxh64(data, 8 * firsts[k], 8 * (firsts[k] + sizes[k]))
