"""Find words as byte spans. pipelines/kernels/text/segment.py defines words."""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gristmill.compilation import kernel
from pipelines.kernels.text.eight_bytes import load_eight
from pipelines.kernels.text.tables import ALONE, EXTEND, LETTER, WORD

_FULL_STOP, _COMMA, _APOSTROPHE = 46, 44, 39
_FIRST_OF_QUOTE, _LAST_OF_QUOTE = 0xE2, 0x99  # bytes of U+2019
_GATHER = np.uint64(
    0x0102040810204080
)  # multiplying eight bytes of 0 or 1 by it packs them as bits in the highest byte


class Spans(NamedTuple):
    """Byte spans in a block. Span k is [starts[k], ends[k]). The spans of document d are those from
    offsets[d] to offsets[d + 1] - 1.
    """

    starts: np.ndarray  # int32 [spans], into the block's bytes
    ends: np.ndarray  # int32 [spans]
    offsets: np.ndarray  # int64 [documents + 1]


NO_SPANS = Spans(np.empty(0, np.int32), np.empty(0, np.int32), np.zeros(1, np.int64))


def find_words(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray) -> Spans:
    """Return the words of a block."""
    room = len(data) // 2 + len(offsets) + 1
    # np.empty commits pages only as they are written, so room for the worst case costs nothing on ordinary
    # text.
    edges, counts = np.empty(2 * room, np.int32), np.zeros(len(offsets), np.int64)
    _words(offsets, data, classes, _inside_words(data, classes), room, edges, counts)
    return Spans(edges[: counts[-1]], edges[room : room + counts[-1]], counts)


@intrinsic
def _trailing_zeros(typing: Any, value: Any) -> Any:
    """Return the number of zero bits below the lowest 1 of a non-zero uint64."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


@kernel()
def _joiner(data: np.ndarray, classes: np.ndarray, begin: int, i: int, end: int) -> int:
    """Return the size in bytes of the apostrophe, full stop or comma at i if it continues a word or number,
    else 0.
    """
    size = 1
    if data[i] == 0xE2 and i + 2 < end and data[i + 1] == 0x80 and data[i + 2] == 0x99:
        size = 3
    if i == begin or i + size >= end:
        return 0
    before, after = data[i - 1], data[i + size]
    if data[i] == _FULL_STOP or data[i] == _COMMA:
        return size if 48 <= before <= 57 and 48 <= after <= 57 else 0
    if size == 3 or data[i] == _APOSTROPHE:
        kind = np.int64(classes[i + size])
        return size if classes[i - 1] & (LETTER | EXTEND) and kind & LETTER and not kind & ALONE else 0
    return 0


@kernel()
def _inside_words(data: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return 1 for each byte in a word, joiners included, and 0 elsewhere, uint8 [len(data) + 64]. The result
    is not valid for documents with ALONE or EXTEND characters. The first and last character of a document are
    right only after `_clear_outer_joiners`.

    The main loop has no branches and no integers wider than a byte, so that LLVM vectorises it.
    """
    n = len(data)
    out = np.zeros(n + 64, np.uint8)
    for k in range(min(n, 2)):
        out[k], out[n - 1 - k] = classes[k] & WORD, classes[n - 1 - k] & WORD
    inner, quotes = max(n - 2, 0), np.uint8(0)
    before, here, after, middle = data[:inner], data[1 : inner + 1], data[2 : inner + 2], out[1 : inner + 1]
    kind_before, kind, kind_after = classes[:inner], classes[1 : inner + 1], classes[2 : inner + 2]
    zero, ten = np.uint8(48), np.uint8(10)
    for k in range(inner):
        letters = (kind_before[k] & kind_after[k] & np.uint8(LETTER)) != np.uint8(0)
        digits = (np.uint8(before[k] - zero) < ten) & (np.uint8(after[k] - zero) < ten)
        mark = (here[k] == np.uint8(_FULL_STOP)) | (here[k] == np.uint8(_COMMA))
        joins = ((here[k] == np.uint8(_APOSTROPHE)) & letters) | (mark & digits)
        middle[k] = np.uint8(kind[k] & np.uint8(WORD)) | np.uint8(joins)
    for k in range(inner):
        quotes |= np.uint8((here[k] == np.uint8(0x80)) & (after[k] == np.uint8(_LAST_OF_QUOTE)))
    if quotes:
        for k in range(1, n - 3):
            if data[k] != _FIRST_OF_QUOTE:
                continue
            if data[k + 1] == 0x80 and data[k + 2] == _LAST_OF_QUOTE:
                joined = (classes[k - 1] & classes[k + 3] & LETTER) >> 1
                out[k] = out[k + 1] = out[k + 2] = joined
    return out


@kernel()
def _words(
    offsets: np.ndarray,
    data: np.ndarray,
    classes: np.ndarray,
    insides: np.ndarray,
    room: int,
    edges: np.ndarray,
    counts: np.ndarray,
) -> None:
    edge = 0  # even edges are starts, stored from 0; odd ones are ends, stored from `room`
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        every = np.uint8(0)
        for i in range(begin, end):
            every |= classes[i]
        if every & (ALONE | EXTEND):
            edge = _find_words_anywhere(data, classes, begin, end, room, edges, edge)
        elif begin < end:
            _clear_outer_joiners(data, begin, end, insides)
            edge = _edges(begin, end, insides, room, edges, edge)
        counts[d + 1] = edge // 2


@kernel()
def _clear_outer_joiners(data: np.ndarray, begin: int, end: int, insides: np.ndarray) -> None:
    """Clear in `insides` an apostrophe, full stop or comma that begins or ends a document, since it joins
    nothing.
    """
    if data[begin] < 0x40 and not 48 <= data[begin] <= 57:
        insides[begin] = 0
    if data[end - 1] < 0x40 and not 48 <= data[end - 1] <= 57:
        insides[end - 1] = 0
    for at in (begin, end - 3):
        quote = at >= begin and at + 3 <= end and data[at] == _FIRST_OF_QUOTE and data[at + 1] == 0x80
        if quote and data[at + 2] == _LAST_OF_QUOTE:
            insides[at] = insides[at + 1] = insides[at + 2] = 0


@kernel()
def _edges(begin: int, end: int, insides: np.ndarray, room: int, edges: np.ndarray, edge: int) -> int:
    """Append the start and the end of each run of ones in insides[begin:end] to `edges`, and return the new
    number of edges. `edge` is the number of edges that `edges` already holds. Starts are stored from index 0,
    ends from index `room`. 64 bytes are read at a time, so `insides` must continue at least 63 bytes beyond
    `end`.
    """
    carry = np.uint64(0)
    for at in range(begin, end, 64):
        bits = np.uint64(0)
        for k in range(8):
            bits |= ((load_eight(insides, at + 8 * k) * _GATHER) >> np.uint64(56)) << np.uint64(8 * k)
        if end - at < 64:
            bits &= (np.uint64(1) << np.uint64(end - at)) - np.uint64(1)
        change = bits ^ ((bits << np.uint64(1)) | carry)
        carry = bits >> np.uint64(63)
        while change:
            edges[(edge & 1) * room + (edge >> 1)] = at + _trailing_zeros(change)
            edge += 1
            change &= change - np.uint64(1)
    if carry:
        edges[room + (edge >> 1)] = end
        edge += 1
    return edge


@kernel()
def _find_words_anywhere(
    data: np.ndarray, classes: np.ndarray, begin: int, end: int, room: int, edges: np.ndarray, edge: int
) -> int:
    """Append the edges of the words of a document, which may contain any characters. Return the new number of
    edges.
    """
    begun = ended = edge >> 1
    i, inside, alone = begin, 0, 0
    while i < end:
        kind, byte = np.int64(classes[i]), data[i]
        word = kind & WORD
        if kind & (ALONE | EXTEND) or alone:
            if byte & 0xC0 == 0x80:
                i += 1
                continue
            if kind & EXTEND:
                word &= inside
            elif word and inside and (kind | alone) & ALONE:
                edges[room + ended] = i
                ended += 1
                inside = 0
            alone = (alone if kind & EXTEND else kind & ALONE) if word else 0
        elif (byte == _APOSTROPHE) | (byte == _COMMA) | (byte == _FULL_STOP) | (byte == _FIRST_OF_QUOTE):
            size = _joiner(data, classes, begin, i, end)
            if inside and size:
                i += size
                continue
        # Written at every byte but counted only at edges, which avoids a branch that is mispredicted at every
        # word.
        edges[begun], edges[room + ended] = i, i
        begun += word & ~inside
        ended += inside & ~word
        inside = word
        i += 1
    edges[room + ended] = end
    return 2 * (ended + inside)
