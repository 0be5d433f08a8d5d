"""Records written by common libraries come back in order, through any compression and archive, in parts of
any size. Every record of a file of arbitrary bytes becomes a document or is quarantined.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gristmill.errors import SourceError
from pipelines.contracts.document import is_empty
from pipelines.reading.entries import archives, decompress, files
from pipelines.reading.entries.normalise import normalise
from pipelines.reading.entries.reasons import REASONS
from pipelines.reading.sources import registry
from tests.pipelines.reading.conftest import read_file

CHARACTERS = st.sampled_from("ab ,\"'\\\0\r\n\t\x1b\x85\u2028\ufeffe\u0301é漢🙂{}[]<>\x1a")
TEXTS = st.text(CHARACTERS | st.characters(exclude_categories=["Cs"]), max_size=12)
WITH_SURROGATES = st.text(CHARACTERS | st.sampled_from("\ud800\udfff\udc80") | st.characters(), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=2), max_leaves=3
)


class Row(NamedTuple):
    text: str
    url: str | None
    extra: Any


def rows_of(texts: st.SearchStrategy[str], extra: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Row]]:
    """Return a strategy for lists of 1 to 12 rows, so that batches of several sizes are normalised."""
    one = st.builds(Row, texts, st.none() | st.text("abc:/é", min_size=1, max_size=5), extra)
    return st.lists(one, min_size=1, max_size=12)


def as_jsonl(rows: list[Row], draw: Any) -> bytes:
    escaped, end = draw(st.booleans()), draw(st.sampled_from(["\n", "\r\n", "\n\n \n"]))
    lines = [json.dumps(row._asdict(), ensure_ascii=escaped) + end for row in rows]
    return b"\xef\xbb\xbf" * draw(st.booleans()) + "".join(lines).encode("utf-8", "backslashreplace")


def as_json(rows: list[Row], draw: Any) -> bytes:
    return json.dumps([row._asdict() for row in rows], indent=draw(st.sampled_from([None, 1]))).encode()


def as_csv(rows: list[Row], draw: Any) -> bytes:
    sink = io.StringIO(newline="")
    knobs = {"quoting": draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))}
    writer = csv.writer(sink, delimiter=draw(st.sampled_from(",\t;|")), **knobs)
    writer.writerows([Row._fields, *(row._replace(url=row.url or "") for row in rows)])
    return b"\xef\xbb\xbf" * draw(st.booleans()) + sink.getvalue().encode()


def table_of(rows: list[Row], draw: Any) -> pa.Table:
    kind = draw(st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]))
    return pa.table({
        "text": pa.array([row.text for row in rows]).cast(kind),
        "url": pa.array([row.url for row in rows], pa.string()), "extra": pa.array([row.extra for row in rows], pa.string()),
    })  # fmt: skip


def as_parquet(rows: list[Row], draw: Any) -> bytes:
    sink = io.BytesIO()
    knobs = {"compression": draw(st.sampled_from(["none", "zstd", "gzip"])), "row_group_size": draw(st.integers(1, 5))}
    pq.write_table(table_of(rows, draw), sink, **knobs, use_dictionary=draw(st.booleans()))
    return sink.getvalue()


def as_arrow(rows: list[Row], draw: Any) -> bytes:
    table, sink = table_of(rows, draw).unify_dictionaries(), io.BytesIO()
    make = draw(st.sampled_from([pa.ipc.new_file, pa.ipc.new_stream]))
    with make(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=draw(st.sampled_from([None, "zstd"])))
    ) as writer:
        writer.write_table(table, max_chunksize=draw(st.integers(1, 5)))
    return sink.getvalue()


def as_wet(rows: list[Row], draw: Any) -> bytes:
    pieces = []
    for row in rows:
        block = row.text.encode()
        head = f"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: {len(block)}\r\n"
        uri = f"WARC-Target-URI: {row.url}\r\n" if row.url else ""
        pieces.append(f"{head}{uri}\r\n".encode() + block + b"\r\n\r\n")
    return b"".join(pieces)


def plain(data: bytes, cut: int) -> bytes:
    return data


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def members(compress: Callable[[bytes], bytes]) -> Callable[[bytes, int], bytes]:
    return lambda data, cut: compress(data[:cut]) + compress(data[cut:])


COMPRESSED: dict[str, Callable[[bytes, int], bytes]] = {
    "": plain, ".gz": members(lambda data: gzip.compress(data, mtime=0)), ".bz2": members(bz2.compress),
    ".xz": members(lzma.compress), ".zst": members(zstd),
}  # fmt: skip
FEWER = settings(max_examples=settings.default.max_examples // 3)  # of each format
FORMATS = {
    "jsonl": (as_jsonl, rows_of(WITH_SURROGATES, VALUES)), "json": (as_json, rows_of(WITH_SURROGATES, VALUES)),
    "csv": (as_csv, rows_of(TEXTS, TEXTS)), "parquet": (as_parquet, rows_of(TEXTS, TEXTS)),
    "arrow": (as_arrow, rows_of(TEXTS, TEXTS)), "warc": (as_wet, rows_of(TEXTS, st.none())),
}  # fmt: skip


def expected(rows: list[Row], kind: str) -> tuple[list[tuple[str, str | None]], list[tuple[int, str]]]:
    texts, aside = [], []
    for number, row in enumerate(rows):
        try:
            text = normalise(row.text.removeprefix("\ufeff") if kind == "warc" else row.text)[0].decode()
        except UnicodeEncodeError:
            aside.append((number, "lone_surrogate"))
            continue
        if not is_empty(text):
            texts.append((text, row.url))
        else:
            aside.append((number, "empty"))
    return texts, aside


@pytest.mark.long
@pytest.mark.parametrize("kind", FORMATS)
@FEWER
@given(data=st.data())
def test_what_is_written_comes_back_in_order(kind, tmp_path_factory, data):
    write, strategy = FORMATS[kind]
    rows = data.draw(strategy)
    content = write(rows, data.draw)
    suffix = data.draw(st.sampled_from(sorted(COMPRESSED))) if kind != "parquet" else ""
    packed = COMPRESSED[suffix](content, data.draw(st.integers(0, len(content))))
    chunk = data.draw(st.sampled_from([1, 7, 100, 1 << 18]))
    with pytest.MonkeyPatch.context() as patch:
        for module in (files, archives, decompress):
            patch.setattr(module, "CHUNK_BYTES", chunk)
        found = read_file(
            tmp_path_factory.getbasetemp(), f"a.{kind}{suffix}", packed, data.draw(st.integers(1, 3000)), format=kind
        )
    texts, aside = expected(rows, kind)
    assert list(zip(found.texts, found.urls, strict=True)) == texts
    assert [(record, reason) for _, record, reason, _ in found.bad] == aside
    if kind != "warc":
        kept = [row for number, row in enumerate(rows) if number not in dict(aside)]
        assert [json.loads(meta)["extra"] for meta in found.metas] == [row.extra for row in kept]


def tarred(named: list[tuple[str, bytes]]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, content in named:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def zipped(named: list[tuple[str, bytes]]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in named:
            archive.writestr(zipfile.ZipInfo(name), content)
    return sink.getvalue()


@pytest.mark.long
@given(
    st.lists(
        st.tuples(st.text(st.sampled_from("ab./\\:é\n #!"), min_size=1, max_size=6), TEXTS), min_size=1, max_size=6
    ),
    st.sampled_from([tarred, zipped]),
    st.sampled_from(sorted(COMPRESSED)),
    st.integers(1, 400),
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_of_archives_come_back_in_order(tmp_path_factory, named, archive, suffix, part_bytes):
    packed = archive([(name, text.encode()) for name, text in named])
    suffix, name = ("", "a.zip") if archive is zipped else (suffix, "a.tar")
    content = COMPRESSED[suffix](packed, len(packed) // 2)
    found = read_file(tmp_path_factory.getbasetemp(), name + suffix, content, part_bytes)
    rows = [Row(text, None, None) for name, text in named if text or not name.endswith("/") or archive is tarred]
    texts, aside = expected(rows, "warc")
    assert list(zip(found.texts, found.urls, strict=True)) == texts
    assert [reason for _, _, reason, _ in found.bad] == ["empty"] * len(aside)


_DIRECTORIES = ("git", "hf_dataset")
KINDS = [name for name, kind in registry.FORMATS.items() if name not in _DIRECTORIES and not kind.parser]
KINDS += ["warc", "stack_exchange"]  # of the formats that another process parses
HEADS = st.sampled_from(
    [b"", b"\x1f\x8b\x08", b"BZh91AY&SY", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\3\4", b"PK\5\6", b"PAR1", b"ARROW1\0\0",
     b"WARC/1.0\r\n", b"{", b"[", b"text\n", b"<mediawiki>", b"<posts>", b"---\n", b"\xff\xfe", b"\xef\xbb\xbf"]
)  # fmt: skip


@given(
    st.sampled_from(KINDS), HEADS, st.binary(max_size=200), HEADS, st.sampled_from(["", ".gz", ".tar", ".zip", ".zst"])
)
def test_any_bytes_become_documents_or_quarantined_records(tmp_path_factory, kind, head, middle, end, suffix):
    try:
        found = read_file(
            tmp_path_factory.getbasetemp(), f"a{suffix}", head + middle + end, format=kind, max_document_bytes=90
        )
    except SourceError as error:
        assume("has no field 'text'" not in str(error))  # a table without a text column is a mistake of the user
        raise
    assert {reason for _, _, reason, _ in found.bad} <= set(REASONS)


@pytest.mark.long
@pytest.mark.parametrize("kind", FORMATS)
@FEWER
@given(data=st.data())
def test_damaged_files_become_documents_or_quarantined_records(kind, tmp_path_factory, data):
    write, strategy = FORMATS[kind]
    content = write(data.draw(strategy), data.draw)
    suffix = data.draw(st.sampled_from(sorted(COMPRESSED)))
    packed = bytearray(COMPRESSED[suffix](content, len(content)))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    packed = packed[: data.draw(st.integers(1, len(packed)))]
    try:
        found = read_file(tmp_path_factory.getbasetemp(), f"a.{kind}{suffix}", bytes(packed), format=kind)
    except SourceError as error:
        assume(
            not any(words in str(error) for words in ("has no field", "has no column", "same name", "of type", "twice"))
        )
        raise
    assert {reason for _, _, reason, _ in found.bad} <= set(REASONS)
