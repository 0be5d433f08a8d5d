"""Sixteen files from the repositories of crawlers and tools: every record becomes a document or is set aside
with a reason.
"""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from pipelines.reading.documents import read_documents
from pipelines.reading.entries.decompress import DecodeBudget, decompress
from pipelines.reading.entries.listing import list_files
from pipelines.reading.entries.reasons import REASONS, BrokenInput
from pipelines.reading.sources.source import Source
from pipelines.reading.web.web_archives import Record, read_archive

OPERA = "webarchive-discovery__BL-20140325121225068-00000-32090~opera~8443.warc.gz"

# documents, then records set aside by reason; the sum is the number of records in the file
SAMPLES = {
    "aut__example.arc.gz": (93, {"warcinfo": 1, "dns": 38, "not_html": 120, "http_status": 47, "no_text_extracted": 1}),
    "aut__example.docs.warc.gz": (0, {"warcinfo": 3, "not_html": 9, "request": 9}),
    "aut__example.warc.gz": (
        93,
        {"warcinfo": 1, "dns": 38, "not_html": 120, "request": 261, "metadata": 261, "http_status": 47}
        | {"no_text_extracted": 1},
    ),
    "chatnoir-resiliparse__clipped.warc.gz": (0, {"truncated": 1}),
    "chatnoir-resiliparse__clueweb-quirk.warc.gz": (29, {"warcinfo": 1}),
    "chatnoir-resiliparse__warcfile.warc.gz": (16, {"warcinfo": 1, "request": 17, "metadata": 16}),
    "dolma__sample-0000.warc.gz": (22, {"warcinfo": 1, "request": 22, "metadata": 1, "not_html": 2}),
    "dolma__sample-0001.warc.gz": (15, {"warcinfo": 1, "request": 15, "metadata": 1, "not_html": 2}),
    "ia-web-commons__IAH-urls-wget.warc": (2, {"warcinfo": 1, "request": 16, "http_status": 9, "not_html": 8}),
    "pywb__iana.warc.gz": (16, {"warcinfo": 1, "request": 171, "not_html": 28, "revisit": 123, "http_status": 4}),
    "warcio__example-iana.org-chunked.warc": (1, {"warcinfo": 1, "request": 1}),
    "warcio__example.warc.gz": (1, {"warcinfo": 2, "request": 2, "revisit": 1}),
    OPERA: (
        30,
        {"warcinfo": 1, "dns": 3, "not_html": 25, "request": 62, "metadata": 62, "no_text_extracted": 2}
        | {"http_status": 5},
    ),
    "whirlwind-python__whirlwind.warc.gz": (1, {"warcinfo": 1, "request": 1, "metadata": 1}),
    "whirlwind-python__whirlwind.warc.wat.gz": (0, {"warcinfo": 1, "metadata": 1}),
    "whirlwind-python__whirlwind.warc.wet.gz": (1, {"warcinfo": 1}),
}


@pytest.fixture(scope="module")
def samples(shared_data: Path) -> Path:
    return shared_data / "raw_web" / "warc_samples"


def read_all(path: Path, **fields: object) -> tuple[list[dict], list[dict]]:
    source = Source(name="s", root=str(path), format="warc", **fields)
    parts = list(read_documents(source, list_files(source), 1 << 27))
    return [row for part in parts for row in part.documents.to_pylist()], [
        row for part in parts for row in part.quarantine.to_pylist()
    ]


def plain(path: Path) -> bytes:
    """Return the contents of a file, as far as the standard library can decompress it."""
    data = path.read_bytes()
    if path.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except EOFError:
        return zlib.decompressobj(31).decompress(data)


def test_the_table_names_every_sample(samples: Path) -> None:
    assert sorted(path.name for path in samples.iterdir()) == sorted(SAMPLES)


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLES)
def test_every_record_is_a_document_or_has_a_reason(samples: Path, name: str) -> None:
    documents, aside = read_all(samples / name)
    expected, reasons = SAMPLES[name]
    assert (len(documents), Counter(row["reason"] for row in aside)) == (expected, reasons)
    assert set(reasons) <= set(REASONS)
    numbers = [int.from_bytes(row["id"][8:]) for row in documents] + [row["record"] for row in aside]
    assert sorted(numbers) == list(range(expected + sum(reasons.values())))
    headers = rb"(?m)^WARC/\d+\.\d+\r?$" if ".arc" not in name else rb"(?m)^[a-z]+:\S+ [\d.]+ \d{14} \S+ \d+$"
    assert len(numbers) == len(re.findall(headers, plain(samples / name)))
    for row in documents:
        meta = json.loads(row["meta"])
        assert row["url"].startswith(("http://", "https://"))
        assert row["text"].strip()
        assert re.fullmatch(r"\d{4}-\d\d-\d+T\d\d:\d\d:\d\d(Z|-0700)", meta["date"])
        assert ".arc" in name or meta["record_id"].startswith("urn:uuid:")


@pytest.mark.parametrize("name", [name for name in SAMPLES if ".arc" not in name])
def test_records_are_those_that_fastwarc_finds(samples: Path, name: str) -> None:
    from fastwarc.warc import ArchiveIterator

    data = plain(samples / name)
    theirs = [
        (record.headers.get("WARC-Record-ID"), record.content_length, record.reader.read())
        for record in ArchiveIterator(BytesIO(data), parse_http=False)
    ]
    ours = [record for record in read_archive(iter([data]), lambda fields: 1 << 30) if isinstance(record, Record)]
    if "clipped" in name:  # FastWARC hands out the half record as if it were whole
        assert (len(ours), len(theirs)) == (0, 1)
        assert theirs[0][1] > len(theirs[0][2])
        return
    assert [(record.fields.get("warc-record-id"), len(record.block), record.block) for record in ours] == theirs


@pytest.mark.long
def test_an_arc_and_a_warc_of_one_crawl_give_the_same_texts(samples: Path) -> None:
    warc, _ = read_all(samples / "aut__example.warc.gz")
    arc, _ = read_all(samples / "aut__example.arc.gz")
    assert {(row["url"], row["text"]) for row in arc} == {(row["url"], row["text"]) for row in warc}


@pytest.mark.long
def test_codings_and_charsets_of_the_samples(samples: Path) -> None:
    charsets: Counter = Counter()
    for name in SAMPLES:
        for row in read_all(samples / name)[0]:
            assert "�" not in row["text"] or json.loads(row["meta"])["replaced"]
            charsets[json.loads(row["meta"]).get("charset")] += 1
    assert charsets["euc_jp"] == 29
    assert charsets["cp1251"] == 1
    assert charsets["gb18030"] == 6


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


@pytest.mark.parametrize("name", [name for name in SAMPLES if "example" in name or "wget" in name])
def test_the_size_of_chunks_changes_nothing(samples: Path, name: str) -> None:
    def records(size: int) -> list:
        try:
            stream = decompress(name, chunks((samples / name).read_bytes(), size), DecodeBudget(1 << 30))[1]
            return [
                (record.size, record.block) if isinstance(record, Record) else record
                for record in read_archive(stream, lambda fields: 1 << 20)
            ]
        except BrokenInput as broken:
            return [broken.reason]

    assert records(1 << 18) == records(4097)
