"""The corpus files in docs/sources.md can be built, each from files in the format that its section describes."""

import bz2
import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import pipelines
from pipelines import OpenCorpus
from pipelines.reading.sources.registry import FORMATS
from tests.pipelines.reading.code.test_source_code import FILES
from tests.pipelines.reading.formats.dumps.test_mediawiki import dump, page
from tests.pipelines.reading.formats.dumps.test_stack_exchange import answer, posts, question
from tests.pipelines.reading.git.repositories import bare, repository
from tests.pipelines.reading.rich.handmade import docx, epub, paragraph, pdf, zipped
from tests.pipelines.reading.rich.test_gutenberg import BOOK, file_of
from tests.pipelines.reading.rich.test_latex import document, tarred
from tests.pipelines.reading.rich.test_mail import HEAD, message
from tests.pipelines.reading.rich.test_subtitles import VTT, timed
from tests.pipelines.reading.web.test_warc import warc

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


def test_every_format_is_on_the_page():
    blocks = [yaml.safe_load(block) for blocks in SECTIONS.values() for block in blocks]
    assert {source["format"] for block in blocks for source in block["sources"]} == set(FORMATS)


@pytest.mark.long
def test_records(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    for name in ("lines", "parquet"):
        (tmp_path / name).mkdir()
    (tmp_path / "lines/a.jsonl.gz").write_bytes(gzip.compress(b'{"body": "lines"}\n{"body": 1}\n'))
    (tmp_path / "array.json").write_text('[{"text": "array"}, {"text": "lines"}]')
    (tmp_path / "table.csv").write_text("text,stars\ntable,3\nbad,2\n")
    pq.write_table(pa.table({"content": ["parquet"], "link": ["https://a.example"]}), tmp_path / "parquet/a.parquet")
    table = pa.table({"text": ["arrow"]})
    with pa.OSFile(str(tmp_path / "records.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    datasets.Dataset.from_dict({"text": ["saved"]}).save_to_disk(tmp_path / "saved")
    corpus = build("Files of records", tmp_path, monkeypatch)
    assert kept(corpus) == ["lines", "array", "table", "parquet", "arrow", "saved"]
    assert corpus.corpus.manifest.sources["lines"]["quarantined"] == {"text_not_string": 1}
    assert "https://a.example" in corpus.documents().read_all()["url"].to_pylist()


def test_composed_texts(tmp_path, monkeypatch):
    for name in ("articles", "chats"):
        (tmp_path / name).mkdir()
    articles = [
        {"title": "Mills", "article": {"abstract": None, "body": "They turn.", "year": 1990}, "doi": "1"},
        {"title": "", "article": {"body": ""}},
        {"title": ["Mills"]},
        {"title": "Barns", "article": {}},
    ]
    (tmp_path / "articles/a.jsonl").write_text("\n".join(map(json.dumps, articles)))
    turns = [[("user", "Why?"), ("tool", None), ("assistant", "Because {role}.")], None, []]
    rows = [None if each is None else [{"role": role, "content": text} for role, text in each] for each in turns]
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    chats = pa.table(
        {"messages": pa.array(rows, kind), "system": ["Be short.", None, "Alone."], "topic": ["a", "b", "c"]}
    )
    pq.write_table(chats, tmp_path / "chats/a.parquet")
    corpus = build("Several fields, and conversations", tmp_path, monkeypatch)
    assert kept(corpus) == [
        "Mills\n\nThey turn.",
        "Barns",
        "Be short.\n<user> Why?\n<assistant> Because {role}.",
        "Alone.",
    ]
    aside = {name: facts["quarantined"] for name, facts in corpus.corpus.manifest.sources.items()}
    assert aside == {"articles": {"no_text": 1, "text_not_string": 1}, "chats": {"no_text": 1}}
    metas = [json.loads(meta) for meta in corpus.documents(sources=["articles"]).read_all()["meta"].to_pylist()]
    assert metas == [{"article": {"year": 1990}, "doi": "1"}, {}]
    assert corpus.verdicts(["topic"], ["chats"]).read_all()["topic"].to_pylist() == ["a", "c"]


def test_translations(tmp_path, monkeypatch):
    (tmp_path / "captions").mkdir()
    pairs = [{"en": f"The mill {n}.", "de": f"Die Mühle\u2029{n}."} for n in range(8)] + [{"en": "alone"}, {"de": ""}]
    lines = [{"caption": pair, "photo": n} for n, pair in enumerate(pairs)]
    (tmp_path / "captions/a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    corpus = build("Translations", tmp_path, monkeypatch)
    assert kept(corpus) == [*(f"The mill {n}.\n\u2029Die Mühle\n{n}." for n in range(8)), "alone"]
    assert corpus.corpus.manifest.sources["captions"]["quarantined"] == {"no_text": 1}
    (shard_set,) = corpus.corpus.manifest.shard_sets.values()
    assert shard_set.columns == ("target",)
    assert sum(shard.pairs for shard in shard_set.shards) == 8


def test_tweets(tmp_path, monkeypatch):
    (tmp_path / "tweets").mkdir()
    texts = ["@bob: mail me@ex.org", "@eve: mail me@ex.org", "see http://t.co/a1"]
    (tmp_path / "tweets/a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    corpus = build("Tweets", tmp_path, monkeypatch)
    assert kept(corpus) == ["@USER: mail me@ex.org", "see HTTPURL"]
    assert corpus.corpus.manifest.sources["tweets"]["replaced"] == {"user_names": 2, "urls": 1}
    [numbers] = json.loads((tmp_path / "out/tweets/report.json").read_text())["sources"]
    assert numbers["replaced"] == {"user_names": 2, "urls": 1}


def test_text_files(tmp_path, monkeypatch):
    for name in ("notes", "packages/a.dist-info", "wiki"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "notes/a.txt").write_text("a text")
    (tmp_path / "notes/b.zip").write_bytes(zipped({"in/b.txt": b"in a zip", "in/b.png": b"\x89PNG"}))
    (tmp_path / "notes/c.md").write_text("---\ntitle: Mills\n---\n# Heading")
    (tmp_path / "packages/a.dist-info/METADATA").write_text("Name: a\nHome-page: https://a.example\n\nA package.")
    wiki = dump(page("Mill", "A [[mill]] grinds."), page("M", "#REDIRECT [[Mill]]", extra='<redirect title="Mill" />'))
    (tmp_path / "wiki/dump.xml.bz2").write_bytes(bz2.compress(wiki))
    corpus = build("Text files, Markdown, messages and wikis", tmp_path, monkeypatch)
    assert kept(corpus) == ["a text", "in a zip", "# Heading", "A package.", "A mill grinds."]
    assert corpus.corpus.manifest.sources["wiki"]["quarantined"] == {"redirect": 1}
    assert corpus.verdicts(["title"], ["pages"]).read_all()["title"].to_pylist() == ["Mills"]


@pytest.mark.long
def test_web(tmp_path, monkeypatch):
    for name in ("crawl", "saved"):
        (tmp_path / name).mkdir()
    body = "<html><body><article><p>" + "The mill turns by the river and grinds corn for the village. " * 3
    response = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n{body}".encode()
    responses = [response, response, response.replace(b"200 OK", b"404 No")]
    (tmp_path / "crawl/a.warc").write_bytes(b"".join(map(warc, responses)))
    (tmp_path / "crawl/unlisted.warc").write_bytes(b"")
    (tmp_path / "warc.paths.gz").write_bytes(gzip.compress(b"a.warc\n"))
    (tmp_path / "saved/a.html").write_text(body.replace("village", "town"))
    corpus = build("Web archives and pages", tmp_path, monkeypatch)
    assert [("village" in text, "town" in text) for text in kept(corpus)] == [(True, False), (False, True)]
    assert corpus.corpus.manifest.sources["crawl"]["quarantined"] == {"http_status": 1}


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


def test_gutenberg(tmp_path, monkeypatch):
    (tmp_path / "books").mkdir()
    (tmp_path / "books/1234-0.txt").write_text(file_of("since 2023"))
    (tmp_path / "books/old.zip").write_bytes(zipped({"1234.txt": file_of("1993").encode(), "9-8.txt": b"no book"}))
    corpus = build("Books of Project Gutenberg", tmp_path, monkeypatch)
    assert kept(corpus) == [BOOK]
    assert corpus.verdicts(["ebook"]).read_all()["ebook"].to_pylist() == [1234, 1234]
    assert corpus.corpus.manifest.sources["books"]["quarantined"] == {"not_gutenberg": 1}


def test_code(tmp_path, monkeypatch):
    for name, text in FILES.items():
        file = tmp_path / "repositories" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    packed = {
        "q/LICENSE.txt": FILES["r-1.0/LICENSE"],
        "q/b.c": "int y;\n",
        "q/c_pb2.py": "x = 1\n",
        "q/d.rs": "fn main() {}\n",
    }
    (tmp_path / "repositories/q.zip").write_bytes(zipped({name: text.encode() for name, text in packed.items()}))
    corpus = build("Code", tmp_path, monkeypatch)
    assert kept(corpus) == ["int y;\n", "print(1)\n", "#!/usr/bin/env -S python3.11 -u\nprint(2)\n"]
    verdicts = corpus.verdicts(["licence", "language"]).read_all()
    assert Counter(verdicts["drop"].to_pylist()) == {None: 3, "licence": 1, "language": 3, "generated": 1}
    assert corpus.corpus.manifest.sources["code"]["quarantined"] == {"binary": 1, "licence": 3}


def test_git(tmp_path, monkeypatch):
    files = {
        "a.py": "x = 1\n",
        "b_pb2.py": "y = 1\n",
        "vendor/c.py": "z = 1\n",
        "notes.md": "# Notes\n",
        "d.c": "int x;\n",
    }
    work = repository(tmp_path / "work", files)
    bare(work, tmp_path / "mirrors/p.git")
    corpus = build("Git repositories", tmp_path, monkeypatch)
    assert kept(corpus) == ["x = 1\n", "# Notes\n"]
    assert corpus.verdicts(["language"]).read_all()["id"].to_pylist()[0] == "mirrors/p.git!a.py#0"
    assert list(corpus.corpus.manifest.sources["mirrors"]["commits"]) == ["p.git"]


@pytest.mark.long
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
