"""Which directories are repositories, and the commits that names refer to, compared with git; and malicious
refs.
"""

import pytest

from pipelines.reading.git.git_refs import check_revision, git_directory, resolve_revision
from tests.pipelines.reading.git.repositories import bare, commit, empty_repository, git, repository


@pytest.fixture
def empty(tmp_path):
    return empty_repository(tmp_path / "r.git")


def test_names_are_looked_up_as_git_does(tmp_path):
    work = repository(tmp_path / "work", {"a.py": "1\n"})
    first = git(work, "rev-parse", "HEAD")
    git(work, "tag", "--annotate", "--message", "m", "v1")
    git(work, "branch", "feature/x")
    git(work, "tag", "both")
    commit(work, {"a.py": "2\n"})
    git(work, "branch", "both")
    git(work, "pack-refs", "--all")
    git(work, "branch", "later")
    for directory in (work / ".git", bare(work, tmp_path / "b.git"), bare(work, tmp_path / "m.git", "--mirror")):
        for name in (
            "HEAD",
            "main",
            "heads/main",
            "refs/heads/main",
            "v1",
            "feature/x",
            "both",
            "tags/both",
            "later",
            first,
        ):
            assert resolve_revision(directory, name) == git(directory, "rev-parse", "--quiet", name), name
    clone = tmp_path / "c"
    git(tmp_path, "clone", "--quiet", str(work), str(clone))
    for name in ("origin", "origin/feature/x", "remotes/origin/main", "HEAD"):
        assert resolve_revision(clone / ".git", name) == git(clone, "rev-parse", name), name


def test_a_detached_head(tmp_path):
    work = repository(tmp_path / "work", {"a": "1"})
    git(work, "checkout", "--quiet", "--detach")
    assert resolve_revision(work / ".git", "HEAD") == git(work, "rev-parse", "main")


def test_which_directories_are_repositories(tmp_path, empty):
    work = repository(tmp_path / "work", {"a": "1"})
    git(work, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    (tmp_path / "plain/objects").mkdir(parents=True)
    assert git_directory(empty) == empty
    assert git_directory(work) == work / ".git"
    assert [git_directory(tmp_path / name) for name in ("linked", "plain", "work/a", "missing")] == [None] * 4


def test_messages_say_what_there_is(tmp_path, empty):
    work = repository(tmp_path / "work", {"a": "1"})
    git(work, "tag", "v1")
    with pytest.raises(ValueError, match="has no commit at revision 'v2'; it has main, v1"):
        resolve_revision(work / ".git", "v2")
    with pytest.raises(ValueError, match="has no commit at revision 'HEAD'; it is empty"):
        resolve_revision(empty, "HEAD")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("ref: ../../secret", "HEAD is damaged"),
        ("ref: refs/../../secret", "HEAD is damaged"),
        ("ref: refs/heads/a", "in a circle"),
        ("nonsense", "HEAD is damaged"),
        ("", "HEAD is damaged"),
    ],
)
def test_refs_that_attack(empty, head, message):
    (empty.parent / "secret").write_text("0" * 40)
    (empty / "HEAD").write_text(head)
    (empty / "refs/heads/a").write_text("ref: refs/heads/b\n")
    (empty / "refs/heads/b").write_text("ref: refs/heads/a\n")
    with pytest.raises(ValueError, match=message):
        resolve_revision(empty, "HEAD")


@pytest.mark.parametrize(
    "name", ["", "../x", "a..b", "-x", "/x", "a b", "a~1", "a^", "a:b", "x.lock", "a/", ".x", "a\n", "a@{1}"]
)
def test_names_that_are_no_refs(name):
    with pytest.raises(ValueError, match="expected a branch, a tag, HEAD, or the full id"):
        check_revision(name)


def test_borrowed_objects_and_reftables_are_refused(tmp_path, empty):
    work = repository(tmp_path / "work", {"a": "1"})
    git(tmp_path, "clone", "--quiet", "--bare", "--shared", str(work), str(tmp_path / "shared.git"))
    with pytest.raises(ValueError, match="borrows objects of another repository"):
        resolve_revision(tmp_path / "shared.git", "HEAD")
    (empty / "reftable").mkdir()
    with pytest.raises(ValueError, match="stores its refs as a reftable"):
        resolve_revision(empty, "HEAD")
    assert resolve_revision(empty, "1" * 40) == "1" * 40
