"""RemotePath: a file in an object store, or a prefix that looks like a directory.

An upload writes directly to the final name; the file appears whole or not at all.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, Self, final

from gristmill.errors import CorruptFileError
from gristmill.storage import cache
from gristmill.storage.disk import read_range, verify_once
from gristmill.storage.location import Check, Content, FileRecord, Location, missing_file, repair_advice
from gristmill.storage.remote import (
    Remote,
    children_of_url,
    create_url,
    endpoint_hint,
    modified_ns,
    read_url,
    read_url_ranges,
    remove_file_at,
    remove_url,
    stat_url,
    write_url,
)


class _Status(NamedTuple):
    st_size: int
    st_mtime_ns: int


@final
@dataclass(frozen=True)
class RemotePath(Location):
    """A file or prefix in an object store. `url` has no trailing slash; `remote` holds the options for
    opening the store.
    """

    url: str
    remote: Remote

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.url.rstrip('/')}/{name}", self.remote)

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def parent(self) -> "RemotePath":
        return RemotePath(self.url.rstrip("/").rpartition("/")[0], self.remote)

    @property
    def local(self) -> None:
        return None

    def is_within(self, outer: Location) -> bool:
        return f"{self}/".startswith(f"{outer}/")

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return stat_url(self.url, self.remote) is not None

    def is_dir(self) -> bool:
        return bool(children_of_url(self.url, self.remote))

    def iterdir(self) -> Iterator["RemotePath"]:
        return (self / name for name in children_of_url(self.url, self.remote))

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        first, _, rest = pattern.partition("/")
        for path in self.iterdir():
            if fnmatchcase(path.name, first):
                yield from path.glob(rest) if rest else [path]

    def stat(self) -> _Status:
        facts = stat_url(self.url, self.remote)
        if facts is None:
            raise FileNotFoundError(self.url)
        return _Status(facts.size, modified_ns(self.url, self.remote))

    def version(self) -> None:
        return

    def bytes_below(self) -> int:
        return 0

    def missing_hint(self) -> str:
        return endpoint_hint(self.url, self.remote)

    def read_bytes(self) -> bytes:
        return read_url(self.url, self.remote)

    def read_text(self, encoding: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def read_ranges(self, ranges: Sequence[tuple[FileRecord, int, int]]) -> list[bytes]:
        found: list[bytes] = [b""] * len(ranges)
        requested: list[int] = []
        for number, (record, start, end) in enumerate(ranges):
            if start >= end:
                continue
            copy = cache.lookup(record.xxh3_128)
            if copy is not None:
                with suppress(FileNotFoundError):  # it was evicted since
                    found[number] = read_range(copy, start, end)
                    continue
            requested.append(number)
        if requested:
            wanted = [ranges[number] for number in requested]
            urls = [(str(self / record.path), start, end) for record, start, end in wanted]
            for number, data in zip(requested, read_url_ranges(urls, self.remote), strict=True):
                found[number] = data
        return found

    def record(self, relative: str) -> FileRecord:
        return FileRecord(relative, *cache.fetch((self / relative).url, self.remote))

    def verify(self, record: FileRecord) -> Path:
        copy = cache.lookup(record.xxh3_128)
        if copy is not None:
            try:
                verify_once(copy, record)
                return copy
            except (CorruptFileError, FileNotFoundError):  # the copy is damaged or was evicted, not the file
                copy.unlink(missing_ok=True)
        path, wanted = self / record.path, (record.bytes, record.xxh3_128)
        try:
            facts = cache.fetch(path.url, self.remote)
            if facts != wanted:  # perhaps damaged in transfer
                facts = cache.fetch(path.url, self.remote)
        except FileNotFoundError:
            raise missing_file(path, self) from None
        if facts != wanted:
            raise CorruptFileError(
                f"{path}: is {facts[0]} bytes, {facts[1]}; its manifest recorded {record.bytes} bytes, {record.xxh3_128}; "
                f"{repair_advice(path, self)}"
            )
        copy = cache.lookup(record.xxh3_128)
        assert copy is not None, "the cache keeps what it was just given"
        return copy

    def write_atomic(self, content: Content, check: Check | None = None) -> None:
        if check is not None:
            check()
        cache.put(self.url, self.remote, content)

    def write_new(self, content: bytes, check: Check | None = None) -> bool:
        if check is not None:
            check()
        return create_url(self.url, self.remote, content)

    def write_file(self, relative: str, content: Content, check: Check | None = None) -> FileRecord:
        if check is not None:
            check()
        return FileRecord(relative, *cache.put((self / relative).url, self.remote, content))

    def update(self, accept: Callable[[bytes], bool], content: bytes) -> bool:
        """Read the file and, if `accept` returns True for its bytes, store `content`. Returns whether
        `content` was stored; a missing file is not created. If another process writes between the two
        requests, its write is lost.
        """
        try:
            if not accept(self.read_bytes()):
                return False
        except FileNotFoundError:
            return False
        write_url(self.url, self.remote, content)
        return True

    def compare_and_swap(self, expected: bytes, content: bytes) -> bool:
        write_url(self.url, self.remote, content)
        try:
            return self.read_bytes() == content
        except FileNotFoundError:
            return False

    def fsync(self) -> None:
        """Do nothing: a stored file is durable."""

    def probe_writable(self) -> None:
        """Do nothing: the first write shows whether the store is writable."""

    def rename_if_possible(self, target: Self) -> None:
        """Do nothing: object stores cannot rename."""

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(self.url)
        remove_file_at(self.url, self.remote)

    def remove_tree(self) -> None:
        remove_url(self.url, self.remote)

    def remove_temporaries(self) -> None:
        """Do nothing: an interrupted upload leaves no temporary file."""
