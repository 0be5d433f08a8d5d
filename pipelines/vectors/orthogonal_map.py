"""Fit orthogonal maps between two spaces of word vectors, and retrieve words across spaces by cosine and by
CSLS.
"""

from collections.abc import Iterator

import numpy as np

NEAREST = 10
"""The number of neighbours over which CSLS averages (Conneau et al. 2018, section 2.3)."""
_BLOCK = 1 << 10


def fit_rotation(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the orthogonal matrix W, float32 [d, d], for which the Frobenius norm of `source @ W - target`
    is smallest. Both matrices are [pairs, d] (Schönemann 1966, "A generalized solution of the orthogonal
    Procrustes problem").
    """
    left, _, right = np.linalg.svd(source.T.astype(np.float64) @ target.astype(np.float64))
    return np.asarray(left @ right, np.float32)


def mean_similarity(queries: np.ndarray, keys: np.ndarray, nearest: int = NEAREST) -> np.ndarray:
    """Return the mean cosine between each query and its `nearest` most similar keys, float32 [queries]. All
    rows must have length 1.
    """
    count = min(nearest, len(keys))
    means = [np.partition(block, -count, axis=1)[:, -count:].mean(axis=1) for block in _similarities(queries, keys)]
    return np.concatenate([np.zeros(0, np.float32), *means])


def retrieve(queries: np.ndarray, keys: np.ndarray, penalty: np.ndarray, count: int) -> np.ndarray:
    """Return, for each query, the row indices of the `count` keys with the highest 2 cos(query, key) -
    penalty[key], best first, int64 [queries, min(count, keys)]. All queries and keys must have length 1.

    If the penalty is `mean_similarity(keys, all mapped source vectors)`, the ranking is that of CSLS (Conneau
    et al. 2018, arXiv 1710.04087, equation 6).
    """
    best = [np.zeros((0, min(count, len(keys))), np.int64)]
    for block in _similarities(queries, keys):
        costs = penalty - 2 * block
        if count >= len(keys):
            nearest = np.tile(np.arange(len(keys)), (len(block), 1))
        else:
            nearest = np.argpartition(costs, count - 1, axis=1)[:, :count]
        order = np.argsort(np.take_along_axis(costs, nearest, axis=1), axis=1, kind="stable")
        best.append(np.take_along_axis(nearest, order, axis=1))
    return np.concatenate(best)


def mutual_pairs(mapped: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of words that are mutually nearest by CSLS, as two arrays: their rows in `mapped` and
    their rows in `target`. All vectors must have length 1.
    """
    target_penalty, mapped_penalty = mean_similarity(target, mapped), mean_similarity(mapped, target)
    forth = retrieve(mapped, target, target_penalty, 1)[:, 0]
    back = retrieve(target, mapped, mapped_penalty, 1)[:, 0]
    rows = np.flatnonzero(back[forth] == np.arange(len(mapped)))
    return rows, forth[rows]


def _similarities(queries: np.ndarray, keys: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, len(queries), _BLOCK):
        yield queries[first : first + _BLOCK] @ keys.T
