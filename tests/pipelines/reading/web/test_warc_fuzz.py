"""Damaged archives, HTTP headers, content codings and charsets: nothing raises, nothing is counted twice, and
the chunk size does not matter.
"""

import gzip

from hypothesis import given
from hypothesis import strategies as st

from pipelines.reading.web.charset import decode_page
from pipelines.reading.web.http_payload import Response, decode_payload, read_head
from pipelines.reading.web.web_archives import Record, read_archive

BLOCK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>mill"
RECORD = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n" % (len(BLOCK), BLOCK)
ARC = b"http://a.example/ 1.2.3.4 20080430204826 text/html %d\n%s\n" % (len(BLOCK), BLOCK)
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1), st.integers(0, 9), st.sampled_from([b"", b"\n", b"WARC/1.0\r\n", b"9", b"\xff\0", b"\r\n\r\n"])
    ),
    max_size=4,
)


def damaged(data: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    for place, length, new in edits:
        at = int(place * len(data))
        data = data[:at] + new + data[at + length :]
    return data


@given(st.sampled_from([RECORD, ARC]), EDITS, st.integers(1, 90), st.integers(1, 60))
def test_damaged_archives_are_read_to_their_end(record: bytes, edits: list, chunk: int, bound: int) -> None:
    data = damaged(record * 4, edits)

    def records(size: int) -> list:
        chunks = (data[i : i + size] for i in range(0, len(data), size))
        return [
            (found.size, found.block, found.whole) if isinstance(found, Record) else found
            for found in read_archive(chunks, lambda fields: bound)
        ]

    found = records(chunk)
    assert found == records(len(data) or 1)
    sizes = [item[0] for item in found]
    assert all(size > 0 for size in sizes)
    if data == record * 4:
        assert sizes == [record.index(BLOCK) + len(BLOCK)] * 4


@given(
    st.binary(max_size=300) | st.builds(gzip.compress, st.binary(max_size=300), mtime=st.just(0)),
    EDITS,
    st.sampled_from(["gzip", "deflate", "br", "zstd", "gzip, br", "chunked", "x"]),
    st.booleans(),
)
def test_payloads_are_bounded_bytes_or_a_reason(body: bytes, edits: list, coding: str, clipped: bool) -> None:
    headers = {"content-encoding": coding, "transfer-encoding": "chunked" if "x" in coding else coding}
    found = decode_payload(Response(200, headers, 0), damaged(body, edits), 100, clipped)
    assert found in ("bad_coding", "html_bytes") if isinstance(found, str) else len(found) <= 100
    read_head(damaged(BLOCK, edits))


@given(
    st.binary(max_size=200), st.sampled_from(["", "utf-8", "gb2312", "utf-16", "iso-2022-jp", "big5", "\0", "no such"])
)
def test_any_bytes_have_a_text(data: bytes, label: str) -> None:
    found = decode_page(data, label)
    assert len(found.text.encode()) >= found.replaced
    assert 0 <= found.replaced <= found.text.count("\ufffd")
