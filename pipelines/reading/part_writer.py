"""Assemble document parts: tables of documents and of quarantined records, and a table with the counts of
both for each file or archive member.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.document import DOCUMENT, FILES, ID, NOT_SAMPLED, QUARANTINE, empty, file_key, is_empty
from pipelines.reading.entries.normalise import Normalised, cut, normalise, normalise_all, normalise_tweet
from pipelines.reading.entries.record_sample import RecordSample
from pipelines.reading.entries.records import Bad, TextRecord
from pipelines.reading.sources.source import Source

_BATCH_CHARACTERS = 1 << 20
_BATCH_RECORDS = 1 << 12
_MIN_BATCH_RECORDS = 8  # fewer are cheaper one by one
_ROW_BYTES = 128  # approximate memory of a row without its strings


@dataclass(frozen=True)
class ReadPart:
    """One part of a source. The tables have the schemas DOCUMENT, QUARANTINE and FILES. `documents` is in one
    chunk, and `files` is in reading order. `replaced` counts the `user_names` and `urls` that were replaced
    in tweets.

    In every row of `files`, `records` = `rows` + `quarantined`.
    """

    documents: pa.Table
    quarantine: pa.Table
    files: pa.Table
    replaced: Mapping[str, int]


@dataclass
class _Share:
    """Counts of the records of one entry in a part, for a row of `files`."""

    path: str
    key: int
    first_record: int
    first_row: int
    continued: bool = False  # earlier parts hold records of this entry too
    records: int = 0
    quarantined: int = 0
    decoded_bytes: int = 0
    control_characters: int = 0


@dataclass
class _Rows:
    """The columns of a part under construction."""

    text: bytearray = field(default_factory=bytearray)
    lengths: list[int] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    urls: list[bytes | None] = field(default_factory=list)
    metas: list[bytes | None] = field(default_factory=list)
    quarantine: list[tuple[str, int, str, int | None]] = field(default_factory=list)
    files: list[_Share] = field(default_factory=list)
    replaced: Counter[str] = field(default_factory=Counter)
    cost: int = 0


class PartBuilder:
    """Collects the records of entries into parts, so that each part takes at most about `part_bytes` bytes of
    memory. Only a part with a single document may be larger.
    """

    def __init__(self, source: Source, part_bytes: int, forgotten: Collection[str] = ()) -> None:
        """`forgotten` lists records, as `path#record`, that are set aside because the user removed them from
        the corpus.
        """
        self._source = source
        self._sample = RecordSample(source.sample) if source.sample < 1 else None
        self._forgotten: dict[str, set[int]] = {}
        for name in forgotten:
            path, _, record = name.rpartition("#")
            self._forgotten.setdefault(path, set()).add(int(record))
        self._removed: set[int] = set()  # of the open entry
        self._part_bytes = part_bytes
        self._rows = _Rows()
        self._yielded = 0
        self._share = _Share("", 0, 0, 0)
        self._reading = False

    def extend(self, path: str, first_record: int, records: Iterator[TextRecord | Bad]) -> Iterator[ReadPart]:
        """Add the records of an entry, numbered from `first_record`. Yield each part that becomes full."""
        self._share = _Share(path, file_key(self._source.name, path), first_record, len(self._rows.lengths))
        self._reading = True
        self._removed = self._forgotten.get(path, set())
        batch: list[TextRecord] = []
        characters = 0
        for record in records:
            if isinstance(record, Bad):
                yield from self._store(batch)
                batch, characters = [], 0
                yield from self._set_aside(record.reason if self._is_sampled() else NOT_SAMPLED, record.size)
                continue
            batch.append(record)
            characters += len(record.text) + len(record.url or "") + len(record.meta or b"")
            if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_RECORDS:
                yield from self._store(batch)
                batch, characters = [], 0
        yield from self._store(batch)
        self._reading = False
        if self._share.records or not self._share.continued:
            self._rows.files.append(self._share)
            self._rows.cost += _ROW_BYTES + len(path)

    @property
    def next_record(self) -> int:
        """The number of the next record of the current entry."""
        return self._share.first_record + self._share.records

    @property
    def _bordered(self) -> bool:
        """Whether texts have two sides, a source and a target."""
        return self._source.text is not None and bool(self._source.text.target)

    def _is_sampled(self) -> bool:
        return self._sample is None or self._sample.has(self._share.key, self.next_record)

    def finish(self) -> Iterator[ReadPart]:
        """Yield the last part, which may have no documents. Yield nothing if the parts already yielded cover
        all entries.
        """
        if self._rows.files or not self._yielded:
            yield self._close_part()

    def _store(self, batch: list[TextRecord]) -> Iterator[ReadPart]:
        tweets = self._source.normalisation == "tweets"
        if len(batch) < _MIN_BATCH_RECORDS or self._removed or self._sample or tweets:
            for record in batch:
                yield from self._store_one(record)
            return
        metas = [record.meta for record in batch]
        try:
            urls = [None if record.url is None else record.url.encode() for record in batch]
            texts = normalise_all([record.text for record in batch], self._source.unicode_form, self._bordered)
        except UnicodeEncodeError:  # a lone surrogate: storing one by one finds the record
            texts = None
        rows, share = self._rows, self._share
        if texts is not None and max(texts.lengths) <= self._source.max_document_bytes and not _any_empty(texts):
            cost = len(texts.data) + len(batch) * _ROW_BYTES + sum(map(len, filter(None, urls + metas)))
            if rows.cost + cost <= self._part_bytes:
                rows.cost += cost
                rows.text += texts.data
                rows.lengths.extend(texts.lengths)
                rows.records.extend(range(self.next_record, self.next_record + len(batch)))
                rows.urls += urls
                rows.metas += metas
                share.records += len(batch)
                share.decoded_bytes += sum(record.size for record in batch)
                share.control_characters += texts.controls
                return
        for record in batch:
            yield from self._store_one(record)

    def _store_one(self, record: TextRecord) -> Iterator[ReadPart]:
        limit = self._source.max_document_bytes
        is_whole = (
            self._source.oversized == "quarantine" or len(record.text) * 12 <= limit
        )  # 4 bytes each, tripled by NFC
        if is_whole and not self._is_sampled():
            yield from self._set_aside(NOT_SAMPLED, record.size)
            return
        try:
            data, controls = normalise(record.text, self._source.unicode_form, self._bordered)
            url = None if record.url is None else record.url.encode()
        except UnicodeEncodeError:
            yield from self._set_aside("lone_surrogate", record.size)
            return
        if self._source.normalisation == "tweets":
            data, replaced = normalise_tweet(data)
            self._rows.replaced.update(replaced)
        if is_empty(data.decode()):
            yield from self._set_aside("empty", record.size)
        elif len(data) > limit and self._source.oversized == "quarantine":
            yield from self._set_aside("oversized", record.size)
        else:
            size = record.size
            for piece in cut(data, limit):
                if not self._is_sampled() or self.next_record in self._removed:
                    yield from self._set_aside("forgotten" if self._is_sampled() else NOT_SAMPLED, size)
                    size = 0
                    continue
                yield from self._make_room(len(piece) + _ROW_BYTES + len(url or b"") + len(record.meta or b""))
                rows = self._rows
                rows.text += piece
                rows.lengths.append(len(piece))
                rows.records.append(self.next_record)
                rows.urls.append(url)
                rows.metas.append(record.meta)
                self._share.records += 1
                # Counted after _make_room, which may have started another part, with another share.
                self._share.decoded_bytes += size
                size = 0
        self._share.control_characters += controls

    def _set_aside(self, reason: str, size: int | None) -> Iterator[ReadPart]:
        yield from self._make_room(_ROW_BYTES + len(self._share.path))
        self._rows.quarantine.append((self._share.path, self.next_record, reason, size))
        self._share.records += 1
        self._share.quarantined += 1
        self._share.decoded_bytes += size or 0

    def _make_room(self, cost: int) -> Iterator[ReadPart]:
        if self._rows.cost and self._rows.cost + cost > self._part_bytes:
            yield self._close_part()
        self._rows.cost += cost

    def _close_part(self) -> ReadPart:
        rows, share = self._rows, self._share
        if self._reading:
            if share.records:
                rows.files.append(share)
            continued = share.continued or share.records > 0
            self._share = _Share(share.path, share.key, share.first_record + share.records, 0, continued)
        self._rows = _Rows()
        self._yielded += 1
        return ReadPart(_documents(rows, self._source.name), _quarantine(rows), _files(rows), rows.replaced)


def _any_empty(texts: Normalised) -> bool:
    offsets = np.concatenate([[0], np.cumsum(texts.lengths)])
    buffers = pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(texts.data)
    return bool(pc.any(empty(pa.LargeStringArray.from_buffers(len(texts.lengths), *buffers))).as_py())


def _documents(rows: _Rows, source: str) -> pa.Table:
    count = len(rows.lengths)
    identifiers: np.ndarray = np.empty((count, 2), dtype=">u8")
    counts = [share.records - share.quarantined for share in rows.files]
    identifiers[:, 0] = np.repeat(np.array([share.key for share in rows.files], dtype=np.uint64), counts)
    identifiers[:, 1] = rows.records
    offsets: np.ndarray = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(rows.lengths, out=offsets[1:])
    columns = [
        pa.FixedSizeBinaryArray.from_buffers(ID, count, [None, pa.py_buffer(identifiers)]),
        pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(rows.text)),
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), pa.array([source])),
        pa.array(rows.urls, pa.binary()).view(pa.string()),
        pa.array(rows.metas, pa.binary()).view(pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=DOCUMENT)


def _quarantine(rows: _Rows) -> pa.Table:
    columns = zip(*rows.quarantine, strict=True) if rows.quarantine else ((),) * len(QUARANTINE)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, QUARANTINE, strict=True)], schema=QUARANTINE
    )


def _files(rows: _Rows) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "path": share.path,
                "key": share.key,
                "first_record": share.first_record,
                "records": share.records,
                "first_row": share.first_row,
                "rows": share.records - share.quarantined,
                "quarantined": share.quarantined,
                "decoded_bytes": share.decoded_bytes,
                "control_characters": share.control_characters,
            }
            for share in rows.files
        ],
        schema=FILES,
    )
