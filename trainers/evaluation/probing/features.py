"""Pool the hidden states of texts, and write pooled or per-token states to a Parquet table."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.storage.location import Location
from trainers.evaluation.probing.hidden_states import DocumentStates, StateReader
from trainers.tasks.examples import Examples

Pooling = Literal["mean", "first", "last", "token"]
_TOKENS = 8192  # tokens whose states are in memory at once


def pooled(states: DocumentStates, pooling: Pooling) -> np.ndarray:
    """Pool the states of a document into one for each layer, float32 [layers, width]. `pooling` must not be
    `token`. For a text without tokens, return the states of its first position.
    """
    if pooling == "first" or not states.tokens.shape[1]:
        return states.first
    return states.tokens.mean(axis=1) if pooling == "mean" else states.tokens[:, -1]


def write_features(
    reader: StateReader, texts: Examples, layers: Sequence[str], pooling: Pooling, output: Location
) -> int:
    """Write a Parquet file with a row for every text or, if `pooling` is `token`, for every token of every
    text. Returns the number of rows.

    The columns are `id`, a `layer_NAME` for each layer and, with `token`, `position` (the index of the token
    in the text) and `token` (its id).
    """
    schema = _schema(layers, pooling, reader.width)
    count = 0

    def write(sink: Any) -> None:
        nonlocal count
        count = 0
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for table in _tables(reader, texts, layers, pooling, schema):
                writer.write_table(table)
                count += len(table)

    output.write_atomic(write)
    return count


def _schema(layers: Sequence[str], pooling: Pooling, width: int) -> pa.Schema:
    fields = [pa.field("id", pa.string())]
    fields += [pa.field("position", pa.int32()), pa.field("token", pa.int32())] if pooling == "token" else []
    return pa.schema([*fields, *(pa.field(f"layer_{name}", pa.list_(pa.float32(), width)) for name in layers)])


def _tables(
    reader: StateReader, texts: Examples, layers: Sequence[str], pooling: Pooling, schema: pa.Schema
) -> Iterator[pa.Table]:
    documents = reader.encode(texts.texts[0].to_pylist())
    sizes = np.cumsum([len(ids) for ids in documents])
    first = 0
    while first < len(documents):
        before = int(sizes[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(sizes, before + _TOKENS, side="right")))
        states = reader.read(documents[first:last], layers)
        ids: list[Any] = texts.ids[first:last]
        if pooling == "token":
            values = np.concatenate([each.tokens for each in states], axis=1)
            counts = [each.tokens.shape[1] for each in states]
            places = np.concatenate([np.arange(count) for count in counts]).astype(np.int32)
            tokens = np.concatenate(documents[first:last]).astype(np.int32)
            columns = [pa.array(np.repeat(ids, counts).tolist(), pa.string()), pa.array(places), pa.array(tokens)]
        else:
            values = np.stack([pooled(each, pooling) for each in states], axis=1)
            columns = [pa.array(ids, pa.string())]
        flat = [pa.array(np.ascontiguousarray(layer).ravel()) for layer in values]
        columns += [pa.FixedSizeListArray.from_arrays(each, reader.width) for each in flat]
        yield pa.table(columns, schema=schema)
        first = last
