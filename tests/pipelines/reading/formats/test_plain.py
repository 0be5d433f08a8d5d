import gzip
import json
from collections.abc import Callable

import pytest

from pipelines.reading.entries.records import TextRecord
from pipelines.reading.formats.plain import split_text


def test_a_file_is_a_document(read: Callable) -> None:
    assert read("a.txt", "één\r\ntwee".encode()).texts == ["één\ntwee"]
    assert read("a.txt", b"\xef\xbb\xbfmarked").texts == ["marked"]
    assert read("a.txt", "naïve".encode("latin-1"), encoding="latin-1").texts == ["naïve"]
    assert read("a.txt", "日本".encode("utf-16"), encoding="utf-16").texts == ["日本"]


@pytest.mark.parametrize(
    ("content", "reason", "size"),
    [
        (b"", "empty", 0),
        (b"\0\0\x1b", "empty", 3),
        (b" \t ", "empty", 3),
        (b"\xef\xbb\xbf\xe2\x80\x8b\r\n", "empty", 8),  # a byte order mark, a zero-width space, a line end
        (b"caf\xe9", "undecodable", 4),
        (b"\xed\xa0\x80", "undecodable", 3),
        (b"x" * 101, "oversized", 101),
    ],
)
def test_bad_files(read: Callable, content: bytes, reason: str, size: int) -> None:
    found = read("a.txt", content, max_document_bytes=100)
    assert (found.texts, found.bad) == ([], [("a.txt", 0, reason, size)])


def test_wrong_encoding_is_set_aside(read: Callable) -> None:
    assert read("a.txt", "naïve".encode("latin-1")).bad == [("a.txt", 0, "undecodable", 5)]
    assert read("a.txt", "日本".encode(), encoding="ascii").bad == [("a.txt", 0, "undecodable", 6)]


def test_truncated_text_is_set_aside_whole(read: Callable) -> None:
    data = gzip.compress(b"some text " * 1000)
    assert read("a.txt.gz", data[:-9]).bad == [("a.txt.gz", 0, "truncated", None)]
    assert read("a.txt.gz", b"").bad == [("a.txt.gz", 0, "truncated", None)]
    assert read("a.txt.gz", b"plain").bad == [("a.txt.gz", 0, "wrong_suffix", None)]


def test_split_cuts_at_line_ends_and_loses_nothing(read: Callable) -> None:
    text = "".join(f"line {i} é\n" for i in range(100_000))
    found = read("a.txt", text.encode(), max_document_bytes=10_000, oversized="split")
    assert "".join(found.texts) == text
    assert all(len(piece.encode()) <= 10_000 and piece.endswith("\n") for piece in found.texts)
    assert found.bad == []
    for encoding in ("utf-16", "latin-1"):
        again = read("a.txt", text.encode(encoding), max_document_bytes=10_000, oversized="split", encoding=encoding)
        assert again.texts == found.texts


def test_split_without_line_ends(read: Callable) -> None:
    found = read("a.txt", ("é" * 500_000).encode(), max_document_bytes=1001, oversized="split")
    assert "".join(found.texts) == "é" * 500_000
    assert {len(piece) for piece in found.texts} == {500}


def test_only_the_mark_at_the_start_of_a_split_stream_is_removed() -> None:
    found = split_text(b"\xef\xbb\xbfaaa", iter(["\ufeffbcd".encode(), b"efgh"]), "utf-8", 4)
    assert "".join(piece.text for piece in found if isinstance(piece, TextRecord)) == "aaa\ufeffbcdefgh"


def test_split_keeps_what_decoded_before_the_damage(read: Callable) -> None:
    text = b"fine line\n" * 200_000
    found = read("a.txt", text + b"caf\xe9" + text, max_document_bytes=100_000, oversized="split")
    assert text.decode().startswith("".join(found.texts))
    assert len(found.texts) >= 15
    assert [bad[2] for bad in found.bad] == ["undecodable"]


MESSAGE = b"""Metadata-Version: 2.1
Name: demo
Classifier: A
Classifier: B
Home-Page: https://demo.example
License: first
        second
Empty:

# Demo

Body: text
"""


def test_message_has_headers_and_a_body(read: Callable) -> None:
    found = read("METADATA", MESSAGE, format="message", url_field="home-page")
    assert found.texts == ["# Demo\n\nBody: text\n"]
    assert found.urls == ["https://demo.example"]
    assert json.loads(found.metas[0]) == {
        "Metadata-Version": "2.1",
        "Name": "demo",
        "Classifier": ["A", "B"],
        "Home-Page": "https://demo.example",
        "License": "first\nsecond",
        "Empty": "",
    }
    assert read("METADATA", MESSAGE.replace(b"\n", b"\r\n"), format="message", url_field="home-page")[:3] == found[:3]
    assert read("m", b"\nonly a body", format="message")[:3] == (["only a body"], [None], [None])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"Name: x\nno colon here\n\nbody", "bad_header"),
        (b" continued: from nothing\n\nbody", "bad_header"),
        (b"sp ace: x\n\nbody", "bad_header"),
        (b"Name: x\n", "empty"),
        (b"Name: x\n\n", "empty"),
        (b"", "empty"),
        (b"Name: caf\xe9\n\nbody", "undecodable"),
        (b"Name: x\n\n" + b"y" * 200, "oversized"),
    ],
)
def test_bad_messages(read: Callable, content: bytes, reason: str) -> None:
    found = read("m", content, format="message", max_document_bytes=200)
    assert (found.texts, found.bad) == ([], [("m", 0, reason, len(content))])


@pytest.mark.long
@pytest.mark.timeout(60)
def test_a_header_of_a_million_lines_takes_linear_time(read: Callable) -> None:
    found = read("a.eml", b"A: b\n" + b" c\n" * 1_000_000 + b"\nbody", format="message")
    assert found.texts == ["body"]
    assert len(found.metas[0] or "") > 3_000_000
