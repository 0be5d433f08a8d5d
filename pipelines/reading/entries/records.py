"""Record types that the format readers yield, and the JSON of a record's other fields."""

import json
from typing import Any, NamedTuple

BOM = b"\xef\xbb\xbf"


class TextRecord(NamedTuple):
    """A record with text. `size` is the bytes of the record in the decoded file, `meta` JSON in UTF-8 or
    None.
    """

    text: str
    size: int
    url: str | None = None
    meta: bytes | None = None


class Bad(NamedTuple):
    """A record to quarantine for a reason of REASONS. `size` is its length in bytes, None if they were not
    all read. `fields` are its field names, if its text is missing.
    """

    reason: str
    size: int | None = None
    fields: tuple[str, ...] = ()


class RawRecord(NamedTuple):
    """A record whose text a child process has yet to extract: the bytes of a page or a document, and the charset
    that HTTP declares (or ""). The other fields are those of TextRecord, but `meta` lacks what the child finds.
    """

    content: bytes | memoryview
    charset: str
    size: int
    url: str | None
    meta: dict[str, Any]


def to_json(value: Any) -> bytes:
    """Return a record's other fields as JSON in UTF-8; with a lone surrogate among them, as ASCII JSON with
    escapes.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=str).encode()
