"""Parse HTTP responses in web archives: status, headers, and the decoded payload."""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO

from pipelines.reading.entries.decompress import DecodeBudget, decompress
from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.web.page_reservations import Reservations, header_reservations

HEAD_BYTES = 1 << 16  # a longer header block is an attack or not a header block
_STATUS = re.compile(rb"HTTP/\d(?:\.\d)?[ \t]+(\d{3})\b")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?+\s*+([^\s\"';,]{1,40})", re.IGNORECASE)
_MAX_CODINGS = 4  # nested content codings; decoding each costs a copy of the body


@dataclass(frozen=True)
class Response:
    """The head of an HTTP response. `headers` holds the first value of each name, with names in lower case.
    `body` is the position in the record's block at which the body begins. `reservations` are the reservations
    of rights that the headers declare.
    """

    status: int
    headers: dict[str, str]
    body: int
    reservations: Reservations = field(default_factory=dict)

    @property
    def content_type(self) -> str:
        """The media type in lower case, without parameters; empty if none is declared."""
        return media_type(self.headers.get("content-type", ""))

    @property
    def charset(self) -> str:
        """The charset parameter of the content type as declared; empty if there is none."""
        return charset_of(self.headers.get("content-type", ""))


def media_type(content_type: str) -> str:
    """Return the media type in the value of a Content-Type header, in lower case and without parameters:
    `text/html` for `Text/HTML; charset=x`.
    """
    return content_type.partition(";")[0].strip().lower()


def charset_of(content_type: str) -> str:
    """Return the charset parameter of a content type; empty if there is none."""
    match = _CHARSET.search(content_type)
    return match[1] if match else ""


def read_fields(lines: bytes) -> dict[str, str]:
    """Parse `Name: value` lines. Return the first value of each name, with names in lower case. A
    continuation line (which begins with a space or tab) is joined to the value before it.
    """
    fields: dict[str, str] = {}
    last: str | None = None
    for line in lines.split(b"\n"):
        if line[:1] in (b" ", b"\t"):
            if last is not None:
                fields[last] += " " + _text(line.strip())
            continue
        name, colon, value = line.partition(b":")
        last = _text(name.strip()).lower() if colon else None
        if last is not None and last in fields:
            last = None
        elif last is not None:
            fields[last] = _text(value.strip())
    return fields


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def read_head(block: bytes) -> Response | None:
    """Parse the head of an HTTP response. Return None if the block does not begin with a complete head of at
    most HEAD_BYTES.
    """
    status = _STATUS.match(block)
    if status is None:
        return None
    end = _HEAD_END.search(block, status.end(), HEAD_BYTES)
    if end is None:
        return None
    lines = block[status.end() : end.start()].partition(b"\n")[2]
    return Response(int(status[1]), read_fields(lines), end.end(), header_reservations(lines))


def decode_payload(response: Response, block: bytes, limit: int, clipped: bool) -> bytes | memoryview | str:
    """Return the payload with its transfer and content codings undone, or the reason why it cannot be used:
    `html_bytes` (more than `limit` bytes) or `bad_coding`. Unknown codings are not undone.

    Some crawlers decode payloads but keep the headers, so a payload that plainly does not have its declared
    coding is used unchanged. If the crawler declared the response truncated (`clipped`), coded data may end
    early, and the payload is what can be decoded.
    """
    body: bytes | memoryview = memoryview(block)[response.body :]
    if "chunked" in response.headers.get("transfer-encoding", "").lower() and _CHUNK_SIZE.match(body):
        chunks = _dechunk(body, clipped)
        if chunks is None:
            return "bad_coding"
        body = chunks
    codings = response.headers.get("content-encoding", "").lower().split(",")
    if len(codings) > _MAX_CODINGS:
        return "bad_coding"
    for coding in reversed(codings):
        undo = _CODINGS.get(coding.strip())
        if undo is None or not body:
            continue
        try:
            body = undo(bytes(body), limit, clipped)
        except BrokenInput as broken:
            return broken.reason
    return body if len(body) <= limit else "html_bytes"


def _dechunk(body: bytes | memoryview, clipped: bool) -> bytes | None:
    """Join the chunks of a chunked body (RFC 9112, section 7.1). For a damaged body, return None or, if
    `clipped`, the data before the damage.
    """
    pieces: list[bytes | memoryview] = []
    at = 0
    while match := _CHUNK_SIZE.match(body, at):
        size = int(match[1], 16)
        if size == 0:
            return b"".join(pieces)
        piece = body[match.end() : match.end() + size]
        pieces.append(piece)
        at = match.end() + size
        if len(piece) < size:
            break
        at += 2 if body[at : at + 2] == b"\r\n" else 1 if body[at : at + 1] == b"\n" else 0
    return b"".join(pieces) if clipped or at == len(body) else None


def _decode_stream(body: bytes, limit: int, clipped: bool) -> bytes:
    pieces = []
    try:
        for piece in decompress("", iter([body]), DecodeBudget(limit))[1]:
            pieces.append(piece)
    except BrokenInput as broken:
        if broken.reason == "decoded_limit":
            raise BrokenInput("html_bytes") from None
        if not (clipped and broken.reason == "truncated"):
            raise BrokenInput("bad_coding") from None
    return b"".join(pieces)


def _decode_deflate(body: bytes, limit: int, clipped: bool) -> bytes:
    """Decode the content coding `deflate`, which is zlib in the standard but raw deflate from some servers."""
    for wbits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):
        stream = zlib.decompressobj(wbits)
        try:
            out = stream.decompress(body, limit + 1)
        except zlib.error:
            continue
        if len(out) > limit:
            raise BrokenInput("html_bytes")
        if stream.eof or clipped:
            return out
    return _accept_uncoded(body)


def _decode_brotli(body: bytes, limit: int, clipped: bool) -> bytes:
    from fastwarc.stream_io import BrotliReader

    pieces, left = [], limit + 1
    try:
        reader = BrotliReader(BytesIO(body))
        while left and (piece := reader.read(min(left, 1 << 18))):
            pieces.append(piece)
            left -= len(piece)
    except OSError:
        if not (clipped and pieces):
            return _accept_uncoded(body)
    if not left:
        raise BrokenInput("html_bytes")
    return b"".join(pieces)


def _accept_uncoded(body: bytes) -> bytes:
    """Return the body if it begins like markup, which shows that its declared coding was never applied.
    Otherwise raise BrokenInput("bad_coding").
    """
    if not body.lstrip(b"\xef\xbb\xbf\r\n\t ").startswith(b"<"):
        raise BrokenInput("bad_coding")
    return body


_CODINGS: dict[str, Callable[[bytes, int, bool], bytes]] = {
    "gzip": _decode_stream,
    "x-gzip": _decode_stream,
    "zstd": _decode_stream,
    "deflate": _decode_deflate,
    "br": _decode_brotli,
}
