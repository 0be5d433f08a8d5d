"""Find the entries of a word list in texts.

Entries and texts have the form of `characters.lower_runs`: lower-cased words joined by one space. An
occurrence begins and ends at a word boundary, or next to a character of a script written without spaces
(Thai, Lao, Burmese, Khmer, kana, Han). Of entries that begin at the same position, the longest counts; the
search resumes after it.
"""

import numpy as np

from gristmill.compilation import kernel

_BASIS, _PRIME = np.uint64(14695981039346656037), np.uint64(1099511628211)  # FNV-1a, 64 bits
_SPACE = 32


@kernel(inline="always")
def _step(value: np.uint64, byte: np.uint8) -> np.uint64:
    return np.uint64((value ^ np.uint64(byte)) * _PRIME)


@kernel()
def index_entries(data: np.ndarray, offsets: np.ndarray, slots: np.ndarray) -> None:
    """Fill the hash table `slots` with the entries data[offsets[e]:offsets[e + 1]]. `slots` is int32 and all
    -1; its length is a power of two above the number of entries.
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
def _has_space_free_script(data: np.ndarray, i: int) -> bool:
    """Return whether the character at byte i is in the main blocks of Thai, Lao, Burmese, Khmer, kana or Han,
    which are written without spaces between words.
    """
    if data[i] < 0xE0:
        return False
    if data[i] >= 0xF0:
        return data[i] == 0xF0 and data[i + 1] >= 0xA0  # from U+20000 on: Han
    code = (np.int64(data[i] & 0xF) << 12) | (np.int64(data[i + 1] & 0x3F) << 6) | np.int64(data[i + 2] & 0x3F)
    return (
        0xE00 <= code <= 0xEFF  # Thai, Lao
        or 0x1000 <= code <= 0x109F  # Burmese
        or 0x1780 <= code <= 0x17FF  # Khmer
        or 0x3040 <= code <= 0x30FF  # Hiragana, Katakana
        or 0x3400 <= code <= 0x4DBF
        or 0x4E00 <= code <= 0x9FFF
        or 0xF900 <= code <= 0xFAFF
    )


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
    entries: np.ndarray, bounds: np.ndarray, slots: np.ndarray, data: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Search each text n, data[offsets[n]:offsets[n + 1]], for the entries. Return occurrences, int64
    [occurrences, 3], and texts, int64 [texts, 2].

    The columns of an occurrence are the index of its text, the number of words before it in the text, and its
    number of bytes. The columns of a text are its number of bytes and its number of words. Spaces are not
    counted as bytes.
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
            free = _has_space_free_script(data, i)
            if free_before or free:
                value, j, spaces = _BASIS, i, 0
                best_spaces = 0
                while j < last and j - i < longest:
                    inside_free = data[j] >= 0xE0 and _has_space_free_script(data, j)
                    spaces += data[j] == _SPACE
                    value = _step(value, data[j])
                    j += 1
                    while j < last and data[j] & 0xC0 == 0x80:
                        value = _step(value, data[j])
                        j += 1
                    ends = inside_free or j == last or data[j] == _SPACE or _has_space_free_script(data, j)
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
