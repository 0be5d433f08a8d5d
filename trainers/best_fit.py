"""Best-fit packing without cropping (Ding et al., "Fewer Truncations Improve Language Modeling", 2024).

A document longer than a sequence is cut into whole sequences and a rest; rests and shorter documents, longest first, go
into the sequence with the least room that still holds them. Nothing is dropped, and no document that fits in a sequence
is cut. Every shard is packed by itself, ties are in an order that the seed gives, and the result is kept in the local
cache under the checksum of the shard, the sequence length, the packing and the seed.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numba
import numpy as np
import xxhash

from pipelines.contracts.cache import derived
from pipelines.contracts.store import digest, write_atomic

_VERSION = 2


@dataclass(frozen=True)
class Rows:
    """The sequences of a shard. Piece p is `counts[p]` positions of the shard's stream from `starts[p]` on; sequence r is
    the pieces from `first[r]` to `first[r + 1]`.
    """

    first: np.ndarray
    starts: np.ndarray
    counts: np.ndarray

    @cached_property
    def sizes(self) -> np.ndarray:
        """Tokens of each sequence."""
        if not len(self.counts):
            return np.empty(0, np.int64)
        sizes: np.ndarray = np.add.reduceat(self.counts, self.first[:-1])
        return sizes


@dataclass(frozen=True)
class Packing:
    """The sequences of a source: those of its shards, one after another."""

    shards: tuple[Rows, ...]

    @cached_property
    def starts(self) -> np.ndarray:
        """Number of the first sequence of each shard, then the number of sequences."""
        return np.array(list(accumulate((len(rows.first) - 1 for rows in self.shards), initial=0)), dtype=np.int64)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Tokens of each sequence of the source."""
        return np.concatenate([np.empty(0, np.int64), *(rows.sizes for rows in self.shards)])

    def place(self, sequence: int) -> tuple[int, np.ndarray]:
        """(shard, the starts of its pieces in the shard's stream) of a sequence."""
        number = int(np.searchsorted(self.starts, sequence, side="right")) - 1
        rows, inside = self.shards[number], sequence - int(self.starts[number])
        return number, rows.starts[rows.first[inside] : rows.first[inside + 1]]

    def pieces(self, number: int, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(index into `sequences`, start, count) of all pieces of sequences of shard `number`, in order."""
        rows, inside = self.shards[number], sequences - self.starts[number]
        begins, many = rows.first[inside], rows.first[inside + 1] - rows.first[inside]
        piece = np.repeat(begins - (np.cumsum(many) - many), many) + np.arange(many.sum())
        return np.repeat(np.arange(len(sequences)), many), rows.starts[piece], rows.counts[piece]


def pack_shard(offsets: np.ndarray, checksum: str, length: int, marks: int, seed: int) -> Rows:
    """The sequences of a shard with document offsets `offsets` and `marks` marks around each document, from the cache where
    they are there and intact.
    """
    name = digest({"best_fit": _VERSION, "shard": checksum, "length": length, "marks": marks, "seed": seed})
    path = derived("packing", name)
    # A cache that cannot be read or written is none: packing again gives the same.
    with suppress(OSError, ValueError):
        return _unpacked(path.read_bytes())
    rows = _pack(offsets, length, marks, xxhash.xxh3_64_intdigest(name.encode()))
    with suppress(OSError):
        write_atomic(path, _packed(rows))
    return rows


def _packed(rows: Rows) -> bytes:
    sizes = np.array([len(rows.first), len(rows.starts)], dtype=np.int64)
    body = b"".join(
        np.ascontiguousarray(part, np.int64).tobytes() for part in (sizes, rows.first, rows.starts, rows.counts)
    )
    return xxhash.xxh3_128_digest(body) + body


def _unpacked(content: bytes) -> Rows:
    if len(content) < 32 or xxhash.xxh3_128_digest(content[16:]) != content[:16]:
        raise ValueError("not what was written")
    numbers = np.frombuffer(content, np.int64, offset=16)
    rows, pieces = int(numbers[0]), int(numbers[1])
    first, starts, counts = np.split(numbers[2:], [rows, rows + pieces])
    return Rows(first, starts, counts)


def _pack(offsets: np.ndarray, length: int, marks: int, key: int) -> Rows:
    sizes = np.diff(offsets) + marks
    many = -(-sizes // length)
    within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    begins = np.repeat(np.cumsum(sizes) - sizes, many)
    starts, counts = begins + within * length, np.minimum(np.repeat(sizes, many) - within * length, length)
    ties = _scattered(len(counts), np.uint64(key))
    row, rows = _fit(counts, np.lexsort((ties, -counts)), length)
    order = np.argsort(row, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int64)
    return Rows(first, starts[order], counts[order])


@numba.njit(cache=True, nogil=True)
def _scattered(count: int, key: np.uint64) -> np.ndarray:
    """A pseudo-random number for each of range(count): the finaliser of SplitMix64 (Steele et al., 2014)."""
    result = np.empty(count, np.uint64)
    for i in range(count):
        x = key + np.uint64(i) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        result[i] = x ^ (x >> np.uint64(31))
    return result


@numba.njit(cache=True, nogil=True)
def _fit(counts: np.ndarray, order: np.ndarray, length: int) -> tuple[np.ndarray, int]:
    """(row of each piece, number of rows): pieces in `order` go where the least room is left that holds them.

    Rows with equal room are a stack; a binary tree over the amounts of room says which have one.
    """
    half = 1
    while half <= length:
        half *= 2
    stacked = np.zeros(2 * half, np.int64)
    top, below = np.full(length + 1, -1, np.int64), np.empty(len(counts), np.int64)
    row, rows = np.empty(len(counts), np.int64), 0
    for piece in order:
        node = half + counts[piece]
        while node > 0 and stacked[node] == 0:
            while node & 1:
                node >>= 1
            node += node > 0
        if node == 0:
            chosen, room = rows, length
            rows += 1
        else:
            while node < half:
                node = 2 * node if stacked[2 * node] > 0 else 2 * node + 1
            room = node - half
            chosen = top[room]
            top[room] = below[chosen]
            while node > 0:
                stacked[node] -= 1
                node >>= 1
        row[piece] = chosen
        room -= counts[piece]
        if room > 0:
            below[chosen], top[room] = top[room], chosen
            node = half + room
            while node > 0:
                stacked[node] += 1
                node >>= 1
    return row, rows


def pack_source(shards: Sequence[tuple[np.ndarray, str]], length: int, marks: int, seed: int) -> Packing:
    """The sequences of a source whose shards have these (document offsets, checksum)."""
    return Packing(tuple(pack_shard(offsets, checksum, length, marks, seed) for offsets, checksum in shards))
