"""The parent's side of the child process that extracts the text of pages and other raw records, all called
pages here. `page_worker` is the child's side.

Each run of `read_documents` has one child at a time, started by the first page. Pages are sent in batches;
one batch is parsed while the next is read. The child answers page by page, so the work done before a failure
is kept.

A page on which the child dies is retried alone in a fresh child, because memory fragmented by earlier pages
may have caused the failure. If it fails again, reading stops with a PoisonError that names the page; only the
user can set it aside. The kernel limits the CPU time for each page and the memory of the child. Wall-clock
time plays no part, so a busy machine changes nothing.
"""

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from gristmill.errors import PoisonError, SourceError
from gristmill.libraries.extras import extra_of, install_extra
from pipelines.contracts.stage import library_versions
from pipelines.reading.entries.normalise import normalise, normalise_tweet
from pipelines.reading.entries.records import Bad, RawRecord, TextRecord, to_json
from pipelines.reading.sources.registry import format_of
from pipelines.reading.sources.source import Source
from pipelines.reading.web.extraction import PageLimits
from pipelines.reading.web.page_worker import MEMORY_EXIT

_BATCH_BYTES = 1 << 22
_HALF = 1 << 40  # offset of the second half of the shared memory; unwritten ranges take no memory
_BATCH_RECORDS = 256
_PIPE_BYTES = 1 << 20  # the largest pipe that Linux allows without privileges
_ROOT = Path(__file__).parents[3]
_START = "import sys; sys.path.insert(0, {root!r}); from {module} import main; main()"
_PAGE_LIMITS = ("page_cpu_seconds", "page_memory_bytes")
_EXTRA = "trafilatura"
_NEED_EXTRA = ("trafilatura", "best")  # values of `extract`
_FIELD_PARSERS = {"html": "web.extraction:field_fragment", "html_page": "web.extraction:field_page"}
_LIBRARIES = {
    "resiliparse": ("resiliparse",),
    "trafilatura": ("resiliparse", "trafilatura", "lxml", "justext"),
    "best": (
        "resiliparse",
        "trafilatura",
        "lxml",
    ),  # justext is one of trafilatura's fallbacks, which `best` leaves out
}


def libraries(source: Source) -> dict[str, str]:
    """Return the versions, keyed by package, of the libraries that decode a source's records and extract
    their text. Raises SourceError if one is not installed.
    """
    kind = format_of(source.format)
    try:
        return library_versions(*kind.libraries, *_extraction_libraries(source))
    except PackageNotFoundError as missing:
        raise _unavailable(source, f"the package {missing.name} is not installed") from None


def _extraction_libraries(source: Source) -> tuple[str, ...]:
    if holds_pages(source):
        return _LIBRARIES[source.extract]
    return ("resiliparse",) if source.text_is == "html" else ()


def holds_pages(source: Source) -> bool:
    """Return whether a source holds HTML pages, so that its setting `extract` applies."""
    return format_of(source.format).pages or source.text_is == "html_page"


def optional_library(source: Source) -> tuple[str, str, str] | None:
    """Return (field of the source that needs an optional module, the module, the command that installs it),
    or None if no field needs one.
    """
    kind = format_of(source.format)
    if kind.module:
        return "format", kind.module, install_extra(extra_of(kind.module))
    needs_extra = holds_pages(source) and source.extract in _NEED_EXTRA
    return ("extract", _EXTRA, install_extra(_EXTRA)) if needs_extra else None


def _unavailable(source: Source, reason: str) -> SourceError:
    field, _, install = optional_library(source) or ("format", "", "")
    remedy = f"run: {install}" + (", or use `extract: resiliparse`" if field == "extract" else "")
    return SourceError(
        f"source {source.name!r}: {field}: got {getattr(source, field)!r}, which cannot be used ({reason}); "
        f"{remedy if install else 'install gristmill again'}"
    )


class _Answer(NamedTuple):
    head: dict
    text: str


@dataclass
class _Batch:
    """Consecutive records of an entry, numbered from `number`. `sent_to` is the child process that last
    received pages of the batch. In its answers, these pages are numbered from `first`.
    """

    number: int
    records: list[TextRecord | Bad | RawRecord] = field(default_factory=list)
    bytes: int = 0
    sent_to: subprocess.Popen | None = None
    first: int = 0

    @property
    def pages(self) -> list[RawRecord]:
        return [record for record in self.records if isinstance(record, RawRecord)]

    @property
    def next_number(self) -> int:
        return self.number + len(self.records)

    def add(self, record: TextRecord | Bad | RawRecord) -> None:
        self.records.append(record)
        self.bytes += len(record.content) if isinstance(record, RawRecord) else 0


class Extractor:
    """Extracts documents from the pages of one source in a child process. Use it as a context manager: on
    exit, the child is stopped.
    """

    module = "pipelines.reading.web.page_worker"  # tests substitute a worker that fails on purpose

    def __init__(self, source: Source) -> None:
        self._source = source
        self._limits = PageLimits(
            _FIELD_PARSERS.get(source.text_is) or format_of(source.format).parser,
            source.extract,
            source.max_html_bytes,
            source.max_html_nodes,
            source.max_html_depth,
            source.max_document_bytes,
            source.max_decoded_bytes,
            source.page_cpu_seconds,
            source.page_memory_bytes,
            source.markup,
            source.page_fields,
            source.page_measures,
            source.comments,
        )
        self._child: subprocess.Popen[bytes] | None = None
        self._shared = os.memfd_create("pages")  # shared with the child; faster than a pipe
        self._sent = 0
        self._half = 0  # the half written last; one batch is parsed while the next is written to the other

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        os.close(self._shared)

    def extract(
        self,
        path: str,
        first_record: int,
        records: Iterator[TextRecord | Bad | RawRecord],
        poison: Collection[str] = (),
    ) -> Iterator[TextRecord | Bad]:
        """Yield the records of an entry in order, with pages turned into documents or set aside. Records are
        numbered from `first_record`.

        A record whose `path#number` is in `poison` is set aside without being parsed. Raises PoisonError for
        a page on which the parser raises an exception, or on which the child dies twice.
        """
        waiting: _Batch | None = None  # its pages are being parsed while the next batch is read
        batch = _Batch(first_record)
        for record in records:
            if poison and f"{path}#{batch.next_number}" in poison:
                record = Bad("poison", record.size)
            if not waiting and not batch.records and not isinstance(record, RawRecord):
                yield record
                batch.number += 1
                continue
            batch.add(record)
            if batch.bytes >= _BATCH_BYTES or len(batch.records) >= _BATCH_RECORDS:
                self._send_after(waiting, batch)
                if waiting:
                    yield from self._results(path, waiting)
                waiting, batch = batch, _Batch(batch.next_number)
        self._send_after(waiting, batch)
        if waiting:
            yield from self._results(path, waiting)
        yield from self._results(path, batch)

    def _results(self, path: str, batch: _Batch) -> Iterator[TextRecord | Bad]:
        answers = self._answers(batch)
        for number, record in enumerate(batch.records, batch.number):
            if isinstance(record, RawRecord):
                answer = next(answers)
                if isinstance(answer, str):
                    raise self._poison(f"{path}#{number}", answer)
                yield self._outcome(record, answer)
            else:
                yield record

    def _poison(self, record: str, reason: str) -> PoisonError:
        name = self._source.name
        remedy = "raise the limit, or set" if any(limit in reason for limit in _PAGE_LIMITS) else "set"
        return PoisonError(
            f"read: {name}/{record} breaks its parser: {self._parser()} {reason}; {remedy} it aside "
            "with build --quarantine-poison",
            "read", name, record, reason,
        )  # fmt: skip

    def _parser(self) -> str:
        kind = format_of(self._source.format)
        if holds_pages(self._source):
            return self._source.extract
        return "resiliparse" if self._source.text_is == "html" else next(iter(kind.libraries), self._source.format)

    def _outcome(self, page: RawRecord, answer: _Answer) -> TextRecord | Bad:
        reason = answer.head.get("reason")
        if reason:
            return Bad(reason, page.size)
        limit = self._source.max_document_bytes
        if len(answer.text) * 12 > limit and self._length(answer.text) > limit:  # 4 bytes each, tripled by NFC at most
            return Bad("oversized", page.size)
        meta = answer.head.get("fields", {}) | page.meta | answer.head["meta"]
        for name, values in answer.head.get("reservations", {}).items():
            own = meta.get(name)  # of a record with `text_is: html_page`, any value
            meta[name] = [*(own if isinstance(own, list) else [] if own is None else [own]), *values]
        return TextRecord(answer.text, page.size, page.url, to_json(meta))

    def _length(self, text: str) -> int:
        try:
            data, _ = normalise(text, self._source.unicode_form)
            return len(normalise_tweet(data)[0] if self._source.normalisation == "tweets" else data)
        except UnicodeEncodeError:  # a lone surrogate, which is set aside later
            return 0

    def _answers(self, batch: _Batch) -> Iterator[_Answer | str]:
        """Yield an answer for each page, in order. For a page that fails, yield the cause as text instead."""
        left = batch.pages
        while left:
            if batch.sent_to is not self._child:  # the child died of an earlier page
                self._send(batch, left)
            for answer in self._receive_answers(batch, len(left)):
                yield answer
                left = left[1:]
            if left:
                self._stop()
                self._send(batch, left[:1])
                answers = list(self._receive_answers(batch, 1))
                yield answers[0] if answers else self._cause_of_death()
                left = left[1:]
                batch.sent_to = None

    def _send_after(self, waiting: _Batch | None, batch: _Batch) -> None:
        """Send `batch` to the child. If the child to which `waiting` was sent has died, send `waiting` again
        first.
        """
        if waiting and waiting.sent_to is not self._child:
            self._send(waiting, waiting.pages)
        self._send(batch, batch.pages)

    def _send(self, batch: _Batch, pages: list[RawRecord]) -> None:
        if not pages:
            return
        if self._child is None:
            self._child = self._start()
        self._half ^= _HALF
        at = self._half
        lines: list[Any] = [at, self._sent]
        batch.sent_to, batch.first, self._sent = self._child, self._sent, self._sent + len(pages)
        for page in pages:
            at += os.pwrite(self._shared, page.content, at)
            # No valid label has other characters. The line must fit into the pipe: if both sides wrote,
            # neither would read.
            label = page.charset if page.charset.isascii() and page.charset.isprintable() else ""
            lines.append([label, len(page.content)])
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):  # a child that has died is noticed when its answers are read
            self._child.stdin.write(json.dumps(lines).encode() + b"\n")

    def _receive_answers(self, batch: _Batch, count: int) -> Iterator[_Answer | str]:
        """Yield the answers for the `count` pages of `batch` that were sent last, or fewer if the child dies.
        If the parser raised an exception, the answer is a text that names it.
        """
        assert self._child is not None
        assert self._child.stdout is not None
        for number in range(batch.first, batch.first + count):
            answer = _receive(self._child.stdout)
            if answer is None:
                return
            assert answer.head["page"] == number, "answers and pages are out of sync"
            failed = answer.head.get("failed")
            yield f"raised {failed}" if failed else answer

    def _start(self) -> subprocess.Popen[bytes]:
        code = _START.format(root=str(_ROOT), module=self.module)
        child = subprocess.Popen(
            [sys.executable, "-c", code, self._limits.to_json(), str(self._shared)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libraries log their parsing errors
            pass_fds=[self._shared],
            bufsize=0,
        )
        assert child.stdout is not None
        answer = _receive(child.stdout)
        if answer is None or "unavailable" in answer.head:
            with child:
                child.kill()
            if answer is not None:
                raise _unavailable(self._source, answer.head["unavailable"])
            raise RuntimeError(f"the process that parses pages does not start: {sys.executable} -c {code!r}")
        return child

    def _cause_of_death(self) -> str:
        assert self._child is not None
        status = self._child.wait()
        self._stop()
        if status == -signal.SIGXCPU:
            return f"took more than page_cpu_seconds: {self._limits.cpu_seconds} of CPU time"
        memory = f"page_memory_bytes: {self._limits.memory_bytes}"
        if status == MEMORY_EXIT:
            return f"needed more than {memory}"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}, by a defect or because memory ran out ({memory})"
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
