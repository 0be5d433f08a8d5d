import gzip
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.reading import documents as stage
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.formats.json_lines import LongRecord, lines
from pipelines.reading.sources.source import Source


def jsonl(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_fields_become_text_url_and_meta(read: Callable) -> None:
    found = read(
        "a.jsonl",
        jsonl({"id": 7, "text": "héllo\n", "url": "http://x", "more": {"a": [1, None, 2.5]}}, {"text": "b"}),
        format="jsonl",
    )
    assert found.texts == ["héllo\n", "b"]
    assert found.urls == ["http://x", None]
    assert found.metas == ['{"id":7,"more":{"a":[1,null,2.5]}}', None]
    found = read(
        "a.jsonl", jsonl({"content": "c", "link": "http://y"}), format="jsonl", text_field="content", url_field="link"
    )
    assert (found.texts, found.urls, found.metas) == (["c"], ["http://y"], [None])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json", "not_json"),
        (b'{"text": "cut off', "not_json"),
        (b'{"text": "raw\ttab"}', "not_json"),
        (b"{" * 5000, "not_json"),
        (b"[" * 100_000, "not_json"),
        (b'["text"]', "not_object"),
        (b'"text"', "not_object"),
        (b"null", "not_object"),
        (b"{}", "no_text"),
        (b'{"Text": "x"}', "no_text"),
        (b'{"text": null}', "no_text"),
        (b'{"text": 5}', "text_not_string"),
        (b'{"text": ["x"]}', "text_not_string"),
        (b'{"text": ""}', "empty"),
        (b'{"text": "\\u0000\\u001b"}', "empty"),
        (b'{"text": "a\\ud800"}', "lone_surrogate"),
        (b'{"text": "a\\udfffb", "n": 1}', "lone_surrogate"),
        (b'{"text": "a", "url": "\\ud800"}', "lone_surrogate"),
        (b'{"text": "caf\xe9"}', "undecodable"),
        (b'{"text": "\xed\xa0\x80"}', "undecodable"),
        (b'{"text": "x"}' + b" " * 2000, "oversized"),
    ],
)
@pytest.mark.parametrize("neighbours", [1, 20])
def test_bad_lines_are_quarantined_and_their_neighbours_kept(
    read: Callable, line: bytes, reason: str, neighbours: int
) -> None:
    good = jsonl(*({"text": f"good {i}"} for i in range(neighbours)))
    found = read(
        "a.jsonl", good + line + b"\n" + good, format="jsonl", max_document_bytes=200_000 if len(line) > 2500 else 2_000
    )
    assert found.texts == [f"good {i}" for i in range(neighbours)] * 2
    assert found.bad == [("a.jsonl", neighbours, reason, len(line))]


def test_pairs_of_surrogates_are_one_character(read: Callable) -> None:
    assert read("a.jsonl", rb'{"text": "\ud83d\ude00"}', format="jsonl").texts == ["😀"]


def test_blank_lines_are_no_records(read: Callable) -> None:
    found = read("a.jsonl", b"\n \r\n" + jsonl({"text": "a"}) + b"\n\n\t\n" + b'{"text": "b"}', format="jsonl")
    assert (found.texts, found.bad) == (["a", "b"], [])
    assert read("a.jsonl", b"", format="jsonl")[:5] == ([], [], [], [], ["a.jsonl"])


def test_byte_order_mark_and_line_ends(read: Callable) -> None:
    found = read("a.jsonl", b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}\r\n', format="jsonl")
    assert (found.texts, found.bad) == (["a", "b"], [])


def test_other_encodings(read: Callable) -> None:
    found = read("a.jsonl", '{"text": "café"}\n{"text": "naïve"}'.encode("latin-1"), format="jsonl", encoding="latin-1")
    assert found.texts == ["café", "naïve"]
    found = read(
        "a.jsonl",
        '{"text": "日本"}\n'.encode("shift_jis") + b'{"text": "\x81"}\n',
        format="jsonl",
        encoding="shift_jis",
    )
    assert (found.texts, [bad[2] for bad in found.bad]) == (["日本"], ["undecodable"])


@pytest.mark.parametrize(
    ("number", "meta"),
    [
        ("18446744073709551615", 2**64 - 1),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("-9223372036854775809", -(2**63) - 1),
        ("1e25", 1e25),
        ("0.1", 0.1),
        ("NaN", None),
        ("-Infinity", None),
        ("1e400", None),
    ],
)
def test_numbers_in_meta_are_exact(read: Callable, number: str, meta: object) -> None:
    record = f'{{"text": "a", "n": {number}, "deep": [{{"n": {number}}}]}}'
    found = read("a.jsonl", record.encode(), format="jsonl")
    assert found.texts == ["a"]
    assert json.loads(found.metas[0]) == {"n": meta, "deep": [{"n": meta}]}


def test_meta_keeps_what_cannot_be_text(read: Callable) -> None:
    found = read("a.jsonl", rb'{"text": "a", "url": 5, "odd": "\ud800"}', format="jsonl")
    assert found.urls == [None]
    assert json.loads(found.metas[0]) == {"url": 5, "odd": "\ud800"}
    assert found.metas[0].isascii()
    assert read("a.jsonl", b'{"text": "a", "url": null}', format="jsonl").metas == [None]


@given(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b".")), max_size=8),
    st.integers(1, 7),
    st.integers(1, 9),
    st.booleans(),
)
def test_lines_equal_split(content: list[bytes], chunk: int, limit: int, ended: bool) -> None:
    data = b"\n".join(content) + (b"\n" if ended and content else b"")
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    found: list[bytes | int] = []
    for line in lines((data[i : i + chunk] for i in range(0, len(data), chunk)), limit):
        found.append(line.drain() if isinstance(line, LongRecord) else line)
    assert found == [line if len(line) <= limit else len(line) for line in expected]


def test_a_long_line_that_nobody_reads_is_passed_over() -> None:
    def chunks() -> Iterator[bytes]:
        yield from (b"x" * 10, b"x" * 10, b"x\nabc", b"def\n")

    assert [line if isinstance(line, bytes) else None for line in lines(chunks(), 15)] == [None, b"abcdef"]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_truncation_keeps_whole_lines(read: Callable, compress: Callable) -> None:
    data = compress(jsonl(*({"text": random.Random(i).randbytes(40).hex()} for i in range(500))))
    name = "a.jsonl" if compress is bytes else "a.jsonl.gz"
    whole = read(name, data, format="jsonl").texts
    for cut in (len(data) // 3, len(data) - 3):
        found = read(name, data[:cut], format="jsonl")
        assert found.texts == whole[: len(found.texts)]
        assert len(found.texts) >= cut / len(data) * 500 - 15
        expected = "not_json" if compress is bytes else "truncated"  # a plain file shows its break as half a line
        assert [bad[1:3] for bad in found.bad] == [(len(found.texts), expected)]


@pytest.mark.parametrize("depth", [300, 1000, 5000])
def test_deeply_nested_fields_do_not_stop_the_reading(tmp_path: Path, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    path = tmp_path / "deep.jsonl"
    path.write_text(f'{{"text": "a", "deep": {nested}}}\n{{"text": "b"}}\n')
    source = Source(name="s", root=str(path), format="jsonl")
    (part,) = read_documents(source, list_files(source), 1 << 20)
    assert part.documents["text"].to_pylist()[-1] == "b"
    assert part.documents.num_rows + part.quarantine.num_rows == 2


@pytest.mark.long
def test_fields_beside_the_text_are_held_no_longer_than_it(tmp_path: Path) -> None:
    with open(tmp_path / "a.jsonl", "wb") as lines:
        for number in range(400):
            lines.write(json.dumps({"text": f"t{number}", "html": "x" * 200_000}).encode() + b"\n")
    source = Source(name="s", root=str(tmp_path), format="jsonl")
    tracemalloc.start()
    rows = [part.documents.num_rows for part in read_documents(source, list_files(source), 4 << 20)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (sum(rows), max(rows)) == (400, 20)
    assert peak < 200 << 20  # 4,096 records at a time, whatever is in them, would take 800 MB here


def test_short_lines_are_not_held_together() -> None:
    tracemalloc.start()
    try:
        count = sum(1 for _ in lines(iter([b"12\n" * (1 << 19)]), 100))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 1 << 19
    assert peak < 13 << 20


@pytest.mark.parametrize("free", [50, 10_000])
def test_a_tiny_file_gives_no_more_records_than_its_size_allows(read: Callable, monkeypatch, free) -> None:
    import zstandard

    monkeypatch.setattr(stage, "_FREE_RECORDS", free)
    content = zstandard.compress(b"1\n" * 5000 + jsonl({"text": "late"}))
    allowed = max(free, 4 * len(content))
    found = read("a.jsonl.zst", content, format="jsonl")
    reasons = [reason for _, _, reason, _ in found.bad]
    if allowed > 5000:
        assert (found.texts, set(reasons), len(reasons)) == (["late"], {"not_object"}, 5000)
    else:
        assert (found.texts, reasons) == ([], ["not_object"] * allowed + ["record_limit"])


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["utf-8", "shift_jis"])
def test_a_record_of_millions_of_values_is_quarantined(read: Callable, encoding: str) -> None:
    commas = json.dumps(
        {"text": '表",[{' * (1 << 19), "a": [1, 2]}, ensure_ascii=False
    )  # 表 ends in a backslash in Shift JIS
    values = '{"text": "a", "b": [' + "[]," * (1 << 19) + "1]}"
    few = '{"text": "b", "c": [' + "[]," * ((1 << 19) - 10) + "1]}"
    found = read("a.jsonl", "\n".join([commas, values, few]).encode(encoding), format="jsonl", encoding=encoding)
    assert [text[:3] for text in found.texts] == ['表",', "b"]
    assert found.bad == [("a.jsonl", 1, "too_many_values", len(values.encode(encoding)))]
