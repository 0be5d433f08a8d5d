"""Find git repositories, and the commits that their branches and tags name, without running git.

A repository may come from anyone, and its configuration can name programs that git would run. Therefore only
its refs are read, directly from the files in which git stores them (gitrepository-layout). A name is looked
up in the same order as in git (gitrevisions).
"""

import re
from pathlib import Path

_FULL_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# git-check-ref-format: no component begins with a dot or ends in .lock, and none of these occurs.
_NO_REF = re.compile(r"(?:^|/)\.|\.\.|//|@\{|\.lock(?:/|$)|[\x00-\x20\x7f~^:?*\[\\]|^[-/]|[/.]$")
_PLACES = ("refs/{}", "refs/tags/{}", "refs/heads/{}", "refs/remotes/{}", "refs/remotes/{}/HEAD")
_REF_BYTES = 4096  # of a file with one ref
_PACKED_BYTES = 256 << 20
_SYMBOLIC = 5  # refs that name another; git follows as many (SYMREF_MAXDEPTH)
_SHOWN = 8


def check_revision(revision: str) -> None:
    """Raise ValueError("expected ...") unless `revision` can be the name of a branch or tag, HEAD, or the
    full id of a commit.
    """
    if not revision or _NO_REF.search(revision):
        raise ValueError("expected a branch, a tag, HEAD, or the full id of a commit")


def git_directory(path: Path) -> Path | None:
    """Return the directory with the objects and refs of a repository: `path` itself for a bare repository,
    else its `.git`. Return None if `path` is not a repository. A `.git` that is a file, as in submodules and
    linked work trees, does not count.
    """
    for each in (path, path / ".git"):
        if (each / "HEAD").is_file() and (each / "objects").is_dir() and (each / "refs").is_dir():
            return each
    return None


def resolve_revision(directory: Path, revision: str) -> str:
    """Return the id, 40 or 64 hex digits, of the commit or tag object that a revision names. A full id is
    returned unchanged and unchecked.

    Raises ValueError if the repository does not have the revision, if its refs cannot be read, or if it
    borrows objects from another repository.
    """
    if (directory / "objects/info/alternates").exists():
        raise ValueError(
            "borrows objects of another repository (objects/info/alternates), which is not followed; make it whole with "
            "`git repack -a -d`, and remove that file"
        )
    if _FULL_ID.fullmatch(revision):
        return revision
    if (directory / "reftable").is_dir():
        raise ValueError("stores its refs as a reftable, which is not read; name the full id of a commit as `revision`")
    check_revision(revision)
    packed = _packed_refs(directory)
    places = ["HEAD"] if revision == "HEAD" else [revision] if revision.startswith("refs/") else []
    places += [place.format(revision) for place in _PLACES]
    for place in places:
        found = _follow(directory, place, packed)
        if found is not None:
            return found
    have = sorted(
        {name.removeprefix("refs/heads/").removeprefix("refs/tags/") for name in _all_refs(directory, packed)}
    )
    named = f"it has {', '.join(have[:_SHOWN])}{' and others' if len(have) > _SHOWN else ''}" if have else "it is empty"
    raise ValueError(f"has no commit at revision {revision!r}; {named}")


def _follow(directory: Path, name: str, packed: dict[str, str]) -> str | None:
    for _ in range(_SYMBOLIC + 1):
        content = _loose_ref(directory, name)
        if content is None:
            return packed.get(name)
        if _FULL_ID.fullmatch(content):
            return content
        target = content.removeprefix("ref:").strip()
        if target == content or not target.startswith("refs/") or _NO_REF.search(target):
            raise ValueError(f"its ref {name} is damaged")
        name = target
    raise ValueError(f"its ref {name} refers to others in a circle")


def _loose_ref(directory: Path, name: str) -> str | None:
    path = directory / name
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(_REF_BYTES).decode("utf-8", "replace").strip()


def _packed_refs(directory: Path) -> dict[str, str]:
    """Return the refs in the file `packed-refs`, as a mapping from name to id. Comments (`#`) and the objects
    that tags point to (`^`) are skipped.
    """
    path = directory / "packed-refs"
    if not path.is_file():
        return {}
    if path.stat().st_size > _PACKED_BYTES:
        raise ValueError(f"its packed-refs has more than {_PACKED_BYTES >> 20} MiB")
    lines = (line.split(" ", 1) for line in path.read_text("utf-8", "replace").split("\n") if line[:1] not in "#^")
    return {line[1]: line[0] for line in lines if len(line) == 2 and _FULL_ID.fullmatch(line[0])}


def _all_refs(directory: Path, packed: dict[str, str]) -> list[str]:
    kinds = (directory / "refs/heads", directory / "refs/tags")
    loose = [path.relative_to(directory).as_posix() for kind in kinds for path in kind.rglob("*") if path.is_file()]
    return [*loose, *(name for name in packed if name.startswith(("refs/heads/", "refs/tags/")))]
