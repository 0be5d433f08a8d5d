"""Read columns of documents as one array of numbers."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.parts import Part


def is_number(kind: pa.DataType) -> bool:
    """Return whether the values of a type are integers, floating-point numbers, or booleans, which count as 0
    and 1.
    """
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def column_values(part: Part, names: Sequence[str], rows: pa.Array | None = None) -> np.ndarray:
    """Return columns of a part, for all of its rows or only for `rows`, as float64 [n, columns].

    A value is NaN if it is null or infinite, or if no step wrote its column for the source.
    """
    table = part.table(names, rows)
    values = np.empty((table.num_rows, len(names)))
    for number, name in enumerate(names):
        # Not checked: of an integer beyond 2^53, the nearest float is good enough.
        numbers = pc.cast(table[name], pa.float64(), safe=False).to_numpy()
        values[:, number] = np.where(np.isfinite(numbers), numbers, np.nan) + 0.0  # -0.0 is 0.0
    return values
