"""Location: the interface of a file or directory of a corpus, on a local disk or in an object store.

There are two implementations: `gristmill.storage.disk.LocalPath` and
`gristmill.storage.object_store.RemotePath`. Code that works with both takes a `Location`. Code that needs a
local file takes a `pathlib.Path`: a LocalPath is one, a RemotePath is not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from gristmill.errors import CorruptFileError
from gristmill.host import host

Content = bytes | Callable[[BinaryIO], None]
"""The bytes of a file, or a function that writes them to a sink. It is called again if the write fails."""
Check = Callable[[], None]
"""Raises an error if a file must not be written. It is called once the temporary file exists and is still
empty; if another process removes this file before it gets its final name, the check is repeated with a new
one. So a process that makes the check fail and then removes temporary files, or the directory, knows that the
file will not appear afterwards.
"""


@dataclass(frozen=True)
class FileRecord:
    """A finished file: its path relative to its manifest's directory, its size in bytes, and the xxh3_128 of
    all its bytes in hex.
    """

    path: str
    bytes: int
    xxh3_128: str


class Status(Protocol):
    """The fields of `os.stat_result` that an object store has as well."""

    @property
    def st_size(self) -> int:
        """Size in bytes."""
        ...

    @property
    def st_mtime_ns(self) -> int:
        """Time of the last change, in nanoseconds since the epoch."""
        ...


class Location(ABC):
    """A file or directory.

    Names, listings and reads are those of `pathlib.Path`. The other operations are those that a corpus needs
    of its store.
    """

    __slots__ = ()

    @abstractmethod
    def __truediv__(self, name: str) -> Self: ...

    @property
    @abstractmethod
    def name(self) -> str:
        """The last component of the path."""

    @property
    @abstractmethod
    def suffix(self) -> str:
        """The suffix of the last component."""

    @property
    @abstractmethod
    def parent(self) -> Self:
        """The directory that contains the path."""

    @property
    @abstractmethod
    def local(self) -> Path | None:
        """The path on this machine; None in an object store."""

    @abstractmethod
    def is_within(self, outer: "Location") -> bool:
        """Whether the path is `outer` or lies below it."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is such a file or directory."""

    @abstractmethod
    def is_file(self) -> bool:
        """Whether there is such a file."""

    @abstractmethod
    def is_dir(self) -> bool:
        """Whether there is such a directory; in an object store, whether there is a file below it."""

    @abstractmethod
    def iterdir(self) -> Iterator[Self]:
        """Yield the files and directories directly below it."""

    @abstractmethod
    def glob(self, pattern: str) -> Iterator[Self]:
        """Yield everything below the path that matches a pattern of names with slashes between them.

        `**` works on a local disk only.
        """

    @abstractmethod
    def stat(self) -> Status:
        """Return the size and time of the file. Raises FileNotFoundError if there is none."""

    @abstractmethod
    def version(self) -> tuple[int, ...] | None:
        """Return numbers that change whenever the file is replaced, or None if getting them costs as much as
        reading the file.

        Raises FileNotFoundError if there is none.
        """

    @abstractmethod
    def bytes_below(self) -> int:
        """Return the total size in bytes of all files below a directory; 0 in an object store, where counting
        takes many requests.
        """

    @abstractmethod
    def missing_hint(self) -> str:
        """Return the settings that may be missing if nothing is found here, as the end of a message; an empty
        string if there are none.
        """

    @abstractmethod
    def read_bytes(self) -> bytes:
        """Read all bytes of the file. Raises FileNotFoundError if there is none."""

    @abstractmethod
    def read_text(self, encoding: str | None = None) -> str:
        """Read the whole file as text."""

    @abstractmethod
    def read_ranges(self, ranges: Sequence[tuple[FileRecord, int, int]]) -> list[bytes]:
        """Read the bytes [start, end) of recorded files below a directory. They are not verified.

        A range is cut at the end of its file. Raises FileNotFoundError if a file is missing.
        """

    @abstractmethod
    def record(self, relative: str) -> FileRecord:
        """Return the record of a finished file below a directory."""

    @abstractmethod
    def verify(self, record: FileRecord) -> Path:
        """Return a local file with the content of a recorded file below a directory. It is verified once per
        process.

        On disk it is the file itself, from an object store its copy in the cache. Raises CorruptFileError if
        the file is missing or differs from its record.
        """

    @abstractmethod
    def write_atomic(self, content: Content, check: Check | None = None) -> None:
        """Write the file so that it appears whole or not at all, and only if `check` passes."""

    @abstractmethod
    def write_new(self, content: bytes, check: Check | None = None) -> bool:
        """Write the file as `write_atomic` does unless it exists. Returns whether this call wrote it.

        Of several processes, exactly one succeeds.
        """

    @abstractmethod
    def write_file(self, relative: str, content: Content, check: Check | None = None) -> FileRecord:
        """Write a file below a directory as `write_atomic` does. Returns its record."""

    @abstractmethod
    def update(self, accept: Callable[[bytes], bool], content: bytes) -> bool:
        """Overwrite the file if it exists and `accept` returns True for its current bytes. Returns whether it
        was written.

        Neither atomic nor durable: meant for leases, which are rewritten every few seconds at the same
        length.
        """

    @abstractmethod
    def compare_and_swap(self, expected: bytes, content: bytes) -> bool:
        """Replace the file's bytes if they equal `expected`. Returns whether they are `content` now.

        Object stores have no such conditional write: with two writers, the last one wins.
        """

    @abstractmethod
    def fsync(self) -> None:
        """Make renames inside a directory durable. Does nothing in an object store."""

    @abstractmethod
    def probe_writable(self) -> None:
        """Create the directory if it is missing and check that a file can be created in it. Raises OSError if
        not.

        Does nothing in an object store.
        """

    @abstractmethod
    def rename_if_possible(self, target: Self) -> None:
        """Rename a directory if it exists and `target` does not. Does nothing in an object store, which
        cannot rename.
        """

    def set_aside(self) -> Self:
        """Give a directory a temporary name, so that all of it disappears at once. Returns the new path.

        A writer that is about to publish a file there finds its temporary file gone, and checks again.
        """
        aside = self.parent / f".{self.name}.{host().unique()}.tmp"
        self.rename_if_possible(aside)
        self.parent.fsync()
        return aside

    @abstractmethod
    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file. Raises FileNotFoundError if there is none, unless `missing_ok`."""

    @abstractmethod
    def remove_tree(self) -> None:
        """Remove a directory, or prefix, and everything below it. Does nothing if it does not exist.

        Another process may remove it at the same time or still write into it. Files written during the
        removal may stay until the next one.
        """

    @abstractmethod
    def remove_temporaries(self) -> None:
        """Remove the temporary files that killed writers have left below a directory. An object store has
        none.
        """


def missing_file(path: Location, directory: Location) -> CorruptFileError:
    """Return the error for a recorded file below `directory` that is missing.

    `pipelines forget` and `gc` replace and remove files that a reader may be about to open.
    """
    return CorruptFileError(
        f"{path}: recorded in its manifest but missing; run the command again, and if that does not help, "
        f"{repair_advice(path, directory)}"
    )


def repair_advice(path: Location, directory: Location) -> str:
    """Say what to do about a damaged file below `directory`: remove the step that it belongs to."""
    step = path.parent
    while str(step) != str(directory) and step != step.parent and not (step / "manifest.json").exists():
        step = step.parent
    return f"remove {step} and build again"
