"""Pages that crash the parser, hang it or exhaust its memory are reported by name, and no other page is lost."""

import json
import pickle
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gristmill.errors import PoisonError, SourceError
from pipelines.reading.documents import read_documents, read_records
from pipelines.reading.entries.archives import open_entries
from pipelines.reading.entries.listing import list_files
from pipelines.reading.entries.records import Bad, RawRecord, TextRecord
from pipelines.reading.sources.source import Source
from pipelines.reading.web import page_process
from pipelines.reading.web.charset import decode_page
from pipelines.reading.web.page_process import Extractor

TEXT = "The mill by the river stands still, number {}."


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, {{root!r}}]; from {{module}} import main; main()"
    )
    monkeypatch.setattr(page_process, "_START", code)
    monkeypatch.setattr(Extractor, "module", "failing_worker")


def web(tmp_path: Path, *pages: bytes, **fields: object) -> Source:
    """Return a source of one WARC file with these pages, each preceded by a request."""
    out = b""
    for page in pages:
        block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + page
        for kind, content in ((b"request", b"GET /"), (b"response", block)):
            out += b"WARC/1.0\r\nWARC-Type: %s\r\nContent-Type: application/http\r\n" % kind
            out += b"Content-Length: %d\r\n\r\n%s\r\n\r\n" % (len(content), content)
    (tmp_path / "pages.warc").write_bytes(out)
    return Source(name="web", root=str(tmp_path / "pages.warc"), format="warc", **fields)


def page(number: int, extra: str = "") -> bytes:
    return f"<html><body><p>{TEXT.format(number)}</p>{extra}</body></html>".encode()


def texts(source: Source, poison: tuple[str, ...] = ()) -> tuple[list[str], list[tuple]]:
    parts = list(read_documents(source, list_files(source), 1 << 20, poison))
    aside = [tuple(row.values()) for part in parts for row in part.quarantine.to_pylist()]
    return [text for part in parts for text in part.documents["text"].to_pylist()], aside


@pytest.mark.long
@pytest.mark.parametrize(
    ("marks", "fields", "reason"),
    [
        ("CRASH NOW", {}, "was ended by SIGABRT"),
        ("SPIN", {"page_cpu_seconds": 1}, "took more than page_cpu_seconds: 1 of CPU time"),
        ("GROW", {"page_memory_bytes": 256 << 20}, "needed more than page_memory_bytes: 268435456"),
        ("RAISE", {}, "raised RecursionError"),
    ],
)
def test_a_page_that_breaks_its_parser_is_named_and_can_be_quarantined(
    tmp_path: Path, failing: None, marks: str, fields: dict, reason: str
) -> None:
    source = web(tmp_path, *(page(i, marks if i == 3 else "") for i in range(6)), **fields)
    with pytest.raises(PoisonError) as caught:
        texts(source)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.step, error.source, error.document) == ("read", "web", "pages.warc#7")
    assert reason in error.reason
    assert "web/pages.warc#7" in str(error)
    assert reason in str(error)
    assert "text of the page" not in str(error)
    found, aside = texts(source, ("pages.warc#7", "other.warc#3"))
    assert found == [TEXT.format(i) for i in range(6) if i != 3]
    assert [row[1:3] for row in aside if row[2] != "request"] == [(7, "poison")]


def test_what_was_done_before_the_failure_stays(failing: None) -> None:
    def records() -> Iterator[TextRecord | Bad | RawRecord]:
        for number in range(600):
            yield RawRecord(page(number, "CRASH NOW" if number == 450 else ""), "", 9, None, {})

    done: list[str] = []
    with Extractor(Source(name="web", root="x", format="warc")) as extractor:
        found = extractor.extract("p", 0, records())
        with pytest.raises(PoisonError, match="p#450"):
            done.extend(record.text for record in found)
    assert done == [TEXT.format(number) for number in range(450)]


@pytest.mark.long
def test_a_page_is_not_blamed_for_what_it_survives_alone(tmp_path: Path, failing: None) -> None:
    once = f"CRASH ONCE|{tmp_path / 'crashed'}|"
    pages = [page(i, once if i in (20, 290) else "") for i in range(600)]
    found, _ = texts(web(tmp_path, *pages))
    assert (tmp_path / "crashed").exists()
    assert [text.splitlines()[0] for text in found] == [TEXT.format(i) for i in range(600)]


@pytest.mark.long
@pytest.mark.parametrize("label", ["\U0001f600" * 40, "\x01" * 40])
def test_labels_without_sense_do_not_fill_the_pipe(label: str) -> None:
    """Many such charset labels, escaped in JSON, would fill a pipe. Both processes could then block on
    writing while neither reads.
    """
    pages = (RawRecord(page(i, "<p>more</p>" * 50), label, 9, None, {}) for i in range(800))
    with Extractor(Source(name="web", root="x", format="warc")) as extractor:
        found = list(extractor.extract("p", 0, pages))
    assert [record.text.splitlines()[0] for record in found] == [TEXT.format(i) for i in range(800)]


def test_what_libraries_print_is_not_taken_for_an_answer(
    tmp_path: Path, failing: None, capfd: pytest.CaptureFixture
) -> None:
    assert texts(web(tmp_path, page(0, "PRINT"), page(1)))[0] == [TEXT.format(0) + "\n\nPRINT", TEXT.format(1)]
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_real_pages_that_hang_a_parser(tmp_path: Path) -> None:
    """The parser compares each of tens of thousands of attributes with all earlier ones. The extractor's time
    grows with the square of the depth.
    """
    attributes = " ".join(f"a{i}=1" for i in range(60_000))
    source = web(tmp_path, page(0), f"<p {attributes}>x".encode(), page(2), page_cpu_seconds=1)
    with pytest.raises(PoisonError, match=r"web/pages\.warc#3.*page_cpu_seconds: 1 of CPU"):
        texts(source)
    deep = b"<div>" * 100_000 + b"x"  # the extractor's time grows with the square of the depth
    found, aside = texts(web(tmp_path, page(0), deep, page(2), page_cpu_seconds=1))
    assert found == [TEXT.format(0), TEXT.format(2)]
    assert [row[1:3] for row in aside if row[2] != "request"] == [(3, "html_depth")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("html", "fields", "reason"),
    [
        (b"<div>" * 10 + b"x", {"max_html_depth": 11}, "html_depth"),
        (b"<div>" * 9 + b"x", {"max_html_depth": 11}, None),
        (b"<br>" * 7 + b"x", {"max_html_nodes": 9}, "html_nodes"),
        (b"<br>" * 6 + b"x", {"max_html_nodes": 9}, None),
    ],
)
def test_limits_count_elements_of_the_tree(tmp_path: Path, html: bytes, fields: dict, reason: str | None) -> None:
    """html, head and body are counted as elements; html is the first level."""
    found, aside = texts(web(tmp_path, html, **fields))
    assert [row[2] for row in aside if row[2] != "request"] == ([reason] if reason else [])
    assert len(found) == (reason is None)


def test_a_text_over_the_limit_is_never_split(tmp_path: Path) -> None:
    source = web(tmp_path, page(0), b"<p>" + b"word " * 400, max_document_bytes=1000, oversized="split")
    found, aside = texts(source)
    assert found == [TEXT.format(0)]
    assert [row[1:3] for row in aside if row[2] != "request"] == [(3, "oversized")]


@pytest.mark.slow
@pytest.mark.parametrize("extract", ["resiliparse", "trafilatura", "best"])
def test_results_depend_on_nothing_but_the_page(tmp_path: Path, shared_data: Path, extract: str) -> None:
    from resiliparse.parse.html import HTMLTree

    from pipelines.reading.web.extraction import EXTRACTORS

    path = shared_data / "raw_web" / "readability_pages.warc.gz"
    source = Source(name="web", root=str(path), format="warc", extract=extract)
    records = [r for e in open_entries(list_files(source)[0], source) for r in read_records(e, source)]
    pages = [record for record in records if isinstance(record, RawRecord)][:40]
    with Extractor(source) as extractor:
        there = [record.text for record in extractor.extract("p", 0, iter(pages + pages))]
    with Extractor(source) as extractor:
        back = [record.text for record in extractor.extract("p", 0, iter(pages[::-1]))]
    assert there == back[::-1] * 2
    htmls = [decode_page(bytes(page.content), page.charset).text for page in pages]
    assert there[:40] == [EXTRACTORS[extract](html, HTMLTree.parse(html), "text", False) for html in htmls]


@pytest.mark.long
def test_no_child_is_left_behind(tmp_path: Path, failing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    real = subprocess.Popen

    def counted(*arguments: object, **fields: object) -> subprocess.Popen:
        started.append(real(*arguments, **fields))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", counted)
    before = len(list(Path("/proc/self/fd").iterdir()))
    texts(web(tmp_path, page(0), page(1)))
    with pytest.raises(PoisonError):
        texts(web(tmp_path, page(0), page(1, "CRASH NOW")))
    reader = read_documents(source := web(tmp_path, page(0)), list_files(source), 1 << 20)
    next(reader)
    reader.close()
    assert len(started) == 4
    assert all(child.returncode is not None for child in started)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_sources_without_pages_start_no_child(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Extractor, "_start", None)
    assert read("a.txt", b"text").texts == ["text"]


def test_a_missing_extractor_is_reported_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(name="web", root="x", format="warc", extract="trafilatura")
    assert set(page_process.libraries(source)) > {"trafilatura", "lxml"}
    monkeypatch.setitem(page_process._LIBRARIES, "trafilatura", ("no-such-distribution",))
    with pytest.raises(
        SourceError, match=r"extract: got 'trafilatura'.*no-such-distribution.*run: pip install .* '\.\[trafilatura\]'"
    ):
        page_process.libraries(source)


@pytest.mark.long
@pytest.mark.parametrize("extract", ["resiliparse", "trafilatura", "best"])
def test_a_page_gives_its_text_by_each_extractor(tmp_path: Path, extract: str) -> None:
    paragraph = "<p>The mill grinds the grist of the whole village, and the miller keeps a sixteenth part of it.</p>"
    article = f"<html><body><nav>Home</nav><main><article>{paragraph * 5}</article></main></body></html>".encode()
    (tmp_path / "a.html").write_bytes(article)
    found, aside = texts(Source(name="web", root=str(tmp_path), format="html", extract=extract))
    assert not aside
    assert "the miller keeps a sixteenth part" in found[0]


def test_a_page_of_marks_is_undecodable_and_one_with_a_mark_is_a_document(tmp_path: Path) -> None:
    cyrillic = "<p>Мельница стоит у реки, и вода в ней тихая.</p>".encode("mac_cyrillic") * 9
    latin = "<meta charset=utf-8><p>A page of English, with “quotes” and a byte that is none: ".encode() + b"\xff</p>"
    found, aside = texts(web(tmp_path, cyrillic, latin))
    assert [text.count("\ufffd") for text in found] == [1]
    assert [reason for _, _, reason, _ in aside] == ["request", "undecodable", "request"]


def test_a_library_that_cannot_be_imported_is_one_line_with_its_remedy(
    tmp_path: Path, failing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRISTMILL_TEST_IMPORT", "1")
    source = web(tmp_path, page(1), extract="trafilatura")
    with pytest.raises(SourceError) as error:
        texts(source)
    assert str(error.value) == (
        "source 'web': extract: got 'trafilatura', which cannot be used (ImportError: a module is now a project of its own. "
        "Install it.); run: pip install --constraint constraints.txt --editable '.[trafilatura]', or use "
        "`extract: resiliparse`"
    )


def test_a_worker_that_does_not_start_blames_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Extractor, "module", "no_such_module")
    with pytest.raises(RuntimeError, match="does not start"):
        texts(web(tmp_path, page(0)))


@pytest.mark.parametrize(
    ("own", "kept"),
    [("noindex", ["noindex", "noai"]), (["a", "b"], ["a", "b", "noai"]), (True, [True, "noai"]), (None, ["noai"])],
)
def test_a_field_named_like_a_reservation_is_listed_with_those_of_the_page(
    read: Callable, own: object, kept: list
) -> None:
    html = b"<meta name=robots content=noai>" + page(1)
    line = json.dumps({"text": html.decode(), "robots": own}).encode()
    found = read("a.jsonl", line, format="jsonl", text_is="html_page")
    assert list(map(json.loads, found.metas)) == [{"robots": kept}]
