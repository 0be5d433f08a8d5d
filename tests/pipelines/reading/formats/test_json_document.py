"""The records of one JSON document, read in bounded memory with any chunk boundaries."""

import json
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.reading.documents import read_records
from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, TextRecord
from pipelines.reading.sources.source import Source


def test_an_array_of_objects(read: Callable) -> None:
    data = (
        b'\xef\xbb\xbf \n[\n {"text": "a [,] \\" \\\\", "n": [1, {"x": "}"}]},\n {"text": "b", "url": "http://x"}\n]\n'
    )
    found = read("a.json", data, format="json")
    assert (found.texts, found.urls) == (['a [,] " \\', "b"], [None, "http://x"])
    assert found.metas == ['{"n":[1,{"x":"}"}]}', None]


def test_one_object(read: Callable) -> None:
    found = read("a.json", b' {"text": "a,\\n[b", "n": {}} ', format="json")
    assert (found.texts, found.metas) == (["a,\n[b"], ['{"n":{}}'])


@pytest.mark.parametrize(
    ("data", "texts", "reasons"),
    [
        (b"", [], []),
        (b" \n", [], []),
        (b"[]", [], []),
        (b'[{"text": "a"}, 3, "x", {"body": 1}, {"text": 1}, {"text": "b"}]', ["a", "b"],
         ["not_object", "not_object", "no_text", "text_not_string"]),
        (b'[{"text": "a"}, {"text" "b"}, {"text": "c"}]', ["a", "c"], ["not_json"]),
        (b'[{"text": "a"},]', ["a"], ["not_json"]),
        (b'[{"text": "a"}, {"text": "b', ["a"], ["truncated"]),
        (b'[{"text": "a"}', [], ["truncated"]),
        (b'{"text": "a"}\n{"text": "b"}', ["a"], ["trailing_bytes"]),
        (b'[{"text": "a"}] x', ["a"], ["trailing_bytes"]),
        (b"plain", [], ["not_json"]),
    ],
)  # fmt: skip
def test_every_element_is_accounted_for(read: Callable, data: bytes, texts: list[str], reasons: list[str]) -> None:
    found = read("a.json", data, format="json")
    assert (found.texts, [bad[2] for bad in found.bad]) == (texts, reasons)


def test_one_byte_order_mark_is_taken_off_wherever_the_chunks_end() -> None:
    source = Source(name="s", root=".", format="json")
    for chunks in ([b"\xef\xbb\xbf" * 2 + b"[]"], [b"\xef\xbb\xbf"] * 2 + [b"[]"]):
        assert list(read_records(Entry("a", iter(chunks)), source)) == [Bad("not_json", 5)]


def test_long_elements(read: Callable) -> None:
    data = json.dumps([{"text": "a"}, {"n": 1, "text": "0123456789" * 5, "m": 2}, {"text": "b"}], indent=1).encode()
    found = read("a.json", data, format="json", max_document_bytes=40)
    assert (found.texts, [bad[1:3] for bad in found.bad]) == (["a", "b"], [(1, "oversized")])
    found = read("a.json", data, format="json", max_document_bytes=40, oversized="split")
    assert found.texts == ["a", "0123456789" * 4, "0123456789", "b"]
    assert json.loads(found.metas[2]) == {"n": 1, "m": 2}


def test_memory_is_bounded() -> None:
    def stream() -> Iterator[bytes]:
        yield b'[{"text": "a"}, {"text": "'
        for _ in range(100):
            yield b"x" * 100_000
        yield b'"}'
        for _ in range(2000):
            yield b', {"text": "' + b"y" * 5000 + b'"}'
        yield b"]"

    tracemalloc.start()
    source = Source(name="s", root=".", format="json", max_document_bytes=50_000)
    kinds = [type(record) for record in read_records(Entry("a", stream()), source)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (kinds.count(TextRecord), kinds.count(Bad)) == (2001, 1)
    assert peak < 2_000_000


VALUE = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(st.sampled_from('a"\\[]{},é\n'), max_size=4),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=2), v, max_size=3),
    max_leaves=5,
)


@given(
    values=st.lists(st.dictionaries(st.sampled_from(["a", "b"]), VALUE), max_size=4),
    indent=st.sampled_from([None, 1]),
    cut=st.integers(1, 7),
)
def test_chunks_may_end_anywhere(values: list[dict], indent: int | None, cut: int) -> None:
    data = json.dumps([{"text": str(i), **value} for i, value in enumerate(values)], indent=indent).encode()
    chunks = (data[i : i + cut] for i in range(0, len(data), cut))
    found = list(read_records(Entry("a", chunks), Source(name="s", root=".", format="json")))
    assert [record.text for record in found] == [str(i) for i in range(len(values))]
    assert [json.loads(record.meta or "{}") for record in found] == values


@given(data=st.text(st.sampled_from('a"\\[]{},: 1'), max_size=30), cut=st.integers(1, 9), limit=st.integers(1, 20))
def test_no_bytes_break_it(data: str, cut: int, limit: int) -> None:
    chunks = (data.encode()[i : i + cut] for i in range(0, len(data), cut))
    list(read_records(Entry("a", chunks), Source(name="s", root=".", format="json", max_document_bytes=limit)))
