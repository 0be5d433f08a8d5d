"""Lists of documents to exclude: files of ids, URLs, hosts or text hashes, loaded as sorted 16-byte entries,
and the keys under which a URL is looked up in them.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from gristmill.errors import UserError
from pipelines.contracts.document import document_id, file_key, parse_id
from pipelines.stages.lists.url_normal import Url, normalise_url

_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F]{32}", re.ASCII)
_PREFIX = re.compile(r"^https?://(?:www\.)?")
_DIGEST = "S16"  # fixed length, so numpy's NUL padding affects neither order nor equality


@dataclass(frozen=True)
class EntryList:
    """The distinct entries of a list in ascending order, S16 [n], and the number of lines that repeat an
    earlier entry.
    """

    entries: np.ndarray
    repeated: int

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return, for each of `keys`, S16 [m], the index of the entry equal to it, or -1 if there is none,
        int64 [m].
        """
        if not len(self.entries):
            return np.full(len(keys), -1)
        at = np.minimum(np.searchsorted(self.entries, keys), len(self.entries) - 1)
        found: np.ndarray = np.where(self.entries[at] == keys, at, -1)
        return found


def load_entries(kind: str, files: Sequence[str]) -> EntryList:
    """Read the entries of list files; `kind` is a key of ENTRIES. Raises UserError, with file and line, for a
    line that is not an entry.
    """
    parse, digests = _PARSERS[kind], bytearray()
    for file in files:
        for where, line in list_lines(file):
            entry = parse(line)
            if entry is None:
                raise UserError(f"{where}: got {line[:80]!r}, expected {ENTRIES[kind]} and nothing else")
            digests += entry
    every = np.frombuffer(digests, _DIGEST)
    different = np.unique(every)
    return EntryList(different, len(every) - len(different))


def list_lines(file: str) -> Iterator[tuple[str, str]]:
    """Yield the position (`FILE:LINE`) and the stripped text of each line of a list file, plain or .gz. Blank
    lines and lines that begin with `#` are skipped. Raises UserError if the file cannot be decompressed or is
    not UTF-8.
    """
    try:
        with gzip.open(file) if file.endswith(".gz") else open(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                where = f"{file}:{number}"
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError:
                    raise UserError(f"{where}: is not UTF-8") from None
                if text and not text.startswith("#"):
                    yield where, text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{file}: cannot be decompressed ({error})") from None


def host_keys(url: Url | None) -> list[bytes]:
    """Return the keys of all host entries that cover a URL: its host and every parent domain, or only the
    host if that is an IP address. The list is empty if the URL is None or has no host.
    """
    if url is None or url.host is None:
        return []
    labels = url.host.split(".")
    if url.host.startswith("[") or labels[-1].isdecimal():  # addresses have no domains above them
        return [_digest(url.host)]
    return [_digest(".".join(labels[first:])) for first in range(len(labels))]


def page_key(url: Url) -> bytes:
    """Return the key under which a URL is looked up among URL entries: a hash of its normal form without a
    leading `http://` or `https://` and any `www.` that follows it.
    """
    return _digest(_PREFIX.sub("", str(url), count=1))


def _digest(text: str) -> bytes:
    return xxhash.xxh3_128_digest(text.encode())


def _parse_id(line: str) -> bytes | None:
    if _HEX.fullmatch(line):
        return bytes.fromhex(line)
    try:
        source, path, record = parse_id(line)
        return document_id(file_key(source, path), record)
    except (UserError, OverflowError):
        return None


def _parse_url(line: str) -> bytes | None:
    url = normalise_url(line)
    whole = "://" in line and url.host is not None and " " not in line
    return page_key(url) if whole else None


def _parse_host(line: str) -> bytes | None:
    name = line.removeprefix("*.").removeprefix(".")
    if set("/?#@ ").intersection(name) or (":" in name and not (name.startswith("[") and name.endswith("]"))):
        return None
    host = normalise_url(name).host
    return _digest(host) if host is not None and host != "www" and _HOST.fullmatch(host) else None


def _parse_hash(line: str) -> bytes | None:
    return bytes.fromhex(line) if _HEX.fullmatch(line) else None


ENTRIES = {
    "id": "a document id, source/path#record or 32 hex digits,",
    "url": "a URL with its scheme",
    "host": "a host such as example.org",
    "text_hash": "32 hex digits",
}
"""The expected form of a line of a list, by kind."""
_PARSERS: Mapping[str, Callable[[str], bytes | None]] = {
    "id": _parse_id, "url": _parse_url, "host": _parse_host, "text_hash": _parse_hash,
}  # fmt: skip
