"""Cut the concatenated documents of a shard into sequences for objectives that add marks to each document or
rewrite it. In a row, such a document takes up more or fewer positions than it has tokens (`Room`).
"""

import numpy as np

from gristmill.compilation import kernel


@kernel(nogil=True)
def cut_where_full(offsets: np.ndarray, lead: int, needed: np.ndarray, positions: int) -> np.ndarray:
    """Return the stream positions at which the sequences of a shard begin, followed by the end of its stream:
    int64 [sequences + 1].

    `offsets` are those of `pipelines.contracts.shard_set.Shard`, `lead` is the number of marks before a
    document (there must be none after it), and `needed` and `positions` are those of a `Room`. A sequence is
    filled until one more token would not fit, so a document may continue in the next sequence. If the marks
    of the next document and its first token do not both fit, the sequence ends before this document.
    """
    length = len(needed) - 1
    total = offsets[-1] - offsets[0] + lead * (len(offsets) - 1)
    # A document ends one sequence, fills others, and begins one more.
    cuts = np.empty(total // length + 2 * len(offsets) + 1, np.int64)
    cuts[0], count = 0, 1
    position = used = spent = np.int64(0)
    for document in range(len(offsets) - 1):
        left, marks = offsets[document + 1] - offsets[document], lead
        while left + marks > 0:
            fitting = np.searchsorted(needed, positions - spent, side="right") - 1
            tokens = min(left, fitting, length - used - marks)
            whole = tokens == left
            if whole or tokens > 0:
                used, spent, position = used + marks + tokens, spent + needed[tokens], position + marks + tokens
                left, marks = left - tokens, 0
            if not whole:
                cuts[count] = position
                count += 1
                used = spent = np.int64(0)
    if position > cuts[count - 1]:
        cuts[count] = position
        count += 1
    return cuts[:count].copy()
