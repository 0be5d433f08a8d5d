"""List the crawl files that contain the captures found by index queries, for use as the `files` of a source.
An index server, such as pywb or https://index.commoncrawl.org, answers a query with one JSON object per line;
in CDXJ files, a key and a time precede each object.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from gristmill.errors import SourceError
from pipelines.reading.entries.decompress import DecodeBudget, decompress
from pipelines.reading.entries.files import SourceFile, file_chunks
from pipelines.reading.entries.reasons import BrokenInput

_NAMES = ("filename", "warc_filename")
_OBJECT = re.compile(rb"(?:^|\s)\{")
_LINE_BYTES = 1 << 20
_MOST_BYTES = 64 << 30
_WARC = re.compile(r"(.*)/warc/([^/]+)\.warc\.gz")


@dataclass(frozen=True)
class CrawlFiles:
    """The result of index queries: the sorted names of the crawl files to read, and the number of captures
    found.
    """

    files: tuple[str, ...]
    captures: int


def crawl_files(indexes: Sequence[Path], kind: str = "warc") -> CrawlFiles:
    """List the crawl files that contain the captures found by index queries, and count the captures.
    `indexes` are files with the answers to the queries. `kind` is `warc` or, for Common Crawl only, `wet` or
    `wat`: the files with the text or the metadata of the same captures.

    Raises SourceError for a file or line that cannot be read, and for a capture that has no file of this
    `kind`.
    """
    files: set[str] = set()
    captures = 0
    for path in indexes:
        for number, line in enumerate(_lines(path), 1):
            if not line.strip():
                continue
            name = _file(line, f"{path}, line {number}")
            captures += 1
            files.add(name if kind == "warc" else _sibling(name, kind, f"{path}, line {number}"))
    return CrawlFiles(tuple(sorted(files)), captures)


def _lines(path: Path) -> Iterator[bytes]:
    file = SourceFile(str(path), 0, str(path))
    _, chunks, _ = decompress(path.name, file_chunks(file), DecodeBudget(_MOST_BYTES))
    held = b""
    try:
        for chunk in chunks:
            *whole, held = (held + chunk).split(b"\n")
            yield from whole
            if len(held) > _LINE_BYTES:
                raise SourceError(
                    f"{path}: a line has more than {_LINE_BYTES:,} bytes; expected the answer of an index query"
                )
    except BrokenInput as error:
        raise SourceError(f"{path}: cannot be decompressed ({error.reason})") from None
    yield held


def _file(line: bytes, where: str) -> str:
    try:
        start = _OBJECT.search(line)  # a key may hold braces
        fields = orjson.loads(line[start.end() - 1 :] if start else line)
        name = next(fields[each] for each in _NAMES if each in fields)
    except (orjson.JSONDecodeError, StopIteration, TypeError, AttributeError):
        raise SourceError(
            f"{where}: expected a JSON object with {' or '.join(_NAMES)}, as an index server answers with `output=json`"
        ) from None
    if (
        not isinstance(name, str)
        or not name
        or "\n" in name
        or "?" in name
        or "#" in name
        or name.startswith("/")
        or ".." in name
    ):
        raise SourceError(f"{where}: the name of its file is no path relative to the root of a crawl")
    return name


def _sibling(name: str, kind: str, where: str) -> str:
    match = _WARC.fullmatch(name)
    if match is None:
        raise SourceError(
            f"{where}: {name!r} is no .../warc/NAME.warc.gz, so there is no {kind} file for it; leave out --kind"
        )
    return f"{match[1]}/{kind}/{match[2]}.warc.{kind}.gz"
