"""Predict labels with supervised fastText models, without creating a Python object per document or word.

The features of a text, their order and the arithmetic are those of fastText 0.9 (Joulin et al. 2016, "Bag of
Tricks for Efficient Text Classification"). Labels equal the library's; scores may differ in their last bits.

As in the library, tokens that begin with `__label__` are labels, not text, and a token `</s>` ends the text.
"""

import math
from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel

_OFFSET_BASIS, _PRIME = np.uint32(2166136261), np.uint32(16777619)
_WORD_PRIME = np.uint64(116049371)
_FIRST, _LAST = np.uint8(60), np.uint8(62)  # < and > enclose a word when its n-grams are taken
_LABEL = np.frombuffer(b"__label__", np.uint8)
_END = np.frombuffer(b"</s>", np.uint8)
# The library's table of sigmoids; its steps of 1/32 show in the third digit of the probabilities.
_SIGMOID = (1.0 / (1.0 + np.exp(-(np.arange(513, dtype=np.float32) / np.float32(32) - np.float32(8))))).astype(
    np.float32
)
_LEAST = np.float32(math.log(1e-5))  # the library returns no label of a hierarchical softmax below this probability
HIERARCHICAL, SOFTMAX, INDEPENDENT = 0, 1, 2


class Features(NamedTuple):
    """The dictionary of a fastText model, which maps a text to rows of the input matrix."""

    words: np.ndarray  # uint8: the entries of the dictionary, concatenated
    bounds: np.ndarray  # int64 [entries + 1], into words
    slots: np.ndarray  # int32 [power of two]: entry by FNV-1a hash, linear probing; -1 if free
    numbers: np.ndarray  # int64 [6]: words in the dictionary, buckets, minn, maxn, wordNgrams, pruned (0 or 1)
    pruned: np.ndarray  # int32 [buckets or 0]: row of each bucket that survived pruning
    kept: np.ndarray  # uint8 [buckets / 8 or 0]: bit mask of those buckets; small enough for a cache


class Layers(NamedTuple):
    """The input matrix (`rows`) and the output matrix of a fastText model, and the tree of its hierarchical
    softmax (`children`, empty for other losses).
    """

    rows: np.ndarray  # float32 [words + buckets, dim]
    output: np.ndarray  # float32 [labels, dim]
    children: np.ndarray  # int32 [2 * labels - 1, 2]: left, right; -1 for a leaf


@kernel(inline="always")
def _step(value: np.uint32, byte: np.uint8) -> np.uint32:
    """Update a 32-bit FNV-1a hash with a byte, which is read as signed, as in fastText."""
    return np.uint32((value ^ np.uint32(np.int32(np.int8(byte)))) * _PRIME)


@kernel()
def index_words(words: np.ndarray, bounds: np.ndarray, slots: np.ndarray) -> None:
    """Enter the dictionary's entries into the hash table `slots`. All its slots must be -1, and its length
    must be a power of two greater than the number of entries.
    """
    mask = len(slots) - 1
    for entry in range(len(bounds) - 1):
        value = _OFFSET_BASIS
        for i in range(bounds[entry], bounds[entry + 1]):
            value = _step(value, words[i])
        slot = np.int64(value) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = entry


@kernel()
def _find(words: np.ndarray, bounds: np.ndarray, slots: np.ndarray, value: np.uint32, token: np.ndarray) -> int:
    """Return the index of the dictionary entry that equals the token, or -1. `value` is the token's hash."""
    mask = len(slots) - 1
    slot = np.int64(value) & mask
    while slots[slot] >= 0:
        entry = slots[slot]
        first = bounds[entry]
        if bounds[entry + 1] - first == len(token):
            i = 0
            while i < len(token) and words[first + i] == token[i]:
                i += 1
            if i == len(token):
                return entry
        slot = (slot + 1) & mask
    return -1


@kernel()
def _add_character_ngrams(
    rows: np.ndarray,
    pruned: np.ndarray,
    kept: np.ndarray,
    numbers: np.ndarray,
    word: np.ndarray,
    hidden: np.ndarray,
) -> int:
    """Add to `hidden` the rows of the character n-grams of `word`, which includes the enclosing `<` and `>`.
    The n-grams have minn to maxn characters; `<` and `>` alone are not n-grams. Return the number of rows.
    """
    words, buckets, least, most = numbers[0], np.uint32(numbers[1]), numbers[2], numbers[3]
    any_pruned, size, dim, count = numbers[5] > 0, len(word), len(hidden), 0
    for start in range(size):
        if word[start] & 0xC0 == 0x80:
            continue
        value, end, n = _OFFSET_BASIS, start, 1
        while end < size and n <= most:
            value = _step(value, word[end])
            end += 1
            while end < size and word[end] & 0xC0 == 0x80:
                value = _step(value, word[end])
                end += 1
            if n >= least and not (n == 1 and (start == 0 or end == size)):
                row = np.int64(value % buckets)
                if any_pruned:
                    row = np.int64(pruned[row]) if kept[row >> 3] >> (row & 7) & 1 else -1
                if row >= 0:
                    for i in range(dim):
                        hidden[i] += rows[words + row, i]
                    count += 1
            n += 1
    return count


@kernel()
def _add_word_ngrams(
    rows: np.ndarray,
    pruned: np.ndarray,
    kept: np.ndarray,
    numbers: np.ndarray,
    hashes: np.ndarray,
    hidden: np.ndarray,
) -> int:
    """Add to `hidden` the rows of the n-grams of 2 to wordNgrams tokens. Return the number of rows."""
    words, buckets, most = numbers[0], np.uint64(numbers[1]), numbers[4]
    any_pruned, dim, count = numbers[5] > 0, len(hidden), 0
    for start in range(len(hashes)):
        value = np.uint64(np.int64(hashes[start]))
        for last in range(start + 1, min(len(hashes), start + most)):
            value = np.uint64(value * _WORD_PRIME + np.uint64(np.int64(hashes[last])))
            row = np.int64(value % buckets)
            if any_pruned:
                row = np.int64(pruned[row]) if kept[row >> 3] >> (row & 7) & 1 else -1
            if row >= 0:
                for i in range(dim):
                    hidden[i] += rows[words + row, i]
                count += 1
    return count


@kernel(inline="always")
def _is_space(byte: np.uint8) -> bool:
    return byte == 32 or (9 <= byte <= 13) or byte == 0


@kernel(inline="always")
def _begins(data: np.ndarray, start: int, end: int, what: np.ndarray) -> bool:
    i = 0
    while i < len(what) and start + i < end and data[start + i] == what[i]:
        i += 1
    return i == len(what)


@kernel()
def _embed(
    features: Features, rows: np.ndarray, data: np.ndarray, i: int, end: int, scratch: tuple, hidden: np.ndarray
) -> int:
    """Set `hidden` to the sum of the rows for all features of the text data[i:end]. Return the number of
    rows.
    """
    word, hashes = scratch
    pruned, kept, numbers = features.pruned, features.kept, features.numbers
    words = count = 0
    hidden[:] = 0
    while True:
        while i < end and _is_space(data[i]):
            i += 1
        if i >= end:
            break
        start, value = i, _OFFSET_BASIS
        while i < end and not _is_space(data[i]):
            value = _step(value, data[i])
            i += 1
        if i - start == len(_END) and _begins(data, start, i, _END):
            break
        if _begins(data, start, i, _LABEL):
            continue
        entry = _find(features.words, features.bounds, features.slots, value, data[start:i])
        if entry >= 0:
            hidden += rows[entry]
            count += 1
        if numbers[3] > 0:
            word[0], word[i - start + 1] = _FIRST, _LAST
            word[1 : i - start + 1] = data[start:i]
            count += _add_character_ngrams(rows, pruned, kept, numbers, word[: i - start + 2], hidden)
        if numbers[4] > 1:
            hashes[words] = np.int32(value)
            words += 1
    value = _OFFSET_BASIS
    for byte in _END:
        value = _step(value, byte)
    entry = _find(features.words, features.bounds, features.slots, value, _END)
    if entry >= 0:
        hidden += rows[entry]
        count += 1
    if numbers[4] > 1:
        hashes[words] = np.int32(value)
        count += _add_word_ngrams(rows, pruned, kept, numbers, hashes[: words + 1], hidden)
    return count


@kernel(inline="always")
def _log(value: float) -> np.float32:
    return np.float32(math.log(np.float64(np.float32(value)) + 1e-5))


@kernel()
def _offer(label: int, score: np.float32, labels: np.ndarray, scores: np.ndarray) -> None:
    """Insert a label if it is among the best so far. Of labels with equal scores, the earlier stays first."""
    rank = len(scores)
    while rank > 0 and (labels[rank - 1] < 0 or score > scores[rank - 1]):
        rank -= 1
    for i in range(len(scores) - 1, rank, -1):
        labels[i], scores[i] = labels[i - 1], scores[i - 1]
    if rank < len(scores):
        labels[rank], scores[rank] = label, score


@kernel()
def _walk(
    output: np.ndarray,
    children: np.ndarray,
    hidden: np.ndarray,
    stack: np.ndarray,
    sums: np.ndarray,
    labels: np.ndarray,
    scores: np.ndarray,
) -> None:
    """Write the most probable leaves of the tree, which are the labels, to `labels` and their log
    probabilities to `scores`, best first.
    """
    leaves, last = len(output), len(scores) - 1
    stack[0], sums[0], depth = 2 * leaves - 2, 0, 1
    while depth:
        depth -= 1
        node, score = stack[depth], sums[depth]
        if score < _LEAST or (labels[last] >= 0 and score < scores[last]):
            continue
        if node < leaves:
            _offer(node, score, labels, scores)
            continue
        total = np.float32(0)
        for i in range(len(hidden)):
            total += output[node - leaves, i] * hidden[i]
        right = np.float32(1.0 / np.float64(np.float32(1) + np.float32(math.exp(-total))))
        stack[depth], sums[depth] = children[node, 1], np.float32(score + _log(right))
        stack[depth + 1], sums[depth + 1] = children[node, 0], np.float32(score + _log(1.0 - np.float64(right)))
        depth += 2


@kernel()
def _rank(output: np.ndarray, loss: int, hidden: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> None:
    values = np.zeros(len(output), np.float32)
    for label in range(len(values)):
        for i in range(len(hidden)):
            values[label] += output[label, i] * hidden[i]
    if loss == SOFTMAX:
        highest, total = values.max(), np.float32(0)
        for label in range(len(values)):
            values[label] = np.float32(math.exp(values[label] - highest))
            total += values[label]
        for label in range(len(values)):
            values[label] /= total
    else:
        for label in range(len(values)):
            step = int((min(np.float32(8), max(np.float32(-8), values[label])) + np.float32(8)) * np.float32(32))
            values[label] = _SIGMOID[step] if abs(values[label]) <= 8 else np.float32(values[label] > 0)
    for label in range(len(values)):
        _offer(label, _log(values[label]), labels, scores)


@kernel()
def predict(
    features: Features,
    layers: Layers,
    loss: int,
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    labels: np.ndarray,
    scores: np.ndarray,
) -> None:
    """Predict the k most probable labels of each text. Write them to `labels` (int32 [texts, k]) and their
    probabilities to `scores` (float32 [texts, k]), best first. Text n is data[starts[n]:ends[n]]. `loss` is
    HIERARCHICAL, SOFTMAX or INDEPENDENT.

    Where no label is found, as for a text without features, the label is -1 and the score 0.
    """
    longest = 0
    for text in range(len(starts)):
        longest = max(longest, ends[text] - starts[text])
    hidden: np.ndarray = np.zeros(layers.rows.shape[1], np.float32)
    stack = np.zeros(2 * len(layers.output) + 1, np.int32)
    sums = np.zeros(len(stack), np.float32)
    hashes = np.zeros(longest // 2 + 2 if features.numbers[4] > 1 else 0, np.int32)
    scratch = (np.zeros(longest + 2, np.uint8), hashes)
    for text in range(len(starts)):
        labels[text], scores[text] = -1, 0
        count = _embed(features, layers.rows, data, starts[text], ends[text], scratch, hidden)
        if count == 0:
            continue
        hidden *= np.float32(1.0 / count)
        if loss == HIERARCHICAL:
            _walk(layers.output, layers.children, hidden, stack, sums, labels[text], scores[text])
        else:
            _rank(layers.output, loss, hidden, labels[text], scores[text])
        for rank in range(len(scores[text])):
            if labels[text, rank] >= 0:
                scores[text, rank] = min(np.float32(1), np.float32(math.exp(scores[text, rank])))
