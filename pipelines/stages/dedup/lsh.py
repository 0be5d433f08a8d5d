"""Locality-sensitive hashing of MinHash signatures: band keys, the probability that two documents share a
band, and the best banding for a similarity threshold.
"""

import numpy as np
import pyarrow as pa


def band_keys(signatures: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """Return a key for each document and band, uint64 [n, bands]: a hash of the band's number and of the
    `rows` signature values in the band. `signatures` is uint32 [n, at least bands * rows]. Different bands or
    values get the same key with a probability of about 2^-64. The constants are those of splitmix64 (Steele
    et al. 2014).
    """
    keys = np.empty((len(signatures), bands), np.uint64)
    for band in range(bands):
        key = np.full(len(signatures), 0x9E3779B97F4A7C15 * (band + 1) & 0xFFFFFFFFFFFFFFFF, np.uint64)
        for column in range(band * rows, (band + 1) * rows):
            key = (key ^ signatures[:, column].astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
            key ^= key >> np.uint64(31)
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0x94D049BB133111EB)
        keys[:, band] = key ^ (key >> np.uint64(31))
    return keys


def signatures_of(column: pa.Array) -> np.ndarray:
    """Return a column of MinHash signatures as an array, uint32 [n, num_perm], without copying it. The column
    must not contain nulls. An empty column gives an array of shape [0, 1].
    """
    return column.flatten().to_numpy().reshape(len(column), -1) if len(column) else np.zeros((0, 1), np.uint32)


def link_probability(similarity: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """Return 1 - (1 - similarity^rows)^bands, the probability that two documents of this Jaccard similarity
    have the same values in at least one band.
    """
    return 1 - (1 - similarity**rows) ** bands


def best_bands(threshold: float, num_perm: int) -> tuple[int, int]:
    """Return the numbers (bands, rows), with bands * rows <= `num_perm`, that minimise the error of finding
    pairs by shared bands: the area under `link_probability` below the threshold (false positives) plus the
    area above the curve beyond the threshold (false negatives).

    This is the choice of datasketch's MinHashLSH with equal weights (Zhu et al. 2016, "LSH Ensemble", section
    5.5), with areas computed by the midpoint rule in steps of 0.001.
    """
    below, above = np.arange(0.0005, threshold, 0.001), np.arange(threshold + 0.0005, 1.0, 0.001)
    best, lowest_error = (1, 1), np.inf
    for bands in range(1, num_perm + 1):
        for rows in range(1, num_perm // bands + 1):
            error = link_probability(below, bands, rows).sum() + (1 - link_probability(above, bands, rows)).sum()
            if error < lowest_error:
                best, lowest_error = (bands, rows), error
    return best
