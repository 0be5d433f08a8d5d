"""Find which sentences of a row have a neighbour in their document."""

import numpy as np

from trainers.rows.batch import Batch


def sentence_neighbours(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays, bool [rows, length]: whether the sentence at each position has a previous sentence
    of the same document in its row, and whether it has a next one. `batch` is the result of `sentence_rows`
    with `copies` 1.
    """
    assert batch.documents is not None
    segments, documents = batch.segments, batch.documents
    begins = (batch.positions == 0) & (segments >= 0)
    rows, columns = np.nonzero(begins)
    after = rows[columns > 0], columns[columns > 0]
    joined = np.zeros((len(segments), int(segments.max(initial=0)) + 2), dtype=bool)
    same = documents[after] == documents[after[0], after[1] - 1]
    joined[after[0], segments[after]] = same & (segments[after[0], after[1] - 1] >= 0)
    row = np.arange(len(segments))[:, None]
    there, own = segments >= 0, segments.clip(min=0)
    return joined[row, own] & there, joined[row, own + 1] & there
