"""Measure how much of a document its repeated word n-grams cover.

Distinct n-grams are numbered, so an (n + 1)-gram is identified by the numbers of its two n-grams. An (n +
1)-gram that occurs twice consists of n-grams that occur twice, so each size examines only what the previous
size kept, a small part of ordinary text. N-grams are compared exactly; only words are compared by 64-bit
hashes.

Time and memory are linear in the words of a document.
"""

import numpy as np

from gristmill.compilation import kernel

TOP_SIZES, DUPLICATE_SIZES = (2, 3, 4), (5, 6, 7, 8, 9, 10)  # Rae et al. 2021, table A1
_SIZES = (*TOP_SIZES, *DUPLICATE_SIZES)
_LAST_TOP, _LAST = max(TOP_SIZES), max(DUPLICATE_SIZES)
_TOPS = len(TOP_SIZES)
SIZES = np.array(_SIZES, np.int32)
SIZES.flags.writeable = False
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_LEAST_SLOTS = 1024


def ngram_chars(
    ids: np.ndarray, chars: np.ndarray, offsets: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays: the number of characters in repeated n-grams, int64 [documents, 9], and the sum of c
    ln c over the counts c of the distinct words, float64 [documents].

    For the first three sizes (n = 2, 3, 4 in SIZES), only the most frequent n-gram counts (the first, if
    several are equally frequent); for the other six (n = 5 to 10), every n-gram that occurs at least twice.
    Each word of the text counts only once, even where n-grams overlap.

    The words of document d are those from offsets[d] to offsets[d + 1] - 1. Word w has chars[w] characters.
    ids[w] numbers the distinct words of its document from 0. `sizes`, int32 [documents, 9], holds the nine
    values of n for each document, ascending: SIZES, or the equivalent numbers of units (`units.ngram_sizes`).
    """
    out = np.zeros((len(offsets) - 1, len(_SIZES)), np.int64)
    entropy = np.zeros(len(offsets) - 1)
    _count_repeated(ids, chars, offsets, sizes, *_scratch(offsets), out, entropy)
    return out, entropy


def greedy_ngram_chars(ids: np.ndarray, chars: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Count the characters within repeated n-grams in datatrove's way, int64 [documents, 9]. The arguments
    are as in `ngram_chars`.

    For n = 2, 3, 4 the count is the number of characters of the most frequent n-gram, including the spaces
    between its words, times its occurrences, even if it occurs only once or occurrences overlap. For n = 5 to
    10, a scan from left to right counts the characters, without spaces, of every n-gram that it has met
    before, and skips its words. After a new n-gram, it advances by one word.
    """
    out = np.zeros((len(offsets) - 1, len(_SIZES)), np.int64)
    _count_greedily(ids, chars, offsets, *_scratch(offsets), out)
    return out


def _scratch(offsets: np.ndarray) -> tuple[np.ndarray, ...]:
    most = int(np.diff(offsets).max(initial=0))
    slots = max(_LEAST_SLOTS, 1 << (2 * most).bit_length())
    # np.empty commits pages only as they are written, so room for the worst case costs nothing on ordinary
    # text.
    return (
        np.empty(slots, np.int32),
        np.empty(most + 1, np.uint64),  # key of each n-gram, by number
        np.empty(most + 1, np.int32),  # its occurrences
        np.empty(most + 1, np.int32),  # where the remaining n-grams begin
        np.empty(most + 1, np.int32),  # their numbers
        np.empty(most + 1, np.int32),  # characters before each word
    )


@kernel()
def _slot(key: np.uint64, mask: np.uint64) -> np.uint64:
    key = (key ^ (key >> np.uint64(29))) * _MIX
    return (key >> np.uint64(32)) & mask


@kernel()
def _grow(slots: np.ndarray, size: int, keys: np.ndarray, count: int) -> int:
    size *= 2
    slots[:size] = -1
    mask = np.uint64(size - 1)
    for number in range(count):
        at = _slot(keys[number], mask)
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = number
    return size


@kernel()
def _find_repeated_words(
    ids: np.ndarray, chars: np.ndarray, begin: int, end: int, counts: np.ndarray, places: np.ndarray,
    numbers: np.ndarray, before: np.ndarray,
) -> int:  # fmt: skip
    """Write the count of each distinct word of a document, the places and numbers of the words that occur
    more than once, and the characters before each word. Return the number of places.
    """
    before[0] = 0
    for k in range(end - begin):
        counts[k] = 0
    for k in range(end - begin):
        before[k + 1] = before[k] + chars[begin + k]
        counts[ids[begin + k]] += 1
    left = 0
    for k in range(end - begin):
        places[left], numbers[left] = k, ids[begin + k]
        left += counts[numbers[left]] > 1
    return left


@kernel()
def _extend_ngrams(
    left: int, slots: np.ndarray, keys: np.ndarray, counts: np.ndarray, places: np.ndarray, numbers: np.ndarray
) -> tuple[int, int]:
    """Replace the repeated n-grams in `places` and `numbers` with (n + 1)-grams, each made of two repeated
    n-grams at successive places. No other (n + 1)-gram can be repeated. Count each distinct (n + 1)-gram in
    `counts`, and return (number of occurrences, number of distinct (n + 1)-grams).
    """
    size, distinct, kept = _LEAST_SLOTS, 0, 0
    slots[:size] = -1
    mask = np.uint64(size - 1)
    for k in range(left - 1):
        if places[k + 1] != places[k] + 1:
            continue
        key = np.uint64(numbers[k]) << np.uint64(32) | np.uint64(numbers[k + 1])
        at = _slot(key, mask)
        while slots[at] >= 0 and keys[slots[at]] != key:
            at = (at + np.uint64(1)) & mask
        number = slots[at]
        if number < 0:
            number = slots[at] = distinct
            keys[number], counts[number] = key, 0
            distinct += 1
            if 3 * distinct > 2 * size:
                size = _grow(slots, size, keys, distinct)
                mask = np.uint64(size - 1)
        counts[number] += 1
        places[kept], numbers[kept] = places[k], number
        kept += 1
    return kept, distinct


@kernel()
def _keep_repeated(left: int, counts: np.ndarray, places: np.ndarray, numbers: np.ndarray) -> int:
    kept = 0
    for k in range(left):
        places[kept], numbers[kept] = places[k], numbers[k]
        kept += counts[numbers[k]] > 1
    return kept


@kernel()
def _count_repeated(
    ids: np.ndarray, chars: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, slots: np.ndarray, keys: np.ndarray,
    counts: np.ndarray, places: np.ndarray, numbers: np.ndarray, before: np.ndarray, out: np.ndarray,
    entropy: np.ndarray,
) -> None:  # fmt: skip
    for d in range(len(offsets) - 1):
        left = _find_repeated_words(ids, chars, offsets[d], offsets[d + 1], counts, places, numbers, before)
        for k in range(offsets[d + 1] - offsets[d]):
            if counts[k] > 1:
                entropy[d] += counts[k] * np.log(counts[k])
        size = 0
        for n in range(2, sizes[d, -1] + 1):
            left, distinct = _extend_ngrams(left, slots, keys, counts, places, numbers)
            left = _keep_repeated(left, counts, places, numbers)
            if left == 0:
                break
            if n < sizes[d, size]:
                continue
            top = -1
            if size < _TOPS:
                top = np.argmax(counts[:distinct])
            covered, until = 0, 0
            for k in range(left):
                if top < 0 or numbers[k] == top:
                    covered += np.int64(before[places[k] + n]) - before[max(places[k], until)]
                    until = places[k] + n
            out[d, size] = covered
            size += 1


@kernel()
def _count_greedily(
    ids: np.ndarray, chars: np.ndarray, offsets: np.ndarray, slots: np.ndarray, keys: np.ndarray, counts: np.ndarray,
    places: np.ndarray, numbers: np.ndarray, before: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    for d in range(len(offsets) - 1):
        total = offsets[d + 1] - offsets[d]
        left = _find_repeated_words(ids, chars, offsets[d], offsets[d + 1], counts, places, numbers, before)
        for n in range(2, _LAST + 1):
            left, distinct = _extend_ngrams(left, slots, keys, counts, places, numbers)
            left = _keep_repeated(left, counts, places, numbers)
            if n <= _LAST_TOP:
                if total >= n:
                    out[d, n - 2] = before[n] + n - 1
                if left > 0:
                    top = np.argmax(counts[:distinct])
                    first = 0
                    while numbers[first] != top:
                        first += 1
                    size = np.int64(before[places[first] + n]) - before[places[first]] + n - 1
                    out[d, n - 2] = size * counts[top]
                continue
            if left == 0:
                break
            free = 0
            for k in range(left):
                if places[k] < free:
                    continue
                if counts[numbers[k]] < 0:
                    out[d, n - 2] += before[places[k] + n] - before[places[k]]
                    free = places[k] + n
                counts[numbers[k]] = -1
