"""MinHash signatures and sets of shingle hashes, over word or character shingles, and the Jaccard similarity
of such sets. Signatures are bit-identical to those of datasketch's "affine32" scheme with xxh32.

The hash h of a shingle is its xxh32 (seed 0), mixed with MurmurHash3's finalizer. Each permutation maps h to
a * h + b modulo 2^32, with its own a and b.
"""

from collections.abc import Iterator

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.text.buffers import blocks
from pipelines.kernels.text.characters import lower_runs
from pipelines.kernels.text.tables import UNITS
from pipelines.kernels.text.units import find_kinds

_MASK = np.uint64(0xFFFFFFFF)
_PRIME1, _PRIME2, _PRIME3 = np.uint64(2654435761), np.uint64(2246822519), np.uint64(3266489917)
_PRIME4, _PRIME5 = np.uint64(668265263), np.uint64(374761393)
_BATCH = 512

# Weights of units by kind: six letters of a script without spaces between words count as much as five words.
WEIGHTS = np.array([6, 5, 5], np.int64)
WEIGHTS.flags.writeable = False


def signatures(
    offsets: np.ndarray, data: np.ndarray, permutations: np.ndarray, ngram: int, unit: str = "word", keep: int = UNITS
) -> tuple[np.ndarray, np.ndarray]:
    """Return the MinHash signatures, uint32 [n, num_perm], and the numbers of shingles, int64 [n], of
    documents given as Arrow buffers.

    `characters.lower_runs` with `keep` turns a document into units joined by one space. A shingle is a run of
    units just long enough to weigh as much as `ngram` words (see `WEIGHTS`) or, if `unit` is not "word", a
    run of `ngram` characters. A shorter document is a single shingle. A document without units has
    datasketch's empty signature, 0xFFFFFFFF throughout. `permutations`, uint32 [2, num_perm], contains the
    factors a, then the summands b, of the module's docstring.
    """
    n = len(offsets) - 1
    out = np.full((n, permutations.shape[1]), 0xFFFFFFFF, np.uint32)
    shingles = np.zeros(n, np.int64)
    factors, summands = np.ascontiguousarray(permutations[0]), np.ascontiguousarray(permutations[1])
    for first, last, units in _iterate_units(offsets, data, unit, keep):
        _sign(*units, WEIGHTS, ngram * WEIGHTS[0], factors, summands, out[first:last], shingles[first:last])
    return out, shingles


def shingle_sets(
    offsets: np.ndarray, data: np.ndarray, ngram: int, unit: str = "word", keep: int = UNITS
) -> tuple[np.ndarray, np.ndarray]:
    """Return each document's set of shingle hashes, ascending, as (offsets int64 [n + 1], hashes uint32). The
    shingles and the hash function are those of `signatures`.
    """
    sizes, sets = [np.zeros(1, np.int64)], [np.zeros(0, np.uint32)]
    for first, last, units in _iterate_units(offsets, data, unit, keep):
        hashes, size = np.empty(len(units[2]), np.uint32), np.zeros(last - first, np.int64)
        total = _collect_hashes(*units, WEIGHTS, ngram * WEIGHTS[0], hashes, size)
        sets.append(hashes[:total])
        sizes.append(size)
    return np.cumsum(np.concatenate(sizes)), np.concatenate(sets)


def jaccard(
    offsets: np.ndarray, hashes: np.ndarray, other_offsets: np.ndarray, other_hashes: np.ndarray, partners: np.ndarray
) -> np.ndarray:
    """Return the Jaccard similarity of each set i to set partners[i] of a second collection, float32 [n].
    Both collections are given as `shingle_sets` returns them. Two empty sets have the similarity 1.
    """
    out = np.empty(len(partners), np.float32)
    _jaccard(offsets, hashes, other_offsets, other_hashes, partners, out)
    return out


_Block = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]


def _iterate_units(offsets: np.ndarray, data: np.ndarray, unit: str, keep: int) -> Iterator[tuple[int, int, _Block]]:
    """Yield (first, end, units) for each block; the block has the documents from `first` to `end` - 1.
    `units` is a tuple of

    - the bytes of the documents after `lower_runs`
    - the offset of each document in these bytes
    - the start of each unit in these bytes
    - the index of each document's first unit
    - the kind of each unit, 0 for characters
    - the number of bytes between two units: 1 for words, 0 for characters
    """
    for first, last, block_offsets, block in blocks(offsets, data):
        runs = lower_runs(block_offsets, block, keep)
        if unit == "word":
            kinds = find_kinds(runs.data, runs.starts)
            yield first, last, (runs.data, runs.offsets, runs.starts, runs.run_offsets, kinds, 1)
        else:
            starts = np.flatnonzero((runs.data & 0xC0) != 0x80).astype(np.int32)
            unit_offsets = np.searchsorted(starts, runs.offsets).astype(np.int64)
            yield first, last, (runs.data, runs.offsets, starts, unit_offsets, np.zeros(len(starts), np.uint8), 0)


def xxh32(data: bytes) -> int:
    """Return the xxh32 (seed 0) of `data` as the kernel computes it, for tests against the xxhash library."""
    return int(_xxh32(np.frombuffer(data, np.uint8), 0, len(data)))


@kernel(inline="always")
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    return ((value << np.uint64(bits)) | (value >> np.uint64(32 - bits))) & _MASK


@kernel(inline="always")
def _word(data: np.ndarray, i: int) -> np.uint64:
    """Return the four bytes at i as a little-endian integer."""
    low = np.uint32(data[i]) | (np.uint32(data[i + 1]) << np.uint32(8))
    high = (np.uint32(data[i + 2]) << np.uint32(16)) | (np.uint32(data[i + 3]) << np.uint32(24))
    return np.uint64(low | high)


@kernel(inline="always")
def _round(lane: np.uint64, value: np.uint64) -> np.uint64:
    return (_rotate((lane + value * _PRIME2) & _MASK, 13) * _PRIME1) & _MASK


@kernel()
def _xxh32(data: np.ndarray, i: int, end: int) -> np.uint32:
    size = np.uint64(end - i)
    if end - i >= 16:
        lane1, lane2 = (_PRIME1 + _PRIME2) & _MASK, _PRIME2
        lane3, lane4 = np.uint64(0), (np.uint64(0) - _PRIME1) & _MASK
        while end - i >= 16:
            lane1, lane2 = _round(lane1, _word(data, i)), _round(lane2, _word(data, i + 4))
            lane3, lane4 = _round(lane3, _word(data, i + 8)), _round(lane4, _word(data, i + 12))
            i += 16
        value = _rotate(lane1, 1) + _rotate(lane2, 7) + _rotate(lane3, 12) + _rotate(lane4, 18)
    else:
        value = _PRIME5
    value = (value + size) & _MASK
    while end - i >= 4:
        value = (_rotate((value + _word(data, i) * _PRIME3) & _MASK, 17) * _PRIME4) & _MASK
        i += 4
    while i < end:
        value = (_rotate((value + np.uint64(data[i]) * _PRIME5) & _MASK, 11) * _PRIME1) & _MASK
        i += 1
    value = ((value ^ (value >> np.uint64(15))) * _PRIME2) & _MASK
    value = ((value ^ (value >> np.uint64(13))) * _PRIME3) & _MASK
    return np.uint32(value ^ (value >> np.uint64(16)))


@kernel()
def _finalize(value: np.uint64) -> np.uint32:
    """Apply MurmurHash3's 32-bit finalizer to a hash. The affine32 scheme does this to every hash before it
    applies the permutations.
    """
    value = ((value ^ (value >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & _MASK
    value = ((value ^ (value >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & _MASK
    return np.uint32(value ^ (value >> np.uint64(16)))


@kernel()
def _take_minimum(hashes: np.ndarray, count: int, factors: np.ndarray, summands: np.ndarray, out: np.ndarray) -> None:
    for p in range(len(out)):
        factor, summand, least = factors[p], summands[p], out[p]
        for k in range(count):
            least = min(least, np.uint32(factor * hashes[k] + summand))
        out[p] = least


@kernel(inline="always")
def _hash_shingle(data: np.ndarray, starts: np.ndarray, k: int, after: int, gap: int, last: int, end: int) -> np.uint32:
    return _finalize(np.uint64(_xxh32(data, starts[k], starts[after] - gap if after < last else end)))


@kernel()
def _sign(
    data: np.ndarray,
    offsets: np.ndarray,
    starts: np.ndarray,
    unit_offsets: np.ndarray,
    kinds: np.ndarray,
    gap: int,
    weights: np.ndarray,
    least: int,
    factors: np.ndarray,
    summands: np.ndarray,
    out: np.ndarray,
    shingles: np.ndarray,
) -> None:
    hashes = np.empty(_BATCH, np.uint32)
    for d in range(len(offsets) - 1):
        after, last = unit_offsets[d], unit_offsets[d + 1]
        weight, filled = 0, 0
        for k in range(unit_offsets[d], last):
            while after < last and weight < least:
                weight += weights[kinds[after]]
                after += 1
            if weight < least and shingles[d] > 0:
                break
            hashes[filled] = _hash_shingle(data, starts, k, after, gap, last, offsets[d + 1])
            weight -= weights[kinds[k]]
            shingles[d] += 1
            filled += 1
            if filled == _BATCH:
                _take_minimum(hashes, filled, factors, summands, out[d])
                filled = 0
        _take_minimum(hashes, filled, factors, summands, out[d])


@kernel()
def _collect_hashes(
    data: np.ndarray,
    offsets: np.ndarray,
    starts: np.ndarray,
    unit_offsets: np.ndarray,
    kinds: np.ndarray,
    gap: int,
    weights: np.ndarray,
    least: int,
    out: np.ndarray,
    sizes: np.ndarray,
) -> int:
    at = 0
    for d in range(len(offsets) - 1):
        after, last = unit_offsets[d], unit_offsets[d + 1]
        weight, count = 0, 0
        hashes = np.empty(last - after, np.uint32)
        for k in range(unit_offsets[d], last):
            while after < last and weight < least:
                weight += weights[kinds[after]]
                after += 1
            if weight < least and count > 0:
                break
            hashes[count] = _hash_shingle(data, starts, k, after, gap, last, offsets[d + 1])
            weight -= weights[kinds[k]]
            count += 1
        hashes = np.sort(hashes[:count])
        for k in range(count):
            if k == 0 or hashes[k] != hashes[k - 1]:
                out[at] = hashes[k]
                at += 1
                sizes[d] += 1
    return at


@kernel()
def _jaccard(
    offsets: np.ndarray,
    hashes: np.ndarray,
    other_offsets: np.ndarray,
    other_hashes: np.ndarray,
    partners: np.ndarray,
    out: np.ndarray,
) -> None:
    for d in range(len(partners)):
        i, end = offsets[d], offsets[d + 1]
        j, other_end = other_offsets[partners[d]], other_offsets[partners[d] + 1]
        size = end - i + other_end - j
        common = 0
        while i < end and j < other_end:
            a, b = hashes[i], other_hashes[j]
            common += a == b
            i += a <= b
            j += b <= a
        out[d] = common / (size - common) if size else 1.0
