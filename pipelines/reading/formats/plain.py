"""The formats `text` (a file is one document, or is cut into several) and `message` (header lines, an empty
line, the body).
"""

import codecs
import re
from collections.abc import Iterator

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.normalise import cut
from pipelines.reading.entries.records import Bad, TextRecord, to_json
from pipelines.reading.sources.source import Source

_HEADER = re.compile(r"([!-9;-~]+):[ \t]*(.*)")  # a field name of RFC 5322, section 3.6.8
_LINE_END = re.compile(r"\r\n|\r|\n")


def read_text(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield the whole stream as one document. A stream over `max_document_bytes` is set aside as `oversized`
    or, with `oversized: split`, cut into documents of at most that many bytes.
    """
    held = bytearray()
    for chunk in entry.chunks:
        held += chunk
        if len(held) > source.max_document_bytes:
            if source.oversized == "split":
                yield from split_text(bytes(held), entry.chunks, source.encoding, source.max_document_bytes)
            else:
                yield Bad("oversized", entry.size)
            return
    try:
        text = held.decode(source.encoding)
    except UnicodeError:
        yield Bad("undecodable", len(held))
        return
    yield TextRecord(text.removeprefix("\ufeff"), len(held))


def split_text(
    first: bytes, chunks: Iterator[bytes], encoding: str, limit: int, errors: str = "strict"
) -> Iterator[TextRecord | Bad]:
    """Yield the stream, which is `first` followed by `chunks`, as documents of at most `limit` bytes of
    UTF-8, cut at line ends where possible. If bytes cannot be decoded, the last item is a Bad.
    """
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    mark = "\ufeff"  # at the start of the stream only
    rest = b""  # UTF-8 not yielded yet, at most `limit` bytes
    try:
        for held, final in _regroup(first, chunks, limit):
            text = decoder.decode(held, final)
            pieces = cut(rest + text.removeprefix(mark).encode(), limit)
            mark = "" if text else mark
            rest = b"" if final or not pieces else pieces.pop()
            for piece in pieces:
                yield TextRecord(piece.decode(), len(piece))
    except UnicodeError:
        yield Bad("undecodable")


def _regroup(first: bytes, chunks: Iterator[bytes], size: int) -> Iterator[tuple[bytes, bool]]:
    held = bytearray(first)
    for chunk in chunks:
        if len(held) >= size:
            yield bytes(held), False
            held.clear()
        held += chunk
    yield bytes(held), True


def read_message(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield the message in a file as one document. A message is a header block, an empty line and a body, as
    in e-mail and in the METADATA of a Python package. The body is the text.

    Headers become `meta`: a string for a name that occurs once, a list for a name that is repeated. The
    header named by `source.url_field`, ignoring case, is also the URL. Continuation lines (which begin with a
    space or tab) are joined to their header with a line feed.

    If a line of the header block is neither a header nor a continuation, the message is set aside as
    `bad_header`. A message without an empty line has no body and is set aside as `empty`. Messages are never
    split; a message over `max_document_bytes` is set aside as `oversized`.
    """
    held = entry.read(source.max_document_bytes)
    if held is None:
        yield Bad("oversized", entry.size)
        return
    try:
        lines = _LINE_END.sub("\n", held.decode(source.encoding).removeprefix("\ufeff"))
    except UnicodeError:
        yield Bad("undecodable", len(held))
        return
    head, _, body = ("", "", lines[1:]) if lines.startswith("\n") else lines.partition("\n\n")
    headers = _headers(head)
    if headers is None:
        yield Bad("bad_header", len(held))
        return
    url = next((values[0] for name, values in headers.items() if name.lower() == source.url_field.lower()), None)
    meta = {name: values[0] if len(values) == 1 else values for name, values in headers.items()}
    yield TextRecord(body, len(held), url, to_json(meta) if meta else None)


def _headers(block: str) -> dict[str, list[str]] | None:
    headers: dict[str, list[list[str]]] = {}  # the values of each name; a value is a list of its folded lines
    last: list[str] | None = None
    for line in block.split("\n") if block else ():
        if line[:1] in (" ", "\t"):
            if last is None:
                return None
            last.append(line.strip())
        elif match := _HEADER.fullmatch(line):
            last = [match[2].rstrip()]
            headers.setdefault(match[1], []).append(last)
        elif line:
            return None
    return {name: ["\n".join(value) for value in values] for name, values in headers.items()}
