"""Token shards: the contract between pipelines and trainers. docs/shard_format.md describes the bytes.

A shard is one uncompressed Arrow IPC file with one record batch, which is memory-mapped. Shards hold no
special tokens; readers add them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
import pyarrow as pa

from gristmill.config import ADDED
from gristmill.errors import CorruptFileError, UserError
from gristmill.host import lent
from gristmill.storage.location import FileRecord, Location, missing_file
from pipelines.contracts.document import ID

FORMAT = "gristmill-shard/1"
LEVEL = ":"
"""Separates the levels of a domain's name: `web:en:q5` is a group of the source `web`."""
SpanType = Literal["dates", "names"]
SPAN_TYPES: tuple[SpanType, ...] = get_args(SpanType)
"""The types of spans. The column `spans` holds a type as its index in this tuple."""


@dataclass(frozen=True)
class ShardRecord:
    """One shard of a shard set. `pairs` counts the documents with a target."""

    path: str
    bytes: int
    xxh3_128: str
    source: str
    split: str
    documents: int
    tokens: int
    text_bytes: int
    group: str = field(default="", metadata=ADDED)
    pairs: int = field(default=0, metadata=ADDED)

    @property
    def domain(self) -> str:
        """The domain of the shard: `source:group`, or the source alone if the shard has no group."""
        return f"{self.source}{LEVEL}{self.group}" if self.group else self.source

    @property
    def file(self) -> FileRecord:
        """The record of the shard's file. Its path is relative to the corpus directory."""
        return FileRecord(self.path, self.bytes, self.xxh3_128)


@dataclass(frozen=True)
class TokenizerRecord:
    """The tokenizer of a shard set. `path`, `bytes` and `xxh3_128` are those of its tokenizer.json; the path
    is relative to the corpus directory.
    """

    path: str
    bytes: int
    xxh3_128: str
    vocab_size: int
    kind: str
    specials: dict[str, int]

    @property
    def file(self) -> FileRecord:
        """The record of tokenizer.json. Its path is relative to the corpus directory."""
        return FileRecord(self.path, self.bytes, self.xxh3_128)


@dataclass(frozen=True)
class ShardSet:
    """All shards made with one tokenizer. `dtype`, the type of the stored tokens, is uint16 or uint32;
    `columns` names the optional columns that were written.
    """

    tokenizer: TokenizerRecord
    dtype: str
    columns: tuple[str, ...]
    shards: tuple[ShardRecord, ...]
    span_types: tuple[SpanType, ...] = field(default=(), metadata=ADDED)


def shard_set_of(facts: Mapping[str, Any]) -> ShardSet:
    """Parse a shard set from its entry in a corpus manifest, or from the facts of the step that made it."""
    shards = tuple(ShardRecord(**record) for record in facts["shards"])
    tokenizer, span_types = TokenizerRecord(**facts["tokenizer"]), tuple(facts.get("span_types", ()))
    return ShardSet(tokenizer, facts["dtype"], tuple(facts["columns"]), shards, span_types)


def choose_shard_set(sets: Mapping[str, ShardSet], name: str | None, where: str) -> tuple[str, ShardSet]:
    """Return (name, shard set) for the shard set called `name`, or for the only shard set if `name` is None.
    Raises UserError, with a message that begins with `where`, if the corpus has no such shard set, or has
    several and `name` is None.
    """
    if not sets:
        raise UserError(f"{where}: the corpus has no shards; add a `shards` step and build it again")
    if name is None and len(sets) > 1:
        raise UserError(f"{where}: name one of the shard sets {', '.join(sorted(sets))}")
    name = next(iter(sets)) if name is None else name
    if name not in sets:
        raise UserError(f"{where}: got {name!r}, the corpus has {', '.join(sorted(sets))}")
    return name, sets[name]


@dataclass(frozen=True)
class Shard:
    """An open shard of n documents and t tokens. The arrays are read-only views of the mapped file.

    `tokens` [t] is uint16 or uint32. `offsets` [n + 1] is int64; the tokens of document i are
    tokens[offsets[i]:offsets[i + 1]]. `doc_ids` [n] holds 16-byte binary ids. `n_bytes` [n], int64, holds the
    number of UTF-8 bytes of each document's text that were encoded. `facts` is the JSON object in the
    metadata of the schema.

    `sentences`, int32, holds the token offsets within each document at which sentences begin. Those of
    document i are sentences[sentence_offsets[i]:sentence_offsets[i + 1]]. Both arrays are None if the build
    wrote no sentences.

    `spans`, int32 [spans, 3], holds the start and the end (exclusive) of each span, as token offsets within
    the document, and the index of its type in SPAN_TYPES. Those of document i are
    spans[span_offsets[i]:span_offsets[i + 1]]; they are ascending, disjoint and not empty. Both arrays are
    None if the build wrote no spans.

    `targets`, int32 [n], holds the token offset within each document at which its target, such as a
    translation, begins, or -1 if the document has no target. It is None if the build wrote no targets.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    doc_ids: pa.FixedSizeBinaryArray
    n_bytes: np.ndarray
    sentences: np.ndarray | None
    sentence_offsets: np.ndarray | None
    facts: dict[str, Any]
    spans: np.ndarray | None = None
    span_offsets: np.ndarray | None = None
    targets: np.ndarray | None = None


def shard_schema(
    token_type: pa.DataType, with_sentences: bool, with_spans: bool, facts: dict[str, Any], with_target: bool = False
) -> pa.Schema:
    """Return the schema of a shard. `facts` are stored in the schema's metadata as JSON."""
    fields = [
        pa.field("tokens", pa.large_list(pa.field("item", token_type, nullable=False)), nullable=False),
        pa.field("doc_id", ID, nullable=False),
        pa.field("n_bytes", pa.int64(), nullable=False),
    ]
    if with_sentences:
        fields.append(
            pa.field("sentences", pa.large_list(pa.field("item", pa.int32(), nullable=False)), nullable=False)
        )
    if with_spans:
        span = pa.list_(pa.field("item", pa.int32(), nullable=False), 3)
        fields.append(pa.field("spans", pa.large_list(pa.field("item", span, nullable=False)), nullable=False))
    if with_target:
        fields.append(pa.field("target", pa.int32(), nullable=False))
    metadata = {"gristmill": json.dumps({"format": FORMAT, **facts}, sort_keys=True)}
    return pa.schema(fields, metadata=metadata)


def write_shard(
    sink: BinaryIO,
    tokens: np.ndarray,
    offsets: np.ndarray,
    doc_ids: pa.FixedSizeBinaryArray,
    n_bytes: np.ndarray,
    facts: dict[str, Any],
    sentences: tuple[np.ndarray, np.ndarray] | None = None,
    spans: tuple[np.ndarray, np.ndarray] | None = None,
    targets: np.ndarray | None = None,
) -> None:
    """Write one shard to `sink`. The arrays are as in `Shard`; `sentences` and `spans` are (values, offsets)."""
    kind = pa.from_numpy_dtype(tokens.dtype)
    schema = shard_schema(kind, sentences is not None, spans is not None, facts, targets is not None)
    columns = [_large_list(tokens, offsets, schema.field("tokens").type), doc_ids, pa.array(n_bytes, pa.int64())]
    if sentences is not None:
        values, value_offsets = sentences
        columns.append(_large_list(values.astype(np.int32, copy=False), value_offsets, schema.field("sentences").type))
    if spans is not None:
        values, value_offsets = spans
        columns.append(_large_list(values.astype(np.int32, copy=False), value_offsets, schema.field("spans").type))
    if targets is not None:
        columns.append(pa.array(targets, pa.int32()))
    batch = pa.record_batch(columns, schema=schema)
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=None)) as writer:
        writer.write_batch(batch)


def open_shard(directory: Location, record: FileRecord) -> Shard:
    """Map a shard into memory, after verifying its checksum. Raises CorruptFileError if the file is missing,
    differs from `record` or is not a shard of this format.
    """
    path = directory.verify(record)
    try:
        opened = pa.memory_map(lent(path))
    except FileNotFoundError:  # the file was removed after it had been verified
        raise missing_file(directory / record.path, directory) from None
    with opened as source:
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            raise CorruptFileError(f"{path}: is not an Arrow file; build it again") from None
        schema = reader.schema
        facts = json.loads((schema.metadata or {}).get(b"gristmill", b"{}"))
        if facts.get("format") != FORMAT:
            raise CorruptFileError(f"{path}: format is {facts.get('format')!r}, expected {FORMAT!r}; build it again")
        if reader.num_record_batches != 1:
            raise CorruptFileError(
                f"{path}: holds {reader.num_record_batches} record batches, a shard holds exactly one"
            )
        batch = reader.get_batch(0)
    tokens, offsets = _flat(batch.column("tokens"))
    sentences, sentence_offsets = _flat(batch.column("sentences")) if "sentences" in schema.names else (None, None)
    spans, span_offsets = _flat(batch.column("spans")) if "spans" in schema.names else (None, None)
    targets = _numbers(batch.column("target")) if "target" in schema.names else None
    n_bytes, ids = _numbers(batch.column("n_bytes")), batch.column("doc_id")
    return Shard(tokens, offsets, ids, n_bytes, sentences, sentence_offsets, facts, spans, span_offsets, targets)


def _large_list(values: np.ndarray, offsets: np.ndarray, kind: pa.DataType) -> pa.Array:
    held = kind.value_type
    if values.ndim == 2:
        items = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel(), held.value_type), type=held)
    else:
        items = pa.array(values, held)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items, type=kind)


def _flat(column: pa.LargeListArray) -> tuple[np.ndarray, np.ndarray]:
    items = column.values
    if not pa.types.is_fixed_size_list(items.type):
        return _numbers(items), _numbers(column.offsets)
    if items.null_count:
        raise pa.ArrowInvalid(f"{items.null_count} values are null, expected none")
    return _numbers(items.flatten()).reshape(len(items), items.type.list_size), _numbers(column.offsets)


def _numbers(column: pa.Array) -> np.ndarray:
    """Return a column as a NumPy array. pyarrow's own `to_numpy` imports pandas, which delays the start of
    small runs.
    """
    if column.null_count:
        raise pa.ArrowInvalid(f"{column.null_count} values are null, expected none")
    kind, buffer = np.dtype(column.type.to_pandas_dtype()), column.buffers()[1]
    if not len(column):
        return np.empty(0, kind)
    return np.frombuffer(buffer, kind, len(column), column.offset * kind.itemsize)
