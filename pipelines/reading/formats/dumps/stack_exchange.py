"""Stack Exchange data dumps (https://archive.org/details/stackexchange): Posts.xml, one record per question
with its answers.

The answers to a question may appear long after it. Posts are therefore sorted by question: sorted runs are
written to a temporary file and then merged.
"""

import heapq
import os
import re
import struct
import tempfile
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import IO, Any

import orjson

from gristmill.errors import StorageError
from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.entries.records import Bad, RawRecord
from pipelines.reading.formats.dumps.xml_stream import XmlStream
from pipelines.reading.sources.source import Source

_HELD_BYTES = 64 << 20  # rows held in memory before they are written as a sorted run
_ROW_BYTES = 300  # of memory that a held row takes besides its content
_READ_BYTES = 1 << 16  # of a run that are read at a time; one of the 150 GB of Stack Overflow's posts has 2,000 runs
_QUESTION, _ANSWER = "1", "2"
_KEY = struct.Struct("<qqqqI")
_TAG = re.compile(r"[^<>|]+")
# The sites of the network with names of their own; all others are below stackexchange.com.
_SITE = re.compile(
    r"(?:^|[/!])((?:[a-z0-9-]+\.)*(?:stackexchange|stackoverflow|superuser|serverfault|askubuntu|mathoverflow|stackapps)"
    r"\.(?:com|net))(?=[-/.!]|$)"
)
Key = tuple[int, int, int, int]  # id of the question; 0 for the question, 1 for answers; score, negated; id
Row = tuple[Key, bytes]


def read_stack_exchange(entry: Entry, source: Source) -> Iterator[Bad | RawRecord]:
    """Yield one record per question, ordered by question id. A record holds the question's title and body,
    followed by its answers: the accepted one first, then the others from the highest score to the lowest.
    `pipelines.reading.rich.threads` turns each record into text.

    `meta` holds `id`, `title`, `tags`, `score`, `created`, `views`, `licence`, `answer_count` (answers in the
    dump), `top_answer_score` (the highest score of an answer), `accepted_answer` (its id) and `answers`, a
    list of `id`, `score` and `created` in the order of the text. The URL is built from the id of the question
    and the name of the site, if the path of the file contains that name, as in
    `math.stackexchange.com/Posts.xml`.

    Posts that are neither questions nor answers are set aside as `not_question`, and answers without their
    question as `no_question`. Posts whose id, parent or score is not a number are set aside as `bad_post`, as
    is a second question with the same id. A question that, together with its answers, is longer than
    `max_html_bytes` is set aside as `html_bytes`. Raises StorageError if the temporary file cannot be
    written.
    """
    with tempfile.TemporaryFile() as file:
        rows = _SortedRows(file)
        failure: BrokenInput | None = None
        try:
            for _ in XmlStream("posts", "not_stack_exchange", rows.add_post).parse(entry.chunks):
                rows.spill()
        except BrokenInput as error:
            failure = error
        except OSError as error:
            raise StorageError(
                f"source {source.name!r}: {entry.path}: its posts cannot be sorted in {tempfile.gettempdir()} "
                f"({error.strerror}); set TMPDIR to a directory with room for the decompressed dump"
            ) from None
        site = _SITE.search(entry.path)
        for _, group in groupby(rows.merged(), key=lambda row: row[0][0]):
            yield from _thread(group, site[1] if site else None, source.max_html_bytes)
        if failure:
            raise failure


class _SortedRows:
    """Sorts the rows of a dump by question. `spill` writes the rows to `file` as a sorted run when they take
    too much memory.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._held: list[Row] = []
        self._size = 0
        self._runs: list[tuple[int, int]] = []  # first byte, end

    def add_post(self, name: str, attributes: dict[str, str]) -> None:
        if name != "row":
            return
        kind = attributes.get("PostTypeId")
        try:
            identifier = int(attributes["Id"])
            parent = int(attributes["ParentId"]) if kind == _ANSWER else identifier
            key = parent, int(kind == _ANSWER), -int(attributes.get("Score", "0")), identifier
            row = orjson.dumps(attributes)
            _KEY.pack(*key, len(row))
        except (KeyError, ValueError, TypeError, struct.error):  # TypeError: a lone surrogate, says orjson
            key, row = (-1, 0, 0, 0), b""
        self._held.append((key, row))
        self._size += len(row) + _ROW_BYTES

    def spill(self) -> None:
        if self._size < _HELD_BYTES:
            return
        start = self._file.tell()
        self._held.sort()
        for key, row in self._held:
            self._file.write(_KEY.pack(*key, len(row)))
            self._file.write(row)
        self._file.flush()
        self._runs.append((start, self._file.tell()))
        self._held, self._size = [], 0

    def merged(self) -> Iterator[Row]:
        self._held.sort()
        return heapq.merge(*(self._run(*run) for run in self._runs), self._held, key=itemgetter(0))

    def _run(self, position: int, end: int) -> Iterator[Row]:
        held = b""
        at = 0

        def take(size: int) -> bytes:
            nonlocal held, at, position
            while len(held) - at < size:
                more = os.pread(self._file.fileno(), min(max(_READ_BYTES, size), end - position), position)
                held, at, position = held[at:] + more, 0, position + len(more)
            at += size
            return held[at - size : at]

        while position < end or at < len(held):
            *key, size = _KEY.unpack(take(_KEY.size))
            yield (key[0], key[1], key[2], key[3]), take(size)


def _thread(group: Iterator[Row], site: str | None, limit: int) -> Iterator[Bad | RawRecord]:
    question: dict[str, str] | None = None
    answers: list[dict[str, str]] = []
    size = 0
    for (_, is_answer, _, _), row in group:
        post: dict[str, str] = orjson.loads(row) if row else {}
        kind = post.get("PostTypeId")
        if not post:
            yield Bad("bad_post")
        elif is_answer and question is None:
            yield Bad("no_question", len(row))
        elif is_answer:
            size += len(row)
            if size <= limit:
                answers.append(post)
        elif kind != _QUESTION:
            yield Bad("not_question", len(row))
        elif question is not None:
            yield Bad("bad_post", len(row))  # a second question with this id
        else:
            question, size = post, len(row)
    if question is not None:
        yield Bad("html_bytes", size) if size > limit else _record(question, answers, site, size)


def _record(question: dict[str, str], answers: list[dict[str, str]], site: str | None, size: int) -> RawRecord:
    accepted = _number(question.get("AcceptedAnswerId"))
    answers.sort(key=lambda answer: _number(answer["Id"]) != accepted)  # stable: the others stay ordered by score
    scores = [_number(answer.get("Score")) or 0 for answer in answers]
    identifier, title = _number(question["Id"]), question.get("Title", "")
    meta: dict[str, Any] = {
        "id": identifier,
        "title": title,
        "tags": _TAG.findall(question.get("Tags", "")),
        "score": _number(question.get("Score")),
        "created": question.get("CreationDate"),
        "views": _number(question.get("ViewCount")),
        "licence": question.get("ContentLicense"),
        "answer_count": len(answers),
        "top_answer_score": max(scores, default=None),
        "accepted_answer": accepted,
        "answers": [
            {"id": _number(answer["Id"]), "score": score, "created": answer.get("CreationDate")}
            for answer, score in zip(answers, scores, strict=True)
        ],
    }
    bodies = [title, question.get("Body", ""), *(answer.get("Body", "") for answer in answers)]
    url = f"https://{site}/questions/{identifier}" if site else None
    return RawRecord("\0".join(bodies).encode(), "", size, url, meta)  # XML holds no NUL


def _number(value: str | None) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return None
