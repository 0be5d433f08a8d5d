"""Documents that are zip packages of XML: their members, read in memory within limits and never extracted."""

import io
import posixpath
import struct
import zipfile
import zlib
from collections.abc import Callable
from lzma import LZMAError
from typing import Any
from urllib.parse import unquote
from xml.parsers import expat

from pipelines.reading.entries.decompress import decoded_bound
from pipelines.reading.entries.reasons import CHUNK_BYTES, BrokenInput
from pipelines.reading.web.extraction import PageLimits

Attributes = dict[str, str]


class ZipPackage:
    """The members of a package. `member` raises BrokenInput for what the limits or the bytes do not allow."""

    def __init__(self, data: bytes, limits: PageLimits) -> None:
        self._most = limits.html_bytes
        self._left = decoded_bound(len(data), limits.decoded_bytes)
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, struct.error):
            raise BrokenInput("corrupt" if data.startswith(b"PK") else "not_package") from None
        self._names = set(self._archive.namelist())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def member(self, name: str) -> bytes:
        """Return the bytes of a member, which must exist."""
        info = self._archive.getinfo(name)
        if info.flag_bits & 1:
            raise BrokenInput("encrypted")
        pieces: list[bytes] = []
        size = 0
        try:
            with self._archive.open(info) as member:
                while chunk := member.read(CHUNK_BYTES):
                    size += len(chunk)
                    self._left -= len(chunk)
                    if size > self._most:
                        raise BrokenInput("html_bytes")
                    if self._left < 0:
                        raise BrokenInput("decoded_limit")
                    pieces.append(chunk)
        except NotImplementedError:
            raise BrokenInput("unsupported_compression") from None
        except EOFError:
            raise BrokenInput("truncated") from None
        except (zipfile.BadZipFile, zlib.error, LZMAError, OSError, ValueError, struct.error):
            raise BrokenInput("corrupt") from None
        return b"".join(pieces)


def resolve(base: str, reference: str) -> str:
    """Return the name of the member that a reference in the member `base` leads to. A name above the root of the package is
    no member.
    """
    path = unquote(reference.partition("#")[0])
    return posixpath.normpath(path[1:] if path.startswith("/") else posixpath.join(posixpath.dirname(base), path))


def read_xml(
    data: bytes,
    start: Callable[[str, Attributes], None],
    end: Callable[[str], None] | None = None,
    text: Callable[[str], None] | None = None,
) -> None:
    """Parse XML and call `start`, `end` and `text` with names of elements and attributes without their namespaces.

    Raises BrokenInput for XML that is malformed, or has a document type or entities.
    """
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartElementHandler = lambda name, found: start(_local(name), {_local(key): found[key] for key in found})
    if end is not None:
        parser.EndElementHandler = lambda name: end(_local(name))
    if text is not None:
        parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = _refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError:
        raise BrokenInput("corrupt") from None


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _refuse(*_: Any) -> None:
    raise BrokenInput("xml_doctype")


def read_values(data: bytes, names: dict[str, str]) -> dict[str, str]:
    """Return the texts of elements, by the names that `names` gives to theirs; several of a name are joined with `; `."""
    found: dict[str, list[str]] = {}
    held: list[str] | None = None

    def start(name: str, attributes: Attributes) -> None:
        nonlocal held
        held = [] if name in names else None

    def end(name: str) -> None:
        nonlocal held
        if held is not None and name in names and (value := " ".join("".join(held).split())):
            found.setdefault(names[name], []).append(value)
        held = None

    read_xml(data, start, end, lambda text: held.append(text) if held is not None else None)
    return {name: "; ".join(values) for name, values in found.items()}
