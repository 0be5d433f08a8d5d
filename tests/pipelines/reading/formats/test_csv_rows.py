"""CSV and TSV: rows as in RFC 4180, bad rows counted, and unclosed quotes that do not swallow a file."""

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import SourceError
from pipelines.reading.documents import read_records
from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import TextRecord
from pipelines.reading.sources.source import Source


def test_rows_are_records(read: Callable) -> None:
    data = b'\xef\xbb\xbfid,text,url\r\n1,"one, two\r\nand ""three""",http://x\r\n\r\n2,plain,\r\n'
    found = read("a.csv", data, format="csv")
    assert (found.texts, found.urls) == (['one, two\nand "three"', "plain"], ["http://x", None])
    assert [json.loads(meta) for meta in found.metas] == [{"id": "1"}, {"id": "2"}]
    assert found.bad == []


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b"id,text\n1,a b\n"),
        ("a.csv", b"id\ttext\n1\ta b\n"),
        ("a.csv", b"id;text\n1;a b\n"),
        ("a.tsv", b"id\ttext\n1\ta b"),
        ("a.txt", b"id|text\n1|a b"),
    ],
)
def test_the_delimiter_is_the_one_that_finds_the_text(read: Callable, name: str, data: bytes) -> None:
    found = read(name, data, format="csv")
    assert (found.texts, found.metas) == (["a b"], ['{"id":"1"}'])


def test_one_column_of_tab_separated_values_may_hold_commas(read: Callable) -> None:
    assert read("a.tsv.gz", gzip.compress(b"text\na, b\n", mtime=0), format="csv").texts == ["a, b"]
    assert read("a.csv", b'body\n"a, b"\n', format="csv", text_field="body").texts == ["a, b"]


def test_bad_rows_are_counted_and_cost_nobody_else(read: Callable) -> None:
    data = b'id,text\n1\n2,a,b\n3,"x"y\n4,caf\xe9\n5,\n6,5" good\n7,a\rb\n'
    found = read("a.csv", data, format="csv")
    assert found.texts == ['5" good']
    assert [bad[1:] for bad in found.bad] == [
        (0, "field_count", 1),
        (1, "field_count", 5),
        (2, "bad_quotes", 6),
        (3, "undecodable", 6),
        (4, "empty", 2),
        (6, "bad_quotes", 5),
    ]


def test_an_unclosed_quote_costs_its_line(read: Callable) -> None:
    rows = "".join(f"{i},text {i}\n" for i in range(100))
    found = read("a.csv", f'id,text\n1,"open\n{rows}'.encode(), format="csv")
    assert found.texts == [f"text {i}" for i in range(100)]
    assert found.bad == [("a.csv", 0, "unclosed_quote", 7)]
    found = read("a.csv", f'id,text\n1,"open\n{rows}'.encode(), format="csv", max_document_bytes=200)
    assert (len(found.texts), found.bad) == (100, [("a.csv", 0, "unclosed_quote", 7)])


def test_a_file_of_unclosed_quotes_ends(read: Callable) -> None:
    """Each line closes the quote that the line before opened, and opens another, so no row ends. After 16
    such rows, all lines held for a row are set aside together.
    """
    found = read("a.csv", b"id,text\n" + b'x","y\n' * 2000, format="csv", max_document_bytes=600)
    reasons = [bad[2] for bad in found.bad]
    assert set(reasons) == {"unclosed_quote"}
    assert len(reasons) < 16 + 2000 * 6 / 600 + 2
    assert sum(bad[3] for bad in found.bad) > 2000 * 5


@pytest.mark.long
def test_an_unclosed_quote_does_not_swallow_the_file() -> None:
    """The file of 2 MB is not held in memory if a quote is never closed."""
    chunks = (b"words and words\n" * 4096 for _ in range(30))  # 2 MB
    source = Source(name="s", root=".", format="csv", max_document_bytes=50_000)

    def stream():
        yield b'id,text\n1,"open\n'
        yield from chunks

    tracemalloc.start()
    reasons = {record.reason for record in read_records(Entry("a.csv", stream()), source)}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reasons == {"unclosed_quote", "field_count"}
    assert peak < 1_500_000


def test_long_lines(read: Callable) -> None:
    data = b"id,text\n1,a\n2," + b"x" * 500 + b'\n3,"b\n' + b"y" * 500 + b"\n4,c\n"
    found = read("a.csv", data, format="csv", max_document_bytes=100)
    assert found.texts == ["a", "c"]
    assert [bad[2:] for bad in found.bad] == [("oversized", 502), ("unclosed_quote", 4), ("oversized", 500)]


def test_a_file_without_the_text_column_is_named(read: Callable) -> None:
    with pytest.raises(SourceError, match=r"the first row of a\.csv has no field 'text'.*`text_field`"):
        read("a.csv", b"secret words,2\n", format="csv")
    with pytest.raises(SourceError, match="has a name twice"):
        read("a.csv", b"text,n,n\n", format="csv")
    assert read("a.csv", b"", format="csv").paths == ["a.csv"]
    with pytest.raises(ValueError, match="encoding: got 'utf-16'"):
        Source(name="s", root=".", format="csv", encoding="utf-16").check()


CELL = st.text(st.sampled_from('ab",\n;\té'), max_size=6)


@given(rows=st.lists(st.tuples(CELL, CELL), max_size=8), cut=st.integers(1, 9))
def test_what_the_standard_library_writes_is_read_back(rows: list[tuple[str, str]], cut: int) -> None:
    sink = io.StringIO()
    csv.writer(sink).writerows([("text", "other"), *rows])
    data = sink.getvalue().encode()
    chunks = (data[i : i + cut] for i in range(0, len(data), cut))
    found = list(read_records(Entry("a.csv", chunks), Source(name="s", root=".", format="csv")))
    assert all(isinstance(record, TextRecord) for record in found)
    assert [(record.text, json.loads(record.meta)["other"]) for record in found] == rows


@given(data=st.binary(max_size=60), limit=st.integers(3, 40))
def test_no_bytes_break_it(data: bytes, limit: int) -> None:
    source = Source(name="s", root=".", format="csv", max_document_bytes=limit)
    list(read_records(Entry("a.csv", iter([b"text,b\n", data])), source))
