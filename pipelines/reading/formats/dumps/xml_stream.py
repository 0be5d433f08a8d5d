"""Parse XML of any length with expat, without expanding entities or reading anything outside the file."""

from collections.abc import Callable, Iterator
from typing import Any
from xml.parsers import expat

from pipelines.reading.entries.reasons import CHUNK_BYTES, BrokenInput

_TOKEN_BYTES = 16 << 20  # expat holds a tag or comment whole; those of dumps are under a megabyte

Handler = Callable[..., None]


class XmlStream:
    """An expat parser for a stream of bytes. It calls `start(name, attributes)`, `end(name)` and `data(text)`
    for the root element and for everything below it.

    `parse` raises BrokenInput with the reason `other` if the stream is not XML or its root element is not
    `root`, and with `xml_doctype` if the XML has a document type declaration. Entities that a file declares
    are therefore never expanded.
    """

    def __init__(
        self, root: str, other: str, start: Handler, end: Handler | None = None, data: Handler | None = None
    ) -> None:
        self._root, self._other, self._start = root, other, start
        self._begun = False
        self._fed = 0
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._first
        self._parser.EndElementHandler = end
        self._parser.CharacterDataHandler = data
        self._parser.StartDoctypeDeclHandler = _refuse
        self._parser.EntityDeclHandler = _refuse

    def parse(self, chunks: Iterator[bytes]) -> Iterator[None]:
        """Parse a stream, yielding None after each piece so that the caller can take what the handlers
        collected. Raises BrokenInput, after a last yield, if the XML is malformed, rejected or ends too
        early.
        """
        for chunk in chunks:
            for start in range(0, len(chunk), CHUNK_BYTES):
                yield from self._feed(chunk[start : start + CHUNK_BYTES])
        yield from self._feed(b"", last=True)

    def _feed(self, chunk: bytes, *, last: bool = False) -> Iterator[None]:
        self._fed += len(chunk)
        failure = None
        try:
            self._parser.Parse(chunk, last)
            if not last and self._fed - self._parser.CurrentByteIndex > _TOKEN_BYTES:
                failure = "corrupt"
        except expat.ExpatError:
            failure = "truncated" if last else "corrupt" if self._begun else self._other
        except BrokenInput as error:
            failure = error.reason
        yield
        if failure:
            raise BrokenInput(failure)

    def _first(self, name: str, attributes: dict[str, str]) -> None:
        if name != self._root:
            raise BrokenInput(self._other)
        self._begun = True
        self._parser.StartElementHandler = self._start
        self._start(name, attributes)


def _refuse(*_: Any) -> None:
    raise BrokenInput("xml_doctype")
