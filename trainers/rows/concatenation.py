"""Rows of a stream whose documents take more of a row than they have tokens: an objective adds marks to each (`Room`)."""

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def cut_where_full(offsets: np.ndarray, lead: int, needed: np.ndarray, positions: int) -> np.ndarray:
    """The stream positions at which the sequences of a shard begin, then the end of its stream: int64 [sequences + 1].

    `offsets` are a shard's, `lead` is the number of marks before a document, `needed` and `positions` are those of a `Room`.
    A sequence ends where one more token has no room, or where the last document that has room does.
    """
    length = len(needed) - 1
    total = offsets[-1] - offsets[0] + lead * (len(offsets) - 1)
    # A document begins in one sequence, fills others, and ends in one more.
    cuts = np.empty(total // length + 2 * len(offsets) + 1, np.int64)
    cuts[0], count = 0, 1
    place = used = spent = np.int64(0)
    for document in range(len(offsets) - 1):
        left, marks = offsets[document + 1] - offsets[document], lead
        while left + marks > 0:
            fitting = np.searchsorted(needed, positions - spent, side="right") - 1
            tokens = min(left, fitting, length - used - marks)
            whole = tokens == left
            if whole or tokens > 0:
                used, spent, place = used + marks + tokens, spent + needed[tokens], place + marks + tokens
                left, marks = left - tokens, 0
            if not whole:
                cuts[count] = place
                count += 1
                used = spent = np.int64(0)
    if place > cuts[count - 1]:
        cuts[count] = place
        count += 1
    return cuts[:count].copy()
