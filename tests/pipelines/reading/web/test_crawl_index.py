"""Lists of files, read from the responses of a crawl's index: pywb, the columnar index, and broken responses."""

import gzip
import json

import pytest

from gristmill.errors import SourceError
from pipelines.__main__ import main
from pipelines.reading.web.crawl_index import crawl_files

SEGMENT = "crawl-data/CC-MAIN-2024-10/segments/1.1"
SERVER = [
    {
        "urlkey": "org,example)/",
        "filename": f"{SEGMENT}/warc/b.warc.gz",
        "offset": "1",
        "length": "100",
        "status": "200",
    },
    {"urlkey": "org,example)/a", "filename": f"{SEGMENT}/warc/a.warc.gz", "offset": "2", "length": "20"},
    {"urlkey": "org,example)/b", "filename": f"{SEGMENT}/warc/b.warc.gz", "offset": "3", "length": "3"},
]


def written(path, lines):
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_answers_of_every_kind(tmp_path):
    server = written(tmp_path / "server.jsonl", [*SERVER, ""])
    cdxj = written(tmp_path / "a.cdxj", [f"org,example)/ 2024 {json.dumps(each)}" for each in SERVER])
    columns = written(
        tmp_path / "c.jsonl",
        [{"warc_filename": each["filename"], "warc_record_length": int(each["length"])} for each in SERVER],
    )
    packed = tmp_path / "server.jsonl.gz"
    packed.write_bytes(gzip.compress(server.read_bytes().rstrip()))
    for path in (server, cdxj, columns, packed):
        found = crawl_files([path])
        assert found.files == (f"{SEGMENT}/warc/a.warc.gz", f"{SEGMENT}/warc/b.warc.gz")
        assert found.captures == 3
    both = crawl_files([server, cdxj], "wet")
    assert both.files == (f"{SEGMENT}/wet/a.warc.wet.gz", f"{SEGMENT}/wet/b.warc.wet.gz")
    assert both.captures == 6


def test_the_key_of_a_capture_may_hold_a_brace(tmp_path):
    lines = [f"org,example)/?s={{term}} 2024 {json.dumps(SERVER[0])}", " " + json.dumps(SERVER[1])]
    assert len(crawl_files([written(tmp_path / "a.cdxj", lines)]).files) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("No Captures found", "line 2: expected a JSON object with filename or warc_filename"),
        ({"message": "No Captures found"}, "line 2: expected a JSON object with filename"),
        ("[]", "line 2: expected a JSON object"),
        ({"filename": 7}, "line 2: the name of its file is no path"),
        ({"filename": "/etc/passwd"}, "line 2: the name of its file is no path"),
        ({"filename": "a/../../b.warc.gz"}, "line 2: the name of its file is no path"),
        ({"filename": "a.warc.gz?secret=1"}, "line 2: the name of its file is no path"),
        ({"filename": "a\nb"}, "line 2: the name of its file is no path"),
        ("x" * (2 << 20), "a line has more than 1,048,576 bytes"),
    ],
)
def test_lines_that_are_no_answers(tmp_path, line, message):
    with pytest.raises(SourceError, match=message) as refused:
        crawl_files([written(tmp_path / "a.jsonl", [SERVER[0], line])])
    assert "secret" not in str(refused.value)


def test_lines_are_counted_with_the_blank_ones(tmp_path):
    with pytest.raises(SourceError, match="line 4: expected a JSON object"):
        crawl_files([written(tmp_path / "a.jsonl", ["", SERVER[0], " ", "[]"])])


def test_captures_without_a_sibling(tmp_path):
    path = written(tmp_path / "a.jsonl", [{"filename": "crawl-data/CC-NEWS/2024/a.warc.gz"}])
    with pytest.raises(SourceError, match=r"is no \.\.\./warc/NAME\.warc\.gz, so there is no wet file for it"):
        crawl_files([path], "wet")


def test_the_command(tmp_path, capsys):
    path = written(tmp_path / "a.jsonl", SERVER)
    assert main(["crawl-files", str(path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == list(crawl_files([path]).files)
    assert "3 captures in 2 files" in shown.err
    assert main(["crawl-files", str(path), "--kind", "wet", "--output", str(tmp_path / "wet.paths")]) == 0
    assert (tmp_path / "wet.paths").read_text().splitlines() == list(crawl_files([path], "wet").files)
    capsys.readouterr()
