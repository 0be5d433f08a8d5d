"""Sources that name their files in a list."""

import bz2
import gzip

import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError, SourceError
from gristmill.storage.remote import Remote
from pipelines.planning.inventory import Read, take_inventory
from pipelines.reading.entries.listing import list_files
from pipelines.reading.sources.source import Source


def source(root, names, **fields):
    listed = root / "names.txt"
    listed.write_bytes(names if isinstance(names, bytes) else names.encode())
    return Source("s", str(root / "data"), fields.pop("format", "text"), files=str(listed), **fields)


@pytest.fixture
def root(tmp_path):
    for name in ("a.txt", "b/c.txt", "b/.d.txt", "e.md"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress])
def test_named_files_are_read_and_no_others(root, compress):
    made = source(root, compress(b"e.md\r\n\nb/c.txt\n"))
    assert [file.path for file in list_files(made)] == ["b/c.txt", "e.md"]
    assert [file.size for file in list_files(made)] == [7, 4]


def test_a_list_is_read_as_a_whole_hidden_files_included(root):
    assert [file.path for file in list_files(source(root, "b/.d.txt\na.txt\n"))] == ["a.txt", "b/.d.txt"]
    assert [file.path for file in list_files(source(root, "b/.d.txt\na.txt\n", exclude=("a.txt",)))] == ["b/.d.txt"]


def test_include_and_exclude_choose_among_the_names(root):
    names = "a.txt\nb/c.txt\ne.md\nnot there.rst\n"
    assert [f.path for f in list_files(source(root, names, include=("**/*.txt",), exclude=("b/**",)))] == ["a.txt"]
    with pytest.raises(SourceError, match=r"include '\*\.json' matches no file"):
        list_files(source(root, names, include=("*.txt", "*.json")))


def test_the_same_files_listed_or_named_are_the_same_step(root):
    named, listed = source(root, "a.txt\ne.md\n"), Source("s", str(root / "data"), "text", include=("a.txt", "e.md"))
    digests = {take_inventory([each], root / "out")["s"].digest for each in (named, listed)}
    assert len(digests) == 1
    assert Read(named).knobs() == Read(listed).knobs()


def test_a_list_may_begin_with_a_byte_order_mark(root):
    assert [file.path for file in list_files(source(root, b"\xef\xbb\xbfa.txt\r\ne.md\r\n"))] == ["a.txt", "e.md"]


def test_names_may_begin_as_find_prints_them(root):
    assert [file.path for file in list_files(source(root, "./e.md\n./b/c.txt\n"))] == ["b/c.txt", "e.md"]
    with pytest.raises(SourceError, match=r"line 2: 'e\.md' is on line 1, too"):
        list_files(source(root, "e.md\n./e.md\n"))


def test_a_file_has_one_name_however_it_is_spelt(root):
    assert [file.path for file in list_files(source(root, "b//c.txt\n././e.md\n"))] == ["b/c.txt", "e.md"]
    for other in ("b//c.txt", "b/./c.txt"):
        with pytest.raises(SourceError, match=r"line 2: 'b/c\.txt' is on line 1, too"):
            list_files(source(root, f"b/c.txt\n{other}\n"))


def test_a_name_with_a_query_is_refused_and_not_shown(tmp_path):
    names = source(tmp_path, "a.txt\nb.txt?signature=secret\n").files
    with pytest.raises(SourceError, match=r"line 2: the path has a \? or #") as refused:
        list_files(Source("s", "https://example.org/data", "text", files=names))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("a.txt\n../secret\n", "line 2: got '../secret', expected a path relative to `root`"),
        ("/etc/passwd\n", "line 1: got '/etc/passwd'"),
        ("https://example.org/a\n", "line 1: got 'https://example.org/a'"),
        ("a.txt\nb/c.txt\na.txt\n", "line 3: 'a.txt' is on line 1, too"),
        ("\n \n", "names no file"),
        (b"a\xff.txt\n", "not UTF-8 at byte 1"),
        (gzip.compress(b"a.txt\n" * 9)[:-9], "cannot be decompressed"),
        ("a.txt\nnowhere.txt\n", "nowhere.txt: cannot be read"),
        ("a.txt\nb\n", r"names\.txt names 'b', which is a directory"),
    ],
)
def test_bad_lists_are_refused(root, names, message):
    with pytest.raises(SourceError, match=message):
        list_files(source(root, names))


def test_a_missing_list_and_a_root_that_is_a_file_are_refused(root):
    with pytest.raises(SourceError, match=r"files: .*gone\.txt: .*cannot be read"):
        list_files(Source("s", str(root / "data"), "text", files=str(root / "gone.txt")))
    names = source(root, "a.txt").files
    with pytest.raises(SourceError, match="is a file; expected a directory"):
        list_files(Source("s", str(root / "data" / "a.txt"), "text", files=names))


@pytest.mark.parametrize("fields", [{"files": "https://example.org/x?key=1"}, {"root": "https://example.org/x?key=1"}])
def test_urls_with_a_query_are_refused(fields):
    with pytest.raises(ConfigError, match=r"files: got 'https://example\.org/x\?\.\.\.', expected URLs without"):
        parse(Source, {"name": "s", "root": "r", "format": "text", "files": "f", **fields}, "c.yaml")


def test_names_in_an_object_store(s3, tmp_path):
    for name in ("crawl/a.txt", "crawl/b.txt", "crawl/c.txt"):
        s3.store.pipe_file(f"bucket/{name}", b"text of " + name.encode())
    s3.store.pipe_file("bucket/names.gz", gzip.compress(b"crawl/a.txt\ncrawl/c.txt\n"))
    made = Source("s", "s3://bucket", "text", files="s3://bucket/names.gz", remote=s3.remote)
    assert [(file.path, file.size, file.location) for file in list_files(made)] == [
        ("crawl/a.txt", 19, "s3://bucket/crawl/a.txt"),
        ("crawl/c.txt", 19, "s3://bucket/crawl/c.txt"),
    ]
    s3.store.pipe_file("bucket/names.gz", gzip.compress(b"crawl/x.txt\n"))
    with pytest.raises(SourceError, match=r"names 'crawl/x\.txt', but there is no file s3://bucket/crawl/x\.txt"):
        list_files(made)
    with pytest.raises(SourceError, match="'https'"):
        list_files(Source("s", "https://example.org", "text", files="https://example.org/l", remote=Remote()))
