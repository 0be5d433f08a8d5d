"""Find and read the data files of a task. Relative names are looked up in `data=DIR` (default:
$GRISTMILL_TASKS), then in the folder of the task file.
"""

import codecs
import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import xxhash

from gristmill.errors import UserError
from gristmill.storage.location import FileRecord, Location
from gristmill.storage.parsing import parse_location
from gristmill.storage.paths import is_url
from trainers.tasks.schema.task import Format, Layout, Task
from trainers.tasks.schema.task_prompt import fields_of

VARIABLE = "GRISTMILL_TASKS"


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split. For parallel files, `columns` names the column that each file holds; for
    `generated` rows, it names the generators.
    """

    layout: Layout
    format: Format
    paths: tuple[Location, ...]
    columns: tuple[str, ...] = ()


def data_directory(name: str | None = None) -> Location | None:
    """Return the directory of the tasks' data files: `name` if it is given, otherwise $GRISTMILL_TASKS. None
    if neither is set.
    """
    name = name or os.environ.get(VARIABLE)
    return parse_location(name, field="data") if name else None


def find_split(task: Task, split: str, data: Location | None) -> SplitFiles:
    """Return the files of a split, from the first layout and file name whose files exist. Raises UserError if
    the task has no such split, or if no file exists.
    """
    if split not in task.splits:
        raise UserError(f"{task.name}: no split {split!r}, allowed {', '.join(task.splits)}")
    if task.format == "generated":
        return SplitFiles(task, "generated", (), task.names(split))
    tried: list[str] = []
    for candidate in _candidates(task, split, data):
        if found := candidate.find(split):
            return found
        tried.append(str(candidate.root / candidate.pattern))
    remedy = "" if data is not None else f"; give data=DIR, or set {VARIABLE} to the directory that holds the sets"
    looked = f"no file; looked for {', '.join(tried)}, each also with .gz" if tried else "no directory to look in"
    raise UserError(f"{task.name}: {split}: {looked}{remedy}")


def available_splits(task: Task, data: Location | None) -> tuple[str, ...]:
    """Return the splits whose files exist. A `generated` task needs no files, so all its splits are returned."""
    if task.format == "generated":
        return task.splits
    return tuple(
        split for split in task.splits if any(candidate.find(split) for candidate in _candidates(task, split, data))
    )


@dataclass(frozen=True)
class _Candidate:
    """A place to look for the files of a split: a layout, a directory, and a file name or pattern below it."""

    layout: Layout
    root: Location
    pattern: str

    def find(self, split: str) -> SplitFiles | None:
        form = self.layout.format_of(self.pattern)
        assert form is not None  # Layout.check
        paths = match_files(self.root, self.pattern)
        if paths or "{column}" not in self.pattern:
            return SplitFiles(self.layout, form, paths) if paths else None
        columns = _text_columns(self.layout, split)
        matched = [match_files(self.root, self.pattern.replace("{column}", column)) for column in columns]
        if any(len(paths) != 1 for paths in matched):
            return None
        return SplitFiles(self.layout, form, tuple(paths[0] for paths in matched), columns)


def _candidates(task: Task, split: str, data: Location | None) -> Iterator[_Candidate]:
    own = parse_location(task.folder, field="folder") if task.folder else None
    for _, layout in task.layouts:
        if split not in layout.files:
            continue
        for absolute, group in groupby(layout.names(split), key=_is_absolute):
            names = list(group)
            if absolute:
                for name in names:
                    folder, _, last = name.rpartition("/")
                    yield _Candidate(layout, parse_location(folder or "/", field="files"), last)
                continue
            for root in (root for root in (data, own) if root is not None):
                for folder in layout.folders:
                    for name in names:
                        yield _Candidate(layout, root, f"{folder}/{name}" if folder else name)


def _is_absolute(name: str) -> bool:
    return is_url(name) or name.startswith(("/", "~"))


def _text_columns(layout: Layout, split: str) -> tuple[str, ...]:
    """Return the columns that parallel files hold, one per file. If the gold is hidden, its column has no
    file.
    """
    hidden = ("target", "label") if split in layout.unlabelled else ()
    columns = [str(column) for role, column in layout.roles.items() if role not in hidden]
    return tuple(dict.fromkeys(name for column in columns for name in fields_of(column) or [column]))


def match_files(root: Location, pattern: str) -> tuple[Location, ...]:
    """Return the files below `root` that `pattern` names; empty if there are none. The first of these that
    exists is returned: the file `pattern`, the file `pattern` with `.gz` appended, all files that match
    `pattern` as a glob, all files that match it with `.gz` appended. Matching files are sorted by path.
    """
    variants = (pattern, f"{pattern}.gz")
    for variant in variants:
        if (path := root / variant).is_file():
            return (path,)
    for variant in variants if any(mark in pattern for mark in "*?[") else ():
        if matched := sorted(root.glob(variant), key=str):
            return tuple(matched)
    return ()


def read_content(path: Location) -> tuple[bytes, FileRecord]:
    """Return the content of a file, decompressed if it is gzip, and the record of the file as stored. Raises
    UserError for a directory and for damaged gzip data.
    """
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory; name files, such as {path.name}/*") from None
    record = FileRecord(str(path), len(data), xxhash.xxh3_128_hexdigest(data))
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(f"{path}: not intact gzip: {error}; fetch the file again") from None
    return data, record


def decode(data: bytes, encoding: str, path: Location) -> str:
    """Decode the text of a file. In UTF-8, a byte order mark is removed. Raises UserError for an unknown
    encoding and invalid data.
    """
    try:
        return data.decode("utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding)
    except LookupError:
        raise UserError(f"{path}: encoding: no encoding {encoding!r}; expected one such as utf-8 or latin-1") from None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: line {line}: not {encoding} at byte {error.start}; set the encoding") from None
