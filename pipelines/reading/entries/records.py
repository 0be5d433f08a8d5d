"""The types of record that format readers yield, the encoding of `meta` as JSON, and records whose text is
composed of several fields.
"""

import json
from typing import Any, NamedTuple

from pipelines.reading.sources.record_text import NoTextError
from pipelines.reading.sources.source import Source

BOM = b"\xef\xbb\xbf"


class TextRecord(NamedTuple):
    """A record with text. `size` is the record's length in bytes in the decompressed file or, where that is
    unknown, as for a row of Parquet, the length of its text. If a document is cut, its size is divided among
    the pieces; a piece may have size 0. `meta` is JSON in UTF-8, or None.
    """

    text: str
    size: int
    url: str | None = None
    meta: bytes | None = None


class Bad(NamedTuple):
    """A record to quarantine. `reason` is a key of REASONS. `size` is defined as for TextRecord; it is None
    if unknown, for example because the record was not read to its end. `fields` may name the record's fields
    if its text is missing or not a string.
    """

    reason: str
    size: int | None = None
    fields: tuple[str, ...] = ()


class RawRecord(NamedTuple):
    """A record whose text a child process has yet to extract. `content` holds the bytes of a page or a
    document, and `charset` is the encoding that HTTP declares, or "". The other fields are those of
    TextRecord, except that `meta` is not yet encoded as JSON.
    """

    content: bytes | memoryview
    charset: str
    size: int
    url: str | None
    meta: dict[str, Any]


def to_json(value: Any) -> bytes:
    """Return `value` as JSON in UTF-8, or as ASCII JSON with escapes if it contains a lone surrogate. Values
    of types that JSON lacks, such as dates, become strings. Raises ValueError for NaN and infinities.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=str).encode()


def composed_record(record: dict[str, Any], size: int, source: Source) -> TextRecord | Bad:
    """Build a TextRecord whose text is composed from fields of `record` by the source's `text`, which must be
    set. Modifies `record`.

    Return a Bad if there is no text, if a text field does not have the expected type, or if the text has more
    characters than `max_document_bytes`. Raises ValueError if `meta` would contain NaN or an infinity.
    """
    assert source.text is not None
    names = tuple(record)
    try:
        text = source.text.take(record)
    except NoTextError as error:
        return Bad(error.reason, size, names)
    if len(text) > source.max_document_bytes:
        return Bad("oversized", size)
    url = record.pop(source.url_field, None)
    if url is not None and not isinstance(url, str):
        record[source.url_field], url = url, None
    return TextRecord(text, size, url, to_json(record) if record else None)
