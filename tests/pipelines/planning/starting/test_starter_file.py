"""`init` on directories of many formats: the corpus file that it writes can be planned and built, and reads
every text.
"""

import bz2
import gzip
import io
import json
import lzma
import random
import re
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import pipelines
from pipelines.__main__ import main
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.starting.file_groups import FileGroup, group_files
from pipelines.planning.starting.starter_file import StarterSource, starter_text
from pipelines.reading.entries.listing import list_files
from tests.pipelines.reading.git.repositories import bare, repository

PROSE = (
    "The miller and the men of the village have been at work with the mill, and that is what they do to be paid. " * 6
)


@pytest.fixture
def files(tmp_path):
    web, repos = tmp_path / "web", tmp_path / "2 repos"
    for folder in (web / "deep", repos / ".git"):
        folder.mkdir(parents=True)
    rows = [{"title": "t", "body": f"{PROSE} {n}", "link": f"https://example.org/{n}"} for n in range(3)]
    lines = "\n".join(map(json.dumps, rows)).encode()
    (web / "deep" / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (web / "b.JSONL").write_bytes(lines.replace(b"village", b"town"))
    pq.write_table(pa.table({"content": [PROSE + "parquet"], "id": ["1"]}), web / "c.parquet")
    (web / "d.csv").write_text(f'text,url\n"{PROSE} table",https://example.org/d\n')
    (repos / "main.py").write_text("print('hello')\n" * 5)
    (repos / "README.md").write_text(PROSE + "notes")
    (repos / ".git" / "x.txt").write_text("hidden")
    (repos / "logo.png").write_bytes(b"\x89PNG")
    with tarfile.open(repos / "old.tar", "w") as archive:
        member = tarfile.TarInfo("old/a.txt")
        member.size = len(PROSE)
        archive.addfile(member, io.BytesIO(PROSE.replace("mill", "barn").encode()))
    return tmp_path


@pytest.mark.long
def test_the_file_builds_and_reads_every_text(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    assert main(["init", "web", "2 repos", "--name", "mine"]) == 0
    shown = capsys.readouterr().out
    assert "left out: 1 files of .png" in shown
    assert "wrote mine.yaml" in shown
    config = load_corpus_config(files / "mine.yaml")
    found = {source.name: (source.format, source.text_field, source.url_field) for source in config.sources}
    assert found == {
        "web_csv": ("csv", "text", "url"),
        "web_jsonl": ("jsonl", "body", "link"),
        "web_parquet": ("parquet", "content", "url"),
        "source_2_repos_code": ("code", "text", "url"),
        "source_2_repos_markdown": ("markdown", "text", "url"),
        "source_2_repos_text": ("text", "text", "url"),
    }
    corpus = pipelines.build("mine.yaml", in_process=True)
    verdicts = corpus.verdicts().read_all()
    counts = {each["values"]: each["counts"] for each in verdicts["source"].value_counts().to_pylist()}
    assert counts == {
        "web_csv": 1, "web_jsonl": 6, "web_parquet": 1, "source_2_repos_code": 1, "source_2_repos_markdown": 1,
        "source_2_repos_text": 1,
    }  # fmt: skip
    assert "print" in corpus.documents(sources=["source_2_repos_code"]).read_all()["text"][0].as_py()


def test_a_single_format_has_the_name_of_the_directory(files, monkeypatch):
    monkeypatch.chdir(files)
    (files / "notes").mkdir()
    (files / "notes" / "a.txt").write_text(PROSE)
    assert main(["init", "notes", "notes", "--output", "x.yaml"]) == 0
    assert [source.name for source in load_corpus_config(files / "x.yaml").sources] == ["notes", "notes_2"]


def test_fields_that_could_be_columns_are_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "posts"
    folder.mkdir()
    rows = [
        {
            "text": PROSE,
            "published": "2015-03-04",
            "score": 7,
            "ratio": 1,
            "open": True,
            "by": "Eva",
            "n": None,
            "Odd name": 1,
        },
        {
            "text": PROSE,
            "published": None,
            "score": "8",
            "ratio": 0.5,
            "open": False,
            "by": "7",
            "n": None,
            "source": 1,
        },
    ]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "b.pdf").touch()
    (folder / "c.py").touch()
    assert main(["init", "posts", "--name", "mine"]) == 0
    lines = [line for line in (tmp_path / "mine.yaml").read_text().splitlines() if "# columns" in line]
    assert [line.partition("}")[0] + "}" for line in lines] == [
        "    # columns: {language: string, licence: string, generated: bool, vendored: bool}",
        "    # columns: {published: date, score: int, ratio: float, open: bool}",
        "    # columns: {pages: int, created: date}",
    ]
    text = (tmp_path / "mine.yaml").read_text().replace("# columns", "columns")
    (tmp_path / "mine.yaml").write_text(text)
    assert {source.name for source in load_corpus_config(tmp_path / "mine.yaml").sources if source.columns} == {
        "posts_code", "posts_jsonl", "posts_pdf",
    }  # fmt: skip


def test_formats_that_their_names_tell(tmp_path):
    for name in (
        "a.com/Posts.xml",
        "a.com/Users.xml",
        "b.com-Posts.xml.zst",
        "a.PDF",
        "b.epub",
        "c.docx",
        "d.eml",
        "e.mbox",
        "f.srt",
        "g.vtt",
        "h.tex",
        "i.rst.zstd",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    groups, unknown = group_files(tmp_path)
    assert {group.kind: (group.files, group.patterns) for group in groups} == {
        "stack_exchange": (2, ("**/*Posts.xml", "**/*Posts.xml.zst")), "pdf": (1, ("**/*.PDF",)), "epub": (1, ("**/*.epub",)),
        "docx": (1, ("**/*.docx",)), "mail": (1, ("**/*.eml",)), "mbox": (1, ("**/*.mbox",)),
        "subtitles": (2, ("**/*.srt", "**/*.vtt")), "latex": (1, ("**/*.tex",)),
        "text": (1, ("**/*.rst.zstd",)),
    }  # fmt: skip
    assert unknown == {".xml": 1}


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        (".tar", bytes), (".TAR.GZ", gzip.compress), (".tgz", gzip.compress), (".tar.bz2", bz2.compress),
        (".tbz2", bz2.compress), (".tar.xz", lzma.compress), (".tar.zst", zstandard.compress),
        (".tzst", zstandard.compress), (".tar.zstd", zstandard.compress),
    ],
)  # fmt: skip
def test_tars_are_grouped_by_their_members_even_if_they_are_cut(tmp_path, suffix, pack):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for number in range(2):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = 1_000_000
            archive.addfile(member, io.BytesIO(random.Random(number).randbytes(member.size)))
    data = pack(sink.getvalue())
    for size in (len(data), len(data) * 3 // 4):
        (tmp_path / f"a{suffix}").write_bytes(data[:size])
        (group,), unknown = group_files(tmp_path)
        assert (group.kind, group.patterns, group.members) == ("text", (f"**/*{suffix}",), ("**/*.txt",))
        assert not unknown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such directory"),
        (["empty"], "holds nothing that a format reads (no file)"),
        (["pictures"], "holds nothing that a format reads (1 of .png)"),
        (["numbers"], "the first records of its jsonl files have no text"),
        (["web", "--name", "My Corpus"], "--name: got 'My Corpus'"),
        (["web", "--output", "taken.yaml"], "taken.yaml: exists"),
        (["\udcff"], "\\udcff: its name is not UTF-8"),
    ],
)
def test_bad_requests(files, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(files)
    for name in ("empty", "pictures", "numbers", "\udcff"):
        (files / name).mkdir()
    (files / "pictures" / "a.png").touch()
    (files / "numbers" / "a.jsonl").write_text('{"n": 1}\n')
    (files / "taken.yaml").touch()
    assert main(["init", *arguments]) != 0
    assert message in capsys.readouterr().err


def test_control_characters_in_names(files, monkeypatch):
    monkeypatch.chdir(files)
    (files / "web").rename(files / "we\x7f\n\u2028\uffffb")
    assert main(["init", "we\x7f\n\u2028\uffffb", "--output", "a\nb.yaml"]) == 0
    assert load_corpus_config(files / "a\nb.yaml").sources[0].root == "we\x7f\n\u2028\uffffb"


@pytest.mark.parametrize(
    ("size", "part"), [(2_000_000, None), (3_000_000, "2e6"), (400_000_000, "25e6"), (3_000_000_000, None)]
)
def test_parts_of_a_small_source_are_so_small_that_workers_share_it(tmp_path, size, part):
    source = StarterSource("notes", tmp_path, FileGroup("jsonl", 4, size, ("*.jsonl",)))
    lines = [
        line.split("#")[0].split() for line in starter_text([source], "mine", tmp_path / "mine.yaml", {}).splitlines()
    ]
    assert [line[1] for line in lines if line[:1] == ["part_bytes:"]] == ([part] if part else [])


def test_bare_repositories_and_conversations(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bare(repository(tmp_path / "work", {"a.py": "x = 1\n" * 20, "LICENSE": "none"}), tmp_path / "in/mirrors/a.git")
    turns = [{"from": "human", "value": f"{PROSE} Why?"}, {"from": "gpt", "value": PROSE}]
    (tmp_path / "in/chats.jsonl").write_text(
        "\n".join(json.dumps({"id": f"c{n}", "conversations": turns}) for n in range(2))
    )
    assert main(["init", "in", "--name", "mine"]) == 0
    assert "in_git: 1 repository, " in capsys.readouterr().out
    config = load_corpus_config(tmp_path / "mine.yaml")
    found = {source.name: (source.format, source.include) for source in config.sources}
    assert found == {"in_git": ("git", ("**/*.git",)), "in_jsonl": ("jsonl", ("**/*.jsonl",))}
    corpus = pipelines.build("mine.yaml", ["steps.filter=[{signal: word_count, at_least: 0}]"], in_process=True)
    texts = corpus.documents().read_all()["text"].to_pylist()
    assert texts == ["x = 1\n" * 20, f"human: {PROSE} Why?\n\ngpt: {PROSE}"]
    assert main(["init", "in/mirrors/a.git", "--name", "one"]) == 0
    assert [each.path for each in list_files(load_corpus_config(tmp_path / "one.yaml").sources[0])] == ["a.git"]


GERMAN = "Der Müller und die Leute aus dem Dorf haben den ganzen Tag in der Mühle gearbeitet, und das ist gut so. " * 6


@pytest.mark.long
def test_what_the_first_documents_say_is_in_the_file(tmp_path, monkeypatch, capsys):
    """The shares equal those of a build, because the sample covers all documents."""
    monkeypatch.chdir(tmp_path)
    texts = {"en": [f"{PROSE} Number {n} of them." for n in range(6)] + ["Too short.", "a\n" * 60], "de": [GERMAN] * 3}
    for name, documents in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    assert main(["init", "en", "de", "--name", "mine"]) == 0
    shown = capsys.readouterr().out
    written = (tmp_path / "mine.yaml").read_text()
    for line in (
        "languages of its first 8 documents: en 75%, und 25%",
        "languages of its first 3 documents: de 100%",
    ):
        assert f"    # {line}\n" in written
        assert f"  {line}\n" in shown
    assert "# de is not for these rules: most of it is de." in written
    corpus = pipelines.build("mine.yaml", in_process=True)
    rows = corpus.verdicts().read_all().to_pylist()
    dropped = [row["source"] for row in rows if (row["drop"] or "").startswith("gopher")]
    assert set(dropped) == {"en"}
    assert dropped
    assert f"en: together they would drop {len(dropped) / 8:.1%}" in written
    assert re.search(
        r"# en: gopher_quality@massivetext would drop 25.0% of 8 documents \(gopher_quality\.\w+ [\d.]+%", written
    )


def test_a_field_with_turns_in_some_records_alone_is_no_conversation(tmp_path):
    turns = [{"role": "user", "content": PROSE}, {"role": "assistant", "content": PROSE}]
    records = [{"chat": "none", "n": 1}, {"chat": turns, "n": 2}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    (group,), _ = group_files(tmp_path)
    assert (group.turns, group.text_field) == (None, "chat")


def test_a_text_that_begins_with_a_link_is_a_text(tmp_path):
    records = [
        {"link": f"https://example.org/{n}", "post": f"{'https://t.example/a ' * (n == 1)}{PROSE}"} for n in range(4)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    (group,), _ = group_files(tmp_path)
    assert (group.text_field, group.url_field) == ("post", "link")


MARK = b"\xef\xbb\xbf"
LONG = "word " * 30_000  # longer than a field may be unless csv.field_size_limit is raised


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", f"id;body\n1;{PROSE}, {PROSE}\n".encode()),
        ("a.csv", MARK + f"id|body\n1|{PROSE}\n".encode()),
        ("a.csv", MARK + f'body,"a;b"\n"{PROSE}",1\n'.encode()),
        ("a.csv", f"id\tbody\n1\t{PROSE}\n".encode()),
        ("a.TSV", f"id\tbody\n1\t{PROSE}, {PROSE}\n".encode()),
        ("a.csv", f'id,body\n1,"{PROSE}",one field more\n2,"{PROSE}"\n'.encode()),
        ("a.csv", f"id,body\n1,{LONG}\n".encode()),
        ("a.json", json.dumps(["a", 1, None, {"body": PROSE}]).encode()),
        ("a.json", MARK + json.dumps([{"body": PROSE}] * 30_000).encode()),  # more than 16 MiB
        ("a.jsonl", MARK + json.dumps({"body": PROSE}).encode()),
        ("a.jsonl", b"# not JSON\n" + json.dumps({"body": PROSE, "n": float("nan")}).encode()),
    ],
)  # fmt: skip
def test_the_field_of_the_text_is_found_in_what_the_format_reads(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    ((group,), _) = group_files(tmp_path)
    assert group.text_field == "body"


@pytest.mark.parametrize("content", ['["a"]', "[1]", "3", "null", ""])
def test_json_without_objects_has_no_text(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    ((group,), _) = group_files(tmp_path)
    assert group.text_field is None
    (tmp_path / "b.json").write_text(json.dumps([{"body": PROSE}]))
    ((group,), _) = group_files(tmp_path)  # the next file tells
    assert group.text_field == "body"


def test_a_source_that_cannot_be_sampled_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.epub").write_bytes(b"no book")
    assert main(["init", "books", "--name", "mine"]) == 0
    assert "no documents were sampled: its first files have no document" in (tmp_path / "mine.yaml").read_text()
    assert [step.name for step in load_corpus_config(tmp_path / "mine.yaml").steps][:1] == ["quality_signals"]
