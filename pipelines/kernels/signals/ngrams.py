"""Build hash tables of word n-grams, and find their n-grams in texts.

A word is represented by a hash of its lower-cased characters, an n-gram by a rolling polynomial hash over its
words, modulo 2^64.
"""

import functools
from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.text.tables import FINAL_SIGMA, SMALL_SIGMA, lower_case
from pipelines.kernels.text.words import Spans

_MIX, _BASE = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0x9E3779B97F4A7C15)
_FINISH = np.uint64(0xC4CEB9FE1A85EC53)
_APOSTROPHE, _QUOTE = 39, 0x2019


class Table(NamedTuple):
    """A hash table that maps the key of each n-gram to its number, which is the index of the key in `keys`."""

    slots: np.ndarray  # int32 [power of two], -1 if empty
    keys: np.ndarray  # uint64
    lengths: np.ndarray  # int64, the values of n that occur


class NgramMatches(NamedTuple):
    """Occurrences of a table's n-grams in texts, ordered by their last word, then by n."""

    words: np.ndarray  # int64, index of the first word
    ngrams: np.ndarray  # int32, number of the n-gram
    lengths: np.ndarray  # int32, its n


@functools.cache
def _folding() -> np.ndarray:
    """Return a table that maps every code point to its lower case, and also ς to σ and U+2019 to '."""
    table = lower_case()[0].copy()
    table[FINAL_SIGMA], table[_QUOTE] = SMALL_SIGMA, _APOSTROPHE
    table.flags.writeable = False
    return table


def hash_words(data: np.ndarray, words: Spans) -> np.ndarray:
    """Return hashes of words, uint64 [words]. Words that differ only in case or in the kind of apostrophe
    have the same hash.
    """
    out = np.empty(len(words.starts), np.uint64)
    _hash_words(data, words.starts, words.ends, _folding(), out)
    return out


def ngram_keys(hashes: np.ndarray, n: int) -> np.ndarray:
    """Return the key of every n-gram of a text, uint64 [words - n + 1]. `hashes` contains the hash of each of
    its words, as returned by `hash_words`. n must be at most the number of words.
    """
    out = np.empty(len(hashes) - n + 1, np.uint64)
    _keys(hashes, n, out)
    return out


def make_table(keys: np.ndarray, lengths: np.ndarray) -> Table:
    """Build a table of n-grams from their distinct keys, uint64. `lengths` are the distinct values of n."""
    slots = np.full(1 << (4 * len(keys) + 1).bit_length(), -1, np.int32)
    _fill(keys, slots)
    return Table(slots, keys, np.sort(lengths).astype(np.int64))


def find_ngrams(hashes: np.ndarray, offsets: np.ndarray, table: Table) -> NgramMatches:
    """Find the occurrences of a table's n-grams in texts. hashes[offsets[d]:offsets[d + 1]] are the hashes of
    the words of text d, from `hash_words`.
    """
    return NgramMatches(*_find(hashes, offsets, *table))


@kernel()
def _hash_words(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    for k in range(len(starts)):
        i, end, value = np.int64(starts[k]), np.int64(ends[k]), _BASE
        while i < end:
            code = np.int64(data[i])
            i += 1
            if code >= 0xC0:
                code &= 0x3F if code < 0xE0 else (0x1F if code < 0xF0 else 0x0F)
                while i < end and data[i] & 0xC0 == 0x80:
                    code = code << 6 | np.int64(data[i] & 0x3F)
                    i += 1
            value = (value ^ np.uint64(lower[np.int64(min(code, 0x10FFFF))])) * _MIX
            value ^= value >> np.uint64(32)
        out[k] = value


@kernel(inline="always")
def _finish(value: np.uint64, n: int) -> np.uint64:
    value = (value ^ (value >> np.uint64(33)) ^ np.uint64(n)) * _FINISH
    return value ^ (value >> np.uint64(33))


@kernel()
def _power(n: int) -> np.uint64:
    value = np.uint64(1)
    for _ in range(n):
        value *= _BASE
    return value


@kernel()
def _keys(hashes: np.ndarray, n: int, out: np.ndarray) -> None:
    power, value = _power(n), np.uint64(0)
    for k in range(len(hashes)):
        value = value * _BASE + hashes[k]
        if k >= n:
            value -= hashes[k - n] * power
        if k >= n - 1:
            out[k - n + 1] = _finish(value, n)


@kernel()
def _fill(keys: np.ndarray, slots: np.ndarray) -> None:
    mask = np.uint64(len(slots) - 1)
    for k in range(len(keys)):
        at = keys[k] & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = k


@kernel()
def _find(
    hashes: np.ndarray, offsets: np.ndarray, slots: np.ndarray, keys: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    words, ngrams, sizes = np.empty(256, np.int64), np.empty(256, np.int32), np.empty(256, np.int32)
    mask, found = np.uint64(len(slots) - 1), 0
    powers, values = np.empty(len(lengths), np.uint64), np.empty(len(lengths), np.uint64)
    for m in range(len(lengths)):
        powers[m] = _power(lengths[m])
    for d in range(len(offsets) - 1):
        values[:] = 0
        for k in range(offsets[d], offsets[d + 1]):
            for m in range(len(lengths)):
                n = lengths[m]
                value = values[m] * _BASE + hashes[k]
                if k - offsets[d] >= n:
                    value -= hashes[k - n] * powers[m]
                values[m] = value
                if k - offsets[d] < n - 1:
                    continue
                key = _finish(value, n)
                at = key & mask
                while slots[at] >= 0 and keys[slots[at]] != key:
                    at = (at + np.uint64(1)) & mask
                if slots[at] < 0:
                    continue
                if found == len(words):
                    words, ngrams = np.concatenate((words, words)), np.concatenate((ngrams, ngrams))
                    sizes = np.concatenate((sizes, sizes))
                words[found], ngrams[found], sizes[found] = k - n + 1, slots[at], n
                found += 1
    return words[:found], ngrams[:found], sizes[:found]
