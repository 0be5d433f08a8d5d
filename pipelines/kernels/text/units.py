"""Convert numbers of words into numbers of units for scripts without spaces between words.

In such scripts the units are letters with their marks (in Tibetan, syllables). A letter carries less
information than a word, so comparable n-grams need more letters than words.
"""

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.text.tables import unit_kinds

# Units per word, by kind of unit: 1 for words themselves; 1.6 for Han and kana; 3 for the alphabets of
# Southeast Asia.
LETTERS = np.array([1.0, 1.6, 3.0])
LETTERS.flags.writeable = False


def find_kinds(data: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the kind (tables.SPACED, IDEOGRAPH, ABUGIDA) of the units that begin at `starts`, uint8 [units]."""
    kinds = np.zeros(len(starts), np.uint8)
    if len(data) and data.max() >= 0xE0:
        _find_kinds(data, starts, unit_kinds(), kinds)
    return kinds


def ngram_sizes(kinds: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Convert n-gram `sizes` in words to sizes in units, for each document, int32 [documents, sizes]:
    multiply by the document's mean number of units per word, and round.

    Document d has the units offsets[d] to offsets[d + 1] - 1. `kinds` is the result of `find_kinds`.
    """
    units = np.diff(offsets)
    words = np.zeros(len(units))
    if kinds.any():
        _sum_words(kinds, offsets, 1 / LETTERS, words)
    else:
        words += units
    scale = units / np.maximum(words, 1 / LETTERS.max())
    return np.rint(np.maximum(scale, 1)[:, None] * sizes).astype(np.int32)


@kernel()
def _find_kinds(data: np.ndarray, starts: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    for k in range(len(starts)):
        i = np.int64(starts[k])
        lead = np.int64(data[i])
        size = 4 if lead >= 0xF0 else 3
        if lead < 0xE0 or i + size > len(data):
            continue
        code = lead & (0x07 if size == 4 else 0x0F)
        for byte in range(i + 1, i + size):
            code = code << 6 | (np.int64(data[byte]) & 0x3F)
        out[k] = table[np.int64(min(code, 0x10FFFF))]


@kernel()
def _sum_words(kinds: np.ndarray, offsets: np.ndarray, words: np.ndarray, out: np.ndarray) -> None:
    for d in range(len(offsets) - 1):
        total = 0.0
        for k in range(offsets[d], offsets[d + 1]):
            total += words[kinds[k]]
        out[d] = total
