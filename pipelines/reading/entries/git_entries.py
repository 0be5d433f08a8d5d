"""Git repositories as files of a source: each is one file, whose members are the files of a commit."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gristmill.errors import SourceError
from pipelines.reading.entries.files import SourceFile, printable_name
from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.git.git_objects import DamagedObjectError, GitObjects
from pipelines.reading.git.git_refs import git_directory, resolve_revision
from pipelines.reading.git.git_tree import commit_of, files_of_commit
from pipelines.reading.sources.source import Source

_POINTER = b"version https://git-lfs.github.com/spec/"  # docs/spec.md of git-lfs, which allows 1,024 bytes
_POINTER_BYTES = 1024
_WITH_NAMES = ("file", "not_regular", "submodule")  # the others are parts of the tree that cannot be read


@dataclass(frozen=True)
class GitMember:
    """A file of a commit, or the repository itself if `path` is empty. `chunks` is its content, and `size`
    the length of the content in bytes. If `reason` is set, the file is set aside for that reason and has no
    content.
    """

    path: str
    size: int = 0
    chunks: Iterable[bytes] = ()
    reason: str | None = None


def is_repository(path: str) -> bool:
    """Return whether a path is a git repository: a bare one, or a directory that has one in `.git`."""
    return git_directory(Path(path)) is not None


def describe_repository(source: Source, raw: str, location: str, where: str) -> SourceFile | None:
    """Return the git repository at `location` as a file named `raw`, at the commit that the source's
    `revision` names, or None if there is no repository. Error messages begin with `where`.

    Raises SourceError if the repository has no such commit, or if the commit cannot be read.
    """
    directory = git_directory(Path(location))
    if directory is None:
        return None
    try:
        name = resolve_revision(directory, source.revision)
        with GitObjects(directory, len(name), source.page_memory_bytes) as objects:
            commit = commit_of(objects, name)
            blobs = [file.name for file in files_of_commit(objects, commit) if file.kind == "file"]
            size = sum(objects.sizes(blobs))
    except ValueError as error:
        raise SourceError(f"{where}: git repository {printable_name(location)}: {error}") from None
    return SourceFile(printable_name(raw), size, str(directory), commit=commit)


def git_members(file: SourceFile, source: Source, is_wanted: Callable[[str], bool]) -> Iterator[GitMember]:
    """Yield the wanted files of a commit, in the order of its trees. Files that are set aside, such as
    symbolic links and Git LFS pointers, and parts of the commit that cannot be read are yielded as members
    with a `reason`. The content of a member is valid only until the next member is requested.
    """
    assert file.commit is not None
    with GitObjects(Path(file.location), len(file.commit), source.page_memory_bytes) as objects:
        try:
            for each in files_of_commit(objects, file.commit):
                path = each.path.decode("utf-8", "surrogateescape")
                if each.kind not in _WITH_NAMES:
                    yield GitMember(path, reason=each.kind)
                elif is_wanted(path):
                    is_file = each.kind == "file"
                    yield _open(objects, path, each.name, source) if is_file else GitMember(path, reason=each.kind)
        except ValueError:  # the commit itself, which was there when the source was listed
            yield GitMember("", reason="corrupt")


def _open(objects: GitObjects, path: str, name: str, source: Source) -> GitMember:
    try:
        kind, size, chunks = objects.open(name)
    except DamagedObjectError as error:
        return GitMember(path, reason=error.reason)
    if kind != "blob":
        return GitMember(path, reason="corrupt")
    if size > source.max_document_bytes:
        is_split = source.oversized == "split"
        return GitMember(path, size, _content(chunks)) if is_split else GitMember(path, reason="oversized")
    try:
        content = b"".join(chunks)  # as a whole: its id is known to be right only at its end
    except DamagedObjectError as error:
        return GitMember(path, reason=error.reason)
    if size <= _POINTER_BYTES and content.startswith(_POINTER):
        return GitMember(path, reason="lfs_pointer")
    return GitMember(path, size, iter([content]))


def _content(chunks: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from chunks
    except DamagedObjectError as error:
        raise BrokenInput(error.reason) from None
