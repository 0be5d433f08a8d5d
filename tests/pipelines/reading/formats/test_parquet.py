import datetime
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.errors import SourceError
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.formats.parquet_pages import _header, row_groups, scan_pages
from pipelines.reading.sources.source import Source


def parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def test_a_row_is_a_record(read: Callable) -> None:
    table = pa.table(
        {
            "n": pa.array([1, None, 3]),
            "text": ["a", "é\r\nb", "c"],
            "url": ["http://x", None, "http://z"],
            "day": [datetime.date(2026, 1, 2), None, None],
            "x": [0.5, float("nan"), None],
            "tags": [["p", "q"], [], None],
        }
    )
    found = read("a.parquet", parquet(table), format="parquet")
    assert found.texts == ["a", "é\nb", "c"]
    assert found.urls == ["http://x", None, "http://z"]
    assert [json.loads(meta) for meta in found.metas] == [
        {"n": 1, "day": "2026-01-02", "x": 0.5, "tags": ["p", "q"]},
        {"n": None, "day": None, "x": None, "tags": []},
        {"n": 3, "day": None, "x": None, "tags": None},
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("dictionary", [True, False])
def test_every_kind_of_text_column(read: Callable, kind: pa.DataType, dictionary: bool) -> None:
    texts = [f"text {i % 7}" for i in range(1000)]
    table = pa.table({"text": pa.array(texts).cast(kind)})
    found = read("a.parquet", parquet(table, use_dictionary=dictionary, row_group_size=300), format="parquet")
    assert (found.texts, found.metas) == (texts, [None] * 1000)


def test_bad_rows(read: Callable) -> None:
    invalid = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\x04\0\0\0"), pa.py_buffer(b"caf\xe9"))
    texts = pa.chunked_array([pa.array(["a", None, ""]), invalid, pa.array(["x" * 50, "b"])])
    found = read("a.parquet", parquet(pa.table({"text": texts})), format="parquet", max_document_bytes=40)
    assert found.texts == ["a", "b"]
    assert [bad[1:] for bad in found.bad] == [
        (1, "no_text", None),
        (2, "empty", 0),
        (3, "undecodable", 4),
        (4, "oversized", 50),
    ]


def test_a_nested_string_that_is_not_utf8_costs_only_its_row(read: Callable) -> None:
    names = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\x01\0\0\0\x02\0\0\0"), pa.py_buffer(b"a\xe9"))
    nested = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), names)
    found = read("a.parquet", parquet(pa.table({"text": ["one", "two"], "names": nested})), format="parquet")
    assert (found.texts, found.metas, found.bad) == (["one"], ['{"names":["a"]}'], [("a.parquet", 1, "undecodable", 3)])


def test_split(read: Callable) -> None:
    data = parquet(pa.table({"text": ["a", "0123456789" * 5, "b"], "n": [1, 2, 3]}))
    found = read("a.parquet", data, format="parquet", max_document_bytes=20, oversized="split")
    assert found.texts == ["a", "0123456789" * 2, "0123456789" * 2, "0123456789", "b"]
    assert [json.loads(meta)["n"] for meta in found.metas] == [1, 2, 2, 2, 3]


def test_text_column_must_be_there_and_be_text(read: Callable) -> None:
    data = parquet(pa.table({"body": ["a"], "n": [1]}))
    with pytest.raises(SourceError, match=r"a\.parquet has no column 'text'; its columns are body, n; .*`text_field`"):
        read("a.parquet", data, format="parquet")
    with pytest.raises(SourceError, match=r"column 'n' of a\.parquet is of type int64, expected string or binary"):
        read("a.parquet", data, format="parquet", text_field="n")


def test_what_is_not_parquet(read: Callable) -> None:
    data = parquet(pa.table({"text": ["a"] * 1000}))
    for name, content, reason in [
        ("a.parquet", b"plain text", "not_parquet"),
        ("a.parquet", b"", "not_parquet"),
        ("a.parquet", data[:-20], "not_parquet"),
        ("a.parquet", b"PARE" + data[4:-4] + b"PARE", "encrypted"),
        ("a.parquet.gz", gzip.compress(data), "not_parquet"),
        ("a.parquet.gz", b"plain", "wrong_suffix"),
    ]:
        found = read(name, content, format="parquet")
        assert (found.texts, [bad[:3] for bad in found.bad]) == ([], [(name, 0, reason)])


def test_damage_in_the_middle_keeps_earlier_row_groups(read: Callable) -> None:
    table = pa.table({"text": [f"some text {i} {i * i}" for i in range(10_000)]})
    data = bytearray(
        parquet(table, row_group_size=2000, compression="zstd", use_dictionary=False, write_page_checksum=True)
    )
    data[len(data) // 2] ^= 0xFF
    found = read("a.parquet", bytes(data), format="parquet")
    assert found.texts == table["text"].to_pylist()[: len(found.texts)]
    assert len(found.texts) in (4000, 6000)
    assert [bad[1:] for bad in found.bad] == [(len(found.texts), "corrupt", None)]


@pytest.mark.long
@pytest.mark.parametrize("store_schema", [True, False])  # False: the column comes back as plain strings
def test_bomb_is_not_expanded(read: Callable, store_schema: bool) -> None:
    """Many rows share one long value of a dictionary: small on disk, hundreds of megabytes when expanded."""
    rows = 600
    table = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * 1_000_000])})
    data = parquet(table, compression="zstd", store_schema=store_schema)
    assert len(data) < 20_000
    before = pa.default_memory_pool().max_memory()
    found = read("a.parquet", data, format="parquet", max_document_bytes=1000)
    assert (found.texts, {bad[2] for bad in found.bad}, len(found.bad)) == ([], {"oversized"}, rows)
    assert pa.default_memory_pool().max_memory() - before < 200_000_000
    found = read(
        "a.parquet",
        parquet(table.slice(0, 10), use_dictionary=False, compression="zstd"),
        format="parquet",
        max_decoded_bytes=1_000_000,
    )
    assert found.bad == [("a.parquet", 0, "decoded_limit", None)]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_are_known_by_their_headers(tmp_path: Path, version: str) -> None:
    """The column `kind` has a single data page, `text` has many."""
    path = tmp_path / "a.parquet"
    texts = ["x" * 9_000 + str(number) for number in range(500)]
    options = {
        "use_dictionary": ["kind"],
        "data_page_version": version,
        "data_page_size": 100_000,
        "write_batch_size": 10,
    }
    pq.write_table(pa.table({"text": texts, "kind": ["k"] * 500}), path, compression="zstd", **options)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    with path.open("rb") as handle:
        found = scan_pages(handle, next(row_groups(handle)))
        at, sizes = column.data_page_offset, []
        end = at + column.total_compressed_size
        while at < end:
            header, length = _header(handle, at)
            at += length + header[3]
            sizes.append(header[2])
    assert at == end
    assert len(sizes) > 20
    assert found == (max(sizes), {})
    assert 90_000 < found.largest < 220_000


@pytest.mark.long
def test_a_page_that_is_too_large_is_not_decompressed(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.reading.formats.parquet._PAGE_BYTES", 1 << 20)
    table = pa.table({"text": ["small", "x" * (64 << 20)]})
    data = parquet(table, compression="zstd", use_dictionary=False, row_group_size=1)
    assert len(data) < 5_000
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    found = read("a.parquet", data, format="parquet")
    assert (found.texts, [bad[1:3] for bad in found.bad]) == (["small"], [(1, "large_page")])
    assert pa.default_memory_pool().max_memory() <= max(peak, before + (32 << 20))


@pytest.mark.long
def test_values_that_share_their_beginning_are_not_expanded_together(read: Callable) -> None:
    texts = ["x" * 1_000_000 + str(number) for number in range(600)]
    table = pa.table({"text": texts, "kind": ["k"] * 600})
    options = {"use_dictionary": ["kind"], "column_encoding": {"text": "DELTA_BYTE_ARRAY"}, "compression": "zstd"}
    assert read("a.parquet", parquet(table.slice(0, 20), **options), format="parquet").texts == texts[:20]
    data = parquet(table, **options)
    assert len(data) < 5_000
    del table, texts
    before = pa.default_memory_pool().max_memory()
    found = read("a.parquet", data, format="parquet", max_document_bytes=1000)
    assert (found.texts, {bad[2] for bad in found.bad}, len(found.bad)) == ([], {"oversized"}, 600)
    assert pa.default_memory_pool().max_memory() - before < 100_000_000


def test_times_that_python_cannot_hold_are_kept_as_text(tmp_path: Path) -> None:
    far = pa.array([1 << 60, 0], pa.int64()).cast(pa.timestamp("us"))
    path = tmp_path / "far.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "when": far}), path)
    source = Source(name="s", root=str(path), format="parquet")
    (part,) = read_documents(source, list_files(source), 1 << 20)
    assert part.documents["text"].to_pylist() == ["a", "b"]
    assert json.loads(part.documents["meta"][1].as_py()) == {"when": "1970-01-01 00:00:00.000000"}


def test_times_in_an_unknown_zone_are_in_utc(read: Callable) -> None:
    when = pa.array([1_000_000], pa.timestamp("us", "Foo/Bar"))
    found = read("a.parquet", parquet(pa.table({"text": ["a"], "when": when})), format="parquet")
    assert found.metas == ['{"when":"1970-01-01 00:00:01.000000Z"}']


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY"])
def test_a_path_of_a_column_that_is_not_utf8_is_damage(read: Callable, encoding: str) -> None:
    table = pa.table({"text": ["a"], "other": ["b"]})
    data = bytearray(parquet(table, store_schema=False, use_dictionary=False, column_encoding={"other": encoding}))
    data[data.rindex(b"other")] = 0x8B  # in the row group; the schema comes before
    found = read("a.parquet", bytes(data), format="parquet")
    assert (found.texts, found.bad) == ([], [("a.parquet", 0, "corrupt", None)])


def test_columns_beyond_the_end_of_the_file_are_damage() -> None:
    data = parquet(pa.table({"text": ["a" * 9999]}), compression="none")
    assert next(row_groups(io.BytesIO(data)))[0].path == "text"
    with pytest.raises(BrokenInput, match="corrupt"):
        next(row_groups(io.BytesIO(data[9000:])))  # what is left has the whole footer


def test_a_column_that_contradicts_its_metadata_is_damage(read: Callable) -> None:
    """One wrong bit declares a column without nulls that has a histogram of them. At such a column, pyarrow's
    `RowGroupMetaData.column` ends the process.
    """
    data = parquet(pa.table({"text": ["a"]}), store_schema=False)
    optional, required = b"\x25\x02\x18\x04text", b"\x25\x00\x18\x04text"  # an element of the schema
    assert data.count(optional) == 1
    found = read("a.parquet", data.replace(optional, required), format="parquet")
    assert (found.texts, found.bad) == ([], [("a.parquet", 0, "corrupt", None)])
