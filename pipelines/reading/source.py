"""What reading needs to know of a source, and the reasons for which a record is set aside."""

from typing import Protocol

# ruff: noqa: D102 -- the fields of SourceSpec are described where they are defined, in pipelines.corpus

CHUNK_BYTES = 1 << 18  # bytes asked of a file, a decompressor or an archive member at a time

REASONS = {
    "bad_header": "the header block of a message has a line that is neither `Name: value` nor a continuation",
    "bad_quotes": "a CSV row has a quote, or a carriage return alone, where RFC 4180 allows none",
    "corrupt": "the bytes are not what the compression, archive or Parquet format allows; what came before is kept",
    "decoded_limit": "the file decodes to more than max_decoded_bytes; what came before is kept",
    "empty": "no text is left: the record, or what normalisation leaves of it, has zero bytes",
    "encrypted": "the archive member or Parquet file is encrypted",
    "field_count": "a CSV row has more or fewer fields than the first row",
    "large_batch": "a record batch of an Arrow file takes more than 512 MiB of memory; what came before is kept",
    "lone_surrogate": "the text or the URL holds half of a surrogate pair, which no Unicode encoding can represent",
    "nested_archive": "an archive inside an archive, or more than two layers of compression; it is not opened",
    "no_text": "the record has no text field, or it is null",
    "not_arrow": "not an Arrow IPC file or stream",
    "not_json": "the line, element or document is not JSON",
    "not_object": "the line or element is JSON, but not an object",
    "not_parquet": "not a Parquet file, or one inside an archive or a compressed file, where it cannot be read",
    "not_regular": "the archive member is a link, a device or a pipe",
    "oversized": "the record is longer than max_document_bytes",
    "text_not_string": "the text field is not a string",
    "trailing_bytes": "bytes follow the end of the archive or JSON document; they are not read",
    "truncated": "the file ends within compressed data, an archive, a member or a document; what came before is kept",
    "unclosed_quote": "a quoted field of a CSV row does not end within max_document_bytes",
    "undecodable": "the bytes are not valid in the declared encoding",
    "unsupported_compression": "the archive member is compressed in a way that Python cannot read",
    "wrong_suffix": "the name promises a compression that the bytes do not have",
}
"""Every reason a record can be quarantined for, and what it says to a person."""


class BrokenInput(Exception):
    """The bytes of one file or member end early, for a reason of REASONS. Whatever was decoded before has been
    delivered.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SourceSpec(Protocol):
    """The fields of a source that reading looks at; `pipelines.corpus.Source` says what each means."""

    @property
    def name(self) -> str: ...
    @property
    def root(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def include(self) -> tuple[str, ...]: ...
    @property
    def exclude(self) -> tuple[str, ...]: ...
    @property
    def members(self) -> tuple[str, ...]: ...
    @property
    def encoding(self) -> str: ...
    @property
    def text_field(self) -> str: ...
    @property
    def url_field(self) -> str: ...
    @property
    def unicode_form(self) -> str: ...
    @property
    def max_document_bytes(self) -> int: ...
    @property
    def oversized(self) -> str: ...
    @property
    def max_decoded_bytes(self) -> int: ...
