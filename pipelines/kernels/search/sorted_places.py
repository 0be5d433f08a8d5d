"""Find a phrase in a text by the sorted places of the text's characters.

The places of a text are the offsets of its characters. They are sorted by the bytes that begin at each place
(5 bytes, or 4 in a text of 16 MiB or more), then by offset. So all places with the same beginning are
neighbours, and a binary search finds them. This is a suffix array cut off after the first bytes. Sorting
takes no longer for a text that repeats itself. To find a longer phrase, several of its pieces are looked up,
and the whole phrase is compared at the places of the rarest piece.
"""

import numpy as np

from gristmill.compilation import kernel

MOST_NARROW = (1 << 24) - 1
"""The size in bytes of the longest text whose places take 3 bytes each. The places of longer texts take 4."""
_KEY_BYTES = 8  # of a number that holds the beginning and the place
_PIECES = 32  # pieces of a phrase whose frequency is looked up


def sort_places(data: np.ndarray) -> np.ndarray:
    """Return the places of a text of UTF-8 bytes, that is, the offsets of its characters. They are sorted by
    the first bytes at each place (5, or 4 if `data` has more than MOST_NARROW bytes), then by offset. The
    result is uint8 [characters, 3 or 4]; each row is one place as a little-endian number.
    """
    width = 3 if len(data) <= MOST_NARROW else 4
    keys = np.empty(len(data), np.uint64)
    keys = keys[: _fill_keys(data, _KEY_BYTES - width, 8 * width, keys)]
    keys.sort()
    return np.ascontiguousarray(keys.astype("<u8", copy=False).view(np.uint8).reshape(-1, _KEY_BYTES)[:, :width])


def find_phrase(data: np.ndarray, places: np.ndarray, phrase: bytes) -> np.ndarray:
    """Return the offsets of all occurrences of a phrase in the text `data`, including overlapping ones:
    int64, ascending. `places` is the result of `sort_places`. The phrase must consist of one or more whole
    characters.
    """
    wanted = np.frombuffer(phrase, np.uint8)
    most = _KEY_BYTES - places.shape[1]
    low, high, at = 0, len(places), 0
    for begin in _pieces(phrase, most):
        piece = wanted[begin : begin + most]
        first, after = _bound(data, places, piece, False), _bound(data, places, piece, True)
        if after - first < high - low or not begin:
            low, high, at = first, after, begin
        if low == high:
            break
    starts = np.empty(high - low, np.int64)
    starts = starts[: _compare_rest(data, places, low, high, at, wanted, starts)]
    starts.sort()
    return starts


def without_overlap(starts: np.ndarray, phrase: bytes) -> np.ndarray:
    """Return `starts`, the ascending offsets at which `phrase` occurs, without occurrences that overlap the
    last one kept before them.
    """
    if not any(phrase.startswith(phrase[shift:]) for shift in range(1, len(phrase))):
        return starts
    kept = np.empty(len(starts), np.int64)
    return kept[: _leave_out_overlapping(starts, len(phrase), kept)]


def _pieces(phrase: bytes, most: int) -> list[int]:
    """Return the offsets of up to _PIECES pieces of a phrase. Each piece has `most` bytes and starts at the
    first byte of a character. A shorter phrase is a single piece. The first offset is 0.
    """
    begins = [i for i in range(max(1, len(phrase) - most + 1)) if phrase[i] & 0xC0 != 0x80]
    return begins[:: -(-len(begins) // _PIECES)]


@kernel(nogil=True)
def _fill_keys(data: np.ndarray, size: int, shift: int, keys: np.ndarray) -> int:
    found, end = 0, len(data)
    for i in range(end):
        if data[i] & 0xC0 != 0x80:
            key = np.uint64(0)
            for j in range(i, i + size):
                key = (key << np.uint64(8)) | np.uint64(data[j] if j < end else 0)
            keys[found] = (key << np.uint64(shift)) | np.uint64(i)
            found += 1
    return found


@kernel(inline="always")
def _place(places: np.ndarray, k: int) -> int:
    value = np.int64(0)
    for j in range(places.shape[1]):
        value |= np.int64(places[k, j]) << np.int64(8 * j)
    return value


@kernel(nogil=True)
def _bound(data: np.ndarray, places: np.ndarray, piece: np.ndarray, after: bool) -> int:
    """Return the index of the first of the sorted places where `piece` begins or, with `after`, the index
    after the last of them. If there are none, both are the index at which such a place would be inserted.
    """
    low, high = 0, len(places)
    while low < high:
        middle = (low + high) // 2
        at, order, j = _place(places, middle), 0, 0
        while j < len(piece) and order == 0:
            byte = np.int64(data[at + j]) if at + j < len(data) else 0
            order = byte - np.int64(piece[j])
            j += 1
        if order < 0 or (after and order == 0):
            low = middle + 1
        else:
            high = middle
    return low


@kernel(nogil=True)
def _compare_rest(
    data: np.ndarray, places: np.ndarray, low: int, high: int, at: int, phrase: np.ndarray, starts: np.ndarray
) -> int:
    """Write the byte offsets at which a phrase occurs to `starts`, and return their number. Only the places
    `low` to `high` - 1 are examined. The text at each of these places is known to begin with a piece of the
    phrase, which starts at byte `at` of the phrase.
    """
    found, size = 0, len(phrase)
    for k in range(low, high):
        start = _place(places, k) - at
        if start < 0 or start + size > len(data):
            continue
        j = 0
        while j < size and data[start + j] == phrase[j]:
            j += 1
        if j == size:
            starts[found] = start
            found += 1
    return found


@kernel(nogil=True)
def _leave_out_overlapping(starts: np.ndarray, size: int, kept: np.ndarray) -> int:
    found, end = 0, 0
    for k in range(len(starts)):
        if starts[k] >= end:
            kept[found] = starts[k]
            found += 1
            end = starts[k] + size
    return found
