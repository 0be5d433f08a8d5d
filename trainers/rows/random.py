"""Uniform random numbers for objectives: a pure function of a seed, a key, a column and the name of a stream.
What an objective draws is therefore the same after a resume, and for any division of a step into
micro-batches and workers.
"""

import numpy as np
import xxhash

from gristmill.compilation import kernel

_U = np.uint64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seed: int, keys: np.ndarray, count: int, stream: str) -> np.ndarray:
    """Return uniform random numbers in [0, 1), float64 [len(keys), count]. Row i depends only on `seed`,
    `keys[i]` (int64) and `stream`. Numbers drawn for different seeds, keys, columns or `stream` names are
    independent.
    """
    start = np.uint64(xxhash.xxh3_64_intdigest(stream.encode(), seed=seed % (1 << 64)))
    values = np.empty((len(keys), count), dtype=np.float64)
    _fill(start, np.asarray(keys, dtype=np.int64), values)
    return values


@kernel(nogil=True)
def mix(x: np.uint64) -> np.uint64:
    """Apply the finaliser of SplitMix64 (Steele et al., 2014), a bijection of 64-bit integers, to `x`."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@kernel(nogil=True)
def _fill(start: np.uint64, keys: np.ndarray, values: np.ndarray) -> None:
    for row in range(len(keys)):
        key = mix(mix(_U(keys[row]) + _GOLDEN) ^ start)
        for column in range(values.shape[1]):
            values[row, column] = (mix(key + _U(column + 1) * _GOLDEN) >> _U(11)) * (1.0 / (1 << 53))
