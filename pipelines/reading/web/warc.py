"""Web formats: warc (WARC and ARC files, including WET) and html (one page per file).

Only HTML pages and plain-text conversion records, as in WET files, become documents. Every other record of a
web archive is set aside with a reason, so that all records are accounted for.
"""

import re
from collections.abc import Iterator
from typing import Any

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, RawRecord, TextRecord, to_json
from pipelines.reading.formats.plain import split_text
from pipelines.reading.sources.source import Source
from pipelines.reading.web.charset import codec_of_label, decode, is_undecodable
from pipelines.reading.web.http_payload import HEAD_BYTES, charset_of, decode_payload, media_type, read_head
from pipelines.reading.web.web_archives import Malformed, Record, read_archive

_HTML = ("text/html", "application/xhtml+xml")
_LOOKS_LIKE_HTML = re.compile(rb"<!doctype\s+html|<html\b|<head\b|<body\b", re.IGNORECASE)
_SNIFF_BYTES = 1024
_ASIDE = ("warcinfo", "request", "metadata", "revisit")
_PAYLOAD_TYPES = ("response", "resource", "conversion")


def read_warc(entry: Entry, source: Source) -> Iterator[TextRecord | Bad | RawRecord]:
    """Yield the records of a WARC or ARC stream: pages as RawRecord, texts as TextRecord (several if split),
    and all others as Bad.

    `meta` holds these fields, if present: `date`, `record_id`, `content_type` (of the payload, as declared),
    `status`, `truncated` (why the crawler truncated the record), `languages` (as named in a WET file), and
    for pages the reservations of rights in the HTTP headers. A text that is not split also has `replaced`,
    the number of U+FFFD that decoding inserted.
    """

    def bound(fields: dict[str, str]) -> int:
        return source.max_document_bytes if _is_text(fields) else source.max_html_bytes + HEAD_BYTES

    for record in read_archive(entry.chunks, bound):
        if isinstance(record, Record):
            text = _is_text(record.fields)
            if not record.whole and not (text and source.oversized == "split"):
                for _ in record.rest:
                    pass
                if record.rest.left:  # the Cut that follows counts this record
                    continue
            if text:
                yield from _text(record, source)
            else:
                yield _page(record, source)
        else:
            yield Bad("malformed_record" if isinstance(record, Malformed) else "truncated", record.size)


def read_html(entry: Entry, source: Source) -> Iterator[TextRecord | Bad | RawRecord]:
    """Yield the whole stream as one page, or a Bad if it is empty or has more than `max_html_bytes` bytes."""
    held = bytearray()
    for chunk in entry.chunks:
        held += chunk
        if len(held) > source.max_html_bytes:
            yield Bad("html_bytes", entry.size)
            return
    yield RawRecord(bytes(held), "", len(held), None, {}) if held else Bad("empty", 0)


def _type(fields: dict[str, str]) -> str:
    return fields.get("warc-type", "").lower()


def _is_text(fields: dict[str, str]) -> bool:
    return _type(fields) == "conversion" and media_type(fields.get("content-type", "")) == "text/plain"


def _segmented(fields: dict[str, str]) -> bool:
    return _type(fields) == "continuation" or "warc-segment-number" in fields


def _text(record: Record, source: Source) -> Iterator[TextRecord | Bad]:
    fields = record.fields
    url, meta = _url(fields), _meta(fields)
    codec = codec_of_label(charset_of(fields["content-type"])) or "utf-8"
    if _segmented(fields):
        yield Bad("segmented", record.size)
    elif record.whole:
        text, _, replaced = decode(record.block, codec)
        if replaced and is_undecodable(text):
            yield Bad("undecodable", record.size)
            return
        yield TextRecord(text.removeprefix("\ufeff"), record.size, url, to_json(meta | {"replaced": replaced}))
    elif source.oversized == "split":
        for piece in split_text(record.block, record.rest, codec, source.max_document_bytes, "replace"):
            assert isinstance(piece, TextRecord)
            yield piece._replace(url=url, meta=to_json(meta))
    else:
        yield Bad("oversized", record.size)


def _page(record: Record, source: Source) -> Bad | RawRecord:
    fields, kind = record.fields, _type(record.fields)
    declared = fields.get("content-type", "")
    if kind in _ASIDE:
        return Bad(kind, record.size)
    if _segmented(fields):
        return Bad("segmented", record.size)
    if kind not in _PAYLOAD_TYPES:
        return Bad("unknown_record_type", record.size)
    if media_type(declared) == "text/dns":
        return Bad("dns", record.size)
    meta = _meta(fields)
    response = None
    if media_type(declared) == "application/http" or (not declared and record.block.startswith(b"HTTP/")):
        response = read_head(record.block)
        if response is None:
            return Bad("bad_http", record.size)
        if response.status != 200:
            return Bad("http_status", record.size)
        declared = response.headers.get("content-type", "")
        meta |= {"content_type": declared, "status": response.status, **response.reservations}
    if declared and media_type(declared) not in _HTML:
        return Bad("not_html", record.size)
    if not record.whole:
        return Bad("html_bytes", record.size)
    content: bytes | memoryview | str = record.block
    if response:
        content = decode_payload(response, record.block, source.max_html_bytes, "truncated" in meta)
    if isinstance(content, str):
        return Bad(content, record.size)
    if not declared and content and not _LOOKS_LIKE_HTML.search(content, 0, _SNIFF_BYTES):
        return Bad("not_html", record.size)
    if len(content) > source.max_html_bytes:
        return Bad("html_bytes", record.size)
    return (
        RawRecord(content, charset_of(declared), record.size, _url(fields), meta)
        if content
        else Bad("empty", record.size)
    )


def _url(fields: dict[str, str]) -> str | None:
    """Return the target URL, or None if there is none. The grammar of WARC 1.0 prescribes angle brackets
    around it, which are removed.
    """
    return fields.get("warc-target-uri", "").removeprefix("<").removesuffix(">") or None


def _meta(fields: dict[str, str]) -> dict[str, Any]:
    values = {
        "date": fields.get("warc-date"),
        "record_id": fields.get("warc-record-id", "").removeprefix("<").removesuffix(">"),
        "content_type": fields.get("content-type"),
        "truncated": fields.get("warc-truncated"),
        "languages": fields.get("warc-identified-content-language"),
    }
    return {name: value for name, value in values.items() if value}
