"""MediaWiki XML dumps (https://www.mediawiki.org/wiki/Help:Export): one record per page, streamed through
expat.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from xml.parsers import expat

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.reasons import CHUNK_BYTES, BrokenInput
from pipelines.reading.entries.records import Bad, TextRecord, to_json
from pipelines.reading.formats.wikitext import plain_text
from pipelines.reading.sources.source import Source

_TOKEN_BYTES = 16 << 20  # expat holds a tag or comment whole; those of dumps are under a megabyte
_ARTICLES, _FILES, _CATEGORIES = "0", "6", "14"
_FIELDS = {
    ("siteinfo", "base"), ("page", "title"), ("page", "ns"), ("page", "id"), ("revision", "id"),
    ("revision", "timestamp"), ("revision", "model"), ("revision", "text"),
}  # fmt: skip
_FIELD_BYTES = 1 << 16
_URL_SAFE = ":/@!$*(),;'"  # characters that MediaWiki does not escape in the URL of a page


def read_mediawiki(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield one record per page: the plain text of its last revision in the dump, see
    `pipelines.reading.formats.wikitext`.

    Redirects are set aside as `redirect`, pages outside the namespace of articles as `not_article`, pages in
    another markup as `not_wikitext`. The URL is built from the dump's `base` and the title; title, page id,
    revision id and timestamp are `meta`. XML with a document type or entities, which no dump has, is rejected
    as `xml_doctype` before anything is expanded.
    """
    dump = _Dump(source)
    for chunk in entry.chunks:
        for start in range(0, len(chunk), CHUNK_BYTES):
            yield from dump.feed(chunk[start : start + CHUNK_BYTES])
    yield from dump.feed(b"", last=True)


class _Dump:
    """The state of the parser: the path of open elements and the fields of the open page."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._path: list[str] = []
        self._base = ""
        self._hidden: list[str] = []
        self._page: dict[str, str] = {}
        self._redirect = self._oversized = False
        self._pieces: list[str] | None = None  # contents of the open element, if it is one of _FIELDS
        self._size = 0
        self._fed = 0
        self._found: list[TextRecord | Bad] = []
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.EntityDeclHandler = self._refuse

    def feed(self, chunk: bytes, *, last: bool = False) -> Iterator[TextRecord | Bad]:
        """Yield the pages that end within a chunk, then BrokenInput if the XML is malformed in it or ends too
        early.
        """
        self._fed += len(chunk)
        failure = None
        try:
            self._parser.Parse(chunk, last)
            if not last and self._fed - self._parser.CurrentByteIndex > _TOKEN_BYTES:
                failure = "corrupt"
        except expat.ExpatError:
            failure = "truncated" if last else "corrupt" if self._path else "not_mediawiki"
        except BrokenInput as error:
            failure = error.reason
        found, self._found = self._found, []
        yield from found
        if failure:
            raise BrokenInput(failure)

    def _refuse(self, *_: Any) -> None:
        raise BrokenInput("xml_doctype")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._path and name != "mediawiki":
            raise BrokenInput("not_mediawiki")
        parent = self._path[-1] if self._path else ""
        self._path.append(name)
        if name == "page":
            self._page, self._redirect = {}, False
        elif name == "redirect" and parent == "page":
            self._redirect = True
        if (parent, name) in _FIELDS or (
            name == "namespace" and attributes.get("key") in (_FILES, _CATEGORIES) and parent == "namespaces"
        ):
            self._pieces, self._size = [], 0
            if name == "text":
                self._oversized = False

    def _data(self, data: str) -> None:
        if self._pieces is None:
            return
        is_text = self._path[-1] == "text"
        self._size += len(data.encode("utf-8", "surrogatepass"))
        if self._size <= (self._source.max_document_bytes if is_text else _FIELD_BYTES):
            self._pieces.append(data)
        elif is_text:
            self._pieces, self._oversized = [], True
        else:
            raise BrokenInput("corrupt")

    def _end(self, name: str) -> None:
        self._path.pop()
        parent = self._path[-1] if self._path else ""
        if self._pieces is not None:
            value, self._pieces = "".join(self._pieces), None
            if name == "base":
                self._base = value.rpartition("/")[0]
            elif name == "namespace":
                self._hidden.append(value.strip().lower())
            else:
                self._page[f"{parent}.{name}"] = value
                if name == "text":
                    self._page["bytes"] = str(self._size)
        elif name == "page":
            self._found.append(self._record())

    def _record(self) -> TextRecord | Bad:
        page = self._page
        size = int(page.get("bytes", "0"))
        if self._redirect:
            return Bad("redirect", size)
        if page.get("page.ns", _ARTICLES) != _ARTICLES:
            return Bad("not_article", size)
        if page.get("revision.model", "wikitext") != "wikitext":
            return Bad("not_wikitext", size)
        if "revision.text" not in page:
            return Bad("no_text", size)
        if self._oversized:
            return Bad("oversized", size)
        title = page.get("page.title", "")
        url = f"{self._base}/{quote(title.replace(' ', '_'), safe=_URL_SAFE)}" if self._base and title else None
        meta = {
            "title": title,
            "id": page.get("page.id"),
            "revision": page.get("revision.id"),
            "timestamp": page.get("revision.timestamp"),
        }
        return TextRecord(plain_text(page["revision.text"], tuple(self._hidden)), size, url, to_json(meta))
