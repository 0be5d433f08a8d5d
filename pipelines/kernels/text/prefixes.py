"""Cut texts in a buffer to prefixes, count the characters of texts, and lower-case texts that are written in
capitals.
"""

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.text.characters import character_size, code_point
from pipelines.kernels.text.tables import CLOSE, LETTER, character_classes

Texts = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(data uint8, starts int64 [texts], ends int64 [texts]); text n is data[starts[n]:ends[n]]."""


@kernel()
def cut_prefixes(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, most: int, least: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cut texts to prefixes of at most `most` bytes, without splitting a character. Text n is
    data[starts[n]:ends[n]]. Return the ends of the prefixes, int64 [texts], and whether each prefix has at
    least `least` bytes that are not ASCII white space, bool [texts].
    """
    cuts, filled = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.bool_)
    for text in range(len(starts)):
        cut = ends[text]
        if cut - starts[text] > most:
            cut = starts[text] + most
            while cut > starts[text] and data[cut] & 0xC0 == 0x80:
                cut -= 1
        cuts[text], count = cut, 0
        for i in range(starts[text], cut):
            if data[i] != 32 and not 9 <= data[i] <= 13:
                count += 1
                if count >= least:
                    filled[text] = True
                    break
    return cuts, filled


@kernel()
def count_characters(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the number of code points of each text, int64 [texts]. Text n is the UTF-8 bytes
    data[starts[n]:ends[n]].
    """
    counts = np.zeros(len(starts), np.int64)
    for text in range(len(starts)):
        for i in range(starts[text], ends[text]):
            counts[text] += data[i] & 0xC0 != 0x80
    return counts


@kernel()
def _in_capitals(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return, for each text, whether more than nine tenths of its letters are capitals, bool [texts]."""
    capitals = np.zeros(len(starts), np.bool_)
    for text in range(len(starts)):
        i, upper, other, size_of_text = starts[text], 0, 0, ends[text] - starts[text]
        while i < ends[text] and 9 * other < size_of_text:  # most texts are decided in their first seventh
            size = 1 if data[i] < 0x80 else character_size(data, i, ends[text])
            kind = classes[code_point(data, i, size)]
            if kind & LETTER:
                if kind & CLOSE:
                    upper += 1
                else:
                    other += 1
            i += size
        capitals[text] = upper > 9 * other
    return capitals


def lower_capitals(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Texts:
    """Lower-case the texts in which more than nine tenths of the letters are capitals, and return all texts."""
    rows = np.flatnonzero(_in_capitals(data, starts, ends, character_classes()))
    if not len(rows):
        return data, starts, ends
    lowered = [data[starts[row] : ends[row]].tobytes().decode().lower().encode() for row in rows]
    bounds = len(data) + np.cumsum([0, *map(len, lowered)], dtype=np.int64)
    starts, ends = starts.copy(), ends.copy()
    starts[rows], ends[rows] = bounds[:-1], bounds[1:]
    return np.concatenate([data, np.frombuffer(b"".join(lowered), np.uint8)]), starts, ends
