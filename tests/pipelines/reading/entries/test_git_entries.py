"""Git repositories as sources give the same files as git itself; malicious repositories do no harm."""

import json
import os
import random
import tarfile
from pathlib import Path

import pytest

import pipelines
from gristmill.errors import SourceError
from gristmill.storage.disk import LocalPath
from pipelines.planning.inventory import take_inventory
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.git import git_tree
from pipelines.reading.sources.source import Source
from tests.pipelines.reading.code.test_licence_text import APACHE, MIT
from tests.pipelines.reading.code.test_source_code import EXPECTED, FILES, facts
from tests.pipelines.reading.git.repositories import (
    bare,
    commit,
    commit_tree,
    empty_repository,
    git,
    loose,
    object_of,
    repository,
    tree_of,
)

IN_REPOSITORY = {name.removeprefix("r-1.0/"): text for name, text in FILES.items()}


def read(root, **fields):
    """Read the repositories at `root` as a source; return the texts, the metadata, and the reasons for
    quarantine, each by path.
    """
    source = Source("s", str(root), "git", **fields)
    parts = list(read_documents(source, list_files(source), 1 << 20))
    texts, metas = {}, {}
    for part in parts:
        rows = iter(part.documents.to_pylist())
        for row in part.files.to_pylist():
            for document in [next(rows) for _ in range(row["rows"])]:
                texts[row["path"]], metas[row["path"]] = document["text"], document["meta"]
    return texts, metas, {row["path"]: row["reason"] for part in parts for row in part.quarantine.to_pylist()}


def test_files_of_a_commit_are_those_of_a_checkout(tmp_path):
    work = repository(tmp_path / "work", IN_REPOSITORY)
    (work / "untracked.py").write_text("x = 1\n")
    (work / "main.py").write_text("changed = 1\n")
    for root in (work, bare(work, tmp_path / "b.git"), bare(work, tmp_path / "m.git", "--mirror"), work / ".git"):
        texts, metas, bad = read(root)
        name = root.name if root.name != ".git" else "work"
        wanted = {f"{name}!{path.removeprefix('r-1.0/')}": fact for path, fact in EXPECTED.items()}
        assert dict(zip(metas, facts(list(metas.values())), strict=True)) == wanted
        assert texts == {path: IN_REPOSITORY[path.partition("!")[2]] for path in wanted}
        assert sorted(bad.values()) == ["binary", "licence", "licence"]


@pytest.mark.long
def test_the_same_as_an_archive_by_git(tmp_path):
    """The files cover names of arbitrary bytes, nested directories, file modes and large directories."""
    names = ["ü.txt", "a b", "x/y/z.py", "run.sh", "a-b", "a/b", "a.b", *(f"many/{n:03d}" for n in range(300))]
    work = repository(tmp_path / "work", {name: f"text of {name}\n" for name in names})
    (work / os.fsdecode(b"\xff\xfe.txt")).write_text("bytes\n")
    (work / "run.sh").chmod(0o755)
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message", "m")
    git(work, "gc", "--quiet", "--aggressive")
    archive = tmp_path / "a.tar"
    git(work, "archive", "--format=tar", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as tar:
        wanted = [member.name for member in tar if member.isfile()]
    source = Source("s", str(work), "git")
    files = [
        row["path"] for part in read_documents(source, list_files(source), 1 << 20) for row in part.files.to_pylist()
    ]
    printed = [name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for name in wanted]
    assert files == [f"work!{name}" for name in printed]
    texts, _, bad = read(work)
    assert not bad
    assert texts["work!\\xff\\xfe.txt"] == "bytes\n"
    assert texts["work!x/y/z.py"] == "text of x/y/z.py\n"


def test_many_repositories_below_a_root(tmp_path):
    root = tmp_path / "mirrors"
    for name, licence in (("a", MIT), ("group/b", APACHE), ("group/c", None)):
        files = {"x.py": f"name = '{name}'\n", "LICENSE": licence} if licence else {"x.py": "c = 1\n"}
        bare(repository(tmp_path / "work" / name, files), root / f"{name}.git")
    (root / "README").write_text("no repository\n")
    texts, metas, _ = read(root)
    assert texts == {
        "a.git!x.py": "name = 'a'\n", "group/b.git!x.py": "name = 'group/b'\n", "group/c.git!x.py": "c = 1\n"
    }  # fmt: skip
    assert [json.loads(meta).get("licence") for meta in metas.values()] == ["MIT", "Apache-2.0", None]
    assert set(read(root, include=("group/*.git",), exclude=("**/c.git",))[0]) == {"group/b.git!x.py"}
    assert set(read(root, members=("**/*.txt", "x.*"))[0]) == set(texts)
    (tmp_path / "list").write_text("group/c.git\n")
    assert set(read(root, files=str(tmp_path / "list"))[0]) == {"group/c.git!x.py"}
    (tmp_path / "list").write_text("README\n")
    with pytest.raises(SourceError, match="names 'README', which is no repository"):
        read(root, files=str(tmp_path / "list"))


def test_revisions_and_sha256(tmp_path):
    work = repository(tmp_path / "work", {"a.py": "one\n"}, "--object-format=sha256")
    first = git(work, "rev-parse", "HEAD")
    git(work, "tag", "--annotate", "--message", "m", "v1")
    git(work, "tag", "--annotate", "--message", "m", "v1-again", "v1")
    commit(work, {"a.py": "two\n"})
    assert len(first) == 64
    for revision in (first, "v1", "v1-again", "refs/tags/v1"):
        assert read(work, revision=revision)[0] == {"work!a.py": "one\n"}
    assert read(work)[0] == {"work!a.py": "two\n"}
    with pytest.raises(SourceError, match=r"work: has no commit at revision 'v2'; it has main, v1, v1-again"):
        read(work, revision="v2")
    with pytest.raises(SourceError, match="is not in the repository"):
        read(work, revision="1" * 64)
    tree = git(work, "rev-parse", "HEAD^{tree}")
    with pytest.raises(SourceError, match=f"{tree} is a tree, expected a commit or a tag of one"):
        read(work, revision=tree)


def test_links_submodules_and_pointers_are_counted(tmp_path):
    work = repository(tmp_path / "work", {"a.py": "x = 1\n"})
    (work / "link.py").symlink_to("/etc/passwd")
    (work / "link.gz").symlink_to("a.py")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 123\n"
    (work / "weights.bin").write_text(pointer)
    git(work, "update-index", "--add", "--cacheinfo", f"160000,{git(work, 'rev-parse', 'HEAD')},other")
    git(work, "add", "link.py", "link.gz", "weights.bin")
    git(work, "commit", "--quiet", "--message", "m")
    texts, _, bad = read(work)
    assert texts == {"work!a.py": "x = 1\n"}
    assert bad == {
        "work!link.gz": "not_regular", "work!link.py": "not_regular", "work!other": "submodule",
        "work!weights.bin": "lfs_pointer",
    }  # fmt: skip


def test_large_files(tmp_path):
    work = repository(tmp_path / "work", {"a.py": "x = 1\n", "b.txt": "line\n" * 600_000, "c.py": "z = 1\n"})
    fields = {"max_document_bytes": 1 << 20}
    texts, _, bad = read(work, **fields)
    assert (set(texts), bad) == ({"work!a.py", "work!c.py"}, {"work!b.txt": "oversized"})
    source = Source("s", str(work), "git", oversized="split", **fields)
    parts = read_documents(source, list_files(source), 1 << 20)
    texts = [text for part in parts for text in part.documents["text"].to_pylist()]
    assert "".join(texts) == "x = 1\n" + "line\n" * 600_000 + "z = 1\n"
    assert len(texts) == 5


def evil_config(marker: Path) -> str:
    """Return a git configuration with many settings through which a reader might run a command."""
    run = f"touch {marker}"
    return (
        f"[core]\n fsmonitor = {run}\n sshCommand = {run}\n pager = {run}\n alternateRefsCommand = {run}\n hooksPath = .\n"
        f'[filter "evil"]\n smudge = {run}\n process = {run}\n required = true\n[diff "evil"]\n textconv = {run}\n'
        f'[extensions]\n partialClone = origin\n[remote "origin"]\n url = ext::{run}\n promisor = true\n uploadpack = {run}\n'
        f'[tar "tar"]\n command = {run}\n[include]\n path = {marker}.config\n[credential]\n helper = "!{run}"\n'
    )


def test_nothing_of_a_repository_runs(tmp_path):
    work = repository(
        tmp_path / "work",
        {".gitattributes": "* filter=evil diff=evil export-subst\n", "a.py": "id = '$Format:%H$'\n", "b.py": "b = 1\n"},
    )
    root, marker = bare(work, tmp_path / "r.git", "--no-local"), tmp_path / "ran"
    git(root, "unpack-objects", given=next((root / "objects/pack").glob("*.pack")).read_bytes())
    missing = git(root, "rev-parse", "HEAD:b.py")
    for pack in (root / "objects/pack").iterdir():
        pack.rename(tmp_path / pack.name)
    for pack in tmp_path.glob("*.pack"):
        git(root, "unpack-objects", given=pack.read_bytes())
    loose(root, missing).unlink()
    (root / "config").write_text(evil_config(marker))
    (tmp_path / "ran.config").write_text(evil_config(marker))
    for hook in ("post-checkout", "pre-auto-gc", "reference-transaction", "post-index-change"):
        (root / "hooks" / hook).parent.mkdir(exist_ok=True)
        (root / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {marker}\n")
        (root / "hooks" / hook).chmod(0o755)
    texts, _, bad = read(root)
    assert texts["r.git!a.py"] == "id = '$Format:%H$'\n"  # as it was committed
    assert bad == {"r.git!b.py": "missing_object"}
    assert not marker.exists()


def test_what_replaces_objects_is_not_followed(tmp_path):
    work = repository(tmp_path / "work", {"a.py": "right\n"})
    other = object_of(work, "blob", b"wrong\n")
    git(work, "replace", git(work, "rev-parse", "HEAD:a.py"), other)
    assert read(work)[0] == {"work!a.py": "right\n"}


@pytest.mark.parametrize("damage", ["content of another", "cut", "no zlib", "empty", "missing"])
def test_damaged_objects_are_set_aside(tmp_path, damage):
    root = empty_repository(tmp_path / "r.git")
    names = [object_of(root, "blob", text.encode() * 1000) for text in ("first\n", "second\n", "third\n")]
    commit_tree(root, tree_of([("100644", f"{n}.txt".encode(), name) for n, name in enumerate(names)]))
    path = loose(root, names[1])
    path.chmod(0o644)
    match damage:
        case "content of another":
            path.write_bytes(loose(root, names[0]).read_bytes())
        case "cut":
            path.write_bytes(path.read_bytes()[:20])
        case "no zlib":
            path.write_bytes(b"not an object")
        case "empty":
            path.write_bytes(b"")
        case "missing":
            path.unlink()
    texts, _, bad = read(root)
    assert texts == {"r.git!0.txt": "first\n" * 1000, "r.git!2.txt": "third\n" * 1000}
    assert set(bad) == {"r.git!1.txt"}
    assert bad["r.git!1.txt"] in (("missing_object",) if damage == "missing" else ("corrupt", "missing_object"))


@pytest.mark.long
def test_a_damaged_pack(tmp_path):
    """If one byte of a pack is wrong, the texts that are read are correct. The other files are set aside, or
    the repository is set aside or refused.
    """
    files = {f"{number}.txt": "".join(f"{number} {line}\n" for line in range(200)) for number in range(8)}
    root = bare(repository(tmp_path / "work", files), tmp_path / "r.git")
    git(root, "gc", "--quiet")
    pack = next((root / "objects/pack").glob("*.pack"))
    pack.chmod(0o644)
    whole = pack.read_bytes()
    outcomes = set()
    for at in range(12, len(whole) - 20, max(1, len(whole) // 40)):
        pack.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            texts, _, bad = read(root)
        except SourceError as error:
            outcomes.add("refused" if "r.git: " in str(error) else str(error))
            continue
        assert all(files[path.partition("!")[2]] == text for path, text in texts.items())
        assert len(texts) + len(bad) == len(files) or "r.git" in bad or "r.git!" in bad
        outcomes |= {"read", *bad.values()}
    assert outcomes <= {"refused", "read", "corrupt", "missing_object"}
    assert "read" in outcomes


@pytest.mark.long
def test_a_tree_of_billions_of_files_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(git_tree, "MOST_ENTRIES", 2000)
    root = empty_repository(tmp_path / "r.git")
    name, mode = object_of(root, "blob", b"x = 1\n"), "100644"
    for _ in range(10):
        content = tree_of([(mode, f"{n}".encode(), name) for n in range(10)])
        name, mode = object_of(root, "tree", content), "40000"
    commit_tree(root, content)
    texts, _, bad = read(root)
    assert 1500 < len(texts) < 2000
    assert list(bad.values()) == ["too_many_files"]


def test_trees_that_attack(tmp_path):
    """The trees have names that climb out of the repository, nested and repeated entries, invalid modes and
    trees, a directory entry that is a file, and a file entry that is a directory.
    """
    root = empty_repository(tmp_path / "r.git")
    blob = object_of(root, "blob", b"x = 1\n")
    deep = object_of(root, "tree", tree_of([("100644", b"f", blob)]))
    for _ in range(3):
        deep = object_of(root, "tree", tree_of([("40000", b"d", deep)]))
    entries = [
        ("100644", b"../../secret.py", blob), ("100644", b"/etc/passwd", blob), ("100644", b".git", blob),
        ("100644", b"a", blob), ("100644", b"a", blob), ("40000", b"b", blob), ("100644", b"c", deep),
        ("40000", b"d", object_of(root, "tree", b"no tree")), ("40000", b"e", deep), ("140000", b"s", blob),
    ]  # fmt: skip
    commit_tree(root, tree_of(entries))
    texts, _, bad = read(root)
    assert set(texts) == {f"r.git!{name}" for name in ("../../secret.py", "/etc/passwd", ".git", "a", "e/d/d/d/f", "s")}
    assert bad == {"r.git!b": "corrupt", "r.git!c": "corrupt", "r.git!d": "corrupt"}
    assert read(root, members=("a",))[2] == {"r.git!b": "corrupt", "r.git!d": "corrupt"}  # what they hold is unknown


@pytest.mark.long
def test_memory_is_bounded(tmp_path):
    root = empty_repository(tmp_path / "r.git")
    name = object_of(root, "blob", random.Random(1).randbytes(24 << 20))
    commit_tree(root, tree_of([("100644", b"a.txt", name)]))
    with pytest.raises(SourceError, match=r"r\.git: git needs more memory than page_memory_bytes allows"):
        read(root, page_memory_bytes=20 << 20)


def test_git_is_missing(tmp_path, monkeypatch):
    work = repository(tmp_path / "work", {"a": "1"})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SourceError, match="format git needs the program git, which this machine does not have; install it"
    ):
        read(work)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"root": "https://github.com/a/b"},
            "format git reads repositories on a disk: fetch it with `git clone --mirror`",
        ),
        ({"revision": "a..b"}, "revision: got 'a..b', expected a branch, a tag, HEAD, or the full id of a commit"),
        ({"format": "code", "revision": "v1"}, "only format git reads repositories, not code"),
    ],
)
def test_fields_that_fit_no_repository(fields, message):
    source = Source(**({"name": "s", "root": "x", "format": "git"} | fields))
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(".", r"\.")):
        source.check()


def test_no_repository(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.py").write_text("x\n")
    with pytest.raises(SourceError, match="there is no git repository under"):
        read(tmp_path / "in")
    empty_repository(tmp_path / "e.git")
    with pytest.raises(SourceError, match=r"e\.git: has no commit at revision 'HEAD'; it is empty"):
        read(tmp_path / "e.git")


def test_a_commit_decides_whether_a_source_is_read_again(tmp_path):
    def digest(**fields):
        source = Source("s", str(work), "git", **fields)
        return take_inventory([source], LocalPath(tmp_path / "out"))["s"].digest

    work = repository(tmp_path / "work", {"a.py": "one\n"})
    first = digest()
    git(work, "gc", "--quiet", "--aggressive")
    git(work, "tag", "v1")
    (work / "a.py").write_text("not committed\n")
    assert digest() == digest(revision="v1") == digest(revision=git(work, "rev-parse", "HEAD")) == first
    commit(work, {"a.py": "one\n", "b.py": "two\n"})
    assert digest() != first
    assert digest(revision="v1") == first


def test_a_build_follows_a_branch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work = repository(tmp_path / "work", {"a.py": "one = 1\n", "LICENSE": MIT})
    Path("c.yaml").write_text(
        "name: c\noutput: out\nsources:\n  - {name: s, root: work, format: git, columns: {licence: string}}\n"
        "steps:\n  - filter: [{signal: licence, one_of: [MIT], null: drop}]\n"
    )
    corpus = pipelines.build("c.yaml", in_process=True)
    assert corpus.documents().read_all()["text"].to_pylist() == ["one = 1\n"]
    first = git(work, "rev-parse", "HEAD")
    assert corpus.corpus.manifest.sources["s"]["commits"] == {"work": first}
    second = commit(work, {"b.py": "two = 2\n"})
    before = corpus.corpus.manifest.fingerprint
    corpus = pipelines.build("c.yaml", in_process=True)
    assert corpus.documents().read_all()["text"].to_pylist() == ["one = 1\n", "two = 2\n"]
    assert corpus.corpus.manifest.sources["s"]["commits"] == {"work": second}
    corpus = pipelines.build("c.yaml", [f"sources.s.revision={first}"], in_process=True)
    assert corpus.corpus.manifest.fingerprint == before
