"""Find and count the occurrences of word n-grams in texts. An occurrence neither begins nor ends inside a
word; pipelines/kernels/text/segment.py defines words. Overlapping occurrences all count.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa


def count_words(texts: pa.Array, ngram: str) -> pa.Array:
    """Return the number of occurrences of an n-gram in each text, int32."""
    counts = np.zeros(len(texts), np.int32)
    for first, offsets, starts in _occurrences(texts, ngram.encode()):
        rows = np.searchsorted(offsets, starts, side="right") - 1
        counts[first : first + len(offsets) - 1] = np.bincount(rows, minlength=len(offsets) - 1)
    return pa.array(counts)


def first_words(text: str, ngram: str) -> int:
    """Return the character index of the first occurrence of an n-gram in a text that contains it."""
    data = text.encode()
    _, _, starts = next(_occurrences(pa.array([text], pa.large_string()), ngram.encode()))
    return len(data[: starts[0]].decode())


def _occurrences(texts: pa.Array, ngram: bytes) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield (row of the first text, offsets of the texts, byte offsets of the n-gram's occurrences) for each
    block of texts that has occurrences. All offsets are relative to the block.
    """
    from pipelines.kernels.text.buffers import blocks, text_buffers
    from pipelines.kernels.text.characters import classify
    from pipelines.kernels.text.words import find_words

    for first, _, offsets, data in blocks(*text_buffers(texts)):
        found = find_everywhere(data.tobytes(), ngram)
        if len(found):
            words = find_words(offsets, data, classify(offsets, data))
            inside = np.zeros(len(data) + 1, np.int8)  # of a word: neither before its first byte nor after its last
            inside[words.starts + 1] += 1
            inside[words.ends] -= 1
            border = np.cumsum(inside, dtype=np.int8) == 0
            ends = found + len(ngram)
            whole = offsets[np.searchsorted(offsets, found, side="right")] >= ends
            found = found[whole & border[found] & border[ends]]
        if len(found):
            yield first, offsets, found


def find_everywhere(data: bytes, phrase: bytes) -> np.ndarray:
    """Return the offsets of all occurrences of a phrase, including overlapping ones: int64, ascending."""
    found = []
    at = data.find(phrase)
    while at >= 0:
        found.append(at)
        at = data.find(phrase, at + 1)
    return np.array(found, np.int64)
