"""Decode, encode, classify and lower-case characters, working on the UTF-8 bytes of Arrow buffers."""

from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.text.tables import (
    CASE_IGNORABLE,
    CASED,
    CHANGES,
    CONTINUES,
    DOTTED_I,
    FINAL_SIGMA,
    SIGMA,
    UNSPACED,
    character_classes,
    lower_case,
)

_DOT_ABOVE = 0x307


@kernel()
def character_size(data: np.ndarray, i: int, end: int) -> int:
    """Return the length in bytes of the character at i. It is 1 for a byte that cannot begin a character and
    for a character that `end` cuts off.
    """
    lead = data[i]
    if lead < 0xC2 or lead >= 0xF5:
        return 1
    size = 2 if lead < 0xE0 else (3 if lead < 0xF0 else 4)
    return size if i + size <= end else 1


@kernel()
def code_point(data: np.ndarray, i: int, size: int) -> int:
    """Return the code point of the character of `size` bytes at i, or U+FFFD for a single byte that is not
    ASCII.
    """
    lead = np.int64(data[i])
    if size == 1:
        return lead if lead < 0x80 else 0xFFFD
    second = np.int64(data[i + 1]) & 0x3F
    if size == 2:
        return (lead & 0x1F) << 6 | second
    third = np.int64(data[i + 2]) & 0x3F
    if size == 3:
        return (lead & 0x0F) << 12 | second << 6 | third
    return min((lead & 0x07) << 18 | second << 12 | third << 6 | (np.int64(data[i + 3]) & 0x3F), 0x10FFFF)


@kernel()
def _classify(data: np.ndarray, offsets: np.ndarray, classes: np.ndarray, out: np.ndarray) -> None:
    for d in range(len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        while i < end:
            if data[i] < 0x80:
                out[i] = classes[data[i]]
                i += 1
                continue
            size = character_size(data, i, end)
            # Unrolled: LLVM would vectorise a loop over two or three bytes, which is five times slower.
            out[i] = kind = classes[code_point(data, i, size)]
            if size > 1:
                out[i + 1] = kind
            if size > 2:
                out[i + 2] = kind
            if size > 3:
                out[i + 3] = kind
            i += size


def classify(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return, for each byte of a block of documents, the class bits of the character it belongs to, uint8
    [bytes].
    """
    out = np.empty(len(data), np.uint8)
    _classify(data, offsets, character_classes(), out)
    return out


class Runs(NamedTuple):
    """Lower-cased documents, split into runs. A run ends before the next space or at the end of its document."""

    data: np.ndarray  # uint8
    offsets: np.ndarray  # int64 [documents + 1], into data
    starts: np.ndarray  # int32 [runs], into data
    run_offsets: np.ndarray  # int64 [documents + 1], into starts


def lower_runs(offsets: np.ndarray, data: np.ndarray, keep: int) -> Runs:
    r"""Lower-case documents and keep only runs of characters that have a bit of `keep`, joined by one space.

    - keep=IN_WORD gives exactly `" ".join(re.findall(r"\w+", text.lower()))`.
    - keep=IN_TOKEN gives exactly `" ".join(text.lower().split())`.
    - CONTINUES keeps marks and joiners in the word before them; `\w+` cuts हिन्दी into three.
    - UNSPACED makes each letter of a script without spaces between words, with its marks, a separate run.
    - keep=UNITS combines IN_WORD, CONTINUES and UNSPACED: the units of shingles.

    Lower-casing is that of the running Python: İ becomes i and a combining dot (which is not `\w`, so with
    keep=IN_WORD it ends the word), and a capital sigma at the end of a word becomes ς.
    """
    lower, bits = lower_case()
    n = len(offsets) - 1
    # İ, Ⱥ and Ⱦ grow from two bytes to three, a unit of three bytes by one or two spaces; nothing grows more.
    # The kernel writes one byte beyond what it keeps.
    out = np.empty(2 * len(data) + 2, np.uint8)
    starts = np.empty(len(data) // 2 + n + 1, np.int32)
    out_offsets, run_offsets = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    _lower_runs(data, offsets, lower, bits, keep, out, out_offsets, starts, run_offsets)
    return Runs(out[: out_offsets[n]], out_offsets, starts[: run_offsets[n]], run_offsets)


@kernel()
def is_final_sigma(data: np.ndarray, begin: int, i: int, end: int, bits: np.ndarray) -> bool:
    """Return whether the sigma at byte i meets Unicode's condition Final_Sigma in the text data[begin:end]."""
    j = i
    kind = np.uint8(CASE_IGNORABLE)
    while kind & CASE_IGNORABLE:
        if j == begin:
            return False
        j -= 1
        while j > begin and data[j] & 0xC0 == 0x80:
            j -= 1
        kind = bits[code_point(data, j, character_size(data, j, end))]
    if not kind & CASED:
        return False
    j = i + 2
    while j < end:
        size = character_size(data, j, end)
        kind = bits[code_point(data, j, size)]
        if not kind & CASE_IGNORABLE:
            return not kind & CASED
        j += size
    return True


@kernel()
def encode(point: int, out: np.ndarray, at: int) -> int:
    """Write a code point to `out` as UTF-8, starting at position `at`. Return the position after its last
    byte.
    """
    if point < 0x80:
        out[at] = point
        return at + 1
    if point < 0x800:
        out[at] = 0xC0 | (point >> 6)
    else:
        if point < 0x10000:
            out[at] = 0xE0 | (point >> 12)
        else:
            out[at] = 0xF0 | (point >> 18)
            at += 1
            out[at] = 0x80 | ((point >> 12) & 0x3F)
        at += 1
        out[at] = 0x80 | ((point >> 6) & 0x3F)
    out[at + 1] = 0x80 | (point & 0x3F)
    return at + 2


@kernel()
def _lower_one(
    data: np.ndarray,
    begin: int,
    i: int,
    end: int,
    point: int,
    lower: np.ndarray,
    bits: np.ndarray,
    out: np.ndarray,
    at: int,
) -> int:
    if point == SIGMA and is_final_sigma(data, begin, i, end, bits):
        return encode(FINAL_SIGMA, out, at)
    return encode(lower[point], out, at)


@kernel()
def _skip_marks(data: np.ndarray, i: int, end: int, bits: np.ndarray) -> int:
    """Return the position of the first character from i on that does not continue a word, or `end` if all do."""
    while i < end and data[i] >= 0x80:
        size = character_size(data, i, end)
        if not bits[code_point(data, i, size)] & CONTINUES:
            break
        i += size
    return i


@kernel()
def _lower_runs(
    data: np.ndarray,
    offsets: np.ndarray,
    lower: np.ndarray,
    bits: np.ndarray,
    keep: int,
    out: np.ndarray,
    out_offsets: np.ndarray,
    starts: np.ndarray,
    run_offsets: np.ndarray,
) -> None:
    # One long function because it is one state machine: passing its state through calls costs more than the
    # work itself.
    at, run = 0, 0
    for d in range(len(offsets) - 1):
        i, begin, end, inside = offsets[d], offsets[d], offsets[d + 1], 0
        while i < end:
            # The first dropped character after a run becomes a space, later ones nothing, without a branch
            # per run.
            if data[i] < 0x80:
                kept = np.int64(bits[data[i]] & keep != 0)
                starts[run] = at
                run += kept & ~inside
                out[at] = lower[data[i]] if kept else 32
                at += kept | inside
                inside = kept
                i += 1
                continue
            size = character_size(data, i, end)
            point = code_point(data, i, size)
            kind = np.int64(bits[point])
            if kind & keep & UNSPACED:
                if inside:
                    out[at] = 32
                    at += 1
                starts[run] = at
                run += 1
                after = _skip_marks(data, i + size, end, bits)
                for k in range(i, after):
                    out[at] = data[k]
                    at += 1
                out[at] = 32
                at += 1
                inside, i = 0, after
                continue
            kept = inside if kind & keep & CONTINUES else np.int64(kind & keep != 0)
            starts[run] = at
            run += kept & ~inside
            if not kept:
                out[at] = 32
                at += inside
            elif not kind & CHANGES:
                out[at] = data[i]
                if size > 1:
                    out[at + 1] = data[i + 1]
                if size > 2:
                    out[at + 2] = data[i + 2]
                if size > 3:
                    out[at + 3] = data[i + 3]
                at += size
            else:
                at = _lower_one(data, begin, i, end, point, lower, bits, out, at)
                if point == DOTTED_I and bits[_DOT_ABOVE] & keep:
                    at = encode(_DOT_ABOVE, out, at)
                elif point == DOTTED_I:
                    out[at] = 32
                    at += 1
                    kept = 0
            inside = kept
            i += size
        if at > out_offsets[d] and not inside:
            at -= 1
        out_offsets[d + 1] = at
        run_offsets[d + 1] = run
