"""Prefixes of texts in a buffer, and their lengths in characters."""

import numpy as np

from gristmill.compilation import kernel


@kernel()
def cut_prefixes(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, most: int, least: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (ends int64 [n], filled bool [n]) of prefixes of at most `most` bytes of the texts
    data[starts[n]:ends[n]].

    A prefix never ends inside a character. It is filled if at least `least` of its bytes are not ASCII white
    space.
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
    """Count the code points of the UTF-8 texts data[starts[n]:ends[n]], int64 [n]."""
    counts = np.zeros(len(starts), np.int64)
    for text in range(len(starts)):
        for i in range(starts[text], ends[text]):
            counts[text] += data[i] & 0xC0 != 0x80
    return counts
