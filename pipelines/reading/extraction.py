"""Text from pages, in a process of its own: the reader's side.

One child process belongs to one run of `read_documents` and is started by the first page. Pages travel in batches; the
child answers each page as it is done, so what was done before a failure stays. A page at which the child dies is tried
once more, alone, in a fresh child: only a page that fails there too is named (what pages leave behind in a process, such
as fragmented memory, is never held against one of them). Then reading stops with PoisonError, and only the user sets
the page aside. No clock is involved: the limits are CPU time and memory of the child, set in the kernel.
"""

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as library_version
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

from pipelines.contracts.errors import PoisonError, SourceError
from pipelines.reading.normalise import normalise
from pipelines.reading.page_worker import MEMORY_EXIT, PageLimits
from pipelines.reading.records import Bad, Found, Page, to_json
from pipelines.reading.source import SourceSpec

BATCH_BYTES = 1 << 22
_BATCH_RECORDS = 256
_PIPE_BYTES = 1 << 20  # the largest pipe that Linux gives without privileges
_ROOT = Path(__file__).parents[2]
_START = "import sys; sys.path.insert(0, {root!r}); from {module} import main; main()"
_LIBRARIES = {"resiliparse": ("resiliparse",), "trafilatura": ("resiliparse", "trafilatura", "lxml", "justext")}


def libraries(source: SourceSpec) -> dict[str, str]:
    """Versions of what turns the pages of a source into text. SourceError where it is not installed."""
    try:
        return {name: library_version(name) for name in _LIBRARIES[source.extract]}
    except PackageNotFoundError as missing:
        raise SourceError(
            f"source {source.name!r}: extract: got {source.extract!r}, which needs the package {missing.name}; install it "
            f"with `pip install -c constraints.txt 'gristmill[{source.extract}]'`, or take `extract: resiliparse`"
        ) from None


class _Answer(NamedTuple):
    head: dict
    text: str


class Extractor:
    """Turns the pages of one source into documents. A context manager: leaving it ends the child."""

    module = "pipelines.reading.page_worker"  # tests put a worker here that fails as they want

    def __init__(self, source: SourceSpec) -> None:
        self._source = source
        self._limits = PageLimits(
            source.extract,
            source.max_html_nodes,
            source.max_html_depth,
            source.page_cpu_seconds,
            source.page_memory_bytes,
        )
        self._child: subprocess.Popen[bytes] | None = None
        self._shared = os.memfd_create("pages")  # pages go through memory that the child sees too: a pipe takes longer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        os.close(self._shared)

    def extracted(
        self, path: str, first_record: int, records: Iterator[Found | Bad | Page], poison: Collection[str] = ()
    ) -> Iterator[Found | Bad]:
        """The records of an entry, in order, with pages turned into documents or set aside.

        A record whose `path#number` is in `poison` is set aside without being parsed. PoisonError names the page that its
        parser does not survive.
        """
        batch: list[Found | Bad | Page] = []
        held = 0
        number = first_record
        for record in records:
            if poison and f"{path}#{number + len(batch)}" in poison:
                record = Bad("poison", record.size)
            if isinstance(record, Page):
                held += len(record.content)
            elif not batch:
                yield record
                number += 1
                continue
            batch.append(record)
            if held >= BATCH_BYTES or len(batch) >= _BATCH_RECORDS:
                yield from self._finished(path, number, batch)
                number += len(batch)
                batch, held = [], 0
        yield from self._finished(path, number, batch)

    def _finished(self, path: str, number: int, batch: list[Found | Bad | Page]) -> Iterator[Found | Bad]:
        answers = self._answers([record for record in batch if isinstance(record, Page)])
        for position, record in enumerate(batch):
            if isinstance(record, Page):
                answer = next(answers)
                if isinstance(answer, str):
                    raise self._poison(f"{path}#{number + position}", answer)
                yield self._outcome(record, answer)
            else:
                yield record

    def _poison(self, record: str, reason: str) -> PoisonError:
        name = self._source.name
        return PoisonError(
            f"read: page {name}/{record} breaks its parser, alone and repeatedly: {self._source.extract} {reason}; raise "
            "the limit, or set the page aside with build --quarantine-poison",
            "read", name, record, reason,
        )  # fmt: skip

    def _outcome(self, page: Page, answer: _Answer) -> Found | Bad:
        reason = answer.head.get("reason")
        if reason:
            return Bad(reason, page.size)
        limit = self._source.max_document_bytes
        if len(answer.text) * 12 > limit and self._length(answer.text) > limit:  # 4 bytes each, tripled by NFC at most
            return Bad("oversized", page.size)
        meta = page.meta | {name: answer.head[name] for name in ("charset", "replaced")}
        return Found(answer.text, page.size, page.url, to_json(meta))

    def _length(self, text: str) -> int:
        try:
            return len(normalise(text, self._source.unicode_form)[0])
        except UnicodeEncodeError:  # a lone surrogate, which is set aside later
            return 0

    def _answers(self, pages: list[Page]) -> Iterator[_Answer | str]:
        """An answer per page, in order; in its place what killed the child, in words, if that page does so twice."""
        done = 0
        while done < len(pages):
            for answer in self._exchange(pages[done:]):
                yield answer
                done += 1
            if done < len(pages):
                self._stop()
                (answer,) = list(self._exchange(pages[done : done + 1])) or [self._death()]
                yield answer
                done += 1

    def _exchange(self, pages: list[Page]) -> Iterator[_Answer | str]:
        """Send pages and read answers until all are there or the child has died."""
        if self._child is None:
            self._child = self._start()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        at = 0
        lines = []
        for page in pages:
            at += os.pwrite(self._shared, page.content, at)
            lines.append([page.charset, len(page.content)])
        try:
            self._child.stdin.write(json.dumps(lines).encode() + b"\n")
        except BrokenPipeError:
            return
        for _ in pages:
            answer = _receive(self._child.stdout)
            if answer is None:
                return
            failed = answer.head.get("failed")
            yield f"raised {failed}" if failed else answer

    def _start(self) -> subprocess.Popen[bytes]:
        code = _START.format(root=str(_ROOT), module=self.module)
        child = subprocess.Popen(
            [sys.executable, "-c", code, self._limits.to_json(), str(self._shared)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libraries log what they choke on
            pass_fds=[self._shared],
            bufsize=0,
        )
        assert child.stdout is not None
        if _receive(child.stdout) is None:
            with child:
                child.kill()
            raise RuntimeError(f"the process that parses pages does not start: {sys.executable} -c {code!r}")
        return child

    def _death(self) -> str:
        """Wait for the child that has died; what ended it."""
        assert self._child is not None
        status = self._child.wait()
        self._stop()
        if status == -signal.SIGXCPU:
            return f"took more than page_cpu_seconds: {self._limits.cpu_seconds} of CPU time"
        memory = f"page_memory_bytes: {self._limits.memory_bytes}"
        if status == MEMORY_EXIT:
            return f"needed more than {memory}"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}, by a defect or for want of memory ({memory})"
        return f"ended with status {status}"

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with child:  # closes the pipes and waits
                child.kill()


def _receive(pipe: IO[bytes]) -> _Answer | None:
    sizes = _read(pipe, 8)
    if len(sizes) < 8:
        return None
    head_size, text_size = struct.unpack("<II", sizes)
    data = _read(pipe, head_size + text_size)
    if len(data) < head_size + text_size:
        return None
    return _Answer(json.loads(data[:head_size]), data[head_size:].decode("utf-8", "surrogatepass"))


def _read(pipe: IO[bytes], size: int) -> bytes:
    pieces = []
    while size and (piece := pipe.read(min(size, _PIPE_BYTES))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
