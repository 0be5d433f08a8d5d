"""Random numbers for documents, determined by nothing but the seed, the purpose and the document's id; and
the `drop` column of stages that choose documents by them.
"""

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np

LARGEST_SEED = (1 << 64) - 1


def check_seed(seed: int) -> None:
    """Raise ValueError unless the seed fits into an unsigned 64-bit integer, which the hash requires."""
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed: got {seed}, expected an integer from 0 to 2^64 - 1")


def hash_ids(ids: pa.ChunkedArray, seed: int, purpose: bytes = b"") -> "np.ndarray":
    """Return the xxh3_64 hash, seeded with `seed`, of each id with `purpose` appended, uint64 [n]. Stages
    with different purposes choose documents independently of one another.
    """
    import numpy as np
    import xxhash

    return np.array([xxhash.xxh3_64_intdigest(identifier + purpose, seed) for identifier in ids.to_pylist()], np.uint64)


def uniform_numbers(ids: pa.ChunkedArray, seed: int, purpose: bytes = b"") -> "np.ndarray":
    """Return a number in [0, 1) for each id, float64 [n]: the upper 53 bits of `hash_ids`, divided by 2^53."""
    import numpy as np

    numbers: np.ndarray = (hash_ids(ids, seed, purpose) >> np.uint64(11)) / float(1 << 53)  # every value is exact
    return numbers


def drop_column(keep: "np.ndarray", reason: str) -> pa.Array:
    """Return a `drop` column that is null where `keep` (bool [n]) is true, and `reason` elsewhere."""
    import numpy as np

    drop = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(keep), np.int32), mask=keep), [reason])
    return drop.cast(pa.string())
