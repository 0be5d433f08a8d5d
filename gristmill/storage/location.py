"""Location: the interface of files and directories, on a local disk or in an object store.

Code that needs a local file takes a `pathlib.Path`. A LocalPath is a Path; a RemotePath is not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from gristmill.errors import CorruptFileError
from gristmill.host import host

Content = bytes | Callable[[BinaryIO], None]
"""The bytes of a file, or a function that writes them to a sink. The function may be called several times,
because failed writes are repeated.
"""
Check = Callable[[], None]
"""A function that raises an error if a file must not be written. On a local disk, it is called when the
temporary file exists and is still empty. If another process removes this file before it gets its final name,
the check is repeated with a new temporary file. A process that makes the check fail and then removes the
temporary files, or the directory, can therefore be sure that the file will not appear afterwards.
"""


@dataclass(frozen=True)
class FileRecord:
    """The path, size and hash of a finished file. `xxh3_128` is the hash of the content in hex. In a
    manifest, `path` is relative to the manifest's directory.
    """

    path: str
    bytes: int
    xxh3_128: str


class Status(Protocol):
    """The fields of `os.stat_result` that an object store also provides."""

    @property
    def st_size(self) -> int:
        """The size in bytes."""
        ...

    @property
    def st_mtime_ns(self) -> int:
        """The time of the last change, in nanoseconds since the epoch."""
        ...


class Location(ABC):
    """A file or directory on a disk or in an object store. Names, listings and reads resemble those of
    `pathlib.Path`.
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
        """The suffix of the last component, such as `.gz`; empty if there is none."""

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
        """Return whether the path is `outer` or lies below it."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the file or directory exists."""

    @abstractmethod
    def is_file(self) -> bool:
        """Return whether the path is an existing file."""

    @abstractmethod
    def is_dir(self) -> bool:
        """Return whether the path is an existing directory. In an object store, a directory exists if a file
        lies below it.
        """

    @abstractmethod
    def iterdir(self) -> Iterator[Self]:
        """Yield the files and directories directly below this path."""

    @abstractmethod
    def glob(self, pattern: str) -> Iterator[Self]:
        """Yield every path below this one that matches `pattern`, which consists of name patterns separated
        by slashes.
        """

    @abstractmethod
    def stat(self) -> Status:
        """Return the size and modification time of the file. Raises FileNotFoundError if it does not exist."""

    @abstractmethod
    def version(self) -> tuple[int, ...] | None:
        """Return numbers that change whenever the file is replaced. The result is None in an object store,
        where these numbers would cost as much as reading the file. Raises FileNotFoundError if a local file
        is missing.
        """

    @abstractmethod
    def bytes_below(self) -> int:
        """Return the total size in bytes of all files below a directory. In an object store, it is not
        computed, and the result is 0.
        """

    @abstractmethod
    def missing_hint(self) -> str:
        """Return a hint at settings that may be missing, to append to a message that nothing was found here.
        Empty if there is none.
        """

    @abstractmethod
    def read_bytes(self) -> bytes:
        """Read all bytes of the file. Raises FileNotFoundError if it does not exist."""

    @abstractmethod
    def read_text(self, encoding: str | None = None) -> str:
        """Return the whole file as text, decoded as UTF-8 unless `encoding` is given. Line endings are not
        converted.
        """

    @abstractmethod
    def read_ranges(self, ranges: Sequence[tuple[FileRecord, int, int]]) -> list[bytes]:
        """For each (record, start, end), return the bytes [start, end) of the recorded file, whose path is
        below this directory. The bytes are not verified.

        A range that goes past the end of its file is cut there. Raises FileNotFoundError if a file is missing
        and not in the cache.
        """

    @abstractmethod
    def record(self, relative: str) -> FileRecord:
        """Read the finished file `relative` below this directory and return its record. In an object store,
        this also copies the file into the cache.
        """

    @abstractmethod
    def verify(self, record: FileRecord) -> Path:
        """Verify a recorded file below this directory, once per process, and return a local file with its
        content.

        For an object store, this is a copy in the cache, fetched if the cache has no intact one. Raises
        CorruptFileError if the file is missing or differs from its record.
        """

    @abstractmethod
    def write_atomic(self, content: Content, check: Check | None = None) -> None:
        """Write the file so that it appears whole or not at all, and only if `check` passes."""

    @abstractmethod
    def write_new(self, content: bytes, check: Check | None = None) -> bool:
        """Write the file as `write_atomic` does, unless it already exists. Returns whether this call wrote
        it. In an object store, the result may also be True if the file already has exactly this content.

        If several processes try at once with different content, only one succeeds, except on a file system
        without hard links or an object store without conditional writes.
        """

    @abstractmethod
    def write_file(self, relative: str, content: Content, check: Check | None = None) -> FileRecord:
        """Write the file `relative` below this directory as `write_atomic` does. Returns its record."""

    @abstractmethod
    def update(self, accept: Callable[[bytes], bool], content: bytes) -> bool:
        """Overwrite the file if it exists and `accept` returns True for its current bytes. Returns whether it
        was written. `content` must be at least as long as the file, because a local file is not truncated.

        The write may be neither atomic nor durable.
        """

    @abstractmethod
    def compare_and_swap(self, expected: bytes, content: bytes) -> bool:
        """Replace the file's bytes if they equal `expected`. Returns whether they were replaced.

        An object store ignores `expected` and always writes, so the last of two writers wins. It returns
        whether the file, read back, contains `content`.
        """

    @abstractmethod
    def fsync(self) -> None:
        """Make renames inside this directory durable. Does nothing in an object store."""

    @abstractmethod
    def probe_writable(self) -> None:
        """Create the directory if it is missing, and raise OSError if no file can be created in it. Does
        nothing in an object store.
        """

    @abstractmethod
    def rename_if_possible(self, target: Self) -> None:
        """Rename a directory if it exists and `target` does not. Does nothing in an object store, which
        cannot rename.
        """

    def set_aside(self) -> Self:
        """Rename a directory to a temporary name, so that its whole content disappears at once, and return
        the new path. In an object store, nothing is renamed.
        """
        aside = self.parent / f".{self.name}.{host().unique()}.tmp"
        self.rename_if_possible(aside)
        self.parent.fsync()
        return aside

    @abstractmethod
    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file. Raises FileNotFoundError if it does not exist, unless `missing_ok`."""

    @abstractmethod
    def remove_tree(self) -> None:
        """Remove a directory or prefix and everything below it, if it exists. Files that another process
        writes during the removal may remain.
        """

    @abstractmethod
    def remove_temporaries(self) -> None:
        """Remove the temporary files of `write_atomic` below a directory. A `write_atomic` that is still
        running writes its file again. Does nothing in an object store.
        """


def missing_file(path: Location, directory: Location) -> CorruptFileError:
    """Return the error to raise if the recorded file `path` below `directory` is missing."""
    return CorruptFileError(
        f"{path}: recorded in its manifest but missing; run the command again, and if that does not help, "
        f"{repair_advice(path, directory)}"
    )


def repair_advice(path: Location, directory: Location) -> str:
    """Return the advice to remove the step that contains the damaged file `path`, and to build again. The
    step is the nearest directory with a manifest, or else `directory`.
    """
    step = path.parent
    while str(step) != str(directory) and step != step.parent and not (step / "manifest.json").exists():
        step = step.parent
    return f"remove {step} and build again"
