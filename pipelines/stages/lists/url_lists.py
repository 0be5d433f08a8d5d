"""Lists for URL rules: block-lists of domains and URLs, and word lists. Files have one entry per line; blank
lines and lines that begin with `#` are ignored.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from gristmill.errors import UserError
from gristmill.storage.store import file_checksum
from pipelines.stages.lists.url_normal import Url, normalise_url

_NAME = re.compile(rb"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_HOST = re.compile(r"[a-z0-9_.:\[\]-]+")
_SEPARATORS = re.compile(r"[\W_]+")
_DIGEST = "S16"  # fixed length, so numpy's NUL padding affects neither order nor equality


def list_files(path: str) -> list[Path]:
    """Return the list files at `path`: the file itself or, for a directory, all files below it that are named
    `domains` or `urls`, as in the UT1 block-lists.
    """
    directory = Path(path)
    if not directory.is_dir():
        return [directory]
    return sorted(file for file in directory.rglob("*") if file.name in ("domains", "urls") and file.is_file())


def check_lists(knob: str, paths: Sequence[str], directories: bool) -> None:
    """Raise ValueError for a path that is neither a file nor, if `directories` is true, a directory with list
    files.
    """
    for number, path in enumerate(paths):
        if not (Path(path).is_file() or (directories and Path(path).is_dir() and list_files(path))):
            expected = " or a directory with files `domains` or `urls`" if directories else ""
            raise ValueError(
                f"{knob}[{number}]: got {path!r}, expected a file with one entry per line{expected}; relative to the working "
                "directory"
            )


def checksums(knob: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the xxh3_128 of each list file found at `paths`, the value of `knob`, for `depends()`."""
    digests = {}
    for number, path in enumerate(paths):
        for file in list_files(path):
            inside = file.relative_to(path).as_posix() if file != Path(path) else ""
            digests[f"{knob}[{number}] {inside}".rstrip() + " xxh3_128"] = file_checksum(file)
    return digests


def _entries(path: Path) -> Iterator[tuple[int, bytes]]:
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            entry = line.strip()
            if number == 1:
                entry = entry.removeprefix(b"\xef\xbb\xbf")
            if entry and not entry.startswith(b"#"):
                yield number, entry


@dataclass(frozen=True)
class BlockList:
    """Blocked domains and URLs as sorted 128-bit hashes, S16 [n]."""

    hashes: np.ndarray
    depth: int
    """Number of path segments of the deepest URL entry; -1 if all entries are domains."""

    def blocks(self, urls: Iterable[Url | None]) -> np.ndarray:
        """Return whether each URL is blocked, bool [n].

        A domain blocks itself and its subdomains. A URL entry blocks only URLs of its own host. An entry with
        a query blocks the URLs with the same path and query; an entry without one blocks its path and
        everything below it. Case, scheme and port are ignored, and so is `www.` when a URL is compared with a
        URL entry.
        """
        counts, digests = [], bytearray()
        for url in urls:
            keys = [] if url is None or url.host is None else self._keys(url, url.host)
            counts.append(len(keys))
            for key in keys:
                digests += _digest(key)
        hashes = np.frombuffer(digests, _DIGEST)
        at = np.searchsorted(self.hashes, hashes)
        is_blocked = np.zeros(len(hashes), bool)
        inside = at < len(self.hashes)
        is_blocked[inside] = self.hashes[at[inside]] == hashes[inside]
        owners = np.repeat(np.arange(len(counts)), counts)
        return np.bincount(owners[is_blocked], minlength=len(counts)) > 0

    def _keys(self, url: Url, host: str) -> list[str]:
        """Return every entry, as text, that would block a URL if a list contained it."""
        keys = [host]
        labels = host.split(".")
        if not host.startswith("[") and not labels[-1].isdecimal():  # addresses have no subdomains
            keys += [".".join(labels[first:]) for first in range(1, len(labels))]
        if self.depth >= 0:
            whole = _page(url, host)
            page, _, query = whole.partition("?")
            top, *segments = page.split("/")
            keys.append(f"{top}/")
            for last in range(1, min(len(segments), self.depth) + 1):
                keys.append("/".join([top, *segments[:last]]))
            if query:
                keys.append(whole)
        return keys


def _page(url: Url, host: str) -> str:
    """Return `host/path?query` in the form in which URL entries are compared."""
    page = host.removeprefix("www.") + (url.path.rstrip("/") or "/")
    return (f"{page}?{url.query}" if url.query else page).lower()


def _digest(key: str) -> bytes:
    return xxhash.xxh3_128_digest(key.encode())


def load_block_lists(paths: Sequence[str]) -> BlockList:
    """Return the block-list with the entries of all files. Raises UserError for a line that is neither a
    domain nor a URL, such as `www.` without a domain.
    """
    digests, depth = bytearray(), -1
    for file in (file for path in paths for file in list_files(path)):
        for number, entry in _entries(file):
            if _NAME.fullmatch(entry) and entry != b"www":
                digests += xxhash.xxh3_128_digest(entry)
                continue
            text = entry.decode("utf-8", "replace").removeprefix("*.").removeprefix(".")
            url = normalise_url(text)
            if url.host is None or url.host == "www" or not _HOST.fullmatch(url.host):
                raise UserError(f"{file}:{number}: neither a domain nor a URL; expected one per line and nothing else")
            if url.path != "/" or url.query or "/" in (text.partition("://")[2] or text):
                key = _page(url, url.host)
                depth = max(depth, key.partition("?")[0].rstrip("/").count("/"))
                digests += _digest(key)
            else:
                digests += _digest(url.host)
    hashes = np.frombuffer(digests, _DIGEST)
    hashes.sort()
    return BlockList(hashes, depth)


def split_words(text: str) -> list[str]:
    """Return the words of a decoded URL: maximal runs of letters and digits, lower-cased."""
    return [word for word in _SEPARATORS.split(text.lower()) if word]


def load_words(paths: Sequence[str], squash: bool = False) -> frozenset[str]:
    """Return the words of list files, lower-cased. With `squash`, the words of an entry are joined into one.
    Raises UserError for an entry without a word or, without `squash`, with several.
    """
    words = set()
    for path in paths:
        for number, entry in _entries(Path(path)):
            entry_words = split_words(entry.decode("utf-8", "replace"))
            if not entry_words or (len(entry_words) > 1 and not squash):
                raise UserError(
                    f"{path}:{number}: {len(entry_words)} words; expected one per line, of letters and digits only"
                )
            words.add("".join(entry_words))
    return frozenset(words)
