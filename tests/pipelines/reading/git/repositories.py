"""Git repositories for tests, made by git itself."""

import os
import subprocess
from pathlib import Path

_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}  # fmt: skip


def git(directory: Path, *words: str, given: bytes = b"") -> str:
    command = ["git", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always", *words]
    environment = os.environ | _ENVIRONMENT
    done = subprocess.run(command, cwd=directory, env=environment, input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def repository(directory: Path, files: dict[str, str | bytes], *options: str) -> Path:
    directory.mkdir(parents=True)
    git(directory, "init", "--quiet", *options)
    commit(directory, files)
    return directory


def commit(directory: Path, files: dict[str, str | bytes]) -> str:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(directory, "add", "--all", "--force")
    git(directory, "commit", "--quiet", "--message", "a message")
    return git(directory, "rev-parse", "HEAD")


def bare(origin: Path, target: Path, *options: str) -> Path:
    git(origin, "clone", "--quiet", "--bare", *options, str(origin), str(target))
    return target


def object_of(directory: Path, kind: str, content: bytes) -> str:
    """Write a git object, valid or not; return its id."""
    return git(directory, "hash-object", "-t", kind, "-w", "--stdin", "--literally", given=content)


def tree_of(entries: list[tuple[str, bytes, str]]) -> bytes:
    return b"".join(mode.encode() + b" " + name + b"\0" + bytes.fromhex(each) for mode, name, each in entries)


def commit_tree(directory: Path, content: bytes) -> str:
    """Commit a tree, valid or not, to the branch main; return the id of the commit."""
    text = f"tree {object_of(directory, 'tree', content)}\nauthor a <a> 0 +0000\ncommitter a <a> 0 +0000\n\nm\n"
    name = object_of(directory, "commit", text.encode())
    (directory / "refs/heads/main").write_text(f"{name}\n")
    return name


def loose(directory: Path, name: str) -> Path:
    return directory / "objects" / name[:2] / name[2:]


def empty_repository(path: Path, *options: str) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--bare", *options)
    return path
