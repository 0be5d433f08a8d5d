"""Arrow IPC files and streams: rows as records, damage counted, and no allocation of a claimed size before it is checked."""

import gzip
import io
import json
import struct
import tracemalloc
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import SourceError
from pipelines.reading.documents import read_records
from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import TextRecord
from pipelines.reading.formats import arrow as module
from pipelines.reading.sources.source import Source


def ipc(table: pa.Table, kind: str = "file", compression: str | None = None, rows: int | None = None) -> bytes:
    sink = io.BytesIO()
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


TABLE = pa.table({"text": ["a", "é\r\nb", None], "url": ["http://x", None, None], "n": [1, 2, 3]})


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_row_is_a_record(read: Callable, kind: str, compression: str | None) -> None:
    found = read("a.arrow", ipc(TABLE, kind, compression, rows=2), format="arrow")
    assert (found.texts, found.urls) == (["a", "é\nb"], ["http://x", None])
    assert [json.loads(meta) for meta in found.metas] == [{"n": 1}, {"n": 2}]
    assert found.bad == [("a.arrow", 2, "no_text", None)]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_every_kind_of_text_column(read: Callable, kind: pa.DataType) -> None:
    texts = [f"text {i % 7}" for i in range(3000)]
    found = read("a.arrow", ipc(pa.table({"text": pa.array(texts).cast(kind)})), format="arrow")
    assert found.texts == texts


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view()], ids=str)
def test_batches_without_rows_do_not_end_the_file(read: Callable, kind: pa.DataType) -> None:
    table = pa.table({"text": pa.array(["a"]).cast(kind)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for rows in (1, 0, 1, 0):
            writer.write_batch(table.to_batches()[0].slice(0, rows))
    found = read("a.arrow", sink.getvalue(), format="arrow")
    assert (found.texts, found.bad) == (["a", "a"], [])


def test_compressed_files_are_read_too(read: Callable) -> None:
    found = read("a.arrow.gz", gzip.compress(ipc(TABLE), mtime=0), format="arrow")
    assert (found.texts, found.paths) == (["a", "é\nb"], ["a.arrow.gz"])


def test_a_string_that_is_not_utf8_costs_only_its_row(read: Callable) -> None:
    invalid = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\x01\0\0\0\x02\0\0\0"), pa.py_buffer(b"a\xe9"))
    found = read("a.arrow", ipc(pa.table({"text": invalid})), format="arrow")
    assert (found.texts, found.bad) == (["a"], [("a.arrow", 1, "undecodable", 1)])


def test_what_is_not_arrow(read: Callable) -> None:
    for content, reason in [
        (b"plain text", "not_arrow"),
        (b"", "not_arrow"),
        (b"ARROW1\0\0", "not_arrow"),
        (b"FEA1....", "not_arrow"),
        (b"ARROW1\0\0\xff\xff\xff\xff\xff\xff\xff\x7f", "corrupt"),
    ]:
        assert [bad[2] for bad in read("a.arrow", content, format="arrow").bad] == [reason]
    with pytest.raises(SourceError, match=r"a\.arrow has no column 'body'; its columns are text, url, n"):
        read("a.arrow", ipc(TABLE), format="arrow", text_field="body")


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_file_that_was_cut_off_gives_its_first_batches(read: Callable, kind: str) -> None:
    table = pa.table({"text": [f"text {i}" for i in range(1000)]})
    data = ipc(table, kind, rows=100)
    found = read("a.arrow", data[: len(data) // 2], format="arrow")
    assert found.texts == table["text"].to_pylist()[: len(found.texts)]
    assert len(found.texts) in (400, 500)
    assert [bad[2] for bad in found.bad] == ["truncated"]


def test_large_batches_are_not_expanded(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that claims more memory than allowed ends the file."""
    monkeypatch.setattr(module, "_BATCH_BYTES", 1 << 20)
    table = pa.table({"text": ["x" * 100_000] * 20})
    for compression in (None, "zstd"):
        found = read("a.arrow", ipc(table, compression=compression, rows=5), format="arrow")
        assert (len(found.texts), found.bad) == (20, [])
        found = read("a.arrow", ipc(table, compression=compression), format="arrow")
        assert (found.texts, [bad[2] for bad in found.bad]) == ([], ["large_batch"])
    found = read("a.arrow", ipc(table, rows=5), format="arrow", max_decoded_bytes=1_000_000)
    assert (len(found.texts), [bad[2] for bad in found.bad]) == (10, ["decoded_limit"])


def test_views_of_the_same_bytes_are_not_expanded(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_BYTES", 1 << 20)
    views = [pa.py_buffer(struct.pack("<i4sii", 1000, b"xxxx", 0, 0) * rows) for rows in (1000, 2000)]
    few, many = (
        pa.Array.from_buffers(pa.string_view(), view.size // 16, [None, view, pa.py_buffer(b"x" * 1000)])
        for view in views
    )
    found = read("a.arrow", ipc(pa.table({"text": few})), format="arrow")
    assert (found.texts, found.bad) == (["x" * 1000] * 1000, [])
    for table in (pa.table({"text": many}), pa.table({"text": ["a"] * 2000, "other": many})):
        found = read("a.arrow", ipc(table), format="arrow")
        assert (found.texts, [bad[2] for bad in found.bad]) == ([], ["large_batch"])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["list_view", "run_ends", "struct"])
def test_values_that_rows_share_are_not_expanded_together(kind: str) -> None:
    rows, value = 64, pa.array(["x" * (1 << 20)])
    shared = {
        "list_view": lambda: pa.ListViewArray.from_arrays(pa.array([0] * rows, pa.int32()), [1] * rows, value),
        "run_ends": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), value),
        "struct": lambda: pa.StructArray.from_arrays(
            [pa.DictionaryArray.from_arrays(pa.array([0] * rows), value)], ["field"]
        ),
    }[kind]()
    data = ipc(pa.table({"text": ["a"] * rows, "other": shared}))
    records = read_records(Entry("a", iter([data])), Source(name="s", root=".", format="arrow"))
    tracemalloc.start()
    sizes = [len(record.meta) for record in records if isinstance(record, TextRecord)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(sizes), min(sizes) > 1 << 20) == (rows, True)
    assert peak < 16 << 20


def test_columns_of_the_same_name_are_refused(read: Callable) -> None:
    text = pa.array(["a"])
    for names in (["text", "text"], ["text", "other", "other"]):
        table = pa.Table.from_arrays([text] * len(names), names=names)
        with pytest.raises(SourceError, match=f"has columns of the same name: {names[-1]}; rename them"):
            read("a.arrow", ipc(table), format="arrow")


@pytest.mark.timeout(120)
def test_small_batches_take_no_quadratic_time() -> None:
    taken = module._Bytes(iter([b"abc", b"d" * (32 << 20), b"ef"]))
    assert taken.take(2) == b"ab"
    assert all(taken.take(100) for _ in range(100_000))
    assert (taken.take(64 << 20)[-3:], taken.take(1)) == (b"def", b"")


DATA = {
    (kind, compression): ipc(
        pa.table({"text": ["one", "two", "three"], "tags": [["a"], [], ["b", "c"]]}), kind, compression
    )
    for kind in ("file", "stream")
    for compression in (None, "zstd")
}


@given(
    key=st.sampled_from(sorted(DATA, key=str)), position=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255)
)
def test_a_changed_byte_never_crashes(key: tuple, position: float, value: int) -> None:
    data = bytearray(DATA[key])
    data[int(position * len(data))] = value
    try:
        records = list(read_records(Entry("a", iter([bytes(data)])), Source(name="s", root=".", format="arrow")))
    except SourceError:  # the name or the type of the text column was hit
        return
    assert all(not isinstance(record, TextRecord) or len(record.text) <= len(data) for record in records)


def test_a_name_of_a_column_that_is_not_utf8_is_damage() -> None:
    data = ipc(pa.table({"text": ["a"], "other": ["b"]})).replace(b"other", b"\x80ther")
    assert [
        record.reason for record in read_records(Entry("a", iter([data])), Source(name="s", root=".", format="arrow"))
    ] == ["not_arrow"]


def test_times_in_an_unknown_zone_are_in_utc(read: Callable) -> None:
    zone = pa.timestamp("us", "Foo/Bar")
    second, text = 1_000_000, "1970-01-01 00:00:01"
    words = pa.array([second], zone).dictionary_encode()
    columns = {
        "flat": pa.array([second, None], zone),
        "dictionary": pa.array([second, None], zone).dictionary_encode(),
        "runs": pa.RunEndEncodedArray.from_arrays([1, 2], pa.array([second, None], zone)),
        "list": pa.array([[second, None], None], pa.list_(zone)),
        "view": pa.array([[second], None], pa.list_view(zone)),
        "struct": pa.array([{"a": [second]}, None], pa.struct([("a", pa.large_list(zone))])),
        "map": pa.array([[("k", second)], None], pa.map_(pa.string(), zone)),
        "words": pa.ListArray.from_arrays([0, 1, 1], words, mask=pa.array([False, True])),
    }
    found = read("a.arrow", ipc(pa.table({"text": ["a", "b"]} | columns)), format="arrow")
    assert found.texts == ["a", "b"]
    first, last = map(json.loads, found.metas)
    assert {name: first.pop(name) for name in ("flat", "dictionary")} == dict.fromkeys(
        ("flat", "dictionary"), f"{text}.000000Z"
    )
    assert first == {
        "runs": f"{text}+00:00", "list": [f"{text}+00:00", None], "view": [f"{text}+00:00"], "struct": {"a": [f"{text}+00:00"]},
        "map": [["k", f"{text}+00:00"]], "words": [f"{text}+00:00"],
    }  # fmt: skip
    assert last == dict.fromkeys(columns)


def test_fields_of_the_same_name_within_a_column_cost_its_rows(read: Callable) -> None:
    twice = pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([3, 4])], names=["x", "x"])
    lists = pa.ListArray.from_arrays([0, 1, 2], twice)
    for column in (twice, lists):
        found = read("a.arrow", ipc(pa.table({"text": ["a", "b"], "other": column})), format="arrow")
        assert [bad[2] for bad in found.bad] == ["undecodable"] * 2


def test_dates_that_python_cannot_hold_cost_only_their_row_in_a_dictionary_too(read: Callable) -> None:
    days = pa.array([1 << 30, 1], pa.int32()).cast(pa.date32()).dictionary_encode()
    found = read("a.arrow", ipc(pa.table({"text": ["a", "b"], "day": days})), format="arrow")
    assert (found.metas, [bad[2] for bad in found.bad]) == (['{"day":"1970-01-02"}'], ["undecodable"])
