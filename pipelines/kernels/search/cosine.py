"""Cosine similarity of vectors: k-means on the sphere, and greedy elections among similar vectors.

Elections do not depend on the linear algebra library. The results of `nearest_centroids`, `spread_first` and
`spherical_kmeans` do; call these inside `on_one_thread()`, so that they do not depend on the number of
threads as well.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
from threadpoolctl import threadpool_limits

STAYS = -1
"""The result of an election for a vector that stays: it is not similar to any other vector that stays."""
_BLOCK, _CHUNK = 1024, 8192  # vectors on either side of a product
_PAIRS = 8192  # pairs computed in double precision at a time
_UNSURE = 1e-4  # above the error of a product of vectors of length 1 in single precision


def on_one_thread() -> AbstractContextManager[object]:
    """Return a context manager that limits BLAS to one thread, so that the results of matrix products do not
    depend on the number of threads.
    """
    context: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return context


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [n, width] scaled to length 1, float32. A vector of zeros is returned unchanged."""
    scaled = vectors.astype(np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", scaled, scaled, dtype=np.float64)).astype(np.float32)
    scaled /= np.where(lengths > 0, lengths, 1)[:, None]
    return scaled


def pair_cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the cosine of left[i] and right[i] for each i, float32 [n]; 0 if either is a vector of zeros."""
    cosines = np.empty(len(left), np.float32)
    for start in range(0, len(left), _PAIRS):
        rows = slice(start, start + _PAIRS)
        a, b = left[rows].astype(np.float64), right[rows].astype(np.float64)
        lengths = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
        cosines[rows] = (a * b).sum(axis=1) / np.where(lengths > 0, lengths, 1)
    return cosines


def _are_alike(left: np.ndarray, right: np.ndarray, least: np.float32) -> np.ndarray:
    """Return for each pair of a left and a right vector whether their cosine is at least `least`, bool [left,
    right].
    """
    products = unit_rows(left) @ unit_rows(right).T
    alike = products >= least
    rows, columns = np.nonzero(np.abs(products - least) < _UNSURE)
    for start in range(0, len(rows), _PAIRS):
        i, j = rows[start : start + _PAIRS], columns[start : start + _PAIRS]
        alike[i, j] = pair_cosines(left[i], right[j]) >= least
    return alike


def follow_by_cosine(vectors: np.ndarray, stay: np.ndarray, least: float) -> np.ndarray:
    """Return for each vector the index of the first vector in `stay` [m, width] whose cosine to it is at
    least `least`, or STAYS if there is none; int64 [n].
    """
    winner = np.full(len(vectors), STAYS, np.int64)
    for start in range(0, len(vectors), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(vectors)))
        for first in range(0, len(stay), _CHUNK):
            rows = rows[winner[rows] == STAYS]
            if not len(rows):
                break
            alike = _are_alike(vectors[rows], stay[first : first + _CHUNK], np.float32(least))
            some = alike.any(axis=1)
            winner[rows[some]] = first + alike[some].argmax(axis=1)
    return winner


def elect_by_cosine(vectors: np.ndarray, least: float) -> np.ndarray:
    """Elect greedily among vectors [n, width], which are in order of preference: a vector stays unless its
    cosine to an earlier vector that stays is at least `least`. Return for each vector the index of the first
    such earlier vector, or STAYS; int64 [n].
    """
    winner = np.full(len(vectors), STAYS, np.int64)
    chosen = np.empty(0, np.int64)
    for start in range(0, len(vectors), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(vectors)))
        for first in range(0, len(chosen), _CHUNK):
            some = chosen[first : first + _CHUNK]
            left = rows[winner[rows] == STAYS]
            of = follow_by_cosine(vectors[left], vectors[some], least)
            winner[left] = np.where(of == STAYS, STAYS, some[of])
        rows = rows[winner[rows] == STAYS]
        alike = _are_alike(vectors[rows], vectors[rows], np.float32(least))
        for i, row in enumerate(rows):
            if winner[row] == STAYS:
                later = rows[i + 1 :][alike[i, i + 1 :]]
                winner[later[winner[later] == STAYS]] = row
        chosen = np.concatenate([chosen, rows[winner[rows] == STAYS]])
    return winner


def nearest_centroids(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Return for each vector the index of the centroid with the highest cosine to it, int64 [n]."""
    nearest = np.zeros(len(vectors), np.int64)
    directions = unit_rows(centroids)
    for start in range(0, len(vectors), _BLOCK):
        block = unit_rows(vectors[start : start + _BLOCK])
        best = np.full(len(block), -np.inf, np.float32)
        for first in range(0, len(directions), _CHUNK):
            products = block @ directions[first : first + _CHUNK].T
            column = products.argmax(axis=1)
            highest = products[np.arange(len(block)), column]
            nearest[start : start + len(block)][highest > best] = first + column[highest > best]
            best = np.maximum(best, highest)
    return nearest


def spread_first(vectors: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Choose up to `count` vectors that are far from one another, and return all vectors with the chosen ones
    first. The others keep their order. The choice ends early when every other vector has a cosine of 0.9999
    or more to a chosen one.

    This is greedy k-means++ with 1 - cosine as the squared distance and 2 + ln(count) candidates per step
    (Arthur and Vassilvitskii 2007, sections 2.2 and 7).
    """
    if not len(vectors):
        return vectors
    generator, units = np.random.Generator(np.random.PCG64(seed)), unit_rows(vectors)
    draws = 2 + int(np.log(count))
    chosen = [int(generator.integers(len(units)))]
    distance = _distances(units, chosen)[0]
    while len(chosen) < count and distance.any():
        sums = np.cumsum(distance)
        tried = np.minimum(np.searchsorted(sums, generator.random(draws) * sums[-1], side="right"), len(units) - 1)
        lowered = np.minimum(_distances(units, tried), distance)
        best = int(lowered.sum(axis=1).argmin())
        chosen.append(int(tried[best]))
        distance = lowered[best]
    return np.concatenate([vectors[chosen], np.delete(vectors, chosen, axis=0)])


def _distances(units: np.ndarray, chosen: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the distance (1 - cosine) of each chosen row of `units` to every row, float64 [chosen, n].
    Distances up to _UNSURE become 0.
    """
    distances = 1 - (units[chosen] @ units.T).astype(np.float64)
    distances[np.arange(len(chosen)), chosen] = 0  # of a vector of zeros, too
    return np.where(distances > _UNSURE, distances, 0)


def spherical_kmeans(sample: np.ndarray, clusters: int, rounds: int) -> np.ndarray:
    """Return up to `clusters` centroids of length 1, float32 [k, width], by at most `rounds` rounds of
    k-means with cosines (Dhillon and Modha 2001).

    The initial centroids are the first distinct vectors of the sample. A centroid that loses all its vectors
    does not move.
    """
    centroids = unit_rows(sample[_first_distinct(sample, clusters)])
    before = np.full(len(sample), -1, np.int64)
    for _ in range(rounds):
        nearest = nearest_centroids(sample, centroids)
        if np.array_equal(nearest, before):
            break
        sums: np.ndarray = np.zeros(centroids.shape, np.float64)
        for start in range(0, len(sample), _CHUNK):
            order = start + np.argsort(nearest[start : start + _CHUNK], kind="stable")
            own, firsts = np.unique(nearest[order], return_index=True)
            sums[own] += np.add.reduceat(unit_rows(sample[order]), firsts, axis=0, dtype=np.float64)
        moved = (sums * sums).sum(axis=1) > 0
        centroids[moved] = unit_rows(sums[moved])
        before = nearest
    return centroids


def _first_distinct(vectors: np.ndarray, count: int) -> list[int]:
    firsts: dict[bytes, int] = {}
    for row, vector in enumerate(vectors):
        if len(firsts) == count:
            break
        firsts.setdefault(vector.tobytes(), row)
    return list(firsts.values())
