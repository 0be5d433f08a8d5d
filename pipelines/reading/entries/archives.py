"""Files and archive members as named byte streams. Members are streamed one by one and never extracted.

A member's name is only a name: `../../x` gives the document path `archive.tar!../../x` and touches no file of
that name.
"""

import errno
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import PurePosixPath
from typing import IO, Any, Self, TypeGuard, cast

from gristmill.errors import errno_of
from pipelines.reading.entries.decompress import DecodeBudget, broken_stream, decoded_bound, decompress
from pipelines.reading.entries.files import SourceFile, attribute_os_errors, file_chunks, printable_name
from pipelines.reading.entries.git_entries import git_members
from pipelines.reading.entries.reasons import CHUNK_BYTES, BrokenInput
from pipelines.reading.sources.globs import matches
from pipelines.reading.sources.registry import format_of
from pipelines.reading.sources.source import Source

_TAR_HEADER_BYTES = 1 << 20  # longer extended headers are an attack; tarfile would hold them in memory
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_TAR_BUFFER = 1 << 16  # bytes
_END_MARK = tarfile.EOFHeaderError  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Entry:
    """A named stream of decompressed bytes: a file, a member of an archive, or a file of a git commit.

    `chunks` raises BrokenInput if the bytes cannot be read to the end. `file` is the source file if `chunks`
    yields its bytes as stored, neither decompressed nor taken out of an archive, else None. `size` is the
    length of the stream in bytes, or None if it is not known before reading. `shared` is further data for the
    reader of the format, such as licences by directory (`Format.load_shared`). `member` is the path within
    the archive or commit, or None if the entry is not taken from one.
    """

    path: str
    chunks: Iterator[bytes]
    file: SourceFile | None = None
    size: int | None = None
    shared: Any = None
    member: str | None = None

    def read(self, most: int) -> bytes | None:
        """Return all bytes of the stream, or None if there are more than `most`. In that case the rest is not
        read.
        """
        held = bytearray()
        for chunk in self.chunks:
            held += chunk
            if len(held) > most:
                return None
        return bytes(held)


def open_entries(file: SourceFile, source: Source) -> Iterator[Entry]:
    """Yield the entries of a file, in order: the members of an archive, the files of a git commit, or the
    file itself. The stream of an entry is valid only until the next entry is requested.

    If `source.members` is set, members of an archive and files of a commit that do not match it are skipped.
    An archive that is itself a file of the source's format, such as an EPUB, is one entry; a tar is one only
    if `source.members` is empty. A member that cannot be read at all is an entry whose stream raises
    BrokenInput at once. Damage outside the members is reported by an entry with the name of the archive
    itself.
    """
    budget = DecodeBudget(decoded_bound(file.size, source.max_decoded_bytes))
    if file.commit is not None:
        yield from _git_entries(file, source, budget)
        return
    with closing(file_chunks(file)) as raw:
        head, chunks, layers = decompress(file.path, raw, budget)
        if _is_tar(file.path, head) and (source.members or not format_of(source.format).holds_tar):
            yield from _TarReader(file.path, chunks, source, budget).entries()
        elif _is_zip(head) and not _is_package(file.path, head, source):
            yield from (
                _zip_members(file, source, budget)
                if layers == 0
                else [Entry(file.path, broken_stream("nested_archive"))]
            )
        elif layers:
            yield Entry(file.path, chunks)
        else:
            yield Entry(file.path, chunks, file, file.size)


def _git_entries(file: SourceFile, source: Source, budget: DecodeBudget) -> Iterator[Entry]:
    for each in git_members(file, source, lambda name: _is_selected(name, source)):
        if each.reason is None:
            yield _member(file.path, each.path, budget.bound(iter(each.chunks)), each.size, source, budget)
        else:
            path = f"{file.path}!{printable_name(each.path)}" if each.path else file.path
            yield Entry(path, broken_stream(each.reason), member=printable_name(each.path) or None)


def is_tar_name(path: str) -> bool:
    """Return whether a path ends like that of a tar file, compressed or not."""
    name = PurePosixPath(path.lower())
    if name.suffix in (".gz", ".bz2", ".xz", ".zst", ".zstd"):
        name = name.with_suffix("")
    return name.suffix in (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst")


def _is_tar(path: str, head: bytes) -> bool:
    return head[257:265] in (b"ustar\x0000", b"ustar  \0") or (is_tar_name(path) and bool(head))


def _is_package(path: str, head: bytes, source: Source) -> bool:
    """Return whether a zip is itself a file of the source's format, such as an EPUB, and not an archive of
    files.
    """
    kind = format_of(source.format)
    if not kind.zip_name:
        return False
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]  # of the first member
    named = PurePosixPath(path.lower()).suffix == kind.zip_suffix
    return named or re.fullmatch(kind.zip_name, name.decode("latin-1")) is not None


def _is_zip(head: bytes) -> bool:
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"))


def _member(archive: str, name: str, chunks: Iterator[bytes], size: int, source: Source, budget: DecodeBudget) -> Entry:
    head, chunks, layers = decompress(name, chunks, budget)
    is_archive = _is_tar(name, head) and not format_of(source.format).holds_tar
    if is_archive or (_is_zip(head) and not _is_package(name, head, source)):
        chunks = broken_stream("nested_archive")
    printable = printable_name(name)
    return Entry(f"{archive}!{printable}", chunks, size=None if layers else size, member=printable)


def _is_selected(name: str, source: Source) -> bool:
    return not source.members or matches(name, source.members)


# --- tar -------------------------------------------------------------------------------------------------------------


class TarInput:
    """The file object from which tarfile reads. A broken stream appears to end normally, so that tarfile
    delivers everything before the break; `failure` then holds the reason. `ended` is set at the end of the
    stream, broken or not.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""
        self.failure: str | None = None
        self.ended = False

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, or no bytes at the end."""
        if not self._held:
            try:
                self._held = next(self._chunks, b"")
            except BrokenInput as error:
                self.failure = error.reason
        self.ended = not self._held
        out, self._held = self._held[:size], self._held[size:]
        return out


class _Header(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in _EXTENDED and header.size > _TAR_HEADER_BYTES):
            raise tarfile.HeaderError("size of a header")
        return header

    @classmethod
    def fromtarfile(cls, tarfile: Any) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except _END_MARK:
            tarfile.complete = True
            raise


class _Archive(tarfile.TarFile):
    """A tar archive that records whether its end mark was read, because tarfile silently mistakes a damaged
    header for the end.
    """

    tarinfo = _Header
    complete = False


class _TarReader:
    """Reads the members of one tar. Damage is reported once: by the entry of the damaged member or, if it
    lies outside the members read, by an entry for the archive itself.
    """

    def __init__(self, path: str, chunks: Iterator[bytes], source: Source, budget: DecodeBudget) -> None:
        self._path = path
        self._input = TarInput(chunks)
        self._source = source
        self._budget = budget
        self._reported = False

    def entries(self) -> Iterator[Entry]:
        stream = cast("IO[bytes]", self._input)
        after = b""
        try:
            archive = _Archive.open(fileobj=stream, mode="r|", bufsize=_TAR_BUFFER, encoding="utf-8")
            while not self._reported and (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps every header it has seen
                if not member.isdir() and _is_selected(member.name, self._source):
                    yield self._entry(archive, member)
                self._pass_over(archive)
            # Read to the end of the file: the checksum of a compressed stream is verified only there.
            while archive.complete and not after and (block := archive.fileobj.read(CHUNK_BYTES)):
                after = block.strip(b"\0")
            complete = archive.complete
        except (tarfile.TarError, ValueError):
            complete = False
        if not self._reported and (self._input.failure or after or not complete):
            yield Entry(self._path, broken_stream("trailing_bytes" if after else self._damage()))

    def _entry(self, archive: Any, member: tarfile.TarInfo) -> Entry:
        if not member.isreg():
            name = printable_name(member.name)
            return Entry(f"{self._path}!{name}", broken_stream("not_regular"), member=name)
        if member.issparse():  # the budget was charged for the stream, which does not contain the holes
            data = self._budget.bound(self._contents(archive.extractfile(member), member.size))
        else:
            # Not through extractfile, which discards a partial read at the end of the stream.
            archive.fileobj.seek(member.offset_data)
            data = self._contents(archive.fileobj, member.size)
        return _member(self._path, member.name, data, member.size, self._source, self._budget)

    def _contents(self, handle: Any, left: int) -> Iterator[bytes]:
        while left:
            try:
                chunk = handle.read(min(CHUNK_BYTES, left))
            except (tarfile.TarError, ValueError):
                chunk = b""
            if not chunk:
                self._reported = True
                raise BrokenInput(self._damage())
            left -= len(chunk)
            yield chunk

    def _pass_over(self, archive: Any) -> None:
        """Skip to the next header. Raises ReadError if the file ends before it, where tarfile's own skipping
        would go on.
        """
        while not self._reported and (left := archive.offset - archive.fileobj.tell()) > 0:
            if not archive.fileobj.read(min(CHUNK_BYTES, left)):
                raise tarfile.ReadError("the file ends within a member")

    def _damage(self) -> str:
        return self._input.failure or ("truncated" if self._input.ended else "corrupt")


# --- zip -------------------------------------------------------------------------------------------------------------


def _zip_members(file: SourceFile, source: Source, budget: DecodeBudget) -> Iterator[Entry]:
    try:
        archive = _open_zip(file)
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        # The directory of a zip is at its end, so a truncated zip yields nothing.
        yield Entry(file.path, broken_stream("corrupt" if zipfile.is_zipfile(file.handle()) else "truncated"))
        return
    with archive:
        for info in archive.infolist():
            if (info.filename.endswith("/") and not info.file_size) or not _is_selected(info.filename, source):
                continue
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
                chunks = broken_stream("not_regular")
            elif info.flag_bits & 1:
                chunks = broken_stream("encrypted")
            else:
                chunks = budget.bound(_zip_contents(archive, info, file))
            yield _member(file.path, info.filename, chunks, info.file_size, source, budget)


def _open_zip(file: SourceFile) -> zipfile.ZipFile:
    """Open a zip. Raises SourceError or StorageError for an I/O error that zipfile would report as damage."""
    with attribute_os_errors(file):
        try:
            return zipfile.ZipFile(file.handle())
        except zipfile.BadZipFile as error:
            if _is_io_error(cause := error.__context__):
                raise cause from None
            raise


def _zip_contents(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: SourceFile) -> Iterator[bytes]:
    with attribute_os_errors(file):
        try:
            with archive.open(info) as member:
                while chunk := member.read(CHUNK_BYTES):
                    yield chunk
        except NotImplementedError:
            raise BrokenInput("unsupported_compression") from None
        except EOFError:
            raise BrokenInput("truncated") from None
        except (zipfile.BadZipFile, zlib.error, LZMAError, OSError, ValueError) as error:
            if _is_io_error(error):
                raise
            raise BrokenInput("corrupt") from None


def _is_io_error(error: BaseException | None) -> TypeGuard[OSError]:
    """Return whether an error raised while reading a zip is an I/O error of the operating system. EINVAL does
    not count: it means that a damaged record made zipfile seek to a position before the start of the file.
    """
    return isinstance(error, OSError) and errno_of(error) not in (None, errno.EINVAL)
