"""Find the entries of a word list in texts.

Entries and texts have the form of `characters.lower_runs`: lower-cased words joined by one space. An
occurrence begins and ends at a word boundary, or next to a letter of a script written without spaces. Of
entries that begin at the same position, the longest counts; the search resumes after it.
"""

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.text.characters import code_point
from pipelines.kernels.text.tables import UNSPACED

_BASIS, _PRIME = np.uint64(14695981039346656037), np.uint64(1099511628211)  # FNV-1a, 64 bits
_SPACE = 32


@kernel(inline="always")
def _step(value: np.uint64, byte: np.uint8) -> np.uint64:
    return np.uint64((value ^ np.uint64(byte)) * _PRIME)


@kernel()
def index_entries(data: np.ndarray, offsets: np.ndarray, slots: np.ndarray) -> None:
    """Insert the index of each entry data[offsets[e]:offsets[e + 1]] into the hash table `slots`, which must
    be int32 and filled with -1. Its length must be a power of two greater than the number of entries.
    """
    mask = np.uint64(len(slots) - 1)
    for entry in range(len(offsets) - 1):
        value = _BASIS
        for i in range(offsets[entry], offsets[entry + 1]):
            value = _step(value, data[i])
        slot = np.int64(value & mask)
        while slots[slot] >= 0:
            slot = np.int64((slot + 1) & (len(slots) - 1))
        slots[slot] = entry


@kernel()
def _is_unspaced(data: np.ndarray, i: int, bits: np.ndarray) -> bool:
    """Return whether the character at byte i is a letter of a script without spaces between words."""
    if data[i] < 0xE0:
        return False  # the first such character is U+0E01
    return bits[code_point(data, i, 3 if data[i] < 0xF0 else 4)] & UNSPACED != 0


@kernel()
def _is_entry(
    entries: np.ndarray, bounds: np.ndarray, slots: np.ndarray, value: np.uint64, data: np.ndarray, start: int, end: int
) -> bool:
    mask = len(slots) - 1
    slot = np.int64(value & np.uint64(mask))
    while slots[slot] >= 0:
        first = bounds[slots[slot]]
        if bounds[slots[slot] + 1] - first == end - start:
            i = 0
            while i < end - start and entries[first + i] == data[start + i]:
                i += 1
            if i == end - start:
                return True
        slot = (slot + 1) & mask
    return False


@kernel()
def find_entries(
    entries: np.ndarray,
    bounds: np.ndarray,
    slots: np.ndarray,
    data: np.ndarray,
    offsets: np.ndarray,
    bits: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the entries of a word list in texts, which must be made by `characters.lower_runs`. Text n is
    data[offsets[n]:offsets[n + 1]], and entry e is entries[bounds[e]:bounds[e + 1]]. `slots` is the hash
    table that `index_entries` has filled, and `bits` is the second table of `tables.lower_case`.

    Occurrences do not overlap; of the entries that begin at one place, the longest counts. Return two arrays
    (a length is a number of bytes without spaces):

    - int64 [occurrences, 3]: the index of the text, the number of words before the occurrence, and its length
    - int64 [texts, 2]: the length of each text and its number of words
    """
    count = len(offsets) - 1
    occurrences, texts, number = np.zeros((64, 3), np.int64), np.zeros((count, 2), np.int64), 0
    longest = 0
    for entry in range(len(bounds) - 1):
        longest = max(longest, bounds[entry + 1] - bounds[entry])
    for text in range(count):
        i, last = offsets[text], offsets[text + 1]
        words = 0
        free_before = True  # whether a word may begin at i
        while i < last:
            best = i
            free = _is_unspaced(data, i, bits)
            if free_before or free:
                value, j, spaces = _BASIS, i, 0
                best_spaces = 0
                while j < last and j - i < longest:
                    inside_free = _is_unspaced(data, j, bits)
                    spaces += data[j] == _SPACE
                    value = _step(value, data[j])
                    j += 1
                    while j < last and data[j] & 0xC0 == 0x80:
                        value = _step(value, data[j])
                        j += 1
                    ends = inside_free or j == last or data[j] == _SPACE or _is_unspaced(data, j, bits)
                    if ends and _is_entry(entries, bounds, slots, value, data, i, j):
                        best, best_spaces = j, spaces
                if best > i:
                    if number == len(occurrences):
                        occurrences = np.concatenate((occurrences, np.zeros_like(occurrences)))
                    occurrences[number, 0] = text
                    occurrences[number, 1] = words
                    occurrences[number, 2] = best - i - best_spaces
                    number += 1
                    texts[text, 0] += best - i - best_spaces
                    words += best_spaces
                    free_before = True
                    i = best
                    continue
            free_before = free or data[i] == _SPACE
            words += data[i] == _SPACE
            texts[text, 0] += data[i] != _SPACE
            i += 1
            while i < last and data[i] & 0xC0 == 0x80:
                texts[text, 0] += 1
                i += 1
        texts[text, 1] = words + (offsets[text] < last)
    return occurrences[:number], texts
