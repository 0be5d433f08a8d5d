"""Lists that URL rules look things up in: block-lists of millions of domains and URLs, and short lists of words.

Files have one entry per line; blank lines and lines that begin with `#` say nothing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from gristmill.errors import UserError
from gristmill.storage.store import file_checksum
from pipelines.stages.measure.url_normal import Url, normalised

_NAME = re.compile(rb"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_HOST = re.compile(r"[a-z0-9_.:\[\]-]+")
_SEPARATORS = re.compile(r"[\W_]+")
_DIGEST = "S16"  # all of one length, so that numpy's padding with NUL changes no order and no equality


def files_of(path: str) -> list[Path]:
    """A list file, or all files called `domains` or `urls` under a directory, as the UT1 block-lists are laid out."""
    place = Path(path)
    if not place.is_dir():
        return [place]
    return sorted(file for file in place.rglob("*") if file.name in ("domains", "urls") and file.is_file())


def check_lists(knob: str, paths: Sequence[str], directories: bool) -> None:
    """ValueError for a path that holds no list."""
    for number, path in enumerate(paths):
        if not (Path(path).is_file() or (directories and Path(path).is_dir() and files_of(path))):
            expected = " or a directory with files `domains` or `urls`" if directories else ""
            raise ValueError(
                f"{knob}[{number}]: got {path!r}, expected a file with one entry per line{expected}; relative to the working "
                "directory"
            )


def checksums(knob: str, paths: Sequence[str]) -> dict[str, str]:
    """xxh3_128 of every file of a knob, for `depends()`."""
    found = {}
    for number, path in enumerate(paths):
        for file in files_of(path):
            inside = file.relative_to(path).as_posix() if file != Path(path) else ""
            found[f"{knob}[{number}] {inside}".rstrip() + " xxh3_128"] = file_checksum(file)
    return found


def _entries(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number, entry) of a list file."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            entry = line.strip()
            if number == 1:
                entry = entry.removeprefix(b"\xef\xbb\xbf")
            if entry and not entry.startswith(b"#"):
                yield number, entry


@dataclass(frozen=True)
class BlockList:
    """Blocked domains and URLs as sorted 128-bit hashes: 16 bytes an entry, whatever its length.

    Two different entries share a hash with a probability below 1e-24 for ten million of them.
    """

    hashes: np.ndarray
    depth: int
    """Path segments of the deepest URL entry; -1 where all entries are domains."""

    def holds(self, urls: Iterable[Url | None]) -> np.ndarray:
        """Whether each URL is blocked, bool [n]. None is not.

        A domain blocks itself and its subdomains. A URL blocks itself and what lies below its path, with or without
        `www.`, in any case, under any scheme and port; one with a query blocks that query only.
        """
        counts, digests = [], bytearray()
        for url in urls:
            keys = [] if url is None or url.host is None else self._keys(url, url.host)
            counts.append(len(keys))
            for key in keys:
                digests += _digest(key)
        wanted = np.frombuffer(digests, _DIGEST)
        at = np.searchsorted(self.hashes, wanted)
        found = np.zeros(len(wanted), bool)
        inside = at < len(self.hashes)
        found[inside] = self.hashes[at[inside]] == wanted[inside]
        owners = np.repeat(np.arange(len(counts)), counts)
        return np.bincount(owners[found], minlength=len(counts)) > 0

    def _keys(self, url: Url, host: str) -> list[str]:
        """Every entry that would block a URL."""
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
    """`host/path?query` as URL entries are compared: lower case, no `www.`, no slash at the end of the path."""
    page = host.removeprefix("www.") + (url.path.rstrip("/") or "/")
    return (f"{page}?{url.query}" if url.query else page).lower()


def _digest(key: str) -> bytes:
    return xxhash.xxh3_128_digest(key.encode())


def load_block_lists(paths: Sequence[str]) -> BlockList:
    """The entries of all files. UserError for a line that is neither a domain nor a URL."""
    digests, depth = bytearray(), -1
    for file in (file for path in paths for file in files_of(path)):
        for number, entry in _entries(file):
            if _NAME.fullmatch(entry):
                digests += xxhash.xxh3_128_digest(entry)
                continue
            text = entry.decode("utf-8", "replace").removeprefix("*.").removeprefix(".")
            url = normalised(text)
            if url.host is None or not _HOST.fullmatch(url.host):
                raise UserError(
                    f"{file}:{number}: neither a domain nor a URL; expected one of them a line, nothing else"
                )
            if url.path != "/" or url.query or "/" in (text.partition("://")[2] or text):
                key = _page(url, url.host)
                depth = max(depth, key.partition("?")[0].rstrip("/").count("/"))
                digests += _digest(key)
            else:
                digests += _digest(url.host)
    hashes = np.frombuffer(digests, _DIGEST)
    hashes.sort()
    return BlockList(hashes, depth)


def words_of(text: str) -> list[str]:
    """The words of a decoded URL: maximal runs of letters and digits, lower-cased."""
    return [word for word in _SEPARATORS.split(text.lower()) if word]


def load_words(paths: Sequence[str], squash: bool = False) -> frozenset[str]:
    """The words of list files, lower-cased; with `squash`, what stands between letters and digits is left out.

    UserError for an entry that could never match.
    """
    words = set()
    for path in paths:
        for number, entry in _entries(Path(path)):
            found = words_of(entry.decode("utf-8", "replace"))
            if not found or (len(found) > 1 and not squash):
                raise UserError(f"{path}:{number}: {len(found)} words; expected one a line, of letters and digits only")
            words.add("".join(found))
    return frozenset(words)
