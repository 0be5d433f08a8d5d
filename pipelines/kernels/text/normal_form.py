"""The normal form in which FineWeb compares documents, computed from the bytes of Arrow buffers.

The form follows `simplify_text` in datatrove (FineWeb; Penedo et al. 2024, arXiv 2406.17557). Text is
lower-cased; each number, including its fraction, becomes 0; punctuation, symbols, control characters and all
others of Unicode's category C become spaces; accents are stripped. Runs of spaces are not collapsed.
"""

import functools
import re
import unicodedata

import numpy as np
import pyarrow as pa

from gristmill.compilation import kernel
from pipelines.kernels.text.buffers import blocks, text_buffers
from pipelines.kernels.text.characters import character_size, code_point, encode, is_final_sigma
from pipelines.kernels.text.tables import ASSIGNED, CODE_POINTS, FINAL_SIGMA, SIGMA, SMALL_SIGMA, lower_case

_NUMBER = re.compile(r"\d+(\.\d+)?")
_SPACED = ("P", "S", "C")  # categories of characters that become spaces
_SIZE_BITS = 4  # an entry is a position in the table's bytes, shifted by these bits, and a size
_SPACE = 1  # the first byte of the table
_SAME, _DIGIT, _REORDERED = -1, -2, -3  # entries of characters without a place in the table
_GROWTH = 3  # a Hangul syllable of 3 bytes becomes three letters of 3 bytes; nothing grows more


def fineweb_form(text: str) -> str:
    """Return the normal form of one text. This function defines the form; `fineweb_forms` computes the same
    for a column.
    """
    text = _NUMBER.sub("0", text.lower())
    text = "".join(" " if unicodedata.category(c)[0] in _SPACED else c for c in text)
    return "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")


def fineweb_forms(texts: pa.Array | pa.ChunkedArray) -> pa.LargeStringArray:
    """Return the normal form of each text; the normal form of a null is empty."""
    entries, forms = _forms()
    bits = lower_case()[1]
    sizes, pieces = [np.zeros(1, np.int64)], [np.zeros(0, np.uint8)]
    for _, _, offsets, data in blocks(*text_buffers(texts)):
        out, ends = np.empty(_GROWTH * len(data), np.uint8), np.zeros(len(offsets), np.int64)
        special = np.zeros(len(offsets) - 1, np.bool_)
        _convert(data, offsets, entries, forms, bits, out, ends, special)
        pieces.append(out[: ends[-1]].copy() if not special.any() else _mend(data, offsets, out, ends, special))
        sizes.append(np.diff(ends))
    positions = np.cumsum(np.concatenate(sizes))
    return pa.LargeStringArray.from_buffers(
        len(positions) - 1, pa.py_buffer(positions), pa.py_buffer(np.concatenate(pieces))
    )


def _mend(data: np.ndarray, offsets: np.ndarray, out: np.ndarray, ends: np.ndarray, special: np.ndarray) -> np.ndarray:
    """Return the normal forms of a block's documents as bytes, one after another. `out` and `ends` hold the
    forms that the kernel computed; the `special` documents, which it left out, are computed here. Correct
    `ends` in place.
    """
    pieces, sizes = [], np.diff(ends)
    for row in range(len(special)):
        piece = out[ends[row] : ends[row + 1]]
        if special[row]:
            text = data[offsets[row] : offsets[row + 1]].tobytes().decode()
            piece = np.frombuffer(fineweb_form(text).encode(), np.uint8)
            sizes[row] = len(piece)
        pieces.append(piece)
    ends[1:] = np.cumsum(sizes)
    return np.concatenate(pieces)


@functools.cache
def _forms() -> tuple[np.ndarray, np.ndarray]:
    """Return the table of normal forms as two arrays: an entry for each code point (int32 [0x110000]), and
    the UTF-8 bytes that the entries point into (uint8).

    An entry is _SAME for a character that does not change, _DIGIT for a decimal digit, and _REORDERED for a
    character whose normal form contains a combining mark, because normalisation may move such a mark past
    others. For any other character, the entry gives the position and size of its normal form in those bytes.
    """
    characters = [chr(point) for point in ASSIGNED.tolist()]
    categories = np.array(list(map(unicodedata.category, characters)))
    moves = np.array(list(map(unicodedata.combining, characters))) > 0
    characters[ord("\n")] = " "
    forms = unicodedata.normalize("NFD", "\n".join(characters).lower()).split("\n")
    changes = np.array([form != character for form, character in zip(forms, characters, strict=True)])
    values = np.full(len(ASSIGNED), _SAME, np.int32)
    values[moves] = _REORDERED
    values[categories == "Nd"] = _DIGIT
    table = bytearray(b" ")
    for place in np.flatnonzero((changes | (categories == "Mn")) & (categories != "Nd")).tolist():
        left = "".join(c for c in forms[place] if unicodedata.category(c) != "Mn")
        content = left.encode()
        assert len(content) <= min(_GROWTH * len(characters[place].encode()), (1 << _SIZE_BITS) - 1)
        values[place] = _REORDERED if any(map(unicodedata.combining, left)) else len(table) << _SIZE_BITS | len(content)
        table += content
    values[np.isin(categories.astype("U1"), _SPACED)] = _SPACE
    entries = np.full(CODE_POINTS, _SPACE, np.int32)
    entries[ASSIGNED] = values
    entries.flags.writeable = False
    return entries, np.frombuffer(bytes(table), np.uint8)


@kernel()
def _after_number(data: np.ndarray, i: int, end: int, entries: np.ndarray) -> int:
    """Return the position after the number that begins at i: its digits and, after a point, the digits of its
    fraction.
    """
    points = 0
    while i < end:
        size = character_size(data, i, end)
        if entries[code_point(data, i, size)] == _DIGIT:
            i += size
            continue
        if points or data[i] != 46 or i + 1 == end:
            break
        size = character_size(data, i + 1, end)
        if entries[code_point(data, i + 1, size)] != _DIGIT:
            break
        points = 1
        i += 1 + size
    return i


@kernel()
def _convert(
    data: np.ndarray,
    offsets: np.ndarray,
    entries: np.ndarray,
    forms: np.ndarray,
    bits: np.ndarray,
    out: np.ndarray,
    ends: np.ndarray,
    special: np.ndarray,
) -> None:
    at = 0
    for d in range(len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        while i < end:
            size = 1 if data[i] < 0x80 else character_size(data, i, end)
            point = np.int64(data[i]) if data[i] < 0x80 else code_point(data, i, size)
            entry = entries[point]
            if entry == _SAME:
                out[at] = data[i]
                if size > 1:
                    out[at + 1] = data[i + 1]
                if size > 2:
                    out[at + 2] = data[i + 2]
                if size > 3:
                    out[at + 3] = data[i + 3]
                at += size
                i += size
                continue
            if entry == _DIGIT:
                out[at] = 48
                at += 1
                i = _after_number(data, i, end, entries)
                continue
            if entry == _REORDERED:
                special[d] = True
                at = ends[d]
                break
            if point == SIGMA:
                final = is_final_sigma(data, offsets[d], i, end, bits)
                at = encode(FINAL_SIGMA if final else SMALL_SIGMA, out, at)
                i += size
                continue
            begin = entry >> _SIZE_BITS
            for k in range(entry & ((1 << _SIZE_BITS) - 1)):
                out[at] = forms[begin + k]
                at += 1
            i += size
        ends[d + 1] = at
