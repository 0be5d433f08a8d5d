"""Shards of MosaicML Streaming (MDS, https://github.com/mosaicml/streaming), according to its documented
layout. Each document is a sample.

A shard begins with the number of samples, the file offset of each sample and the offset of the end of the
shard, all uint32. Next come the columns as JSON, and then the samples. A sample begins with the sizes of its
variable-size columns, uint32, followed by the values of its columns, ordered by column name.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from gristmill.errors import UserError
from pipelines.export.export_directory import ExportedFile

FILE_BYTES = 1 << 26
"""Approximate bytes of stored text per shard. 64 MiB is also the default limit of the library's writer."""
_HIGHEST = (1 << 32) - 1  # offset


def write_shard_file(
    schema: pa.Schema, sink: BinaryIO, rows: Iterator[Mapping[str, Any]], json_of: Callable[[Any], bytes]
) -> None:
    """Write a shard with one sample per row. `rows` have the columns of `schema`; `json_of` encodes the
    values of all columns except strings that cannot be null. Raises UserError if the shard would have 4 GiB
    or more.
    """
    columns = [(name, encoding == "str") for name, encoding in _encodings(schema).items()]
    samples = []
    for row in rows:
        values = [row[name].encode() if is_text else json_of(row[name]) for name, is_text in columns]
        samples.append(struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values))
    config = json.dumps(_config(schema), sort_keys=True).encode()
    sizes = [4 + 4 * (len(samples) + 1) + len(config), *map(len, samples)]
    offsets = np.cumsum(sizes, dtype=np.int64)
    if offsets[-1] > _HIGHEST:
        raise UserError(
            f"--format: a shard of mds would have {offsets[-1]:,} bytes, allowed are {_HIGHEST:,}; build the corpus with lower "
            "part_bytes, or leave out meta"
        )
    sink.write(struct.pack("<I", len(samples)) + offsets.astype("<u4").tobytes() + config)
    sink.writelines(samples)


def shard_index(schema: pa.Schema, files: Sequence[ExportedFile]) -> bytes:
    """Return the content of `index.json`, which lists the shards of one directory."""
    shards = [
        {
            **_config(schema),
            "raw_data": {
                "basename": file.path.rpartition("/")[2],
                "bytes": file.bytes,
                "hashes": {"sha256": file.sha256},
            },
            "samples": file.documents,
            "zip_data": None,
        }
        for file in files
    ]
    return json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()


def _encodings(schema: pa.Schema) -> dict[str, str]:
    """Return the encoding of each column. Columns are sorted by name, as the layout requires."""

    def encoding(field: pa.Field) -> str:
        is_text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        return "str" if is_text and not field.nullable else "json"

    return {name: encoding(schema.field(name)) for name in sorted(schema.names)}


def _config(schema: pa.Schema) -> dict[str, Any]:
    encodings = _encodings(schema)
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": ["sha256"],
        "size_limit": FILE_BYTES,
        "column_names": list(encodings),
        "column_encodings": list(encodings.values()),
        "column_sizes": [None] * len(encodings),
    }
