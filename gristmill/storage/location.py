"""Where a corpus is: a directory, or a prefix of an object store that looks like one.

Objects have no directories and no renames, and need none: a file is put under its final name at once, and appears whole
or not at all. Libraries want files, so what is read is copied into a local cache first, see `gristmill.storage.cache`.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, cast

from gristmill.errors import ConfigError
from gristmill.storage.paths import PathError, expand_home, is_url, local_path
from gristmill.storage.remote import (
    Remote,
    check_url,
    children_of_url,
    has_query,
    modified_ns,
    read_url,
    remove_url,
    shown,
    stat_url,
)


class _Status(NamedTuple):
    """What is asked of `os.stat_result`."""

    st_size: int
    st_mtime_ns: int


@dataclass(frozen=True)
class RemotePath:
    """A URL with those methods of pathlib.Path that a corpus needs."""

    url: str
    remote: Remote

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.url.rstrip('/')}/{name}", self.remote)

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last component."""
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The suffix of the last component."""
        return Path(self.name).suffix

    @property
    def parent(self) -> "RemotePath":
        """What it lies in."""
        return RemotePath(self.url.rstrip("/").rpartition("/")[0], self.remote)

    def is_file(self) -> bool:
        """Whether there is such a file."""
        return stat_url(self.url, self.remote) is not None

    def is_dir(self) -> bool:
        """Whether there is a file below it."""
        return bool(children_of_url(self.url, self.remote))

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file. Raises FileNotFoundError if there is none."""
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(self.url)
        remove_url(self.url, self.remote)

    def exists(self) -> bool:
        """Whether there is such a file, or one below it."""
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator["RemotePath"]:
        """What lies directly below it."""
        return (self / name for name in children_of_url(self.url, self.remote))

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """What lies below it and matches a pattern of names with slashes between them."""
        first, _, rest = pattern.partition("/")
        for path in self.iterdir():
            if fnmatchcase(path.name, first):
                yield from path.glob(rest) if rest else [path]

    def stat(self) -> _Status:
        """Size and time of the file. Raises FileNotFoundError if there is none."""
        facts = stat_url(self.url, self.remote)
        if facts is None:
            raise FileNotFoundError(self.url)
        return _Status(facts.size, modified_ns(self.url, self.remote))

    def read_bytes(self) -> bytes:
        """All bytes of the file. Raises FileNotFoundError if there is none."""
        return read_url(self.url, self.remote)

    def read_text(self, encoding: str = "utf-8") -> str:
        """The whole file as text."""
        return self.read_bytes().decode(encoding)

    def remove_tree(self) -> None:
        """Remove the file, or everything below."""
        remove_url(self.url, self.remote)


def place_of(name: str, remote: Remote | None = None, field: str = "corpus") -> Path:
    """A path, `~` expanded, or a RemotePath where `name` is a URL: it stands in wherever a corpus is written
    or read.

    `remote` says what may be opened; without it, on a command line, the defaults hold, and
    GRISTMILL_ALLOW_PRIVATE=1 in the environment allows addresses that are not public. Raises ConfigError for
    a URL that is malformed, whose scheme may not be opened, or with credentials, which names `field`: places
    are stored and shown.
    """
    if not is_url(name):
        return Path(expanded(name, field))
    remote = remote or Remote(allow_private=os.environ.get("GRISTMILL_ALLOW_PRIVATE") == "1")
    scheme = name.partition(":")[0].lower()
    try:
        check_url(field, name)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if scheme not in remote.schemes:
        raise ConfigError(
            f"{field}: got a URL of the scheme {scheme!r}, expected a local directory or one of {', '.join(remote.schemes)}"
        )
    if has_query(name):
        raise ConfigError(f"{field}: got {shown(name)!r}, expected a place without a query")
    return cast(Path, RemotePath(f"{scheme}{name[len(scheme) :].rstrip('/')}", remote))


def is_within(inner: Path, outer: Path) -> bool:
    """Whether a place is another one, or lies below it."""
    if isinstance(inner, RemotePath) or isinstance(outer, RemotePath):
        return f"{inner}/".startswith(f"{outer}/")
    return inner.resolve().is_relative_to(outer.resolve())


def place_argument(name: str) -> Path:
    """`place_of` as the type of a command line's argument."""
    try:
        return place_of(name)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def expanded(name: str, field: str) -> str:
    """`expand_home` for a place that a configuration names in `field`; ConfigError instead of PathError."""
    try:
        return expand_home(name)
    except PathError as error:
        raise ConfigError(f"{field}: {error}") from None


def local_of(name: str, field: str) -> Path:
    """A local path that a configuration names in `field`; raises ConfigError for a URL."""
    try:
        return local_path(name)
    except PathError as error:
        raise ConfigError(f"{field}: {error}") from None
