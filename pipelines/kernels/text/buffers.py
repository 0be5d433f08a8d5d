"""View Arrow text as numpy arrays, and divide it into blocks, so that kernels need little scratch memory."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from gristmill.errors import UserError

BLOCK_BYTES = 1 << 20
_LIMIT = (1 << 31) - 1


def text_buffers(text: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return (offsets int64 [n + 1], bytes uint8) of a large_string column as read-only views. The data is
    copied only if the column has several chunks.

    Document d is bytes[offsets[d]:offsets[d + 1]]; the first offset may be above 0.
    """
    if isinstance(text, pa.ChunkedArray):
        text = text.chunk(0) if text.num_chunks == 1 else pa.concat_arrays([pa.array([], text.type), *text.chunks])
    if text.type != pa.large_string():
        raise TypeError(f"got a column of {text.type}, expected large_string")
    _, offsets_buffer, data_buffer = text.buffers()
    if len(text) == 0 or offsets_buffer is None:
        offsets = np.zeros(1, np.int64)
    else:
        offsets = np.frombuffer(offsets_buffer, np.int64, len(text) + 1, offset=8 * text.offset)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    # Kernels are compiled for read-only arrays; make every view read-only, so that no second version is
    # compiled.
    offsets.flags.writeable = False
    data.flags.writeable = False
    return offsets, data


def blocks(
    offsets: np.ndarray, data: np.ndarray, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Yield the documents in consecutive blocks: (first document, last document + 1, offsets, bytes). A block
    has at most `block_bytes` bytes, unless a single document is larger.

    The offsets of a block begin at 0, and its bytes are a view. Spans within a block are int32, so a document
    of 2 GiB or more raises UserError.
    """
    first, count = 0, len(offsets) - 1
    while first < count:
        last = int(np.searchsorted(offsets, offsets[first] + block_bytes, side="right")) - 1
        last = min(max(last, first + 1), count)
        begin, end = int(offsets[first]), int(offsets[last])
        if end - begin > _LIMIT:
            raise UserError(
                f"row {first} of a part: a document of {end - begin} bytes, at most {_LIMIT} are allowed: "
                "lower max_document_bytes of its source"
            )
        local = offsets[first : last + 1] - begin
        local.flags.writeable = False
        yield first, last, local, data[begin:end]
        first = last
