import os
from pathlib import Path

import pytest

from gristmill.errors import SourceError
from pipelines.reading.entries.files import SourceFile, content_checksum, read_units
from pipelines.reading.entries.listing import list_files
from pipelines.reading.sources.source import Source


def source(root: Path, **fields: object) -> Source:
    return Source(**{"name": "s", "root": str(root), "format": "text"} | fields)  # type: ignore[arg-type]


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def paths(source: Source) -> list[str]:
    return [file.path for file in list_files(source)]


def test_files_are_sorted_by_relative_path_and_filtered(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", "a/z.txt", "a/b/c.txt", "a.md", ".hidden/x.txt")
    assert paths(source(tmp_path)) == ["a.md", "a/b/c.txt", "a/z.txt", "b.txt"]
    assert paths(source(tmp_path, include=("**/*.txt",), exclude=("a/b/**",))) == ["a/z.txt", "b.txt"]
    [file] = list_files(source(tmp_path, include=("*.md",)))
    assert file == SourceFile("a.md", 4, str(tmp_path / "a.md"))


def test_an_excluded_tree_hides_no_file_that_the_exclusion_does_not_match(tmp_path: Path) -> None:
    write(tmp_path, "a/.b/c.txt", "a/d.txt", "e/f.txt")
    include = ("a/.b/c.txt", "**/*.txt")
    assert paths(source(tmp_path, include=include, exclude=("a/**", "e/**"))) == ["a/.b/c.txt"]


def test_root_may_be_one_file_or_a_link(tmp_path: Path) -> None:
    write(tmp_path, "real/a.txt")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert paths(source(tmp_path / "link")) == ["a.txt"]
    assert paths(source(tmp_path / "real" / "a.txt")) == ["a.txt"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path, "in/a.txt", "out/b.txt")
    (tmp_path / "in" / "dir").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "file.txt").symlink_to(tmp_path / "out" / "b.txt")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "out" / "loop").symlink_to(tmp_path / "in")
    assert paths(source(tmp_path / "in")) == ["a.txt", "dir/b.txt", "file.txt"]


def test_missing_root_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"source 's': root .*nowhere' does not exist.*fetch the data"):
        list_files(source(tmp_path / "nowhere"))


def test_glob_that_matches_nothing_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    with pytest.raises(SourceError, match=r"include '\*\.json' matches no file under"):
        list_files(source(tmp_path, include=("*.txt", "*.json")))
    with pytest.raises(SourceError, match=r"exclude \['\*'\] leaves no file"):
        list_files(source(tmp_path, exclude=("*",)))


def test_dangling_link_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(SourceError, match=r"a\.txt: cannot be read \(No such file"):
        list_files(source(tmp_path))


def test_pipes_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe")
    assert paths(source(tmp_path)) == ["a.txt"]


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    except OSError:
        pytest.skip("this file system takes only Unicode names")
    [file] = list_files(source(tmp_path, include=("caf*.txt",)))
    assert file.path == "caf\\xe9.txt"
    assert content_checksum(file.location) == content_checksum(file.location)
    (tmp_path / "caf\\xe9.txt").write_text("y")
    with pytest.raises(SourceError, match=r"two files .* have the printed name"):
        list_files(source(tmp_path))


def test_units_group_neighbours() -> None:
    files = [
        SourceFile(name, size, name) for name, size in [("a", 4), ("b", 5), ("c", 2), ("d", 30), ("e", 0), ("f", 10)]
    ]
    assert [[f.path for f in unit] for unit in read_units(files, 10)] == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert read_units([], 10) == []


def test_checksum(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    (tmp_path / "empty").write_bytes(b"")
    assert content_checksum(tmp_path / "empty") == "99aa06d3014798d86001c324468d497f"  # XXH3_128bits of no bytes
    with pytest.raises(SourceError, match="cannot be read"):
        content_checksum(tmp_path / "gone")
