"""Files that are either whole or absent: atomic writes, whole-file checksums, verification on first touch.

A file is written under a name unique to the attempt, fsynced and renamed; the directory is fsynced after it. A process that
is killed at any instant leaves at most a file whose name ends in `.tmp`, which no reader looks at. On an object store a
file is put under its final name, and read through the local cache.
"""

import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

import xxhash

from gristmill.errors import CorruptFileError, attach_filename
from gristmill.storage.cache import fetch, kept, put
from gristmill.storage.location import RemotePath
from gristmill.storage.remote import create_url, read_url_ranges
from gristmill.storage.retries import retry

_CHUNK = 1 << 20
_REMOVALS = 5
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # file systems without hard links


@dataclass(frozen=True)
class FileRecord:
    """A finished file: path relative to its manifest's directory, size in bytes, xxh3_128 of all its bytes in hex."""

    path: str
    bytes: int
    xxh3_128: str


def write_atomic(path: Path, content: bytes | Callable[[BinaryIO], None]) -> None:
    """Write `path` so that it appears whole or not at all. `content` is the bytes, or a function that writes to a sink."""
    if isinstance(path, RemotePath):
        put(path, content)
    elif callable(content):
        with attach_filename(path):
            _write(path, content)
    else:
        try:
            retry(path, lambda: _write(path, lambda sink: sink.write(content)))
        except FileNotFoundError:  # another process that has published the step took the attempt for a leftover
            _write(path, lambda sink: sink.write(content))


def _write(path: Path, content: Callable[[BinaryIO], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb") as sink:
            content(sink)
            sink.flush()
            os.fsync(sink.fileno())
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    fsync_directory(path.parent)


def write_new(path: Path, content: bytes) -> bool:
    """Write `path` as `write_atomic` does unless it is there; whether this call did. Of several processes one does."""
    if isinstance(path, RemotePath):
        return create_url(path.url, path.remote, content)
    if path.exists():
        return False
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    write_atomic(aside, content)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(aside, path)  # of two that come at the same instant, the later one writes
    finally:
        aside.unlink(missing_ok=True)
    fsync_directory(path.parent)
    return True


def fsync_directory(directory: Path) -> None:
    """Make the renames inside `directory` durable. On an object store they are."""
    if isinstance(directory, RemotePath):
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with attach_filename(directory):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_checksum(path: Path) -> str:
    """xxh3_128 of the whole file, in hex."""
    return retry(path, lambda: _checksum(path))


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_file(directory: Path, relative: str, content: bytes | Callable[[BinaryIO], None]) -> FileRecord:
    """Write a file under `directory` as `write_atomic` does; its record."""
    path = directory / relative
    if isinstance(path, RemotePath):
        return FileRecord(relative, *put(path, content))
    write_atomic(path, content)
    return record_file(directory, relative)


def record_file(directory: Path, relative: str) -> FileRecord:
    """The record of a finished file under `directory`."""
    path = directory / relative
    if isinstance(path, RemotePath):
        return FileRecord(relative, *fetch(path))
    return FileRecord(relative, path.stat().st_size, file_checksum(path))


def verify(directory: Path, record: FileRecord) -> Path:
    """The path of a recorded file, checked against its record once per process; CorruptFileError names a file that differs.

    Of a file on an object store it is the path of the copy in the local cache.
    """
    path = directory / record.path
    if isinstance(path, RemotePath):
        return _copy(path, directory, record)
    try:
        status = path.stat()
    except FileNotFoundError:
        raise CorruptFileError(f"{path}: recorded in its manifest but missing; {_again(path, directory)}") from None
    try:
        _verify_once(str(path), status.st_size, status.st_mtime_ns, status.st_ino, record.bytes, record.xxh3_128)
    except CorruptFileError as error:
        raise CorruptFileError(f"{error}; {_again(path, directory)}") from None
    return path


def _again(path: Path, directory: Path) -> str:
    """What to do where a file below `directory` is damaged: the step that it is part of is made again."""
    place = path.parent
    while str(place) != str(directory) and place != place.parent and not (place / "manifest.json").exists():
        place = place.parent
    return f"remove {place} and build again"


def _copy(path: RemotePath, directory: Path, record: FileRecord) -> Path:
    """The verified local copy of a remote file."""
    found = kept(record.xxh3_128)
    if found is not None:
        status = found.stat()
        try:
            _verify_once(str(found), status.st_size, status.st_mtime_ns, status.st_ino, record.bytes, record.xxh3_128)
            return found
        except CorruptFileError:  # the copy was damaged, not the file
            found.unlink(missing_ok=True)
    wanted = (record.bytes, record.xxh3_128)
    try:
        facts = fetch(path)
        if facts != wanted:  # it may have been damaged on its way
            facts = fetch(path)
    except FileNotFoundError:
        raise CorruptFileError(
            f"{path}: recorded in its manifest but missing; {_again(cast(Path, path), directory)}"
        ) from None
    if facts != wanted:
        raise CorruptFileError(
            f"{path}: is {facts[0]} bytes, {facts[1]}; its manifest recorded {record.bytes} bytes, {record.xxh3_128}; "
            f"{_again(cast(Path, path), directory)}"
        )
    found = kept(record.xxh3_128)
    assert found is not None, "the cache keeps what it was just given"
    return found


def read_ranges(directory: Path, ranges: Sequence[tuple[FileRecord, int, int]]) -> list[bytes]:
    """The bytes [start, end) of recorded files, for readers that check them themselves: no file is read as a
    whole.

    Of files on an object store the local copies are read, or, where there are none, exactly these ranges are
    asked of the store, many at a time. What lies behind the end of a file is left out. Raises
    FileNotFoundError if a file is missing.
    """
    found: list[bytes] = [b""] * len(ranges)
    asked: list[int] = []
    for number, (record, start, end) in enumerate(ranges):
        path = directory / record.path
        if not isinstance(path, RemotePath):
            found[number] = _range(path, start, end)
        elif start < end:
            copy = kept(record.xxh3_128)
            if copy is None:
                asked.append(number)
            else:
                found[number] = _range(copy, start, end)
    if asked and isinstance(directory, RemotePath):
        wanted = [ranges[number] for number in asked]
        urls = [(str(directory / record.path), start, end) for record, start, end in wanted]
        for number, data in zip(asked, read_url_ranges(urls, directory.remote), strict=True):
            found[number] = data
    return found


def _range(path: Path, start: int, end: int) -> bytes:
    with attach_filename(path), open(path, "rb", buffering=0) as source:
        source.seek(start)
        return source.read(max(0, end - start))


def remove_tree(path: Path) -> None:
    """Remove a directory and everything below; nothing where it is not there.

    Another process may remove it at the same time, or still write into it: what then is left stays for the next to remove.
    """
    if isinstance(path, RemotePath):
        path.remove_tree()
        return
    for _ in range(_REMOVALS):
        if not path.exists():
            break
        try:
            shutil.rmtree(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise


@lru_cache(maxsize=1 << 16)
def _verify_once(path: str, size: int, mtime_ns: int, inode: int, expected_size: int, expected_checksum: str) -> None:
    found = file_checksum(Path(path)) if size == expected_size else f"{size} bytes"
    wanted = expected_checksum if size == expected_size else f"{expected_size} bytes"
    if found != wanted:
        raise CorruptFileError(f"{path}: is {found}, its manifest recorded {wanted}")


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(value: Any) -> str:
    """xxh3_128 of the canonical JSON of a value, in hex: 32 digits."""
    return xxhash.xxh3_128_hexdigest(canonical_json(value))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object atomically, with its own checksum in the field `checksum`; indented, keys in the order given."""
    write_atomic(path, _sealed(value))


def write_new_json(path: Path, value: dict[str, Any]) -> bool:
    """Write a JSON object as `write_json` does unless the file is there; whether this call did."""
    return write_new(path, _sealed(value))


def _sealed(value: dict[str, Any]) -> bytes:
    body = {name: field for name, field in value.items() if name != "checksum"}
    body["checksum"] = digest(body)
    return (json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: Path, mend: str = "remove it and run the same command again") -> dict[str, Any]:
    """Read a JSON object written by `write_json` and verify its checksum; `mend` says what to do where it is damaged.

    Raises FileNotFoundError if there is none and CorruptFileError if the content is not what was written.
    """
    value = _intact(retry(path, path.read_bytes))
    if value is None and isinstance(path, RemotePath):  # it may have been damaged on its way
        value = _intact(path.read_bytes())
    if value is None:
        raise CorruptFileError(f"{path}: its content does not match its own checksum; {mend}")
    return value


def _intact(data: bytes) -> dict[str, Any] | None:
    """The JSON object in `data`; None unless its checksum is right."""
    try:
        value = json.loads(data)
        body = {name: field for name, field in value.items() if name != "checksum"}
        return dict(value) if value.get("checksum") == digest(body) else None
    except (ValueError, AttributeError, TypeError):
        return None
