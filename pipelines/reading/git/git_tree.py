"""Find the commit that a tag leads to, and list the files of a commit in the order in which git stores them:
by the bytes of their paths.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from pipelines.reading.git.git_objects import DamagedObjectError, GitObjects

MOST_ENTRIES = 1_000_000
"""The most files and directories of a commit that are read. A few objects can encode billions, because one tree may occur
many times.
"""
_MOST_DEPTH = 1000
_HEADER_BYTES = 16 << 20  # of a commit or a tag, with its message
_TREE_BYTES = 64 << 20  # of one directory
_PATH_BYTES = 4096
_TAGS = 10  # tags of tags
_DIRECTORY, _LINK, _SUBMODULE = 0o040000, 0o120000, 0o160000

Kind = Literal["file", "not_regular", "submodule", "missing_object", "corrupt", "too_many_files"]


class GitFile(NamedTuple):
    """A file of a commit: its path, its kind, and the id of its object (`name`). A `kind` other than `file`
    is the reason why the file is set aside. A directory that cannot be read counts as one such file, and so
    does the rest of a commit with too many files.
    """

    path: bytes
    kind: Kind
    name: str


def commit_of(objects: GitObjects, name: str) -> str:
    """Return the id of a commit. `name` is the id of the commit itself, or of a tag that leads to it. Raises
    ValueError if an object on the way is missing or damaged, or if `name` does not lead to a commit.
    """
    for _ in range(_TAGS):
        try:
            kind, _, _ = objects.open(name)
        except DamagedObjectError as error:
            held = "is damaged" if error.reason == "corrupt" else "is not in the repository"
            raise ValueError(f"object {name} {held}") from None
        if kind == "commit":
            return name
        if kind != "tag":
            raise ValueError(f"{name} is a {kind}, expected a commit or a tag of one")
        name = _field(objects, name, "tag", b"object")
    raise ValueError(f"tag {name} leads to a tag, more than {_TAGS} times")


def files_of_commit(objects: GitObjects, commit: str) -> Iterator[GitFile]:
    """Yield the files of a commit, in the order in which git stores them. If it has more than MOST_ENTRIES
    files and directories, the last item has the kind `too_many_files`. Raises ValueError if the commit cannot
    be read.
    """
    left = MOST_ENTRIES
    stack = [iter([(_DIRECTORY, b"", _field(objects, commit, "commit", b"tree"))])]
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
            continue
        mode, path, name = entry
        left -= 1
        if left < 0:
            yield GitFile(path, "too_many_files", name)
            return
        if mode == _DIRECTORY and len(stack) <= _MOST_DEPTH and len(path) <= _PATH_BYTES:
            try:
                stack.append(_entries(objects.read(name, "tree", _TREE_BYTES), path, len(name) // 2))
            except DamagedObjectError as error:
                yield GitFile(path, "missing_object" if error.reason == "missing_object" else "corrupt", name)
        elif mode == _DIRECTORY:
            yield GitFile(path[:_PATH_BYTES], "corrupt", name)
        elif mode == _LINK:
            yield GitFile(path, "not_regular", name)
        elif mode == _SUBMODULE:
            yield GitFile(path, "submodule", name)
        else:
            yield GitFile(path, "file", name)


def _entries(tree: bytes, directory: bytes, id_bytes: int) -> Iterator[tuple[int, bytes, str]]:
    """Return an iterator over the entries of a tree object, as (file type, path, id). Each entry is stored as
    a mode, a space, a name, a zero byte and an id, with nothing between entries.
    """
    found = []
    at = 0
    while at < len(tree):
        space = tree.find(b" ", at, at + 8)
        end = tree.find(b"\0", space)
        if space < 0 or end < 0 or end + 1 + id_bytes > len(tree) or not tree[at:space].isdigit():
            raise DamagedObjectError("corrupt")
        try:
            mode = int(tree[at:space], 8) & 0o170000
        except ValueError:
            raise DamagedObjectError("corrupt") from None
        path = b"/".join((directory, tree[space + 1 : end])) if directory else tree[space + 1 : end]
        found.append((mode, path, tree[end + 1 : end + 1 + id_bytes].hex()))
        at = end + 1 + id_bytes
    return iter(found)


def _field(objects: GitObjects, name: str, kind: str, field: bytes) -> str:
    """Return the id in the first line of a commit (`tree ID`) or of a tag (`object ID`)."""
    try:
        words = objects.read(name, kind, _HEADER_BYTES).split(b"\n", 1)[0].split(b" ")
    except DamagedObjectError:
        words = []
    if len(words) != 2 or words[0] != field or len(words[1]) != len(name) or words[1].strip(b"0123456789abcdef"):
        raise ValueError(f"{kind} {name} is damaged")
    return words[1].decode()
