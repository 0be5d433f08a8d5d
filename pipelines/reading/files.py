"""The files of a source: listing, grouping into units of work, checksums."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.contracts.errors import SourceError
from pipelines.contracts.store import file_checksum
from pipelines.reading.globs import covers, matches, may_contain
from pipelines.reading.source import SourceSpec


@dataclass(frozen=True)
class SourceFile:
    """One file of a source.

    `path` is relative to the source's root, with slashes; bytes of a name that are not UTF-8 stand as `\\xNN`, so that
    it is always text. `size` is in bytes. `location` is the absolute path that opens the file.
    """

    path: str
    size: int
    location: str


def list_files(source: SourceSpec) -> list[SourceFile]:
    """Files under the source's root that match `include` and not `exclude`, sorted by relative path.

    The root may be a directory, a symbolic link to one, or a single file, whose relative path is its name. Links to
    files and directories are followed; a directory that is its own ancestor through a link is not entered again. Pipes,
    sockets and devices are passed over. SourceError where the root is missing, a directory or link cannot be read, an
    `include` pattern matches nothing, or two names become the same path.
    """
    where = f"source {source.name!r}"
    root = Path(source.root)
    if not root.exists():
        raise SourceError(
            f"{where}: root {source.root!r} does not exist (looked for {root.absolute()}); "
            "fetch the data there, or correct `root`, which is relative to the working directory"
        )
    base = root.absolute()
    directory = root.is_dir()
    found: dict[str, SourceFile] = {}
    unmatched = set(source.include)
    for raw in _candidates(source, where):
        hits = [pattern for pattern in source.include if matches(raw, (pattern,))]
        unmatched.difference_update(hits)
        if not hits or matches(raw, source.exclude):
            continue
        location = str(base / raw if directory else base)
        status = _stat(location, where)
        if not stat.S_ISREG(status.st_mode):
            continue
        path = printable_name(raw)
        if path in found:
            raise SourceError(f"{where}: two files under {source.root!r} have the printed name {path!r}; rename one")
        found[path] = SourceFile(path, status.st_size, location)
    if unmatched:
        pattern = next(p for p in source.include if p in unmatched)
        raise SourceError(
            f"{where}: include {pattern!r} matches no file under {source.root!r}; globs are relative to the root, "
            "* stays within a name, ** crosses directories, and a leading dot must be spelled"
        )
    if not found:
        raise SourceError(f"{where}: exclude {list(source.exclude)} leaves no file under {source.root!r}; narrow it")
    return [found[path] for path in sorted(found)]


def read_units(files: Sequence[SourceFile], unit_bytes: int) -> list[list[SourceFile]]:
    """Neighbouring files grouped into units of at most `unit_bytes` bytes; a larger file is a unit of its own.

    The grouping follows from the list alone. A file is never divided: an archive or a compressed file has no second
    entrance.
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


def content_checksum(path: str | os.PathLike[str]) -> str:
    """xxh3_128 of a file's bytes, in hex: 32 digits. SourceError where it cannot be read."""
    try:
        return file_checksum(Path(path))
    except OSError as error:
        raise unreadable(os.fspath(path), error) from None


def unreadable(location: str, error: OSError) -> SourceError:
    """The error for a source file that the system will not give us."""
    reason = error.strerror or type(error).__name__
    return SourceError(
        f"{printable_name(location)}: cannot be read ({reason}); check that it exists and that you may read it"
    )


def printable_name(name: str) -> str:
    """A file name as valid Unicode: bytes that the file system's encoding could not decode become `\\xNN`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _candidates(source: SourceSpec, where: str) -> Iterator[str]:
    root = Path(source.root)
    if root.is_dir():
        status = root.stat()
        yield from _walk(source, source.root, "", ((status.st_dev, status.st_ino),), where)
    else:
        yield root.absolute().name


def _walk(
    source: SourceSpec, directory: str, prefix: str, ancestors: tuple[tuple[int, int], ...], where: str
) -> Iterator[str]:
    try:
        entries = list(os.scandir(directory))
    except OSError as error:
        raise SourceError(f"{where}: {unreadable(directory, error)}") from None
    for entry in entries:
        relative = prefix + entry.name
        if not entry.is_dir():
            yield relative
        elif may_contain(relative, source.include) and not covers(relative, source.exclude):
            status = _stat(entry.path, where)
            identity = (status.st_dev, status.st_ino)
            if identity not in ancestors:
                yield from _walk(source, entry.path, relative + "/", (*ancestors, identity), where)


def _stat(location: str, where: str) -> os.stat_result:
    try:
        return os.stat(location)
    except OSError as error:
        raise SourceError(f"{where}: {unreadable(location, error)}") from None
