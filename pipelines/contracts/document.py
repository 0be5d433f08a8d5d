"""Documents: the Arrow schemas of document parts, quarantines and file indexes, the test for empty texts, and
ids that survive moving the data.

An id is 16 bytes: the big-endian 64-bit key of a file, then the big-endian 64-bit number of the record within
that file, counting from 0. The key is xxh3_64 of `source NUL path`, where the path is relative to the
source's root. Ids are printed as `source/path#record`; a member of an archive has the path `archive!member`.
"""

import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.errors import UserError

ID = pa.binary(16)
_DIGITS = 20  # of the largest number of a record, 2**64 - 1
DOCUMENT = pa.schema(
    [
        pa.field("id", ID, nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("url", pa.string()),
        pa.field("meta", pa.string()),
    ]
)

TARGET_MARK = "\u2029"
"""Begins the target in the text of a record that has a source and a target, such as a translation. No other
stored text has this character, because reading replaces it with a line feed.
"""
BORDER = "\n" + TARGET_MARK
"""Separates source and target in the text of a record, so that no line belongs to both."""

QUARANTINE = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("record", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("bytes", pa.int64()),
    ]
)
"""A record set aside: its path and number, the reason (see `pipelines.reading.entries.reasons`), and its length in
bytes if known.
"""

NOT_SAMPLED = "not_sampled"
"""The reason of records outside the sample, if only a sample of a source is read."""

FILES = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("first_record", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("first_row", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("quarantined", pa.int64(), nullable=False),
        pa.field("decoded_bytes", pa.int64(), nullable=False),
        pa.field("control_characters", pa.int64(), nullable=False),
    ]
)
"""The share of one file, or archive member, in one part: the records of the path from `first_record` up to, but
not including, `first_record + records`. `rows` of them are documents, in rows from `first_row` of the part, sorted
by record; `quarantined` of them are not. `decoded_bytes` counts the bytes of these records before normalisation, as
far as they are known. `control_characters` counts the control characters that normalisation removed or replaced.
"""

FILE_INDEX = FILES.append(pa.field("part", pa.string(), nullable=False))
"""`files/UNIT.arrow` of a read step: FILES, and the name of the part that the rows are in."""


_INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")
_VISIBLE = "[^" + "".join(rf"\p{{{category}}}" for category in _INVISIBLE) + "]"


def is_empty(text: str) -> bool:
    """Return whether a text has no visible characters: it is empty, or has only white space, control and
    format characters (Unicode categories Z, Cc and Cf).
    """
    return all(unicodedata.category(character) in _INVISIBLE for character in text)


def empty(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return whether each text is empty in the sense of `is_empty`, bool [n]; null for a null text."""
    return pc.invert(pc.match_substring_regex(texts, _VISIBLE))


def file_key(source: str, path: str) -> int:
    """Return the 64-bit key of a file: the xxh3_64 hash of the source name, a NUL and the relative path,
    encoded as UTF-8.
    """
    return xxhash.xxh3_64_intdigest(f"{source}\0{path}".encode("utf-8", "surrogateescape"))


def document_id(key: int, record: int) -> bytes:
    """Return the 16-byte id of a record from the key of its file and the record's number within that file,
    counting from 0.
    """
    return key.to_bytes(8, "big") + record.to_bytes(8, "big")


def split_id(identifier: bytes) -> tuple[int, int]:
    """Split a 16-byte id into (file key, record number)."""
    return int.from_bytes(identifier[:8], "big"), int.from_bytes(identifier[8:], "big")


def format_id(source: str, path: str, record: int) -> str:
    """Return the printed form of an id: `source/path#record`."""
    return f"{source}/{path}#{record}"


def parse_id(printed: str) -> tuple[str, str, int]:
    """Split a printed id, `source/path#record`, into (source, path, record). Raises UserError if it does not
    have this form.
    """
    source, slash, rest = printed.partition("/")
    path, hash_mark, record = rest.rpartition("#")
    if not (source and slash and path and hash_mark and record.isdecimal() and len(record) <= _DIGITS):
        raise UserError(
            f"{printed!r}: not a document id; expected source/path#record, for example web/2024/a.jsonl.gz#17"
        )
    return source, path, int(record)


def ids_as_integers(ids: pa.FixedSizeBinaryArray) -> np.ndarray:
    """Return ids as a structured array [n] with the uint64 fields `key` and `record`. It sorts in the same
    order as the ids.
    """
    raw = np.frombuffer(ids.buffers()[1], dtype=">u8", count=2 * len(ids), offset=16 * ids.offset).reshape(-1, 2)
    out = np.empty(len(ids), dtype=[("key", "u8"), ("record", "u8")])
    out["key"], out["record"] = raw[:, 0], raw[:, 1]
    return out
