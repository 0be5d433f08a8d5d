import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import pipelines.reading
from gristmill.errors import SourceError
from gristmill.storage.store import digest
from pipelines.contracts.document import DOCUMENT, document_id, file_key
from pipelines.reading import documents as read
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.entries.reasons import REASONS
from pipelines.reading.part_writer import ReadPart
from pipelines.reading.sources.source import Source, check_format


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Three JSONL files of 100 records, one of them compressed, with every tenth record broken; and one file
    without records.
    """
    root = tmp_path / "web"
    root.mkdir()
    for number in range(3):
        lines = [
            "broken"
            if i % 10 == 3
            else json.dumps({"text": f"file {number} record {i} é\r\n\0", "url": f"http://x/{i}", "n": i})
            for i in range(100)
        ]
        data = "\n".join(lines).encode()
        path = root / f"{number}.jsonl"
        path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(data)) if number == 1 else path.write_bytes(data)
    (root / "none.jsonl").write_bytes(b"\n\n")
    return Source(name="web", root=str(root), format="jsonl")


def parts_of(source: Source, part_bytes: int = 1 << 20) -> list[ReadPart]:
    return list(read_documents(source, list_files(source), part_bytes))


def test_documents_have_the_schema_and_their_ids(source: Source) -> None:
    [part] = parts_of(source)
    assert part.documents.schema.equals(DOCUMENT)
    assert all(column.num_chunks == 1 for column in part.documents.columns)
    row = part.documents.slice(95, 1).to_pylist()[0]
    assert row == {
        "id": document_id(file_key("web", "1.jsonl.gz"), 5 + 1),
        "text": "file 1 record 6 é\n",
        "source": "web",
        "url": "http://x/6",
        "meta": '{"n":6}',
    }
    assert part.quarantine.slice(0, 2).to_pylist() == [
        {"path": "0.jsonl", "record": 3, "reason": "not_json", "bytes": 6},
        {"path": "0.jsonl", "record": 13, "reason": "not_json", "bytes": 6},
    ]
    assert part.files.to_pylist()[1] == {
        "path": "1.jsonl.gz",
        "key": file_key("web", "1.jsonl.gz"),
        "first_record": 0,
        "records": 100,
        "first_row": 90,
        "rows": 90,
        "quarantined": 10,
        "decoded_bytes": len(gzip.decompress(Path(source.root, "1.jsonl.gz").read_bytes())) - 99,
        "control_characters": 90,
    }
    assert part.files.to_pylist()[3]["records"] == 0


@pytest.mark.parametrize("number", [1, 100])  # records are stored one by one and many at once
def test_white_space_alone_is_no_document(tmp_path: Path, number: int) -> None:
    texts = ["word", "   ", "\u3000\n", "\u200b"] * number
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    [part] = parts_of(Source(name="web", root=str(tmp_path), format="jsonl"))
    assert part.documents["text"].to_pylist() == ["word"] * number
    assert part.quarantine["reason"].to_pylist() == ["empty"] * 3 * number


@pytest.mark.parametrize("part_bytes", [1, 1000, 5000, 1 << 20])
def test_every_record_is_a_document_or_quarantined_for_any_parts(source: Source, part_bytes: int) -> None:
    parts = parts_of(source, part_bytes)
    whole = parts_of(source)[0]
    assert pa.concat_tables(part.documents for part in parts).equals(whole.documents)
    assert pa.concat_tables(part.quarantine for part in parts).equals(whole.quarantine)
    for part in parts:
        files = part.files.to_pylist()
        assert sum(row["rows"] for row in files) == part.documents.num_rows
        assert sum(row["quarantined"] for row in files) == part.quarantine.num_rows
        assert all(row["records"] == row["rows"] + row["quarantined"] for row in files)
        assert part.documents["text"].nbytes <= max(part_bytes, 100)
    rows = [row for part in parts for row in part.files.to_pylist()]
    for path in {row["path"] for row in rows}:
        shares = [row for row in rows if row["path"] == path]
        assert [row["first_record"] for row in shares] == [
            sum(r["records"] for r in shares[:i]) for i in range(len(shares))
        ]


def test_an_id_is_found_through_the_file_rows(source: Source) -> None:
    """`first_row` and `rows` bound the search, and ids are sorted within them, so the part need not be scanned."""
    wanted = document_id(file_key("web", "2.jsonl"), 57)
    hits = []
    for part in parts_of(source, 5000):
        for row in part.files.to_pylist():
            if row["key"] == file_key("web", "2.jsonl") and 0 <= 57 - row["first_record"] < row["records"]:
                ids = part.documents["id"].slice(row["first_row"], row["rows"]).to_pylist()
                assert ids == sorted(ids)
                hits.append(part.documents["text"][row["first_row"] + ids.index(wanted)].as_py())
    assert hits == ["file 2 record 57 é\n"]


def test_moving_the_files_changes_nothing(source: Source, tmp_path: Path) -> None:
    before = parts_of(source)
    Path(source.root).rename(tmp_path / "elsewhere")
    after = parts_of(replace(source, root=str(tmp_path / "elsewhere")))
    assert after == before


def test_no_files_give_one_empty_part(source: Source) -> None:
    [part] = read_documents(source, [], 1000)
    assert (part.documents.num_rows, part.quarantine.num_rows, part.files.num_rows) == (0, 0, 0)
    assert part.documents.schema.equals(DOCUMENT)


def test_a_file_that_is_gone_is_an_error_that_names_it(source: Source) -> None:
    files = list_files(source)
    Path(files[0].location).unlink()
    with pytest.raises(SourceError, match=r"0\.jsonl: cannot be read \(No such file or directory\)"):
        list(read_documents(source, files, 1000))


def test_output_matches_the_recorded_version(source: Source) -> None:
    """If this fails and the change is intended, increment VERSION of reading/documents.py and record the new digest."""
    Path(source.root, "odd.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "e\\u0301 \\u00a0\\u0085\\u2028", "url": 3}\r\n[]\n{"text": "\\ud800"}\n{"text": ""}\n'
        b'{"text": "' + b"x" * 500 + b'", "a": 1e2}\n{"text": "a", "n": 123456789012345678901}\n'
    )
    found = [
        [
            table.select([n for n in table.schema.names if n != "id"]).to_pylist()
            for table in (p.documents, p.quarantine, p.files)
        ]
        + [[i.hex() for i in p.documents["id"].to_pylist()]]
        for p in parts_of(replace(source, max_document_bytes=200, oversized="split"), 5000)
    ]
    assert (read.VERSION, digest(found)) == (10, "2f3b53f7a4e177950a41f04ca7c3617f")


def test_depends_on_the_version_of_unicode() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", read.depends()["unicode"])


def test_every_reason_is_explained() -> None:
    sources = [path.read_text() for path in Path(pipelines.reading.__path__[0]).rglob("*.py")]
    used = set(re.findall(r'(?:Bad|BrokenInput|broken|_set_aside)\("(\w+)"', "\n".join(sources)))
    assert used <= set(REASONS)
    assert len(used) >= 15


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoding": "utf-16"}, "encoding: got 'utf-16', in which a line feed is not one byte"),
        ({"encoding": "no-such"}, "encoding: got 'no-such', expected a text encoding"),
        ({"encoding": "base64"}, "encoding: got 'base64', expected a text encoding"),
        ({"format": "xml"}, "format: got 'xml', expected one of text, jsonl, parquet, message"),
    ],
)
def test_fields_that_cannot_work_together(source: Source, fields: dict[str, str], message: str) -> None:
    check_format(source)
    with pytest.raises(ValueError, match=re.escape(message)):
        check_format(replace(source, **fields))


MEASURE = """
import resource, sys
from pipelines.reading.sources.source import Source
from pipelines.reading.entries.listing import list_files
from pipelines.reading.documents import read_documents
import pyarrow.parquet
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
source = Source(name="s", root=sys.argv[1], format=sys.argv[2], oversized=sys.argv[3], max_document_bytes=4 << 20)
list(read_documents(source, [], 1))
before, rows, bad = peak(), 0, 0
for part in read_documents(source, list_files(source), 8 << 20):
    rows += part.documents.num_rows
    bad += part.quarantine.num_rows
print(peak() - before, rows, bad)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "oversized", "compressed"),
    [("text", "quarantine", True), ("text", "split", False), ("jsonl", "quarantine", True), ("jsonl", "split", True)],
)
def test_a_line_of_200_megabytes_is_never_held(tmp_path: Path, form: str, oversized: str, compressed: bool) -> None:
    path = tmp_path / ("a.gz" if compressed else "a")
    with gzip.open(path, "wb", 1) if compressed else open(path, "wb") as sink:
        sink.write(b'{"text": "')
        for i in range(200):
            sink.write(f"{i:06d} some té ".encode() * 58_824 if i % 2 else b"x" * 1_000_000)
        sink.write(b'"}\n{"text": "next"}\n' if form == "jsonl" else b"")
    environment = os.environ | {"PYTHONPATH": str(Path(read.__file__).parents[2])}
    command = [sys.executable, "-c", MEASURE, str(path), form, oversized]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    grown, rows, bad = map(int, result.stdout.split())
    assert grown < 100e6  # 8 MiB of part and a few times 4 MiB of document, against 200 MB
    if oversized == "split":
        assert (rows >= 46, bad) == (True, 0)
    else:
        assert (rows, bad) == (1 if form == "jsonl" else 0, 1)


@pytest.mark.long
@pytest.mark.parametrize(("name", "documents"), [("wiki_zh", 4992), ("forum_stackexchange", 5187), ("news_bbc", 2225)])
def test_real_text_is_read_whole(shared_data: Path, name: str, documents: int) -> None:
    path = shared_data / "prose" / f"{name}.jsonl.gz"
    source = Source(name="prose", root=str(path), format="jsonl", unicode_form="none")
    texts = [text for part in parts_of(source, 1 << 21) for text in part.documents["text"].to_pylist()]
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        expected = [json.loads(line)["text"].replace("\r\n", "\n").replace("\r", "\n") for line in lines]
    assert len(texts) == documents == len(expected)
    assert texts == [re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text) for text in expected]


def test_bytes_and_control_characters_are_counted_where_a_part_begins_anew(tmp_path):
    """A document that no longer fits into a part is counted in the next part."""
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("x\x01" * 300 + "\n")
    source = Source("s", str(tmp_path), "text", part_bytes=700)
    parts = list(read_documents(source, list_files(source), source.part_bytes))
    assert len(parts) == 6
    assert [part.files["decoded_bytes"].to_pylist() for part in parts] == [[601]] * 6
    assert [part.files["control_characters"].to_pylist() for part in parts] == [[300]] * 6


TWEET = "RT @bob: mail me@ex.org\x01 http://t.co/a1"


@pytest.mark.parametrize(("number", "part_bytes"), [(1, 1 << 20), (40, 1 << 20), (40, 1)])
@pytest.mark.parametrize("normalisation", ["none", "tweets"])
def test_user_names_and_urls_of_tweets_are_replaced_and_counted(tmp_path, number, part_bytes, normalisation):
    lines = [json.dumps({"text": TWEET, "url": "http://x/@bob"}) for _ in range(number)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    parts = parts_of(Source("tweets", str(tmp_path), "jsonl", normalisation=normalisation), part_bytes)
    documents = pa.concat_tables(part.documents for part in parts)
    tweets = normalisation == "tweets"
    text = "RT @USER: mail me@ex.org HTTPURL" if tweets else TWEET.replace("\x01", "")
    assert documents["text"].to_pylist() == [text] * number
    assert documents["url"].to_pylist() == ["http://x/@bob"] * number
    totals = [sum(part.replaced.get(name, 0) for part in parts) for name in ("user_names", "urls")]
    assert totals == ([number, number] if tweets else [0, 0])


@pytest.mark.parametrize(("normalisation", "reasons"), [("none", []), ("tweets", ["oversized"])])
@pytest.mark.parametrize("text_is", ["text", "html"])
def test_the_longest_document_is_measured_with_user_names_replaced(tmp_path, text_is, normalisation, reasons):
    """The record itself is within the limit; with its user names replaced, the text exceeds it."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "@a " * 20}))
    source = Source("t", str(tmp_path), "jsonl", text_is=text_is, max_document_bytes=90, normalisation=normalisation)
    [part] = parts_of(source)
    assert part.documents.num_rows == 1 - len(reasons)
    assert part.quarantine["reason"].to_pylist() == reasons


@pytest.mark.parametrize("text_is", ["text", "html", "html_page"])
def test_large_integers_beside_a_text_keep_their_digits(tmp_path, text_is):
    (tmp_path / "a.jsonl").write_text('{"text":"words of a text","id":123456789012345678901234567890}')
    [part] = parts_of(Source("t", str(tmp_path), "jsonl", text_is=text_is))
    assert part.documents["meta"].to_pylist() == ['{"id":123456789012345678901234567890}']
