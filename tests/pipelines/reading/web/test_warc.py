"""Synthetic web archives: records of each kind, damaged archives, and the metadata kept with the text."""

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.sources.source import Source
from pipelines.reading.web.page_reservations import FIELDS

PAGE = b"<html><body><p>The mill by the river stands still.</p></body></html>"
TEXT = "The mill by the river stands still."
# PAGE by brotli, which the standard library does not have
BROTLI = base64.b64decode("G0MAAI3Uchr3qINoiMFIeNzG5Z8X5B1JRZ9Zi8fdd9kLGu1W5gV21zV2wcVZHIkG5lM=")


def http(body: bytes = PAGE, content_type: str | None = "text/html", status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def warc(block: bytes, kind: str = "response", length: object = None, **fields: str) -> bytes:
    fields = {"Content_Type": "application/http; msgtype=response"} | fields
    lines = ["WARC/1.0", f"WARC-Type: {kind}", "WARC-Target-URI: http://mill.example/"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    lines.append(f"Content-Length: {len(block) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + block + b"\r\n\r\n"


GOOD = warc(http())


def chunked(body: bytes) -> bytes:
    return b"5;x=y\r\n" + body[:5] + b"\r\n" + f"{len(body) - 5:X}".encode() + b"\r\n" + body[5:] + b"\r\n0\r\n\r\n"


def raw_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


def test_what_is_kept_beside_the_text(read: Callable) -> None:
    record = warc(
        http(content_type="Text/HTML; charset=latin1"),
        WARC_Date="2024-05-18T01:58:10Z",
        WARC_Record_ID="<urn:uuid:7>",
        WARC_Truncated="length",
    )
    found = read("a.warc", record, format="warc")
    assert (found.texts, found.urls) == ([TEXT], ["http://mill.example/"])
    assert json.loads(found.metas[0]) == {
        "date": "2024-05-18T01:58:10Z",
        "record_id": "urn:uuid:7",
        "content_type": "Text/HTML; charset=latin1",
        "truncated": "length",
        "status": 200,
        "charset": "utf-8",
        "replaced": 0,
    }
    quoted = GOOD.replace(b"http://mill.example/", b"<http://mill.example/>")
    assert read("a.warc", quoted, format="warc").urls == ["http://mill.example/"]


def test_reservations_of_rights_are_kept_those_of_http_first(read: Callable) -> None:
    head = b'<meta name="Robots" content="NOAI,\n noimageai"><meta content="1" name="tdm-reservation"><meta name=a content=x>'
    policy = b'<meta name="tdm-policy" content="https://mill.example/policy.json"><meta name="robots">'
    block = http(PAGE.replace(b"<body>", head + policy + b"<body>"), TDM_Reservation="0")
    block = block.replace(b"\r\n", b"\r\nx-robots-tag: ccbot: noindex\r\nX-Robots-Tag: noarchive\r\n", 1)
    meta = json.loads(read("a.warc", warc(block), format="warc").metas[0])
    assert {name: meta.get(name) for name in FIELDS} == {
        "robots": ["NOAI, noimageai"],
        "x_robots_tag": ["ccbot: noindex", "noarchive"],
        "tdm_reservation": ["0", "1"],
        "tdm_policy": ["https://mill.example/policy.json"],
    }
    page = b"<html><meta name=robots content='" + b"x" * 9000 + b"'>" + b"<meta name=robots content=a>" * 900 + PAGE
    meta = json.loads(read("a.html", page, format="html").metas[0])
    assert [len(each) for each in meta["robots"]] == [500] + [1] * 19
    assert "tdm_policy" not in meta


@pytest.mark.long
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (warc(b"software: x\r\n", "warcinfo", Content_Type="application/warc-fields"), "warcinfo"),
        (warc(b"GET / HTTP/1.1\r\n\r\n", "request"), "request"),
        (warc(b'{"a": 1}', "metadata", Content_Type="application/json"), "metadata"),
        (warc(http(b""), "revisit"), "revisit"),
        (warc(b"mill.example. 5 IN A 1.2.3.4", "response", Content_Type="text/dns"), "dns"),
        (warc(b"rest", "continuation"), "segmented"),
        (warc(http(), WARC_Segment_Number="1"), "segmented"),
        (warc(http(), "screenshot"), "unknown_record_type"),
        (warc(http(status="404 Not Found")), "http_status"),
        (warc(http(status="206 Partial Content")), "http_status"),
        (warc(b"no status line"), "bad_http"),
        (warc(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + PAGE), "bad_http"),
        (warc(http(content_type="image/png")), "not_html"),
        (warc(http(b"plain words", content_type=None)), "not_html"),
        (warc(PAGE, "resource", Content_Type="text/plain"), "not_html"),
        (warc(b"%PDF", "conversion", Content_Type="application/pdf"), "not_html"),
        (warc(http(b"")), "empty"),
        (warc(http(b"<p>" + b"x" * 5000)), "html_bytes"),
        (warc(http(b"<p>" + b"x" * 200_000)), "html_bytes"),
        (warc(http(gzip.compress(b"<p>" + b"x" * 5000, mtime=0), Content_Encoding="gzip")), "html_bytes"),
        (warc(http(zlib.compress(b"<p>" + b"x" * 5000), Content_Encoding="deflate")), "html_bytes"),
        (warc(http(gzip.compress(PAGE, mtime=0)[:-9], Content_Encoding="gzip")), "bad_coding"),
        (warc(http(b"\x01\x02", Content_Encoding="br")), "bad_coding"),
        (warc(http(b"\x01\x02", Content_Encoding="deflate")), "bad_coding"),
        (warc(http(b"500\r\nshort\r\n0\r\n\r\n", Transfer_Encoding="chunked")), "bad_coding"),
        (warc(http(b"5\r\n<p>\r\nno size\r\n", Transfer_Encoding="chunked")), "bad_coding"),
        (warc(http(b"<div>" * 60 + b"deep")), "html_depth"),
        (warc(http(b"<br>" * 200 + b"wide")), "html_nodes"),
        (warc(http(b"<script>let x</script>")), "no_text_extracted"),
        (warc(b"x" * 1001, "conversion", Content_Type="text/plain"), "oversized"),
        (warc(b"\0", "conversion", Content_Type="text/plain"), "empty"),
        (warc(http(), length="12x"), "malformed_record"),
        (warc(http(), length=-1), "malformed_record"),
        (warc(http(), length=20), "malformed_record"),
        (warc(http(), length=len(http()) + 30), "malformed_record"),
        (GOOD.replace(b"Content-Length", b"X-Length"), "malformed_record"),
        (b"WARC/1.0\r\nX: " + b"y" * 300_000 + b"\r\n\r\n", "malformed_record"),
        (b"words between\r\nrecords\r\n\r\n", "malformed_record"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_record_of_each_reason_between_two_good_ones(read: Callable, record: bytes, reason: str) -> None:
    limits = {"max_document_bytes": 1000, "max_html_bytes": 4000, "max_html_depth": 50, "max_html_nodes": 150}
    found = read("a.warc", GOOD + record + GOOD, format="warc", **limits)
    assert found.texts == [TEXT, TEXT]
    assert [bad[1:3] for bad in found.bad] == [(1, reason)]


@pytest.mark.long
@pytest.mark.parametrize(
    "response",
    [
        http(chunked(PAGE), Transfer_Encoding="chunked"),
        http(PAGE, Transfer_Encoding="chunked"),
        http(chunked(PAGE)[:-7], Transfer_Encoding="chunked"),  # without the last chunk
        http(gzip.compress(PAGE, mtime=0), Content_Encoding="gzip"),
        http(PAGE, Content_Encoding="gzip"),
        http(zlib.compress(PAGE), Content_Encoding="deflate"),
        http(raw_deflate(PAGE), Content_Encoding="deflate"),
        http(PAGE, Content_Encoding="br"),
        http(PAGE, Content_Encoding="identity, unheard-of"),
        http(chunked(gzip.compress(PAGE, mtime=0)), Transfer_Encoding="gzip, chunked", Content_Encoding="GZIP"),
        http(PAGE, content_type=None),
        http(PAGE, content_type="application/xhtml+xml;charset=utf-8"),
        http(PAGE).replace(b"\r\n", b"\n"),
        http(PAGE).replace(b"HTTP/1.1", b"HTTP/2"),
    ],
    ids=range(14),
)
def test_codings_are_undone_where_they_were_applied(read: Callable, response: bytes) -> None:
    found = read("a.warc", warc(response), format="warc")
    assert (found.texts, found.bad) == ([TEXT], [])


def test_what_a_crawler_cut_off_is_kept_as_far_as_it_goes(read: Callable) -> None:
    half = gzip.compress(PAGE + b"<p>lost" * 900, mtime=0)[:-20]
    for body, headers in ((chunked(PAGE)[:-20], "Transfer_Encoding"), (half, "Content_Encoding")):
        value = "chunked" if headers == "Transfer_Encoding" else "gzip"
        record = warc(http(body, **{headers: value}), WARC_Truncated="length")
        (text,) = read("a.warc", record, format="warc").texts
        assert text.startswith(TEXT[:20])


def test_conversions_are_text(read: Callable) -> None:
    fields = {"Content_Type": "text/plain", "WARC_Identified_Content_Language": "spa,eng"}
    found = read("a.wet", warc("\ufeffuna línea\n".encode() + b"\xff", "conversion", **fields), format="warc")
    assert found.texts == ["una línea\n\ufffd"]
    assert json.loads(found.metas[0]) == {"content_type": "text/plain", "languages": "spa,eng", "replaced": 1}


def test_long_conversions_are_split(read: Callable) -> None:
    text = "".join(f"line {i} é\n" for i in range(60_000))
    record = warc(text.encode(), "conversion", Content_Type="text/plain")
    found = read("a.wet", record + GOOD, format="warc", oversized="split", max_document_bytes=10_000)
    assert "".join(found.texts[:-1]) == text
    assert (found.texts[-1], found.bad) == (TEXT, [])


ARC = (
    b"filedesc://x.arc 0.0.0.0 20080430204825 text/plain 20\n1 1 InternetArchive\n\n"
    b"dns:mill.example 1.2.3.4 20080430204825 text/dns 4\nabcd\n"
    b"http://mill.example/a b 1.2.3.4 20080430204826 text/html %d\n%s\n"
    b"http://mill.example/2 1.2.3.4 20080430204826 text/html 200 checksum - 77 x.arc %d\n%s\n"
    b"ftp://mill.example/3 1.2.3.4 20080430204826 text/html %d\n%s\n"
) % (len(http()), http(), len(http()), http(), len(PAGE), PAGE)


def test_arc_of_both_versions(read: Callable) -> None:
    found = read("a.arc", ARC, format="warc")
    assert found.texts == [TEXT] * 3
    assert found.urls == ["http://mill.example/a b", "http://mill.example/2", "ftp://mill.example/3"]
    assert [bad[1:3] for bad in found.bad] == [(0, "warcinfo"), (1, "dns")]
    assert json.loads(found.metas[0])["date"] == "2008-04-30T20:48:26Z"
    again = read("b.arc", ARC.replace(b"dns:mill", b"junk\njunk dns:mill"), format="warc")
    assert [bad[2] for bad in again.bad] == ["malformed_record"]  # up to the next header: that of the first page
    assert again.texts == found.texts


@pytest.mark.long
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_clipped_file_keeps_whole_records(read: Callable, compress: Callable) -> None:
    data = b"".join(compress(GOOD) for _ in range(5))
    name = "a.warc" if compress is bytes else "a.warc.gz"
    for missing in (30, 9):
        found = read(name, data[:-missing], format="warc")
        assert found.texts[:4] == [TEXT] * 4
        assert [bad[2] for bad in found.bad] == ["truncated"]
    inside_header = read("c.warc", GOOD + GOOD[:40], format="warc")
    assert ([bad[2] for bad in inside_header.bad], inside_header.texts) == (["malformed_record"], [TEXT])


@pytest.mark.long
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("kind", ["response", "conversion"])
def test_a_long_record_that_is_cut_off_is_one_record(read: Callable, compress: Callable, kind: str) -> None:
    fields = {"Content_Type": "text/plain"} if kind == "conversion" else {}
    long = warc(http(b"x" * 200_000), kind, length=10**18 - 1, **fields)
    limits = {"max_html_bytes": 1000, "max_document_bytes": 1000}
    data = compress(GOOD) + (long if compress is bytes else compress(long)[:-9])
    found = read("a.warc" if compress is bytes else "a.warc.gz", data, format="warc", **limits)
    assert (found.texts, [bad[1:3] for bad in found.bad]) == ([TEXT], [(1, "truncated")])
    assert all(bad[3] is None or bad[3] <= len(long) for bad in found.bad)  # bytes that are there, not those claimed


def test_what_is_no_web_archive_is_one_record(read: Callable) -> None:
    found = read("a.warc", b"just text\n" * 5000, format="warc")
    assert (found.texts, [bad[1:] for bad in found.bad]) == ([], [(0, "malformed_record", 50_000)])
    assert read("b.warc", b"", format="warc")[:4] == ([], [], [], [])


def test_headers_that_claim_everything_take_no_quadratic_time(read: Callable) -> None:
    header = b"WARC/1.0\r\nContent-Length: 90000\r\n\r\n"
    found = read("a.warc", header * 20_000 + b"end", format="warc", max_html_bytes=1 << 20)
    assert found.texts == []
    assert {bad[2] for bad in found.bad} <= {"malformed_record", "truncated"}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("blank", [b"", b"\n"])
def test_records_within_a_long_block_take_no_quadratic_time(read: Callable, blank: bytes) -> None:
    inner = (b"WARC/1.0\r\nContent-Length: 3\r\n\r\nxxxx\n" + blank) * 5_000 + b"y" * (1 << 20)
    found = read("a.warc", b"WARC/1.0\r\nContent-Length: %d\r\n\r\n%szz" % (len(inner), inner), format="warc")
    assert [bad[2] for bad in found.bad] == ["malformed_record"]


@pytest.mark.timeout(120)
def test_a_line_of_many_dates_takes_no_quadratic_time(read: Callable) -> None:
    line = b"http://mill.example/" + b" a 12345678 b" * 4_500 + b"\n"
    found = read("a.arc", ARC + line * 20, format="warc")
    assert found.texts == [TEXT] * 2  # the third, before them, does not end where it says


def test_no_pile_of_codings_is_undone(read: Callable) -> None:
    found = read("a.warc", warc(http(Content_Encoding=", ".join(["gzip"] * 5))) + GOOD, format="warc")
    assert (found.texts, [bad[1:3] for bad in found.bad]) == ([TEXT], [(0, "bad_coding")])


def test_html_files_are_pages(read: Callable) -> None:
    found = read("a.html", "<meta charset=iso-8859-1><p>Le café est ouvert.".encode("latin-1"), format="html")
    assert found.texts == ["Le café est ouvert."]
    assert json.loads(found.metas[0]) == {"charset": "cp1252", "replaced": 0}
    assert read("b.html", b"", format="html").bad == [("b.html", 0, "empty", 0)]
    assert read("c.html", PAGE * 10, format="html", max_html_bytes=100).bad[0][2:] == ("html_bytes", 680)
    assert read("d.html.gz", gzip.compress(PAGE)[:-9], format="html").bad[0][2] == "truncated"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"format": "warc", "encoding": "latin-1"}, "encoding"),
        ({"format": "jsonl", "extract": "trafilatura"}, "extract"),
        ({"format": "warc", "max_html_bytes": 0}, "max_html_bytes"),
        ({"format": "warc", "max_html_depth": 0}, "max_html_depth"),
    ],
)
def test_knobs_that_cannot_be(fields: dict, field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: got"):
        Source(name="s", root="x", **fields).check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["response", "conversion"])
def test_a_record_of_a_gigabyte_is_passed_over_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    import resource

    size = 1 << 30
    path = tmp_path / "big.warc"
    head = http(b"") if kind == "response" else b""
    whole = warc(
        head, kind, size + len(head), Content_Type="text/plain" if kind == "conversion" else "application/http"
    )
    with path.open("wb") as file:
        file.write(whole[:-4])
        file.truncate(len(whole) - 4 + size)
        file.seek(0, 2)
        file.write(b"\r\n\r\n" + GOOD)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source = Source(name="s", root=str(path), format="warc", max_document_bytes=8 << 20)
    (part,) = read_documents(source, list_files(source), 1 << 20)
    assert part.documents["text"].to_pylist() == [TEXT]
    assert part.quarantine["reason"].to_pylist() == ["html_bytes" if kind == "response" else "oversized"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


def test_reading_is_lazy(tmp_path: Path) -> None:
    from pipelines.reading.web.web_archives import read_archive

    def stream() -> Iterator[bytes]:
        yield GOOD
        yield GOOD
        raise AssertionError("read ahead")

    records = read_archive(stream(), lambda fields: 1 << 20)
    assert next(records).size == len(GOOD) - 4
