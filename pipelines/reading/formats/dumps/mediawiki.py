"""MediaWiki XML dumps (https://www.mediawiki.org/wiki/Help:Export): one record per page, streamed."""

from collections.abc import Iterator
from urllib.parse import quote

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.entries.records import Bad, TextRecord, to_json
from pipelines.reading.formats.dumps.wikitext import plain_text
from pipelines.reading.formats.dumps.xml_stream import XmlStream
from pipelines.reading.sources.source import Source

_ARTICLES, _FILES, _CATEGORIES = "0", "6", "14"
_FIELDS = {
    ("siteinfo", "base"), ("page", "title"), ("page", "ns"), ("page", "id"), ("revision", "id"),
    ("revision", "timestamp"), ("revision", "model"), ("revision", "text"),
}  # fmt: skip
_FIELD_BYTES = 1 << 16
_URL_SAFE = ":/@!$*(),;'"  # characters that MediaWiki does not escape in the URL of a page


def read_mediawiki(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield one record per page: the plain text of its last revision in the dump (see
    `pipelines.reading.formats.dumps.wikitext`).

    Redirects are set aside as `redirect`, pages outside the article namespace as `not_article`, and pages in
    another markup as `not_wikitext`. The URL is built from the dump's `base` and the title. `meta` holds the
    title, page id, revision id and timestamp. XML with a document type, which no dump has, is rejected as
    `xml_doctype` before any entity is expanded.
    """
    dump = _Dump(source)
    for _ in XmlStream("mediawiki", "not_mediawiki", dump.start, dump.end, dump.data).parse(entry.chunks):
        yield from dump.take()


class _Dump:
    """The state of parsing a dump, and the records found since the last `take`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._path: list[str] = []
        self._base = ""
        self._hidden: list[str] = []
        self._page: dict[str, str] = {}
        self._redirect = self._oversized = False
        self._pieces: list[str] | None = None  # contents of the open element, if it is one of _FIELDS
        self._size = 0
        self._found: list[TextRecord | Bad] = []

    def take(self) -> list[TextRecord | Bad]:
        found, self._found = self._found, []
        return found

    def start(self, name: str, attributes: dict[str, str]) -> None:
        parent = self._path[-1] if self._path else ""
        self._path.append(name)
        if name == "page":
            self._page, self._redirect = {}, False
        elif name == "revision" and parent == "page":
            self._page = {field: value for field, value in self._page.items() if field.startswith("page.")}
            self._oversized = False
        elif name == "redirect" and parent == "page":
            self._redirect = True
        if (parent, name) in _FIELDS or (
            name == "namespace" and attributes.get("key") in (_FILES, _CATEGORIES) and parent == "namespaces"
        ):
            self._pieces, self._size = [], 0

    def data(self, data: str) -> None:
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

    def end(self, name: str) -> None:
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
