"""Read a column of embeddings as one array."""

import numpy as np
import pyarrow as pa


def vector_width(kind: pa.DataType) -> int | None:
    """Return the number of dimensions if `kind` is a column type of vectors, otherwise None."""
    if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
        return int(kind.list_size)
    return None


def vectors_of(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a column of embeddings as an array [documents, width]. The column must have no nulls."""
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) and column.num_chunks else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.array([], column.type)
    return array.flatten().to_numpy().reshape(len(array), array.type.list_size)
