import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, TextRecord
from pipelines.reading.formats.json_lines import read_jsonl
from pipelines.reading.formats.split_json import split_record
from pipelines.reading.sources.source import Source

TEXT = "".join(f'line {i} "é" \\ \t 😀\n' for i in range(200))


def split(line: bytes, chunk: int = 7, **fields: object) -> list[TextRecord | Bad]:
    source = Source(**{"name": "s", "root": ".", "format": "jsonl", "max_document_bytes": 100} | fields)  # type: ignore[arg-type]
    return list(split_record((line[i : i + chunk] for i in range(0, len(line), chunk)), source))


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 1000, 100_000])
def test_the_pieces_are_the_text(ascii_only: bool, chunk: int) -> None:
    record = {"id": 1, "url": "http://x", "text": TEXT, "after": [2, {"text": "no"}]}
    found = split(json.dumps(record, ensure_ascii=ascii_only).encode(), chunk)
    assert "".join(piece.text for piece in found) == TEXT
    assert all(len(piece.text.encode()) == piece.size <= 100 for piece in found)
    assert all(piece.text.endswith("\n") for piece in found)
    assert {piece.url for piece in found} == {"http://x"}
    assert {piece.meta for piece in found[:-1]} == {b'{"id":1}'}
    assert json.loads(found[-1].meta) == {"id": 1, "after": [2, {"text": "no"}]}


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.booleans(), st.integers(1, 9), st.integers(1, 12)
)
def test_equals_json(text: str, ascii_only: bool, chunk: int, limit: int) -> None:
    line = json.dumps({"text": text}, ensure_ascii=ascii_only).encode()
    found = split(line, chunk, max_document_bytes=max(limit, 10))
    assert "".join(piece.text for piece in found) == text
    assert json.loads(line)["text"] == text


@pytest.mark.parametrize(
    ("line", "pieces", "reason"),
    [
        (b'{"text": "' + b"x" * 250 + b'"', 2, "not_json"),
        (b'{"text": "' + b"x" * 250 + b'" "a": 1}', 2, "not_json"),
        (b'{"text": "' + b"x" * 250 + b'",}', 2, "not_json"),
        (b'{"text": "' + b"x" * 250 + b'"} more', 2, "not_json"),
        (b'{"text": "' + b"x" * 250, 2, "not_json"),
        (b'{"text": "' + b"x" * 250 + b"\t" + b"x" * 50, 2, "not_json"),
        (b'{"text": "' + b"x" * 250 + b"\\q" + b"x" * 50, 2, "not_json"),
        (b'{"text": "' + b"x" * 250 + b"\\ud800" + b"x" * 50, 2, "lone_surrogate"),
        (b'{"text": "' + b"x" * 250 + b"\xe9" + b"x" * 50, 2, "undecodable"),
        (b'{"text": "' + b"x" * 250 + b'", "more": "' + b"y" * 150 + b'"}', 2, "oversized"),
        (b'{"more": "' + b"y" * 250 + b'", "text": "x"}', 0, "oversized"),
        (b'{"text": ["' + b"y" * 250 + b'"]}', 0, "oversized"),
        (b"x" * 250, 0, "not_json"),
        (b'{"a": 1; "text": "' + b"x" * 250, 0, "not_json"),
        (b" " * 250, 0, "not_json"),
    ],
)
def test_damage_is_one_more_record(line: bytes, pieces: int, reason: str) -> None:
    found = split(line)
    assert [type(piece) for piece in found] == [TextRecord] * pieces + [Bad]
    assert isinstance(found[-1], Bad)
    assert found[-1].reason == reason


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "' + b"x" * 150 + b'", "more": "' + b"y" * 150 + b'"}',
        b'{"more": "' + b"y" * 150 + b'", "text": "' + b"x" * 250 + b'"}',
        b'{"text": "' + b"x" * 250 + b"\xe9" + b"x" * 50,
    ],
)
def test_the_division_into_pieces_changes_nothing(line: bytes) -> None:
    expected = split(line)
    assert isinstance(expected[-1], Bad)
    assert all(split(line, chunk) == expected for chunk in (1, 64, 1000))
    source = Source(name="s", root=".", format="jsonl", max_document_bytes=100)
    assert list(split_record(iter([b"", line[:200], b"", line[200:]]), source)) == expected


def test_a_long_line_that_begins_a_chunk_is_split() -> None:
    source = Source(name="s", root=".", format="jsonl", max_document_bytes=100, oversized="split")
    chunks = [b'{"text": "a"}\n', b'{"text": "' + b"x" * 200, b'"}\n']
    found = list(read_jsonl(Entry("a", iter(chunks)), source))
    assert [record.text for record in found if isinstance(record, TextRecord)] == ["a", "x" * 100, "x" * 100]


def test_neighbours_of_a_split_line_are_untouched(read: Callable) -> None:
    lines = [b'{"text": "one"}', json.dumps({"text": TEXT}).encode(), b'{"text": "' + b"x" * 250, b'{"text": "two"}']
    found = read("a.jsonl", b"\n".join(lines), format="jsonl", max_document_bytes=100, oversized="split")
    assert found.texts[0] == "one"
    assert found.texts[-1] == "two"
    assert "".join(found.texts[1:-3]) == TEXT
    assert [bad[2] for bad in found.bad] == ["not_json"]


@pytest.mark.parametrize("line", ['{"n":1e999,"text":"%s"}', '{"text":"%s","n":-1e999}'])
def test_a_number_too_large_for_a_double_is_null(read: Callable, line: str) -> None:
    for text in ("x", "x" * 150):
        data = (line % text).encode()
        found = read("a.jsonl", data, format="jsonl", max_document_bytes=100, oversized="split")
        assert ("".join(found.texts), found.metas[-1], found.bad) == (text, '{"n":null}', [])
