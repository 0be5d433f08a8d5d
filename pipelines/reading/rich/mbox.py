"""mbox files (RFC 4155): one record per message, streamed."""

import re
from collections.abc import Iterator
from itertools import chain

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, RawRecord
from pipelines.reading.sources.source import Source

# The line before a message, with a time: at the start of the file or after a blank line.
_FIRST = re.compile(rb"(?:\r?\n)*From [^\n]*\d{4}[^\n]*\n")
_NEXT = re.compile(rb"\n\r?\nFrom [^\n]*\d{4}[^\n]*\n")
_LINE_BYTES = 1 << 10  # of the line before a message and the blank one before it; longer ones are text
_QUOTED = re.compile(rb"^>(>*From )", re.MULTILINE)


def read_mbox(entry: Entry, source: Source) -> Iterator[Bad | RawRecord]:
    """Yield one record per message. Each message follows a separator: a line that begins with `From ` and has
    four digits in a row, as in a year. The separator is the first line of the file that is not blank, or
    comes after a blank line. The `>` that mail programs put before lines of the text that begin with `From `
    is removed.

    A file that does not begin with a separator is set aside as `not_mbox`. A message over `max_file_bytes` is
    set aside as `file_bytes`; no more than about that size is held in memory.
    """
    held = bytearray()
    begun = False
    dropped = 0  # bytes of the open message that are not held, because it is too long
    searched = 0
    for chunk in chain(entry.chunks, [None]):
        held += chunk or b""
        if not begun and (chunk is None or len(held) >= _LINE_BYTES):
            first = _FIRST.match(held)
            if first is None:
                yield Bad("not_mbox" if held else "empty", len(held) if chunk is None else None)
                return
            begun = True
            del held[: first.end()]
        while begun and (found := _NEXT.search(held, searched)):
            yield _message(held[: found.start() + 1], dropped, source)
            del held[: found.end()]
            dropped = searched = 0
        searched = max(0, len(held) - _LINE_BYTES)
        if len(held) > source.max_file_bytes + _LINE_BYTES:
            dropped += searched
            del held[:searched]
            searched = 0
    yield _message(held, dropped, source)


def _message(content: bytearray, dropped: int, source: Source) -> Bad | RawRecord:
    size = dropped + len(content)
    if size > source.max_file_bytes:
        return Bad("file_bytes", size)
    return RawRecord(_QUOTED.sub(rb"\1", bytes(content)), "", size, None, {})
