"""Files of a source, local or remote: open them, group them into units of work, detect changes."""

import errno
import io
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from gristmill.errors import SourceError, StorageError, errno_of
from gristmill.storage.remote import Facts, Remote, RemoteFile, open_url, shown, stat_url
from gristmill.storage.store import file_checksum
from pipelines.reading.entries.reasons import CHUNK_BYTES

_USER_ERRNOS = (
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
)  # fmt: skip


@dataclass(frozen=True)
class SourceFile:
    r"""One file of a source.

    `path` is relative to the source's root, with slashes; bytes of a name that are not UTF-8 are written
    `\xNN`. `size` is in bytes. `location` is the path of a local file, or the URL of a remote one. `remote`
    says how to open a remote file, and is None for a local one. `version` is the ETag, hash or time that the
    store lists for a remote file, if any. `licences` are the licence files that apply to the file, if its
    format asks for them.

    For a git repository, `commit` is the full id of the commit, `location` is the directory with the
    repository's objects, and `size` is the total size of the files in the commit.
    """

    path: str
    size: int
    location: str
    version: str | None = None
    remote: Remote | None = None
    licences: tuple["SourceFile", ...] = ()
    commit: str | None = None

    def handle(self) -> str | RemoteFile:
        """Return an argument for libraries that take a path or a file object: the path of a local file, or an
        open remote file.
        """
        return self.location if self.remote is None else open_url(self.location, self.remote)

    def open(self) -> io.RawIOBase | io.BufferedReader:
        """Open the file for reading bytes."""
        return open(self.location, "rb") if self.remote is None else open_url(self.location, self.remote)


def read_units(files: Sequence[SourceFile], unit_bytes: int) -> list[list[SourceFile]]:
    """Group consecutive files into units of work of at most `unit_bytes` bytes. A larger file is a unit by
    itself.
    """
    units: list[list[SourceFile]] = []
    filled = 0
    for file in files:
        if not units or filled + file.size > unit_bytes:
            units.append([])
            filled = 0
        units[-1].append(file)
        filled += file.size
    return units


def file_chunks(file: SourceFile) -> Generator[bytes, None, None]:
    """Yield the bytes of a file. Raises UserError (SourceError for a local file) if it is missing or access
    is denied, and StorageError for other I/O errors.
    """
    try:
        with file.open() as opened:
            while chunk := opened.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise read_error(file.location, error) from None


def checksum_of(file: SourceFile) -> str:
    """Return the xxh3_128 of a file's bytes as 32 hex digits."""
    if file.remote is None:
        return content_checksum(file.location)
    digest = xxhash.xxh3_128()
    for chunk in file_chunks(file):
        digest.update(chunk)
    return digest.hexdigest()


def has_changed(file: SourceFile, checksum: str) -> bool:
    """Return whether a file's content no longer has this checksum. A git commit never changes.

    A remote file with a version is not fetched again: its present size and version are compared with those in
    `file`.
    """
    if file.commit is not None:
        return False
    if file.remote is None or file.version is None:
        return checksum_of(file) != checksum
    return stat_url(file.location, file.remote) != Facts(file.size, file.version)


def content_checksum(path: str | os.PathLike[str]) -> str:
    """Return the xxh3_128 of a local file's bytes as 32 hex digits. Raises the same errors as `file_chunks`."""
    try:
        return file_checksum(Path(path))
    except OSError as error:
        raise read_error(os.fspath(path), error) from None


def read_error(location: str, error: OSError) -> SourceError | StorageError:
    """Return the error for a source file that cannot be read: SourceError if the user can fix it, else
    StorageError.
    """
    number = errno_of(error)
    reason = error.strerror if number is None else os.strerror(number)
    where = f"{printable_name(shown(location))}: cannot be read ({reason or type(error).__name__})"
    if number in _USER_ERRNOS:
        return SourceError(f"{where}; check that it exists and that you may read it")
    return StorageError(where)


@contextmanager
def attribute_os_errors(file: SourceFile) -> Iterator[None]:
    """Convert an OSError raised by the operating system to SourceError or StorageError.

    An OSError without errno comes from a library that found the file damaged; it propagates unchanged.
    """
    try:
        yield
    except OSError as error:
        if errno_of(error) is None:
            raise
        raise read_error(file.location, error) from None


def printable_name(name: str) -> str:
    r"""Return a file name as valid Unicode: bytes that the file system's encoding could not decode become
    `\xNN`.
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
