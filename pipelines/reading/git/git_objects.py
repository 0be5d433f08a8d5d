"""Read objects of a git repository, which may be hostile, through `git cat-file` in a process of its own.

The process runs in an empty temporary repository, and sees only the directory of objects of the repository to
be read (GIT_OBJECT_DIRECTORY, git(1)). Therefore configuration, hooks, attributes, grafts and replacements in
that repository are never read, nothing is checked out, and no missing object is fetched. The content of every
object that is read is compared with its id.
"""

import hashlib
import os
import resource
import select
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from gristmill.errors import SourceError, StorageError

_CHUNK_BYTES = 1 << 18
_AT_ONCE = 256  # ids asked for together: questions and answers fit into the buffers of pipes (64 KiB)
_LINE_BYTES = 256
_DRAINED_BYTES = 1 << 20  # of an answer that nobody wants; to pass over more, the process is started anew
_SILENCE_SECONDS = 600
_MOST_DAMAGED = 100  # a process may end at a damaged object, and is started again for the next one
_CONFIG = """[core]
\tbare = true
\trepositoryformatversion = {version}
\tcommitGraph = false
\tpackedGitWindowSize = 16m
\tpackedGitLimit = 256m
\tdeltaBaseCacheLimit = 64m
"""
_SHA256 = "[extensions]\n\tobjectFormat = sha256\n"


class DamagedObjectError(Exception):
    """Raised if an object of a repository cannot be read. `reason` is missing_object or corrupt."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class GitObjects:
    """Reads the objects of a git repository, named by their ids; a context manager. `directory` is the
    directory of the repository that contains `objects`. `id_digits` is 40 for SHA-1, or 64 for SHA-256.
    `memory` limits how many bytes a git process may map.

    Methods raise SourceError if git is missing or needs more than `memory`, and StorageError if git is
    killed, stops answering or gives an unexpected answer.
    """

    def __init__(self, directory: Path, id_digits: int, memory: int) -> None:
        self._directory, self._hash, self._memory = directory, "sha1" if id_digits == 40 else "sha256", memory
        self._contents: _CatFile | None = None
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._damaged = 0

    def __enter__(self) -> Self:
        self._place = tempfile.TemporaryDirectory(prefix="gristmill-git-")
        place = Path(self._place.name)
        for name in ("objects", "refs"):
            (place / name).mkdir()
        (place / "HEAD").write_text("ref: refs/heads/none\n")
        config = _CONFIG.format(version=int(self._hash == "sha256"))
        (place / "config").write_text(config + (_SHA256 if self._hash == "sha256" else ""))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._contents is not None:
            self._contents.close()
        assert self._place is not None
        self._place.cleanup()

    def read(self, name: str, kind: str, most: int) -> bytes:
        """Return the content of the object `name`, which must be of the kind `kind`: commit, tag, tree or
        blob. Raises DamagedObjectError if the object is missing, damaged, of another kind or longer than
        `most` bytes.
        """
        actual, size, chunks = self.open(name)
        if actual != kind or size > most:
            raise DamagedObjectError("corrupt")
        return b"".join(chunks)

    def open(self, name: str) -> tuple[str, int, Iterator[bytes]]:
        """Return (kind, size in bytes, content) of an object. The content is an iterator of chunks, which is
        valid until the next call of `open` or `read`.

        Raises DamagedObjectError if the object is missing or damaged, either here or while the content is
        read.
        """
        if self._contents is not None and self._contents.is_behind:
            self._contents.close()
            self._contents = None
        if self._damaged > _MOST_DAMAGED:
            raise DamagedObjectError("corrupt")
        self._contents = self._contents or self._start("--batch")
        try:
            kind, size = self._contents.ask([name])[0] or ("", 0)
        except DamagedObjectError:
            self._contents, self._damaged = None, self._damaged + 1
            raise
        if not kind:
            raise DamagedObjectError("missing_object")
        return kind, size, self._checked(self._contents, name, kind, size)

    def sizes(self, names: Sequence[str]) -> list[int]:
        """Return the size of each object in bytes, or 0 if it is missing. If git fails on an object, all
        objects asked for together with it (up to 256) count as missing.
        """
        found: list[int] = []
        process = None
        try:
            for start in range(0, len(names), _AT_ONCE):
                process = process or self._start("--batch-check")
                some = names[start : start + _AT_ONCE]
                try:
                    found += [size for _, size in (answer or ("", 0) for answer in process.ask(some))]
                except DamagedObjectError:
                    process = None
                    found += [0] * len(some)
        finally:
            if process is not None:
                process.close()
        return found

    def _checked(self, process: "_CatFile", name: str, kind: str, size: int) -> Iterator[bytes]:
        digest = hashlib.new(self._hash, f"{kind} {size}\0".encode(), usedforsecurity=False)
        try:
            for chunk in process.content(size):
                digest.update(chunk)
                yield chunk
        except DamagedObjectError:
            self._contents, self._damaged = None, self._damaged + 1
            raise
        if digest.hexdigest() != name:
            raise DamagedObjectError("corrupt")

    def _start(self, mode: str) -> "_CatFile":
        assert self._place is not None
        return _CatFile(mode, Path(self._place.name), self._directory, self._memory)


class _CatFile:
    """A running `git cat-file --batch` or `--batch-check` process, with its output read ahead."""

    def __init__(self, mode: str, place: Path, directory: Path, memory: int) -> None:
        self._mode, self._repository, self._memory = mode, directory, memory
        self._errors = place / f"errors{mode}"
        self._held, self._left = bytearray(), 0  # bytes read ahead; bytes of the last content that are still to come
        with self._errors.open("wb") as errors:
            try:
                self._child = subprocess.Popen(
                    ["git", "--no-replace-objects", "cat-file", mode], cwd=place, env=_environment(place, directory),
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
                )  # fmt: skip
            except FileNotFoundError:
                raise SourceError(
                    "format git needs the program git, which this machine does not have; install it (`apt install git`, "
                    "`brew install git`)"
                ) from None
        _limit(self._child.pid, memory)

    def ask(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        self._pass_over()
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):  # seen again when the answer is read
            self._child.stdin.write("".join(f"{name}\n" for name in names).encode())
        answers: list[tuple[str, int] | None] = []
        for _ in names:
            words = self._line().split(b" ")
            if len(words) == 3 and words[2].isdigit():
                answers.append((words[1].decode("ascii", "replace"), int(words[2])))
            else:
                answers.append(None)
        if self._mode == "--batch" and answers[-1] is not None:
            self._left = answers[-1][1] + 1  # a line feed follows the content
        return answers

    def content(self, size: int) -> Iterator[bytes]:
        while size:
            chunk = self._some(size)
            size -= len(chunk)
            self._left -= len(chunk)
            yield chunk
        self._pass_over()

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def is_behind(self) -> bool:
        """Whether so much of the last content is unread that starting a new process is cheaper than reading
        it.
        """
        return self._left > _DRAINED_BYTES

    def _pass_over(self) -> None:
        while self._left:
            self._left -= len(self._some(self._left))

    def _line(self) -> bytes:
        while (end := self._held.find(b"\n")) < 0:
            if len(self._held) > _LINE_BYTES:
                raise StorageError(f"{self._repository}: git gave an answer that is none of `cat-file`")
            self._fill()
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        return line

    def _some(self, most: int) -> bytes:
        if not self._held:
            self._fill()
        chunk = bytes(self._held[:most])
        del self._held[:most]
        return chunk

    def _fill(self) -> None:
        assert self._child.stdout is not None
        ready, _, _ = select.select([self._child.stdout], [], [], _SILENCE_SECONDS)
        if not ready:
            self.close()
            raise StorageError(f"{self._repository}: git gave no answer in {_SILENCE_SECONDS} seconds")
        data = os.read(self._child.stdout.fileno(), _CHUNK_BYTES)
        if not data:
            self._ended()
        self._held += data

    def _ended(self) -> None:
        status = self._child.wait()
        self.close()
        said = self._errors.read_bytes()[-2000:].lower()
        if b"memory" in said or b"mmap" in said:
            raise SourceError(
                f"{self._repository}: git needs more memory than page_memory_bytes allows ({self._memory:,}) to read it; raise "
                "that, or exclude the repository"
            )
        if status < 0:
            raise StorageError(f"{self._repository}: git was ended by signal {-status}")
        raise DamagedObjectError("corrupt")


def _environment(place: Path, directory: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath), "HOME": str(place), "LC_ALL": "C",
        "GIT_DIR": str(place), "GIT_OBJECT_DIRECTORY": str(directory / "objects"),
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1",
    }  # fmt: skip


def _limit(process: int, memory: int) -> None:
    """On Linux, limit the address space of a git process to `memory` bytes, in place of the limits that it
    inherits from the task.
    """
    if not hasattr(resource, "prlimit"):  # other systems than Linux
        return
    for which, size in ((resource.RLIMIT_DATA, resource.RLIM_INFINITY), (resource.RLIMIT_AS, memory)):
        with suppress(ProcessLookupError):
            most = resource.prlimit(process, which)[1]
            soft = (
                size if most == resource.RLIM_INFINITY else most if size == resource.RLIM_INFINITY else min(size, most)
            )
            resource.prlimit(process, which, (soft, most))
