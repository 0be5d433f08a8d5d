"""LocalPath: a path on a local disk, with atomic and durable writes.

A process that is killed in `write_atomic` before the rename leaves at most a temporary file, whose name ends
in `.tmp` and which readers ignore.
"""

import errno
import io
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path, PosixPath
from stat import S_ISDIR, S_ISREG
from typing import IO, Any, BinaryIO, Self, final

from gristmill.budget import WRITING, spend
from gristmill.errors import CorruptFileError, attach_filename
from gristmill.host import host
from gristmill.storage.location import Check, Content, FileRecord, Location, missing_file, repair_advice
from gristmill.storage.retries import retry
from gristmill.storage.store import file_checksum

_REMOVALS = 5
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # file systems without hard links


@final
class LocalPath(PosixPath, Location):
    """A `pathlib.Path` with the operations of a Location."""

    __slots__ = ()

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return host().stat(str(self)) if follow_symlinks else super().stat(follow_symlinks=False)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the path exists. Symbolic links are always followed."""
        return self._mode() is not None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the path is a regular file. Symbolic links are always followed."""
        mode = self._mode()
        return mode is not None and S_ISREG(mode)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the path is a directory. Symbolic links are always followed."""
        mode = self._mode()
        return mode is not None and S_ISDIR(mode)

    def _mode(self) -> int | None:
        """Return the file type and permission bits of the path, or None if it does not exist."""
        try:
            return host().stat(str(self)).st_mode
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
        except ValueError:  # a null byte
            pass
        return None

    def iterdir(self) -> Generator[Self, None, None]:
        return (self / name for name, _ in host().entries(str(self)))

    def glob(self, pattern: str) -> Generator[Self, None, None]:
        """Yield every path below this one that matches `pattern`, which consists of name patterns separated
        by slashes. Unlike in pathlib, `**` means the same as `*`.
        """
        first, _slash, rest = pattern.partition("/")
        if not set(first) & set("*?["):
            matches = [self / first] if (self / first).exists() else []
        else:
            try:
                matches = [self / name for name, _ in host().entries(str(self)) if fnmatchcase(name, first)]
            except (FileNotFoundError, NotADirectoryError):
                matches = []
        for path in matches:
            yield from path.glob(rest) if rest else (path,)

    def rglob(self, pattern: str) -> Generator[Self, None, None]:
        """Yield every path below this one, at any depth, whose name matches a pattern. Symbolic links are not
        followed.
        """
        try:
            found = host().entries(str(self))
        except (FileNotFoundError, NotADirectoryError):  # another process removed it
            return
        for name, is_directory in found:
            path = self / name
            if fnmatchcase(name, pattern):
                yield path
            if is_directory:
                yield from path.rglob(pattern)

    def open(  # type: ignore[override]
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Open the file, as in pathlib. Text is UTF-8 unless `encoding` is given."""
        if "b" in mode:
            return host().open(str(self), mode, buffering)
        raw = host().open(str(self), mode.replace("t", "") + "b")
        return io.TextIOWrapper(raw, encoding or "utf-8", errors, newline)

    def read_bytes(self) -> bytes:
        with host().open(str(self)) as source:
            return source.read()

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """Return the file's text, as in pathlib, but without converting line endings. The default encoding is
        UTF-8.
        """
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Create the directory, as in pathlib, but ignore `mode`. The new directory survives a power failure
        if its parent is readable.
        """
        for left in reversed(range(_REMOVALS)):
            try:
                host().mkdir(str(self))
                with suppress(PermissionError):  # the parent may be writable and not readable
                    self.parent.fsync()
            except FileNotFoundError:
                if not parents or self.parent == self:
                    raise
                self.parent.mkdir(parents=True, exist_ok=True)
                self.mkdir(exist_ok=exist_ok)
            except OSError:
                found = self._mode()
                if exist_ok and found is None and left:  # another process created and removed it meanwhile
                    continue
                if not exist_ok or found is None or not S_ISDIR(found):
                    raise
            return

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        """Create the file if it does not exist. `mode` and `exist_ok` are ignored."""
        host().open(str(self), "ab").close()

    def rename(self, target: os.PathLike[str] | str) -> Self:
        """Rename the file or directory, as in pathlib. A file may replace an existing file, and a directory
        an empty one.
        """
        host().rename(str(self), str(target))
        return type(self)(target)

    replace = rename

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            host().unlink(str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        """Remove the directory, which must be empty."""
        host().rmdir(str(self))

    @property
    def local(self) -> "LocalPath":
        return self

    def is_within(self, outer: Location) -> bool:
        """Return whether the path is `outer` or lies below it, with symbolic links resolved."""
        return outer.local is not None and self.resolve().is_relative_to(outer.local.resolve())

    def version(self) -> tuple[int, ...]:
        status = self.stat()
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino

    def bytes_below(self) -> int:
        total = 0
        for path in self.rglob("*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                total += status.st_size if S_ISREG(status.st_mode) else 0
        return total

    def missing_hint(self) -> str:
        return ""

    def read_ranges(self, ranges: Sequence[tuple[FileRecord, int, int]]) -> list[bytes]:
        return [read_range(self / record.path, start, end) for record, start, end in ranges]

    def record(self, relative: str) -> FileRecord:
        path = self / relative
        return FileRecord(relative, path.stat().st_size, file_checksum(path))

    def verify(self, record: FileRecord) -> Path:
        path = self / record.path
        try:
            verify_once(path, record)
        except FileNotFoundError:
            raise missing_file(path, self) from None
        except CorruptFileError as error:
            raise CorruptFileError(f"{error}; {repair_advice(path, self)}") from None
        return path

    def write_atomic(self, content: Content, check: Check | None = None) -> None:
        write = content if callable(content) else partial(_write_bytes, content)
        for _ in range(_REMOVALS):
            # FileNotFoundError: another process published the step and removed the attempt as a leftover.
            with suppress(FileNotFoundError):
                retry(self, lambda: self._write(write, check))
                return
        with attach_filename(self):
            self._write(write, check)

    def _write(self, content: Callable[[BinaryIO], object], check: Check | None) -> None:
        temporary = self.parent / f".{self.name}.{host().unique()}.tmp"  # with_name refuses the path `.`
        try:
            with spend(WRITING), temporary._create() as sink:
                if check is not None:
                    check()
                content(sink)
                sink.flush()
                host().fsync(sink)
            temporary.rename(self)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        self.parent.fsync()

    def _create(self) -> BinaryIO:
        try:
            return host().open(str(self), "wb")
        except FileNotFoundError:
            self.parent.mkdir(parents=True, exist_ok=True)
            return host().open(str(self), "wb")

    def write_new(self, content: bytes, check: Check | None = None) -> bool:
        if self.exists():
            return False
        aside = self.with_name(f".{self.name}.{host().unique()}.tmp")
        aside.write_atomic(content, check)
        try:
            host().link(str(aside), str(self))
        except FileExistsError:
            return False
        except FileNotFoundError:  # another process removed the attempt as a leftover
            return self.write_new(content, check)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            aside.rename(self)  # if two processes get here at the same instant, the later one writes
        finally:
            aside.unlink(missing_ok=True)
        try:
            self.parent.fsync()
        except FileNotFoundError:  # another process removed the directory
            return self.write_new(content, check)
        return True

    def write_file(self, relative: str, content: Content, check: Check | None = None) -> FileRecord:
        (self / relative).write_atomic(content, check)
        return self.record(relative)

    def update(self, accept: Callable[[bytes], bool], content: bytes) -> bool:
        """Overwrite the file in place if it exists and `accept` returns True for its bytes. Returns whether
        it was written. The file is not truncated, so `content` must be at least as long. If another process
        replaces the file during the call, the new file is unaffected.
        """
        try:
            with self.open("r+b", buffering=0) as file:
                if not accept(file.read()):
                    return False
                file.seek(0)
                file.write(content)
        except FileNotFoundError:
            return False
        return True

    def compare_and_swap(self, expected: bytes, content: bytes) -> bool:
        """Replace the file's bytes if they equal `expected`. Returns False if they differ, if the file is
        gone, or if another process holds the lock on its directory.
        """
        try:
            with host().lock(str(self.parent)) as alone:
                if not alone or self.read_bytes() != expected:
                    return False
                self.write_atomic(content)
        except FileNotFoundError:
            return False
        return True

    def fsync(self) -> None:
        with attach_filename(self):
            host().fsync_directory(str(self))

    def probe_writable(self) -> None:
        self.mkdir(parents=True, exist_ok=True)
        host().probe(str(self))

    def rename_if_possible(self, target: Self) -> None:
        if not target.exists():
            with suppress(FileNotFoundError):
                self.rename(target)

    def remove_tree(self) -> None:
        for _ in range(_REMOVALS):
            if not self.exists():
                break
            try:
                host().remove_tree(str(self))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise

    def remove_temporaries(self) -> None:
        """Remove the temporary files of `write_atomic` below the directory. A `write_atomic` that is still
        running then writes its file again.
        """
        for path in self.rglob(".*.tmp"):
            with suppress(IsADirectoryError):
                path.unlink(missing_ok=True)


def discard(directory: LocalPath) -> None:
    """Remove a directory and everything below it. An OSError ends the removal and is ignored."""
    with suppress(OSError):
        directory.remove_tree()


def _write_bytes(content: bytes, sink: BinaryIO) -> None:
    sink.write(content)


def read_range(path: Path, start: int, end: int) -> bytes:
    """Read the bytes [start, end) of a file; fewer if the file ends before `end`."""
    # Buffered, because Linux returns at most 2 GiB at a time, and only a buffered file reads on by itself.
    with attach_filename(path), host().open(str(path)) as source:
        source.seek(start)
        return source.read(max(0, end - start))


def verify_once(path: Path, record: FileRecord) -> None:
    """Raise CorruptFileError if a file differs from its record, and FileNotFoundError if it is missing.
    Checksums of intact files are cached by path, size, modification time and inode.
    """
    status = host().stat(str(path))
    _verify(str(path), status.st_size, status.st_mtime_ns, status.st_ino, record.bytes, record.xxh3_128)


@lru_cache(maxsize=1 << 16)
def _verify(path: str, size: int, mtime_ns: int, inode: int, expected_size: int, expected_checksum: str) -> None:
    found = file_checksum(Path(path)) if size == expected_size else f"{size} bytes"
    wanted = expected_checksum if size == expected_size else f"{expected_size} bytes"
    if found != wanted:
        raise CorruptFileError(f"{path}: is {found}, its manifest recorded {wanted}")
