"""Files behind URLs, in object stores and on web servers. Only this file imports fsspec.

A URL is opened only if the configuration allows its scheme. Addresses that are not public are refused, unless
the configuration allows them. They are checked before the first connection and, for S3 and HTTP, again for
every socket, so that neither a redirect nor a changed DNS answer can lead to a private address.
"""

import errno
import io
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from gristmill.errors import RemoteError, UserError, attach_filename
from gristmill.host import host
from gristmill.libraries.extras import install_extra
from gristmill.storage.paths import LOGIN, is_url
from gristmill.storage.timeouts import LISTING_SECONDS, ask

_WEB = re.compile(r"https?://", re.IGNORECASE)
_CREDENTIALS = re.compile(
    LOGIN + r"|[?&;](?:[^=&;\s]*(?:signature|token|secret|password|key)|sig|policy)=",
    re.IGNORECASE,
)
_GLOB = re.compile(r"[*?\[]")
_BLOCK_BYTES = 4 << 20  # per request: large enough to hide latency, small enough for Parquet
_LIBRARIES = {
    "s3": ("s3fs", install_extra("s3")), "gs": ("gcsfs", "pip install gcsfs"),
    "hf": ("huggingface_hub", "pip install huggingface_hub"), "http": ("aiohttp", "pip install aiohttp"),
    "https": ("aiohttp", "pip install aiohttp"),
}  # fmt: skip
_VERSIONS = ("ETag", "etag", "blob_id", "Content-MD5", "md5Hash", "LastModified", "Last-Modified", "mtime", "updated")
_SMALL_BYTES = 4 << 20  # more than most manifests and receipts
_AT_ONCE = 64  # concurrent range requests
Result = TypeVar("Result")
_INNER_IPV4 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96"))  # RFC 6052, RFC 4291
_OWN_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")  # RFC 8215: local use


@dataclass(frozen=True)
class Remote:
    """Which URLs may be opened, and with which options.

    Credentials are found where the store's own tools look for them. Options without a field here come from
    fsspec's environment variables (`FSSPEC_S3_ANON=true` for public buckets without credentials).
    """

    schemes: tuple[str, ...] = ("s3", "gs", "hf")
    """Schemes that may be opened, out of s3, gs, hf, http and https."""
    endpoint: str = ""
    """URL of the S3 service; empty to use the environment (AWS_ENDPOINT_URL) or the AWS configuration."""
    allow_private: bool = False
    """Allow hosts whose address is private, loopback, link-local or otherwise not public, such as a
    self-hosted store.
    """

    def check(self) -> None:
        """Raise ValueError if a scheme is unsupported, or if `endpoint` is neither empty nor an HTTP(S) URL
        without credentials and query.
        """
        for scheme in self.schemes:
            if scheme not in _LIBRARIES:
                raise ValueError(f"schemes: got {scheme!r}, expected some of {', '.join(_LIBRARIES)}")
        check_url("endpoint", self.endpoint)
        if self.endpoint and (urlsplit(self.endpoint).scheme not in ("http", "https") or has_query(self.endpoint)):
            raise ValueError(
                f"endpoint: got {shown(self.endpoint)!r}, expected a URL such as https://storage.example.org"
            )


class Facts(NamedTuple):
    """The size of a remote file in bytes, and its version: an ETag, hash or time that changes with the
    content, or None if the store gives none.
    """

    size: int
    version: str | None


def check_url(field: str, place: str) -> None:
    """Raise ValueError, naming `field`, for a URL that is malformed, has the scheme `file`, or contains a
    user name or password. Paths are accepted, and so is the revision in `hf://NAME@REVISION`.
    """
    if not is_url(place):
        return
    scheme, _, rest = place.partition(":")
    if scheme.lower() == "file":
        raise ValueError(f"{field}: got a file: URL, expected a path; write the path without file://")
    if not rest.startswith("//"):
        raise ValueError(
            f"{field}: got {scheme}:/ with one slash, expected two in a URL, as in {scheme.lower()}://bucket/prefix; for a local "
            f"path of that name write ./{scheme}:..."
        )
    try:
        parts = urlsplit(place)
        _ = parts.port
    except ValueError:
        raise ValueError(f"{field}: not a valid URL; check its host and port") from None
    if parts.password is not None or (parts.username is not None and parts.scheme != "hf"):  # hf://set@revision
        raise ValueError(
            f"{field}: the URL holds a user name or password, which would be published with the corpus; put credentials where "
            "the store's own tools find them"
        )


def holds_credentials(text: str) -> bool:
    """Return whether a text contains a URL with a user name, or a URL parameter whose name suggests a
    credential, such as `signature`, `token` or `key`.
    """
    return bool(_CREDENTIALS.search(text))


def has_query(place: str) -> bool:
    """Return whether a location is an HTTP URL with a query or fragment, which may contain a signature or a
    key.
    """
    return bool(_WEB.match(place)) and ("?" in place or "#" in place)


def shown(place: str) -> str:
    """Return a location as it is shown, logged and stored: the query and fragment of an HTTP URL become
    `?...`.
    """
    return re.sub(r"[?#].*", "?...", place, flags=re.DOTALL) if has_query(place) else place


def file_name(url: str) -> str:
    """Return the file name of a URL: the last component of its path, without the query of an HTTP URL."""
    bare = url.partition("://")[2]
    if _WEB.match(url):
        bare = re.split(r"[?#]", bare, maxsplit=1)[0]
    return bare.rstrip("/").rpartition("/")[2]


def list_urls(url: str, remote: Remote) -> dict[str, Facts]:
    """Return the size and version of every file below a URL, keyed by the file's path relative to the URL.
    The path is empty if the URL is itself a file, as an HTTP URL always is.
    """
    if url.lower().startswith("http"):
        return {"": _ask(url, remote, lambda store, path: _facts(url, store.info(path)))}

    def listed(store: Any, path: str) -> dict[str, Facts]:
        path = path.rstrip("/")
        found = {}
        for name, info in store.find(path, detail=True, withdirs=False).items():
            if info.get("type") != "directory" and not name.endswith("/"):
                found[name.removeprefix(path).removeprefix("/")] = _facts(url, info)
        return found

    return _ask(url, remote, listed, seconds=LISTING_SECONDS)


def stat_url(url: str, remote: Remote) -> Facts | None:
    """Return the size and version of a remote file, or None if no file has exactly this URL."""

    def facts(store: Any, path: str) -> Facts | None:
        info = store.info(path)
        return None if info.get("type") == "directory" else _facts(url, info)

    try:
        return _ask(url, remote, facts, missing=True)
    except FileNotFoundError:
        return None


def open_url(url: str, remote: Remote) -> "RemoteFile":
    """Open a remote file for reading.

    Raises UserError if it is missing or forbidden, and RemoteError if the store fails.
    """
    options = {"block_size": _BLOCK_BYTES, "cache_type": "readahead"}
    return RemoteFile(url, _ask(url, remote, lambda store, path: store.open(path, "rb", **options)))


class RemoteFile(io.RawIOBase):
    """An open remote file. Failures of the store raise RemoteError, not OSError, because readers treat an
    OSError as a damaged file.
    """

    def __init__(self, url: str, file: Any) -> None:
        self._url = url
        self._file = file

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return whether the store answers range requests."""
        return self._file.size is not None  # without range requests, fsspec opens a stream of unknown size

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position of the next read and return it. Raises UserError if this would move the position
        and the store does not answer range requests.
        """
        if not self.seekable() and (offset, whence) not in ((self.tell(), io.SEEK_SET), (0, io.SEEK_CUR)):
            raise UserError(
                f"{shown(self._url)}: the server does not answer range requests, which this format needs; download the file, "
                f"and give its path"
            )
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the position of the next read."""
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` and return the number of bytes read, which is less than the size of the buffer only
        at the end of the file.
        """
        size: int | None = self._file.size
        left = len(buffer) if size is None else min(len(buffer), max(0, size - self.tell()))
        filled = 0
        while left:
            tries = 1 if size is None else _tries(self._url)  # a stream without ranges cannot be resumed
            call = partial(self._some, left, size is not None)
            data = ask(shown(self._url), call, size=left + _BLOCK_BYTES, secret=has_query(self._url), tries=tries)
            if not data:
                break
            buffer[filled : filled + len(data)] = data
            filled, left = filled + len(data), left - len(data)
        return filled

    def _some(self, most: int, more: bool) -> bytes:
        data = bytes(self._file.read(most))
        if more and not data:
            raise EOFError
        return data


def _ask(url: str, remote: Remote, call: Callable[[Any, str], Result], **options: Any) -> Result:
    """Return the result of `call(store, path)` for the store and path of `url`, with the timeouts, retries
    and errors of `gristmill.storage.timeouts.ask`. `options` are passed to `ask`. Error messages end with the
    hint from `endpoint_hint`, if there is one.
    """

    def asked() -> Result:
        return call(*_connect(url, remote))

    try:
        return ask(shown(url), asked, secret=has_query(url), tries=_tries(url), **options)
    except (RemoteError, UserError) as error:
        hint = endpoint_hint(url, remote)
        if not hint or type(error) not in (RemoteError, UserError):
            raise
        raise type(error)(f"{error}{hint}") from error.__cause__


def endpoint_hint(url: str, remote: Remote) -> str:
    """Return a hint to append to an error message if `url` is an S3 URL and neither `remote` nor the
    environment gives an endpoint, else an empty string.
    """
    if not url.lower().startswith("s3:") or remote.endpoint:
        return ""
    if any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")):
        return ""
    return (
        " (The request went to AWS; if the store is elsewhere, set AWS_ENDPOINT_URL to the `remote.endpoint` that the "
        "corpus was built "
        "with)"
    )


def _tries(url: str) -> int:
    """Return how many times to try a request. The libraries of object stores retry by themselves; the HTTP
    library does not.
    """
    return 3 if _WEB.match(url) else 1


def _facts(url: str, info: dict[str, Any]) -> Facts:
    version = next((info[name] for name in _VERSIONS if info.get(name)), None)
    if info.get("size") is None:
        raise UserError(f"{shown(url)}: the server does not say how long the file is; fetch it first")
    return Facts(int(info["size"]), None if version is None else str(version))


def _connect(url: str, remote: Remote) -> tuple[Any, str]:
    """Return the fsspec store of a URL, and the URL's path in that store. Raises UserError if the URL may not
    be opened.
    """
    scheme = urlsplit(url).scheme.lower()
    if scheme not in remote.schemes:
        raise UserError(
            f"{shown(url)}: URLs of the scheme {scheme!r} may not be opened; `remote.schemes` allows "
            f"{', '.join(remote.schemes) or 'none'}"
        )
    store = host().store(scheme, partial(_store, scheme, remote))
    if not remote.allow_private:
        _refuse_private(_address(url, scheme, store), url)
    return store, store._strip_protocol(url)


def library_of_scheme(scheme: str) -> tuple[str, str]:
    """Return the name of the module needed to open URLs of a scheme, and the command that installs it."""
    return _LIBRARIES[scheme]


@lru_cache(maxsize=16)
def _store(scheme: str, remote: Remote) -> Any:
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        module, install = library_of_scheme(scheme)
        raise UserError(
            f"{scheme}:// URLs need the module {module}, which cannot be imported ({error}); run: {install}"
        ) from None
    if scheme == "s3":
        if remote.endpoint:
            options["client_kwargs"] = {"endpoint_url": remote.endpoint}
        if not remote.allow_private:
            options["config_kwargs"] = {"connector_args": {"socket_factory": _public_socket}}
    elif scheme.startswith("http") and not remote.allow_private:
        options["get_client"] = _public_client
    return kind(**options)


def _address(url: str, scheme: str, store: Any) -> str:
    """Return a URL on the server to which requests for `url` go."""
    if scheme == "s3":
        return str(store.s3.meta.endpoint_url)
    if scheme in ("http", "https"):
        return url
    return str(store.base if scheme == "gs" else store.endpoint)


def _refuse_private(service: str, url: str) -> None:
    parts = urlsplit(service)
    host, port = parts.hostname or "", parts.port or 443
    if (host, port) in _public:
        return
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:
        raise UserError(f"{shown(url)}: the host {host!r} has no address; check the URL and the network") from None
    for address in sorted(addresses):
        if not is_public(address):
            raise UserError(
                f"{shown(url)}: the host {host!r} has the address {address}, which is not public; to allow it, set "
                "`remote: {allow_private: true}`, or on a command line GRISTMILL_ALLOW_PRIVATE=1"
            )
    _public.add((host, port))


_public: set[tuple[str, int]] = set()  # services whose addresses were public at the first lookup


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the public internet. An IPv6 address that embeds an IPv4
    address (IPv4-mapped, IPv4-compatible, 6to4 or NAT64) is judged by the latter, but the prefix for local
    NAT64 (RFC 8215) is never public.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if inner is None and any(parsed in network for network in _INNER_IPV4):
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if parsed in _OWN_NAT64:
            return False
    return parsed.is_global and not parsed.is_multicast


def _public_socket(info: Any) -> socket.socket:
    family, kind, protocol, _, address = info
    if not is_public(address[0]):
        raise PermissionError(f"{address[0]} is not public")
    return socket.socket(family, kind, protocol)


async def _public_client(**options: Any) -> Any:
    import aiohttp

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=_public_socket), **options)


def read_url(url: str, remote: Remote) -> bytes:
    """Read all bytes of a remote file. Raises FileNotFoundError if it does not exist."""
    alone = {"max_concurrency": 1} if url.lower().startswith("s3:") else {}  # else s3fs requests the size first
    return _ask(url, remote, lambda store, path: bytes(store.cat_file(path, **alone)), size=_SMALL_BYTES, missing=True)


def read_url_ranges(ranges: Sequence[tuple[str, int, int]], remote: Remote) -> list[bytes]:
    """Return the bytes [start, end) of a file for each (URL, start, end). Up to 64 ranges are requested at
    once. All files must be in the same store.

    Raises FileNotFoundError if a file is missing. Results may be shorter than requested; the caller must
    check their lengths.
    """
    pieces: list[bytes] = []
    for first in range(0, len(ranges), _AT_ONCE):
        group = ranges[first : first + _AT_ONCE]

        def call(group: Sequence[tuple[str, int, int]] = group) -> list[bytes]:
            store, _ = _connect(group[0][0], remote)
            paths, starts, ends = zip(
                *((store._strip_protocol(url), start, end) for url, start, end in group), strict=True
            )
            return [bytes(data) for data in store.cat_ranges(list(paths), list(starts), list(ends), on_error="raise")]

        place, size = shown(group[0][0]), sum(end - start for _, start, end in group)
        pieces += ask(place, call, size=size, missing=True, secret=has_query(place), tries=_tries(place))
    return pieces


def fetch_url(url: str, remote: Remote, target: Path) -> None:
    """Copy a remote file to a local file. Raises FileNotFoundError if the remote file does not exist."""
    size = _ask(url, remote, lambda store, path: _facts(url, store.info(path)).size, missing=True)
    target.touch()  # raises a local error here, so that it is not taken for an error of the store

    def copy(store: Any, path: str) -> None:
        store.get_file(path, str(target))
        if target.stat().st_size != size:
            raise EOFError

    with attach_filename(target):
        _ask(url, remote, copy, size=size, missing=True)


def put_url(url: str, remote: Remote, local: Path) -> None:
    """Store a local file under a URL, replacing any existing file. The new file appears whole or not at all."""
    _ask(url, remote, lambda store, path: store.put_file(str(local), path), size=local.stat().st_size)


def write_url(url: str, remote: Remote, content: bytes) -> None:
    """Write `content` to a URL, replacing any existing file."""
    _ask(url, remote, lambda store, path: store.pipe_file(path, content), size=len(content))


def create_url(url: str, remote: Remote, content: bytes) -> bool:
    """Store bytes under a URL, unless the file exists or another process is creating it. Returns whether this
    call stored them.

    In a store with conditional requests, the result is also True if the file already has exactly these bytes,
    because an earlier attempt may have stored them. In other stores, two simultaneous calls may both store
    their bytes, and the last write wins.
    """

    def create(store: Any, path: str) -> bool:
        try:
            store.pipe_file(path, content, mode="create")
        except FileExistsError:
            try:
                return bool(store.cat_file(path) == content)  # the response to this call may have been lost
            except FileNotFoundError:
                return False
        except OSError as error:
            if "ConditionalRequestConflict" in str(error.__cause__):
                return False
            if error.errno != errno.ENOSYS:
                raise
            if store.exists(path):
                return False
            store.pipe_file(path, content)
        return True

    return _ask(url, remote, create, size=len(content))


def remove_file_at(url: str, remote: Remote) -> None:
    """Remove a remote file if it exists."""

    def remove(store: Any, path: str) -> None:
        with suppress(FileNotFoundError):
            store.rm_file(path)

    _ask(url, remote, remove)


def remove_url(url: str, remote: Remote) -> None:
    """Remove a remote file, or everything below a prefix, if it exists. A file that another process writes
    there meanwhile may be removed too.
    """

    def remove(store: Any, path: str) -> None:
        if not store.exists(path):
            return
        if not _GLOB.search(path):  # with a glob in `path`, `rm` would remove what it matches
            with suppress(FileNotFoundError):  # another process has removed it since
                store.rm(path, recursive=True)
        for name in store.find(path):  # s3fs reports no errors of single objects in `rm`, only in `rm_file`
            with suppress(FileNotFoundError):
                store.rm_file(name)

    _ask(url, remote, remove, seconds=LISTING_SECONDS)


def children_of_url(url: str, remote: Remote) -> list[str]:
    """Return the names of the files and directories directly below a URL, sorted, or an empty list if there
    are none.
    """

    def children(store: Any, path: str) -> list[str]:
        names = store.ls(path, detail=False)
        return sorted(name.rstrip("/").rpartition("/")[2] for name in names if name.rstrip("/") != path.rstrip("/"))

    try:
        return _ask(url, remote, children, seconds=LISTING_SECONDS, missing=True)
    except FileNotFoundError:
        return []


def modified_ns(url: str, remote: Remote) -> int:
    """Return the time at which a remote file was stored, in nanoseconds since the epoch. Raises
    FileNotFoundError if it does not exist.
    """
    return _ask(url, remote, lambda store, path: int(store.modified(path).timestamp() * 1e9), missing=True)
