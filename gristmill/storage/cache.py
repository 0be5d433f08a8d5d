"""A bounded local cache of remote files, named by their checksums, and of computed files, named by their
inputs. Because of these names, no entry can be stale.

The cache is in $GRISTMILL_CACHE (default: gristmill below the user's cache directory), and its limit is
$GRISTMILL_CACHE_BYTES (default: 20 GiB). A process checks the size of the cache when it first adds a file,
and again whenever it has added another 1 % of the limit. If the cache exceeds the limit, the least recently
used files are evicted.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

import xxhash

from gristmill.errors import UserError, attach_filename, reason_of
from gristmill.host import host
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import Content
from gristmill.storage.remote import Remote, fetch_url, put_url

Kind = Literal["packing"]
"""Folders of computed files. Others, such as that of machine code, do not belong to this cache."""

_DEFAULT_BYTES = 20 << 30
_IN_USE_SECONDS = 60  # never evict younger files: a caller may have the path and not have opened it yet
_ABANDONED_SECONDS = 86_400  # temporary files older than this belong to killed processes
_CHUNK = 1 << 20


def put(url: str, remote: Remote, content: Content) -> tuple[int, str]:
    """Store content under a URL and keep a copy in the cache. Returns (size in bytes, xxh3_128 in hex)."""
    with _scratch() as local:
        with host().open(str(local), "wb") as sink:
            if callable(content):
                content(sink)
            else:
                sink.write(content)
        facts = _facts(local)
        put_url(url, remote, local)
        _keep(local, facts[1])
    return facts


def fetch(url: str, remote: Remote) -> tuple[int, str]:
    """Copy a remote file into the cache. Returns (size in bytes, xxh3_128 in hex)."""
    with _scratch() as local:
        fetch_url(url, remote, local)
        facts = _facts(local)
        _keep(local, facts[1])
    return facts


def lookup(checksum: str) -> LocalPath | None:
    """Return the path of the cached file with the given checksum, or None if the file is not cached. Also
    mark the file as used, unless it belongs to another user.
    """
    path = _directory() / checksum[:2] / checksum
    try:
        modified = path.stat().st_mtime_ns
        with suppress(PermissionError):  # the file of another user, which this one may read but not mark
            host().utime(str(path), (int(host().time() * 1e9), modified))
    except FileNotFoundError:
        return None
    return path


def path_for(kind: Kind, name: str) -> LocalPath:
    """Return the path in the cache for a computed file. `kind` is its folder, and `name` identifies its
    inputs.
    """
    return _directory() / kind / name


def store(kind: Kind, name: str, content: bytes) -> None:
    """Cache a computed file at the path that `path_for` returns."""
    path_for(kind, name).write_atomic(content)
    _account(len(content))


def _directory() -> LocalPath:
    own = os.environ.get("GRISTMILL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return LocalPath(own) if own else LocalPath(base) / "gristmill"


@contextmanager
def _scratch() -> Iterator[LocalPath]:
    directory = _directory()
    path = directory / f"{host().unique()}.tmp"
    try:
        with attach_filename(path):
            directory.mkdir(parents=True, exist_ok=True)
            yield path
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "make room there, or set GRISTMILL_CACHE to a directory on a larger disk"
            raise UserError(f"{reason_of(error)}; {advice}, and run the same command again") from None
        raise
    finally:
        path.unlink(missing_ok=True)


def _facts(path: LocalPath) -> tuple[int, str]:
    digest = xxhash.xxh3_128()
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return path.stat().st_size, digest.hexdigest()


def _keep(local: LocalPath, checksum: str) -> None:
    target = _directory() / checksum[:2] / checksum
    target.parent.mkdir(exist_ok=True)
    status = local.stat()
    # Set the access time: with noatime, it would be when the transfer began, and `_make_room` might evict the file.
    host().utime(str(local), (int(host().time() * 1e9), status.st_mtime_ns))
    local.rename(target)
    _account(status.st_size)


_added: list[int | None] = [None]  # bytes since this process last checked the limit; None before its first check


def _account(size: int) -> None:
    limit, before = _limit(), _added[0]
    if before is None or (before + size) * 100 >= limit:
        _added[0] = 0
        _make_room(limit)
    else:
        _added[0] = before + size


def _limit() -> int:
    value = os.environ.get("GRISTMILL_CACHE_BYTES", str(_DEFAULT_BYTES))
    if not value.isdecimal():
        raise UserError(f"GRISTMILL_CACHE_BYTES: got {value!r}, expected a number of bytes")
    return int(value)


def _make_room(limit: int) -> None:
    for path in _directory().glob("*.tmp"):  # of killed processes
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < host().time() - _ABANDONED_SECONDS:
                path.unlink()
    files = []
    folders = [*_directory().glob("[0-9a-f][0-9a-f]"), *map(_directory().joinpath, get_args(Kind))]
    for path in (path for folder in folders for path in folder.glob("*")):
        with suppress(FileNotFoundError):
            status = path.stat()
            files.append((status.st_atime, status.st_size, path))
    held = sum(size for _, size, _ in files)
    for used, size, path in sorted(files):
        if held <= limit or used > host().time() - _IN_USE_SECONDS:
            break
        with suppress(FileNotFoundError):
            if path.stat().st_atime != used:  # another process has marked it as used since
                continue
            path.unlink()
        held -= size
