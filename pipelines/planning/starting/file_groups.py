"""Group the files of a directory by format, and find out which fields of their records hold the text, the URL
and other columns.
"""

import json
import os
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from gristmill.terminal import human_bytes
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.parts import DOCUMENT_COLUMNS
from pipelines.reading.entries.archives import TarInput, is_tar_name
from pipelines.reading.entries.decompress import DecodeBudget, decompress, peek
from pipelines.reading.entries.files import SourceFile, file_chunks
from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.entries.records import Bad
from pipelines.reading.formats.csv_rows import Rows, headers
from pipelines.reading.formats.json_document import elements, skip_to_json
from pipelines.reading.formats.json_lines import LongRecord, lines
from pipelines.reading.git.git_refs import git_directory
from pipelines.reading.sources.record_field import ColumnType, typed_value
from pipelines.reading.sources.registry import FORMATS

_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_KINDS = {suffix: name for name, kind in FORMATS.items() for suffix in kind.suffixes}
_ZIPS = (".zip", ".whl")
_SAMPLED_FILES = 16
_ENCODING_BYTES = 1 << 16
_SAMPLED_RECORDS = 200
_SAMPLED_BYTES = 64 << 20  # of one file: a record of any length that is read by default
_SAMPLED_MEMBERS = 200
_ARCHIVE_BYTES = 1 << 30  # decoded of a compressed tar, while looking at its members
_COLUMN = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = (*DOCUMENT_COLUMNS, DROP, EDITS_COLUMN)
_TYPES: tuple[ColumnType, ...] = ("bool", "int", "float", "date")  # tried in this order
_SPEAKERS = (("role", "content"), ("from", "value"), ("speaker", "text"))
"""The fields with the speaker and the text in turns of conversations, as OpenAI, ShareGPT and logs name them."""
_URL_FIELDS = ("url", "link", "uri", "href", "source_url", "permalink")


@dataclass(frozen=True)
class FileGroup:
    """A group of files that one source can read.

    - `kind`: the format of the files
    - `files`, `bytes`: the number of files (of repositories, for git) and their total size
    - `patterns`: globs that match the files
    - `members`: globs that match the members of archives
    - `text_field`: the field with the most text, not counting fields that mostly hold URLs
    - `url_field`: a field that mostly holds URLs, or `url` if there is none
    - `columns`: the names and types of fields that could become columns: fields of the records, or fields
      that the format puts into `meta`
    - `turns`: for conversations, the field that holds the turns, and the template of a turn

    Fields of records are inferred from the first records of the first file that has text. If the turns of
    conversations have more text than any field that could be `text_field`, `turns` is set and `text_field` is
    None; otherwise, `turns` is None. `text_field` is also None if no field has text. For archives, and for
    formats without fields, `text_field` is `text` and `url_field` is `url`.
    """

    kind: str
    files: int
    bytes: int
    patterns: tuple[str, ...]
    members: tuple[str, ...] = ()
    text_field: str | None = "text"
    url_field: str = "url"
    columns: tuple[tuple[str, ColumnType], ...] = ()
    turns: tuple[str, str] | None = None

    @property
    def amount(self) -> str:
        """The number of files (of repositories, for git) and their total size, in human-readable form."""
        one, many = ("repository", "repositories") if self.kind == "git" else ("file", "files")
        return f"{self.files:,} {one if self.files == 1 else many}, {human_bytes(self.bytes)}"


def group_files(directory: Path) -> tuple[list[FileGroup], Counter[str]]:
    """Return the groups of files below a directory, and the number of files that no format reads, by suffix.
    The files of each format form a group, and so do the archives that contain files of the format. Bare git
    repositories form one more group, in which each repository counts as one file.

    Hidden files and directories are skipped.
    """
    found: dict[tuple[str, bool], list[tuple[Path, str, int]]] = {}
    unknown: Counter[str] = Counter()
    repositories: list[Path] = []
    for path in _walk(directory, repositories):
        suffix, size = _suffix(path), path.stat().st_size
        packed = suffix.lower().endswith(_ZIPS) or is_tar_name(path.name)
        inner = _member_suffix(path) if packed else suffix
        kind = _kind(inner)
        if kind is None:
            unknown[suffix or "no suffix"] += 1
        else:
            found.setdefault((kind, packed), []).append((path, inner if packed else suffix, size))
    groups = [_repositories(directory, repositories)] if repositories else []
    for (kind, packed), files in sorted(found.items()):
        suffixes = sorted({suffix for _, suffix, _ in files})
        outer = sorted({_suffix(path) for path, _, _ in files}) if packed else suffixes
        text, url, columns, turns = _fields(kind, [] if packed else [path for path, *_ in files])
        size = sum(size for *_, size in files)
        members = tuple(f"**/*{suffix}" for suffix in suffixes) if packed else ()
        columns = columns or FORMATS[kind].columns
        globs = tuple(f"**/*{each}" for each in outer)
        groups.append(FileGroup(kind, len(files), size, globs, members, text, url, columns, turns))
    return groups, unknown


def _repositories(directory: Path, found: list[Path]) -> FileGroup:
    names = [path.relative_to(directory).as_posix() for path in found]
    patterns = (
        ("**",) if names == ["."] else ("**/*.git",) if all(name.endswith(".git") for name in names) else tuple(names)
    )
    size = sum(file.stat().st_size for path in found for file in path.glob("objects/**/*") if file.is_file())
    return FileGroup("git", len(found), size, patterns, columns=FORMATS["code"].columns)


def _walk(directory: Path, repositories: list[Path]) -> Iterator[Path]:
    for root, folders, names in os.walk(directory):
        if git_directory(Path(root)) == Path(root):
            folders.clear()
            repositories.append(Path(root))
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _suffix(path: Path | PurePosixPath) -> str:
    """Return the suffix of a file, including the suffix of its compression: `.jsonl.gz`. For the posts of a
    Stack Exchange dump, return the end of the file name: `Posts.xml`.
    """
    if posts := re.search(r"Posts\.xml(\.\w+)?$", path.name):
        return posts[0]
    if path.suffix.lower() in _PACKED:
        return PurePosixPath(path.stem).suffix + path.suffix
    return path.suffix


def _kind(suffix: str) -> str | None:
    plain = suffix.lower()
    for packed in _PACKED:
        plain = plain.removesuffix(packed)
    return _KINDS.get(plain)


def _member_suffix(path: Path) -> str:
    """Return the most frequent suffix of a known format among the first members of an archive; empty if there
    is none.
    """
    names = []
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = [each.filename for each in islice(archive.infolist(), _SAMPLED_MEMBERS) if not each.is_dir()]
        else:
            with _open_tar(path) as members:
                for each in islice(members, _SAMPLED_MEMBERS):
                    if each.isfile():
                        names.append(each.name)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError):
        pass  # what was read before tells enough
    counted = Counter(_suffix(PurePosixPath(name)) for name in names)
    known = [(count, suffix) for suffix, count in counted.items() if _kind(suffix)]
    return max(known)[1] if known else ""


def _open_tar(path: Path) -> tarfile.TarFile:
    if path.suffix.lower() == ".tar":
        return tarfile.open(path)
    file = SourceFile(path.name, path.stat().st_size, str(path))
    _, chunks, _ = decompress(path.name, file_chunks(file), DecodeBudget(_ARCHIVE_BYTES))
    return tarfile.open(fileobj=cast("IO[bytes]", TarInput(chunks)), mode="r|")


_Fields = tuple[str | None, str, tuple[tuple[str, ColumnType], ...], tuple[str, str] | None]
"""The fields `text_field`, `url_field`, `columns` and `turns` of a FileGroup."""


def _fields(kind: str, paths: Sequence[Path]) -> _Fields:
    found: _Fields = ("text", "url", (), None)
    for path in paths[:_SAMPLED_FILES] if kind in ("jsonl", "json", "csv", "parquet", "arrow") else ():
        found = _fields_of(kind, path)
        if found[0] is not None or found[3] is not None:
            break
    return found


def _fields_of(kind: str, path: Path) -> _Fields:
    lengths: Counter[str] = Counter()
    urls: Counter[str] = Counter()
    values: dict[str, list[Any]] = {}
    try:
        for record in islice(_records(kind, path), _SAMPLED_RECORDS):
            for name, value in record.items():
                if value not in (None, ""):
                    values.setdefault(name, []).append(value)
                if isinstance(value, str):
                    lengths[name] += len(value)
                    urls[name] += value.startswith(("http://", "https://"))
    except (OSError, ValueError, BrokenInput):
        pass  # what was read before tells enough; `plan` reports broken files
    mostly_urls = [name for name in (*_URL_FIELDS, *urls) if 2 * urls[name] > len(values.get(name, ()))]
    texts = {name: length for name, length in lengths.items() if name not in mostly_urls}
    text = max(texts, key=lambda name: (texts[name], name == "text"), default=None)
    url = next(iter(mostly_urls), "url")
    typed = ((name, _type_of(each)) for name, each in values.items() if _COLUMN.fullmatch(name) and name not in _TAKEN)
    turns = next(filter(None, (_turns(name, each) for name, each in values.items())), None)
    if turns is not None and (text is None or lengths[text] < _length(values[turns[0]])):
        text = None
    else:
        turns = None
    return text, url, tuple((name, kind) for name, kind in typed if kind is not None), turns


def _turns(name: str, values: list[Any]) -> tuple[str, str] | None:
    if not all(isinstance(each, list) for each in values):
        return None
    turns = [turn for each in values for turn in each]
    if len(turns) < len(values) or not all(isinstance(turn, dict) for turn in turns):
        return None
    speaker = next((pair for pair in _SPEAKERS if all(set(pair) <= turn.keys() for turn in turns)), None)
    return None if speaker is None else (name, f"{{{speaker[0]}}}: {{{speaker[1]}}}")


def _length(values: list[Any]) -> int:
    return sum(len(text) for turns in values for turn in turns for text in turn.values() if isinstance(text, str))


def _type_of(values: list[Any]) -> ColumnType | None:
    for kind in _TYPES:
        try:
            for value in values:
                typed_value(value, kind)
        except ValueError:
            continue
        return kind
    return None


def _records(kind: str, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of the format `kind`, as {field: value}. An unusable record, such as a JSON
    value that is not an object, is replaced with an empty one. Of an Arrow file, at most the first
    _SAMPLED_RECORDS of each batch are yielded. For other formats than Parquet and Arrow, raises BrokenInput
    after _SAMPLED_BYTES of decompressed data, or if the compressed data is corrupt.
    """
    if kind in ("parquet", "arrow"):
        yield from _table_records(kind, path)
        return
    file = SourceFile(path.name, path.stat().st_size, str(path))
    budget = DecodeBudget(_SAMPLED_BYTES)
    _, chunks, layers = decompress(path.name, file_chunks(file), budget)
    chunks = chunks if layers else budget.bound(chunks)
    if kind == "csv":
        yield from _csv_records(path, chunks)
    elif kind == "jsonl":
        yield from map(_json_record, lines(chunks, _SAMPLED_BYTES))
    else:
        begin, chunks = skip_to_json(chunks)
        yield from map(_json_record, elements(chunks, _SAMPLED_BYTES)) if begin in (b"[", b"{") else ()


def _json_record(text: bytes | LongRecord) -> dict[str, Any]:
    try:
        record = {} if isinstance(text, LongRecord) else json.loads(text, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.end == len(head) and len(head) - error.start < 4  # a character cut off at the end
    return True


def _csv_records(path: Path, chunks: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    head, chunks = peek(chunks, _ENCODING_BYTES)
    rows = Rows(chunks, _SAMPLED_BYTES, "utf-8" if _is_utf8(head) else "latin-1")
    first = rows.first_line()
    if not isinstance(first, str):
        return
    # The text may be in any field, so use the delimiter that gives the most fields.
    names, delimiter = max(headers(first, path.name), key=lambda header: len(header[0]), default=([], ","))
    for row in rows.read(delimiter):
        is_record = not isinstance(row, Bad) and len(row[0]) == len(names)
        yield dict(zip(names, row[0], strict=True)) if is_record else {}


def _table_records(kind: str, path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "parquet":
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_SAMPLED_RECORDS):
                yield from batch.to_pylist()
        return
    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_file(source)
            batches: Iterator[Any] = (reader.get_batch(number) for number in range(reader.num_record_batches))
        except pa.ArrowInvalid:
            source.seek(0)
            batches = iter(pa.ipc.open_stream(source))
        for batch in batches:
            yield from batch.slice(0, _SAMPLED_RECORDS).to_pylist()
