"""The corpus files of docs/sources.md build, from files of the kind that each section is about."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

import pipelines
from pipelines import OpenCorpus
from tests.pipelines.reading.formats.test_stack_exchange import answer, posts, question
from tests.pipelines.reading.rich.handmade import docx, epub, paragraph, pdf, zipped
from tests.pipelines.reading.rich.test_latex import document, tarred
from tests.pipelines.reading.rich.test_mail import HEAD, message
from tests.pipelines.reading.rich.test_subtitles import VTT, timed

PAGE = Path(__file__).parents[3] / "docs/sources.md"
SECTIONS = {
    section.splitlines()[0]: re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    for section in PAGE.read_text().split("\n## ")[1:]
}


SENTENCE = "A paragraph that is long enough to be content, since it has more words than a menu, and a full stop."
PAGE_WITH_TABLE = f"""<html><head><meta name="date" content="DATE"></head><body><article><h1>Mills</h1><p>{SENTENCE}</p>
<table><tr><th>a</th><th>b</th></tr>
<tr><td>1</td><td><math alttext="x^2"><mi>x</mi></math></td></tr></table></article></body></html>"""


def build(heading: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> OpenCorpus:
    """The corpus of the first YAML below a heading, built in `folder`."""
    monkeypatch.chdir(folder)
    (folder / "corpus.yaml").write_text(SECTIONS[heading][0])
    return pipelines.build("corpus.yaml", in_process=True)


def kept(corpus: OpenCorpus) -> list[str]:
    return corpus.documents().read_all()["text"].to_pylist()


def test_columns_of_records(tmp_path, monkeypatch):
    (tmp_path / "posts").mkdir()
    rows = [
        ("one", 9, "2016-05-01"),
        ("two", 1, "2016-05-01"),
        ("three", 9, "2014-12-31"),
        ("four", 9, ""),
        ("five", 2, "2015-01-01"),
    ]
    lines = [{"text": text, "stats": {"score": score}, "created": created} for text, score, created in rows]
    lines += [{"text": "six", "stats": {"score": "many"}, "created": "2016-01-01"}, {"text": "seven", "created": 2016}]
    (tmp_path / "posts/a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "posts/b.jsonl").write_text(json.dumps(lines[0]))
    corpus = build("Fields of records as columns", tmp_path, monkeypatch)
    assert kept(corpus) == ["one"]
    assert corpus.corpus.manifest.sources["posts"]["quarantined"] == {"wrong_type": 2}
    verdicts = corpus.verdicts().read_all()
    assert Counter(verdicts["drop"].to_pylist()) == {None: 1, "created": 2, "score": 2, "dedup_exact": 1}
    assert [str(corpus.columns.field(name).type) for name in ("score", "created")] == ["int64", "timestamp[us]"]


def test_html(tmp_path, monkeypatch):
    for folder in ("warc", "saved"):
        (tmp_path / folder).mkdir()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    block = head + PAGE_WITH_TABLE.replace("DATE", "2020-01-02").encode()
    fields = b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.org/\r\n"
    fields += b"Content-Type: application/http; msgtype=response\r\n"
    (tmp_path / "warc/a.warc").write_bytes(fields + b"Content-Length: %d\r\n\r\n" % len(block) + block + b"\r\n\r\n")
    rows = [
        {"html": PAGE_WITH_TABLE.replace("DATE", date), "id": date} for date in ("2010-05-06", "2016-05-06", "none")
    ]
    (tmp_path / "saved/a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    corpus = build("HTML: pages, and HTML in records", tmp_path, monkeypatch)
    text = f"# Mills\n\n{SENTENCE}\n\n| a | b |\n|---|---|\n| 1 | $x^2$ |"
    assert kept(corpus) == [text] * 3
    assert Counter(corpus.verdicts().read_all()["drop"].to_pylist()) == {None: 3, "published": 1}


def test_stack_exchange(tmp_path, monkeypatch):
    dump = tmp_path / "dumps/math.stackexchange.com"
    dump.mkdir(parents=True)
    rows = [question(1, Score=3), question(2, Score=0), question(3, Score=5), answer(4, 1), answer(5, 2)]
    (dump / "Posts.xml").write_bytes(posts(*rows))
    (dump / "Users.xml").write_text("<users />")
    corpus = build("Questions and answers: Stack Exchange", tmp_path, monkeypatch)
    assert kept(corpus) == ["Q: Title 1\n\nbody\n\nA: answer"]


def test_documents_with_layout(tmp_path, monkeypatch):
    pytest.importorskip("pypdfium2")
    library = tmp_path / "library"
    library.mkdir()
    for name, pages in {"a": [["Head", "one"], ["Head", "two"]], "b": [["single"]], "scan": [[], []]}.items():
        (library / f"{name}.pdf").write_bytes(pdf(pages))
    (library / "book.epub").write_bytes(epub({"1.html": "<p>chapter"}, "<dc:language>en</dc:language>"))
    (library / "c.docx").write_bytes(docx(paragraph("report")))
    (library / "reports.zip").write_bytes(zipped({"d.docx": docx(paragraph("packed"))}))
    corpus = build("PDF, EPUB and Word", tmp_path, monkeypatch)
    assert kept(corpus) == ["one\ntwo", "chapter", "report", "packed"]
    assert corpus.corpus.manifest.sources["papers"]["quarantined"] == {"no_text_layer": 1}


def test_mail(tmp_path, monkeypatch):
    for name in ("lists", "letters"):
        (tmp_path / name).mkdir()
    first = message("Hello.\n-- \nEva", Subject="x", Date="Wed, 4 Mar 2015 06:06:07 +0100")
    again = message("> Hello?\n\nHello.", Subject="y", Date="Tue, 3 Mar 2015 06:06:07 +0100")
    (tmp_path / "lists/2015.mbox").write_bytes(HEAD + first + b"\n" + HEAD + again)
    (tmp_path / "letters/a.eml").write_bytes(message("Write to bob@example.org.", Subject="z"))
    corpus = build("Mail", tmp_path, monkeypatch)
    assert kept(corpus) == ["Hello.", "Write to <EMAIL_ADDRESS>."]
    assert [json.loads(meta)["subject"] for meta in corpus.documents().read_all()["meta"].to_pylist()] == ["y", "z"]


def test_subtitles(tmp_path, monkeypatch):
    folder = tmp_path / "talks"
    folder.mkdir()
    for name, text in {"a.srt": timed("One", "two."), "b.srt": timed("single"), "c.vtt": VTT}.items():
        (folder / name).write_text(text)
    corpus = build("Subtitles", tmp_path, monkeypatch)
    assert kept(corpus) == ["One two.", "Bread & corn, every day for <all> of us."]
    assert corpus.verdicts(["language"]).read_all()["language"].to_pylist() == [None, None, "en-GB"]


def test_latex(tmp_path, monkeypatch):
    for name in ("papers", "bulk"):
        (tmp_path / name).mkdir()
    (tmp_path / "papers/a.tex").write_text(document("one"))
    paper = tarred({"ms.tex": document("\\input{parts/two}"), "parts/two.tex": "two $x^2$", "fig.png": "\x89PNG"})
    (tmp_path / "papers/b.tar.gz").write_bytes(gzip.compress(paper))
    (tmp_path / "papers/c.tex").write_text(document("\\input{lost} three"))
    members = {
        "2401/1.gz": gzip.compress(paper),
        "2401/2.gz": gzip.compress(document("four").encode()),
        "2401/3.pdf": "%PDF-",
    }
    (tmp_path / "bulk/src_2401.tar").write_bytes(tarred(members))
    corpus = build("LaTeX", tmp_path, monkeypatch)
    assert kept(corpus) == ["one", "two $x^2$", "four"]
    assert corpus.verdicts(["title"], ["papers"]).read_all()["title"].to_pylist() == ["On Mills"] * 3
