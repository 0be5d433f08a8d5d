"""CSV and TSV: one record per row, quoted as in RFC 4180; the first row names the fields. A quote inside an
unquoted field, which RFC 4180 forbids, is kept as part of the field.
"""

import csv
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import PurePosixPath

from gristmill.errors import SourceError
from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, TextRecord, composed_record, to_json
from pipelines.reading.formats.json_lines import LongRecord, lines
from pipelines.reading.sources.source import Source

_DELIMITERS = ",\t;|"
_BLANK = (b"", b"\r")
_RETRIES = 16  # per file; bounds the cost of a file full of stray quotes


class _Unfinished(Exception):
    """Raised if a row grows longer than `max_document_bytes`, or if the file ends within it."""


def read_csv(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield one record per non-blank row after the first, which names the fields on a single line.
    `text_field` (or what `text` names) is the text and `url_field` is the URL; all other fields are strings
    in `meta`.

    The delimiter is the first of comma, tab, semicolon and vertical bar with which the first row has the
    field `text_field`, or all fields that `text` names; for .tsv and .tab, tab is tried first. If the first
    row itself is too long or undecodable, it is set aside and nothing else is read. Other rows set aside:

    - `field_count`: a row with more or fewer fields than the first.
    - `bad_quotes`: a row with characters between a closing quote and the next delimiter, or with a lone carriage
      return outside quotes.
    - `unclosed_quote`: a row with a quoted field that does not end within `max_document_bytes` or the file. Only its
      first line is set aside and reading resumes at the second. From the 17th such row of a file on, all lines
      read for the row are set aside.
    - `oversized`: a line longer than `max_document_bytes`; rows are never split.
    - `undecodable`: a row with bytes that are invalid in the encoding.

    Raises SourceError if no delimiter gives the first row every field of the text, or if two fields have the
    same name.
    """
    rows = Rows(entry.chunks, source.max_document_bytes, source.encoding)
    first = rows.first_line()
    if first is None:
        return
    if isinstance(first, Bad):
        yield first
        return
    names, delimiter = _header(first, entry, source)
    for row in rows.read(delimiter):
        if isinstance(row, Bad):
            yield row
        elif len(row[0]) != len(names):
            yield Bad("field_count", row[1])
        else:
            fields = dict(zip(names, row[0], strict=True))
            if source.text is not None:
                if not fields.get(source.url_field):
                    fields.pop(source.url_field, None)
                yield composed_record(fields, row[1], source)
                continue
            text, url = fields.pop(source.text_field), fields.pop(source.url_field, None)
            yield TextRecord(text, row[1], url or None, to_json(fields) if fields else None)


def _header(line: str, entry: Entry, source: Source) -> tuple[list[str], str]:
    wanted = (source.text_field,) if source.text is None else source.text.names()
    for names, delimiter in headers(line, entry.path):
        if set(wanted) <= set(names):
            if len(set(names)) < len(names):
                raise SourceError(
                    f"source {source.name!r}: the first row of {entry.path} has a name twice; rename a column"
                )
            return names, delimiter
    raise SourceError(
        f"source {source.name!r}: the first row of {entry.path} has no field {' or '.join(map(repr, wanted))}, with comma, tab, "
        "semicolon or bar as delimiter; name the column that holds the text in `text_field`; if the file has no "
        "header row, add one"
    )


def headers(line: str, path: str) -> Iterator[tuple[list[str], str]]:
    """Yield (field names, delimiter) for each delimiter with which `line` is a valid CSV row. The delimiters
    are tried in an order that depends on the suffixes of `path`: for `.tsv` and `.tab`, the tab comes first.
    """
    suffixes = [suffix.lower() for suffix in PurePosixPath(path).suffixes]
    for delimiter in "\t,;|" if ".tsv" in suffixes or ".tab" in suffixes else _DELIMITERS:
        with suppress(csv.Error):
            yield next(csv.reader([line], delimiter=delimiter, strict=True)), delimiter


class Rows:
    """Reads CSV rows, each with its size in bytes, from a stream of bytes. Holds at most about `limit` bytes
    of a row in memory.
    """

    def __init__(self, chunks: Iterator[bytes], limit: int, encoding: str) -> None:
        self._stream = lines(chunks, limit)
        self._limit = limit
        self._encoding = encoding
        self._held: list[bytes] = []  # lines of the current row
        self._size = 0
        self._undecodable = False
        self._long: LongRecord | None = None

    def first_line(self) -> str | Bad | None:
        """Return the first line that is not blank, without a byte order mark, or None if there is none. If a
        line that is too long or cannot be decoded comes first, return Bad for that line.
        """
        for line in self._stream:
            if isinstance(line, LongRecord):
                return Bad("oversized", line.drain())
            try:
                text = line.decode(self._encoding).removeprefix("\ufeff")
            except UnicodeError:
                return Bad("undecodable", len(line))
            if text.strip():
                return text.rstrip("\r")
        return None

    def read(self, delimiter: str) -> Iterator[tuple[list[str], int] | Bad]:
        """Yield (fields, size in bytes) for each row that is not blank, or Bad for one that cannot be used."""
        csv.field_size_limit(1 << 30)  # applies to the whole process; _lines bounds the rows
        retries = _RETRIES
        reader = csv.reader(self._lines(), delimiter=delimiter, strict=True)
        while True:
            self._held, self._size, self._undecodable = [], 0, False
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error:
                yield Bad("undecodable" if self._undecodable else "bad_quotes", self._size)
            except _Unfinished:
                retry = retries > 0 and len(self._held) > 1
                retries -= retry
                yield Bad("unclosed_quote", len(self._held[0]) if retry else self._size)
                if retry:
                    self._stream = chain(self._held[1:], [] if self._long is None else [self._long], self._stream)
                elif self._long is not None:
                    yield Bad("oversized", self._long.drain())
                self._long = None
                reader = csv.reader(self._lines(), delimiter=delimiter, strict=True)
            else:
                if self._long is not None:
                    yield Bad("oversized", self._long.drain())
                    self._long = None
                elif self._undecodable:
                    yield Bad("undecodable", self._size)
                elif row:
                    yield row, self._size

    def _lines(self) -> Iterator[str]:
        """Yield lines for the CSV parser, and "" for a line over the size limit that begins a row. Raises
        _Unfinished for a row that grows too long or does not end.
        """
        for line in self._stream:
            within = bool(self._held)
            if isinstance(line, LongRecord):
                self._long = line
                if within:
                    raise _Unfinished
                yield ""
                continue
            if not within and line in _BLANK:  # not worth the parser's time
                continue
            self._size += len(line) + within
            self._held.append(line)
            if self._size > self._limit and within:
                raise _Unfinished
            try:
                text = line.decode(self._encoding)
            except UnicodeError:
                self._undecodable = True
                text = line.decode(self._encoding, "replace")
            yield text + "\n"
        if self._held:
            raise _Unfinished
