"""Find, for each window of `size` bytes in a set of blocks, the first block that contains the same bytes.

Only blocks with the same key, usually their minimizer (see substrings.py), are compared. A **run** is a range
of windows of one block whose first occurrences are consecutive windows of one earlier block.
"""

from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.text.eight_bytes import load_eight

_DIGITS, _DIGIT = 8, 256  # 64-bit keys are sorted by one byte after the other
_BASE = np.uint64(0x9E3779B97F4A7C15)
_ZERO = np.uint64(0)


class WindowRuns(NamedTuple):
    """Runs of windows that occur in an earlier block with the same key, int64 [runs]. `elect_windows` orders
    them by key, block and window.
    """

    blocks: np.ndarray  # index of the block
    lows: np.ndarray  # the first window of the run in it, from 0
    highs: np.ndarray  # after the last one
    owners: np.ndarray  # index of the block that has them first
    shifts: np.ndarray  # window w of the block is window w + shift of its owner


def sort_by(*keys: np.ndarray) -> np.ndarray:
    """Return the indices that sort rows by several uint64 keys, the first of which is the most significant.
    Equal rows keep their order.
    """
    order = np.arange(len(keys[0]))
    for key in reversed(keys):
        values = key[order]
        _radix_sort(values, order, np.empty_like(values), np.empty_like(order))
    return order


def changes(values: np.ndarray) -> np.ndarray:
    """Return for each value whether it is the first or differs from the value before it, bool [n]."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def index_keys(keys: np.ndarray) -> np.ndarray:
    """Return an open-addressing hash table of distinct uint64 keys: an int64 array whose slots hold indices
    into `keys`, or -1 if free.
    """
    slots = np.full(1 << max(1, (2 * len(keys)).bit_length()), -1, np.int64)
    _index_keys(keys, slots)
    return slots


def find_keys(keys: np.ndarray, slots: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the index in `keys` of each wanted key, or -1 if it is missing. `slots` is the result of
    `index_keys`.
    """
    found = np.empty(len(wanted), np.int64)
    _find_keys(keys, slots, wanted, found)
    return found


def first_equal(data: np.ndarray, begins: np.ndarray, lengths: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Return, for each range, the index of the first range with the same bytes, int64 [n]. This is the
    range's own index if no earlier range has those bytes.

    Range k is data[begins[k]:begins[k] + lengths[k]]. Every range must have at least eight bytes, and equal
    ranges must have equal hashes (uint64).
    """
    order = sort_by(hashes)
    first = np.empty(len(order), np.int64)
    _first_equal(data, begins, lengths, hashes, order, first)
    return first


def copy_ranges(data: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the ranges data[begins[k]:begins[k] + lengths[k]], concatenated."""
    copied = np.empty(int(lengths.sum()), np.uint8)
    _copy_ranges(data, begins, lengths, copied)
    return copied


def elect_windows(keys: np.ndarray, offsets: np.ndarray, data: np.ndarray, size: int) -> WindowRuns:
    """Find the runs of windows that occur in an earlier block with the same key (uint64). Block k is
    data[offsets[k]:offsets[k + 1]]; it must have at least `size` bytes, and `size` must be at least 8.
    """
    order = sort_by(keys)
    bounds = np.append(np.flatnonzero(changes(keys[order])), len(keys))
    counts = np.diff(offsets) - size + 1
    windows = np.add.reduceat(counts[order], bounds[:-1]) if len(keys) else counts
    largest = int(windows[np.diff(bounds) > 1].max(initial=0))
    slots = 1 << (2 * largest).bit_length()
    table = np.empty(slots, np.uint64), np.empty(slots, np.int64), np.empty(slots, np.int64)
    room, found = 2 * len(keys), len(keys) * 2 + 1
    while found > room:  # one round, but for blocks with many runs each
        room = max(room, found)
        columns = np.empty((5, room), np.int64)
        found = _elect_windows(order, bounds, windows, offsets, data, size, *table, columns)
    return WindowRuns(*columns[:, :found])


def find_repeats(
    documents: np.ndarray, starts: np.ndarray, counts: np.ndarray, numbers: np.ndarray, runs: WindowRuns, size: int
) -> tuple[np.ndarray, ...]:
    """Find the ranges of windows of a part that also occur earlier, in the same part or in an earlier one. A
    window is `size` bytes of a document; its number is the byte offset at which it starts. A window that
    overlaps its first occurrence does not count as repeated.

    Return four int64 arrays [ranges]: the document, the first window, the window after the last, and the
    winner of each range. The winner is the document in which the range's first window first occurs, or -1 - r
    if that window is in a run r whose owner is -1.

    The windows are given in blocks, in the order of the text. Block k consists of counts[k] consecutive
    windows of the document documents[k], the first of them at starts[k]. `numbers` contains the number of
    each block's content: 0, 1, ... in the order of first occurrence, so equal blocks have the same number.

    `runs` must be sorted by block, then by first window. Its `blocks` and `owners` hold the numbers of
    blocks' contents; an owner is -1 if the run's windows first occur in an earlier part.
    """
    firsts = np.flatnonzero(numbers > np.append(-1, np.maximum.accumulate(numbers))[:-1])
    bounds = np.searchsorted(runs.blocks, np.arange(len(firsts) + 1))
    room, found = len(numbers), len(numbers) + 1
    while found > room:
        room = max(room, found)
        ranges = np.empty((4, room), np.int64)
        found = _find_repeats(documents, starts, counts, numbers, firsts, bounds, *runs[1:], size, ranges)
    return tuple(ranges[:, :found])


@kernel()
def _radix_sort(keys: np.ndarray, order: np.ndarray, next_keys: np.ndarray, next_order: np.ndarray) -> None:
    """Sort `keys`, and `order` with them, stably and in place. The other two arrays are scratch space."""
    counts = np.zeros((_DIGITS, _DIGIT), np.int64)
    for k in range(len(keys)):
        key = keys[k]
        for digit in range(_DIGITS):
            counts[digit, key & np.uint64(255)] += 1
            key >>= np.uint64(8)
    turns = 0
    for digit in range(_DIGITS):
        shift = np.uint64(8 * digit)
        if len(keys) and counts[digit, (keys[0] >> shift) & np.uint64(255)] == len(keys):
            continue  # all keys have the same byte here
        places, place = counts[digit], 0
        for value in range(_DIGIT):
            place, places[value] = place + places[value], place
        for k in range(len(keys)):
            value = (keys[k] >> shift) & np.uint64(255)
            place = places[value]
            places[value] = place + 1
            next_keys[place], next_order[place] = keys[k], order[k]
        keys, next_keys, order, next_order = next_keys, keys, next_order, order
        turns += 1
    if turns % 2:
        next_keys[:], next_order[:] = keys, order


@kernel(inline="always")
def _slot_of(keys: np.ndarray, slots: np.ndarray, key: np.uint64) -> np.uint64:
    """Return the slot of a key, or the free slot where it belongs."""
    mask = np.uint64(len(slots) - 1)
    slot = (key * _BASE >> np.uint64(20)) & mask
    while slots[slot] >= 0 and keys[slots[slot]] != key:
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel()
def _index_keys(keys: np.ndarray, slots: np.ndarray) -> None:
    for k in range(len(keys)):
        slots[_slot_of(keys, slots, keys[k])] = k


@kernel()
def _find_keys(keys: np.ndarray, slots: np.ndarray, wanted: np.ndarray, found: np.ndarray) -> None:
    for k in range(len(wanted)):
        found[k] = slots[_slot_of(keys, slots, wanted[k])]


@kernel(inline="always")
def _equal(data: np.ndarray, one: int, other: int, length: int) -> bool:
    """Return whether data[one:one + length] and data[other:other + length] are equal. `length` must be at
    least 8.
    """
    i = 0
    while i + 8 <= length:
        if load_eight(data, one + i) != load_eight(data, other + i):
            return False
        i += 8
    return load_eight(data, one + length - 8) == load_eight(data, other + length - 8)


@kernel()
def _first_equal(
    data: np.ndarray,
    begins: np.ndarray,
    lengths: np.ndarray,
    hashes: np.ndarray,
    order: np.ndarray,
    first: np.ndarray,
) -> None:
    low = 0
    for k in range(len(order)):
        block = order[k]
        if hashes[block] != hashes[order[low]]:
            low = k
        first[block] = block
        for j in range(low, k):  # one comparison, unless different bytes have the same hash
            other = order[j]
            if (
                first[other] == other
                and lengths[other] == lengths[block]
                and _equal(data, begins[block], begins[other], lengths[block])
            ):
                first[block] = other
                break


@kernel()
def _copy_ranges(data: np.ndarray, begins: np.ndarray, lengths: np.ndarray, copied: np.ndarray) -> None:
    at = 0
    for k in range(len(begins)):
        copied[at : at + lengths[k]] = data[begins[k] : begins[k] + lengths[k]]
        at += lengths[k]


@kernel()
def _elect_windows(
    order: np.ndarray,
    bounds: np.ndarray,
    windows: np.ndarray,
    offsets: np.ndarray,
    data: np.ndarray,
    size: int,
    tags: np.ndarray,
    places: np.ndarray,
    holders: np.ndarray,
    runs: np.ndarray,
) -> int:
    """Write as many runs to `runs` as fit, and return how many there are in total."""
    found, leaving = 0, np.uint64(1)
    for _ in range(size - 1):
        leaving *= _BASE
    for group in range(len(bounds) - 1):
        if bounds[group + 1] - bounds[group] < 2:
            continue
        slots = 1
        while slots <= windows[group]:
            slots *= 2
        slots, bits = 2 * slots, 0
        while 1 << bits < slots:
            bits += 1
        shift, mask = np.uint64(64 - bits), np.uint64(slots - 1)
        places[:slots] = -1
        for k in range(bounds[group], bounds[group + 1]):
            block = order[k]
            begin, end = offsets[block], offsets[block + 1]
            tag, owner, before = _ZERO, -1, -1
            for i in range(begin, begin + size - 1):
                tag = tag * _BASE + np.uint64(data[i])
            for place in range(begin, end - size + 1):
                tag = tag * _BASE + np.uint64(data[place + size - 1])
                slot = ((tag ^ (tag >> np.uint64(32))) * _BASE) >> shift
                while places[slot] >= 0:
                    other = places[slot]
                    if tags[slot] == tag:
                        if holders[slot] == owner and other == before + 1:
                            if data[other + size - 1] == data[place + size - 1]:
                                break
                        elif _equal(data, place, other, size):
                            break
                    slot = (slot + np.uint64(1)) & mask
                if places[slot] < 0:
                    tags[slot], places[slot], holders[slot], owner = tag, place, block, -1
                elif holders[slot] == owner and places[slot] == before + 1:
                    before += 1
                    if found <= runs.shape[1]:
                        runs[2, found - 1] += 1
                else:
                    owner, before = holders[slot], places[slot]
                    if found < runs.shape[1]:
                        low = place - begin
                        runs[0, found], runs[1, found], runs[2, found] = block, low, low + 1
                        runs[3, found], runs[4, found] = owner, before - offsets[owner] - low
                    found += 1
                tag -= leaving * np.uint64(data[place])
    return found


@kernel()
def _find_repeats(
    documents: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    numbers: np.ndarray,
    firsts: np.ndarray,
    bounds: np.ndarray,
    lows: np.ndarray,
    highs: np.ndarray,
    owners: np.ndarray,
    shifts: np.ndarray,
    size: int,
    ranges: np.ndarray,
) -> int:
    """Write as many ranges to `ranges` as fit, and return how many there are in total."""
    found, last, reach = 0, -1, -1  # of ranges; the document and the end of the last range
    for k in range(len(numbers)):
        number, low = numbers[k], 0
        run = bounds[number]
        while low < counts[k]:
            # The next run, or the windows before it, which occur here first.
            given = run < bounds[number + 1] and lows[run] == low
            if given:
                high, owner, shift = highs[run], owners[run], shifts[run]
            else:
                high = lows[run] if run < bounds[number + 1] else counts[k]
                owner, shift = number, 0
            if owner < 0:
                repeats, winner = True, -1 - run
            else:
                winner = documents[firsts[owner]]
                repeats = winner != documents[k] or starts[firsts[owner]] + shift + size <= starts[k]
            if repeats:
                if documents[k] == last and starts[k] + low == reach:
                    reach = starts[k] + high
                    if found <= ranges.shape[1]:
                        ranges[2, found - 1] = reach
                else:
                    last, reach = documents[k], starts[k] + high
                    if found < ranges.shape[1]:
                        ranges[0, found], ranges[1, found], ranges[2, found] = last, starts[k] + low, reach
                        ranges[3, found] = winner
                    found += 1
            low = high
            if given:
                run += 1
    return found
