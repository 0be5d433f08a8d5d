"""Read documents that are zip packages of XML: their members, read in memory within limits and never
extracted to disk, and the elements of the XML.
"""

import io
import posixpath
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from lzma import LZMAError
from typing import Any
from urllib.parse import unquote
from xml.parsers import expat

from pipelines.reading.entries.decompress import decoded_bound, inflate
from pipelines.reading.entries.reasons import CHUNK_BYTES, BrokenInput
from pipelines.reading.web.extraction import PageLimits

Attributes = dict[str, str]
_HEADER, _LENGTHS = 30, 26  # bytes of a local header, and where the lengths of name and extra field are in it


class ZipPackage:
    """The members of a zip package, such as an EPUB or a Word document. The constructor raises BrokenInput if
    `data` is not a zip archive.
    """

    def __init__(self, data: bytes, limits: PageLimits) -> None:
        self._data = memoryview(data)
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
        """Return the bytes of a member, which must exist. Raises BrokenInput if it is damaged, cannot be
        decoded or exceeds a limit.
        """
        info = self._archive.getinfo(name)
        if info.flag_bits & 1:
            raise BrokenInput("encrypted")
        pieces: list[bytes] = []
        size = 0
        try:
            with self._archive.open(info) as member:
                if info.compress_type == zipfile.ZIP_DEFLATED:
                    return self._deflated(info)
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

    def _deflated(self, info: zipfile.ZipInfo) -> bytes:
        """Return the bytes of a deflated member, in a fraction of the time that zipfile takes."""
        name, extra = struct.unpack_from("<HH", self._data, info.header_offset + _LENGTHS)
        begin = info.header_offset + _HEADER + name + extra
        packed = self._data[begin : begin + info.compress_size]
        if len(packed) < info.compress_size:
            raise BrokenInput("truncated")
        data = inflate(packed, min(info.file_size, self._most + 1, self._left + 1))
        self._left -= len(data)
        if len(data) > self._most:
            raise BrokenInput("html_bytes")
        if self._left < 0:
            raise BrokenInput("decoded_limit")
        if zlib.crc32(data) != info.CRC:
            raise BrokenInput("corrupt")
        return data


def resolve(base: str, reference: str) -> str:
    """Return the name of the member to which a reference in the member `base` points."""
    path = unquote(reference.partition("#")[0])
    return posixpath.normpath(path[1:] if path.startswith("/") else posixpath.join(posixpath.dirname(base), path))


def read_xml(
    data: bytes,
    start: Callable[[str, Attributes], None],
    end: Callable[[str], None] | None = None,
    text: Callable[[str], None] | None = None,
) -> None:
    """Parse XML, and call `start(name, attributes)`, `end(name)` and `text(text)`. The names of elements and
    attributes are given without their namespaces.

    Raises BrokenInput for XML that is malformed, has a document type or declares entities.
    """
    local = _LocalNames()

    def start_element(name: str, found: Attributes) -> None:
        start(local[name], {local[key]: value for key, value in found.items()} if found else found)

    _parse(data, start_element, None if end is None else lambda name: end(local[name]), text)


def read_elements(
    data: bytes,
    starts: Mapping[str, Callable[[Attributes], None]],
    ends: Mapping[str, Callable[[], None]],
    texts: Mapping[str, Callable[[str], None]],
    left_out: Collection[str],
) -> None:
    """Parse XML as `read_xml` does, but call functions only for the elements that the mappings name:
    `starts[name]` with the attributes when the element starts, `ends[name]` when it ends, and `texts[name]`
    with each piece of text in it. An element in `texts` is not looked up in `starts` and `ends`. Elements in
    `left_out` are skipped with everything inside them.
    """
    local = _LocalNames()
    depth = 0  # open elements inside one that is left out, itself included
    held: Callable[[str], None] | None = None

    def start_element(name: str, found: Attributes) -> None:
        nonlocal depth, held
        element = local[name]
        if depth or element in left_out:
            depth += 1
        elif element in texts:
            held = texts[element]
        elif element in starts:
            starts[element]({local[key]: value for key, value in found.items()})

    def end_element(name: str) -> None:
        nonlocal depth, held
        element = local[name]
        if depth:
            depth -= 1
        elif element in texts:
            held = None
        elif element in ends:
            ends[element]()

    _parse(data, start_element, end_element, lambda text: held(text) if held is not None and not depth else None)


def check_xml(data: bytes) -> None:
    """Raise BrokenInput, as `read_xml` does, for XML that is malformed, has a document type or declares
    entities.
    """
    _parse(data, None, None, None)


def _parse(
    data: bytes,
    start: Callable[[str, Attributes], None] | None,
    end: Callable[[str], None] | None,
    text: Callable[[str], None] | None,
) -> None:
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = _refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError:
        raise BrokenInput("corrupt") from None


class _LocalNames(dict[str, str]):
    """A cache that maps qualified names to names without their namespaces."""

    def __missing__(self, name: str) -> str:
        local = self[name] = name.rpartition("}")[2]
        return local


def _refuse(*_: Any) -> None:
    raise BrokenInput("xml_doctype")


def read_values(data: bytes, names: dict[str, str]) -> dict[str, str]:
    """Return the texts of elements, with white space collapsed. `names` maps element names to keys of the
    result. Several texts with the same key are joined with `; `.
    """
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
