"""Chunks of litdata (https://github.com/Lightning-AI/litdata), as its `TokensLoader` reads them.

A chunk begins with the number of documents, the file offset of each document and the offset of the end of the
chunk, all uint32. The token ids of the documents follow. `TokensLoader` reads blocks of `block_size` token
ids and skips an incomplete block at the end of a chunk.
"""

import json
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from gristmill.errors import UserError
from pipelines.contracts.shard_set import ShardRecord

DTYPES = {"uint16": ("<u2", 20), "uint32": ("<i4", 15)}
"""For each type of token ids in shard sets: the type in chunks, and the number by which litdata denotes it."""
_HIGHEST = (1 << 32) - 1  # offset
_ONE_TENSOR = (
    '[1, {"type": null, "context": null, "children_spec": []}]'  # the tree of a sample: a tensor and nothing else
)


def write_chunk(sink: BinaryIO, ids: np.ndarray, lengths: np.ndarray) -> None:
    """Write documents as one chunk. `ids` holds the token ids of all documents, concatenated, and `lengths`
    the number of ids in each document. Raises UserError if the chunk would have 4 GiB or more.
    """
    header = 4 * (len(lengths) + 2)
    offsets = header + np.concatenate([[0], np.cumsum(lengths)]) * ids.itemsize
    if offsets[-1] > _HIGHEST:
        raise UserError(
            f"--format: a chunk of litdata would have {offsets[-1]:,} bytes, allowed are {_HIGHEST:,}; build the shards with "
            "lower shard_bytes"
        )
    sink.write(struct.pack("<I", len(lengths)) + offsets.astype("<u4").tobytes())
    sink.write(ids.tobytes())


def chunk_index(names: Sequence[str], shards: Sequence[ShardRecord], dtype: str) -> bytes:
    """Return the content of `index.json`, which lists the chunks. The file names[i] contains the documents of
    shards[i], with `<eos>` added to each. `dtype` is the type of the token ids in the shards.
    """
    kind, number = DTYPES[dtype]
    chunks: list[dict[str, Any]] = []
    for name, shard in zip(names, shards, strict=True):
        tokens = shard.tokens + shard.documents
        size = tokens * np.dtype(kind).itemsize
        chunks.append({"chunk_bytes": size, "chunk_size": shard.documents, "dim": tokens, "filename": name})
    config = {
        "chunk_bytes": max(chunk["chunk_bytes"] for chunk in chunks),
        "chunk_size": None,
        "compression": None,
        "data_format": [f"no_header_tensor:{number}"],
        "data_spec": _ONE_TENSOR,
        "encryption": None,
        "item_loader": "TokensLoader",
    }
    return json.dumps({"chunks": chunks, "config": config}, sort_keys=True).encode()
