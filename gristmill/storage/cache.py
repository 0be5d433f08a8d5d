"""A bounded local cache of remote files, by the checksum of their content, and of what is computed from files, by that of
its inputs: nothing in it can be out of date.

It lies in $GRISTMILL_CACHE (default: gristmill below the user's cache directory) and holds up to $GRISTMILL_CACHE_BYTES
(default: 20 GiB); beyond, what was used least recently goes. A file that goes while it is read stays readable.
"""

import errno
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import xxhash

from gristmill.errors import UserError, attach_filename, reason_of
from gristmill.storage.location import RemotePath
from gristmill.storage.remote import fetch_url, put_url

_DEFAULT_BYTES = 20 << 30
_IN_USE_SECONDS = 60  # younger files are never removed: their path may have been handed out and not opened yet
_ABANDONED_SECONDS = 86_400  # a file that is still being fetched is written to
_CHUNK = 1 << 20


def put(path: RemotePath, content: bytes | Callable[[BinaryIO], None]) -> tuple[int, str]:
    """Store a remote file and keep a copy; (bytes, xxh3_128 in hex)."""
    with _scratch() as local:
        with open(local, "wb") as sink:
            if callable(content):
                content(sink)
            else:
                sink.write(content)
        facts = _facts(local)
        put_url(path.url, path.remote, local)
        _keep(local, facts[1])
    return facts


def fetch(path: RemotePath) -> tuple[int, str]:
    """Copy a remote file into the cache; (bytes, xxh3_128 in hex). Raises FileNotFoundError if there is none."""
    with _scratch() as local:
        fetch_url(path.url, path.remote, local)
        facts = _facts(local)
        _keep(local, facts[1])
    return facts


def kept(checksum: str) -> Path | None:
    """The copy of a file with that checksum, marked as used; None where there is none."""
    path = _directory() / checksum[:2] / checksum
    try:
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    except FileNotFoundError:
        return None
    return path


def derived(kind: str, name: str) -> Path:
    """Where to keep what was computed from other files and can be computed again; `name` tells its inputs apart."""
    return _directory() / kind / name


def _directory() -> Path:
    own = os.environ.get("GRISTMILL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "gristmill"


@contextmanager
def _scratch() -> Iterator[Path]:
    directory = _directory()
    path = directory / f"{uuid.uuid4().hex}.tmp"
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


def _facts(path: Path) -> tuple[int, str]:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return path.stat().st_size, digest.hexdigest()


def _keep(local: Path, checksum: str) -> None:
    """Move a file into the cache. Room is made whenever this process has added a hundredth of what the cache may hold."""
    target = _directory() / checksum[:2] / checksum
    target.parent.mkdir(exist_ok=True)
    limit = _limit()
    _added[0] += local.stat().st_size
    local.rename(target)
    if _added[0] * 100 >= limit:
        _added[0] = 0
        _make_room(limit)


_added = [0]


def _limit() -> int:
    said = os.environ.get("GRISTMILL_CACHE_BYTES", str(_DEFAULT_BYTES))
    if not said.isdecimal():
        raise UserError(f"GRISTMILL_CACHE_BYTES: got {said!r}, expected a number of bytes")
    return int(said)


def _make_room(limit: int) -> None:
    for path in _directory().glob("*.tmp"):  # of processes that were killed
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                path.unlink()
    files = []
    for path in _directory().glob("*/*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            files.append((status.st_atime, status.st_size, path))
    held = sum(size for _, size, _ in files)
    for used, size, path in sorted(files):
        if held <= limit or used > time.time() - _IN_USE_SECONDS:
            break
        path.unlink(missing_ok=True)
        held -= size
