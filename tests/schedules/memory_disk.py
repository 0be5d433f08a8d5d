"""A POSIX file system in memory that tracks names, contents, which of them are durable, and what survives a
loss of power.

Names become durable by fsync of their directory, contents by fsync of the file. Operations here take effect
at once; the simulated host lets other agents run first. There are only hard links, and no permissions.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from tests.schedules.scheduler import os_error

ROOT = "/simulated"
_RESTORED = 1000


class Node:
    """A file (with `data`) or a directory (with `entries`). `kept` and `stable` are the durable data and
    entries.
    """

    __slots__ = (
        "atime", "ctime", "data", "entries", "holder", "kept", "links", "mtime", "number", "stable", "status", "writer",
    )  # fmt: skip

    def __init__(self, number: int, entries: "dict[str, Node] | None", now: int) -> None:
        self.number, self.entries, self.data = number, entries, b""
        self.stable: dict[str, Node] = {}
        self.kept: bytes | None = None
        self.writer = ""  # the machine with the last write that is not durable
        self.holder: object = None  # who holds the lock
        self.links = 0
        self.status: tuple[object, os.stat_result] | None = None  # the last answer of stat, and of what
        self.atime = self.mtime = self.ctime = now


class _Change(NamedTuple):
    """One operation on names, which becomes durable completely or not at all. `names` holds a (directory,
    name, new node or None) for each name that changes.
    """

    machine: str
    names: tuple[tuple[Node, str, Node | None], ...]


class MemoryDisk:
    """The file system below ROOT. `clock` returns the time in seconds, `machine` the name of the running
    machine.
    """

    def __init__(self) -> None:
        self.clock: Callable[[], float] = lambda: 0.0
        self.machine: Callable[[], str] = lambda: ""
        self.number: Callable[[], int] = self._count  # of the next file or directory
        self.objects: dict[str, tuple[bytes, float]] = {}  # of the object store: contents, time
        self.changes = 0  # operations that have changed something
        self.worlds = 0  # runs that it has seen
        self._number = 1
        self._changes = 0  # operations on names
        self._log: dict[Node, dict[int, _Change]] = {}  # by directory: what is not durable, by number
        self.root = self._node({})
        self._directories = {ROOT: self.root}

    # Operations. Paths are absolute, below ROOT or ROOT itself.

    def find(self, path: str) -> Node:
        node = self._directories.get(path)
        if node is not None:
            return node
        directory, name = self._parent(path)
        assert directory.entries is not None
        node = directory.entries.get(name)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if node.entries is not None:
            self._directories[path] = node
        return node

    def file(self, path: str) -> Node:
        node = self.find(path)
        if node.entries is not None:
            raise os_error(errno.EISDIR, path)
        return node

    def create(self, path: str, *, new: bool = False) -> Node:
        """Return an empty file at a path. An existing file is truncated, or refused if `new` is set."""
        directory, name = self._parent(path)
        assert directory.entries is not None
        node = directory.entries.get(name)
        if node is None:
            node = self._node(None)
            node.links = 1
            self._set(directory, name, node)
        elif new:
            raise os_error(errno.EEXIST, path)
        elif node.entries is not None:
            raise os_error(errno.EISDIR, path)
        elif node.data:
            self.write(node, b"")
        return node

    def write(self, node: Node, data: bytes) -> None:
        node.data = data
        node.mtime = node.ctime = self._now()
        node.writer = self.machine()
        self.changes += 1

    def fsync(self, node: Node) -> None:
        """Make the contents of a file, or the names in a directory, durable."""
        if node.entries is None:
            node.kept = node.data
            return
        # What is durable is a prefix of what happened in each directory: a change needs all earlier ones of its directories.
        needed, numbers, asked = {}, [(node, self._changes)], {}
        while numbers:
            directory, last = numbers.pop()
            known = asked.get(directory, -1)
            if last <= known:
                continue
            asked[directory] = last
            for number, change in self._log.get(directory, {}).items():
                if known < number <= last:
                    needed[number] = change
                    numbers += [(each, number) for each, _, _ in change.names if each is not directory]
        for number in sorted(needed):
            _keep(needed[number])
            for directory, _, _ in needed[number].names:
                self._log[directory].pop(number, None)

    def rename(self, old: str, new: str) -> None:
        source, old_name = self._parent(old)
        target, new_name = self._parent(new)
        assert source.entries is not None
        assert target.entries is not None
        node, other = source.entries.get(old_name), target.entries.get(new_name)
        if node is None:
            raise os_error(errno.ENOENT, old, new)
        if node is other:
            return
        if old.startswith(f"{new}/"):
            raise os_error(errno.ENOTEMPTY, old, new)
        if node.entries is not None:
            if new.startswith(f"{old}/"):
                raise os_error(errno.EINVAL, old, new)
            if other is not None and other.entries is None:
                raise os_error(errno.ENOTDIR, old, new)
            if other is not None and other.entries:
                raise os_error(errno.ENOTEMPTY, old, new)
            self._forget_directories()
        elif other is not None and other.entries is not None:
            raise os_error(errno.EISDIR, old, new)
        if other is not None:
            other.links -= 1
        del source.entries[old_name]
        target.entries[new_name] = node
        self._changed((source, old_name, None), (target, new_name, node))

    def link(self, old: str, new: str) -> None:
        node = self.find(old)
        directory, name = self._parent(new)
        assert directory.entries is not None
        if name in directory.entries:
            raise os_error(errno.EEXIST, old, new)
        if node.entries is not None:
            raise os_error(errno.EPERM, old, new)
        node.links += 1
        self._set(directory, name, node)

    def unlink(self, path: str) -> None:
        directory, name = self._parent(path)
        assert directory.entries is not None
        node = directory.entries.get(name)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if node.entries is not None:
            raise os_error(errno.EISDIR, path)
        node.links -= 1
        del directory.entries[name]
        self._changed((directory, name, None))

    def mkdir(self, path: str) -> None:
        if path == ROOT:
            raise os_error(errno.EEXIST, path)
        directory, name = self._parent(path)
        assert directory.entries is not None
        if name in directory.entries:
            raise os_error(errno.EEXIST, path)
        self._set(directory, name, self._node({}))

    def rmdir(self, path: str) -> None:
        directory, name = self._parent(path)
        node = self.find(path)
        if node.entries is None:
            raise os_error(errno.ENOTDIR, path)
        if node.entries:
            raise os_error(errno.ENOTEMPTY, path)
        assert directory.entries is not None
        del directory.entries[name]
        self._forget_directories()
        self._changed((directory, name, None))

    def entries(self, path: str) -> list[tuple[str, bool]]:
        node = self.find(path)
        if node.entries is None:
            raise os_error(errno.ENOTDIR, path)
        return [(name, child.entries is not None) for name, child in sorted(node.entries.items())]

    def stat(self, path: str) -> os.stat_result:
        node = self.find(path)
        of = (node.atime, node.mtime, node.ctime, node.links, len(node.data))
        if node.status is not None and node.status[0] == of:
            return node.status[1]
        mode = stat.S_IFREG | 0o644 if node.entries is None else stat.S_IFDIR | 0o755
        times = {"st_atime_ns": node.atime, "st_mtime_ns": node.mtime, "st_ctime_ns": node.ctime}
        seconds = (node.atime // 10**9, node.mtime // 10**9, node.ctime // 10**9)
        status = os.stat_result((mode, node.number, 1, max(node.links, 1), 0, 0, len(node.data), *seconds), times)
        node.status = (of, status)
        return status

    # Loss of power

    def lose_power(self, machine: str, chance: Random) -> None:
        """Discard what a machine did not make durable, in part or completely.

        Of the operations on the names in each directory, a prefix survives, since file systems write these in
        order. A file keeps its durable contents, or these with a prefix overwritten by its new contents, or
        all of its new contents.
        """
        cut: set[Node] = set()
        changes = {number: change for of in self._log.values() for number, change in of.items()}
        for _, change in sorted(changes.items()):
            directories = [directory for directory, _, _ in change.names]
            if change.machine == machine and (not cut.isdisjoint(directories) or chance.random() < 0.3):
                cut.update(directories)
            else:
                _keep(change)
        self._log.clear()
        self._forget_directories()
        self._restore_durable(self.root, machine, chance)

    def _restore_durable(self, node: Node, machine: str, chance: Random) -> None:
        if node.entries is not None:
            node.entries = dict(node.stable)
            for child in node.entries.values():
                self._restore_durable(child, machine, chance)
        elif node.kept != node.data and node.writer == machine:
            before = node.kept or b""
            written = chance.choice((0, len(node.data) // 2, len(node.data)))
            node.data = node.data if written == len(node.data) else node.data[:written] + before[written:]
            node.kept = node.data

    # For tests: no operations

    def peek(self, path: str) -> bytes | None:
        try:
            node = self.find(path)
        except OSError:
            return None
        return node.data if node.entries is None else None

    def names(self, path: str) -> list[str] | None:
        try:
            return [name for name, _ in self.entries(path)]
        except OSError:
            return None

    def files(self, below: str = ROOT) -> dict[str, bytes]:
        try:
            return {path: node.data for path, node in _walk(below, self.find(below)) if node.entries is None}
        except OSError:
            return {}

    def directories(self, below: str = ROOT) -> list[str]:
        return [path for path, node in _walk(below, self.find(below)) if node.entries is not None]

    def leftovers(self, below: str = ROOT) -> list[str]:
        found = []
        for path, _ in _walk(below, self.find(below)):
            name = path.rpartition("/")[2]
            if name == ".lease" or (name.startswith(".") and name.endswith(".tmp")):
                found.append(path)
        return found

    def snapshot(self) -> "Node":
        """Return a copy of the disk for `restore`, as if all of it were durable."""
        return _copy(self.root, {})

    def restore(self, snapshot: "Node") -> None:
        """Return to a snapshot, which can be used again."""
        self.root = _copy(snapshot, {})
        self._log.clear()
        self._forget_directories()
        self.worlds = _RESTORED  # names made up now differ from those in a snapshot
        self._number = max(self._number, *(node.number for _, node in _walk(ROOT, self.root)), 1)

    # Inside

    def _node(self, entries: dict[str, Node] | None) -> Node:
        return Node(self.number(), entries, self._now())

    def _count(self) -> int:
        self._number += 1
        return self._number

    def _now(self) -> int:
        return int(self.clock() * 1e9)

    def _parent(self, path: str) -> tuple[Node, str]:
        place, _, name = path.rpartition("/")
        directory = self._directories.get(place)
        if directory is None:
            directory = self.find(place)
        if directory.entries is None:
            raise os_error(errno.ENOTDIR, path)
        return directory, name

    def _set(self, directory: Node, name: str, node: Node) -> None:
        assert directory.entries is not None
        directory.entries[name] = node
        self._changed((directory, name, node))

    def _changed(self, *names: tuple[Node, str, Node | None]) -> None:
        self._changes += 1
        change, now = _Change(self.machine(), names), self._now()
        for directory, _, _ in names:
            directory.mtime = directory.ctime = now
            log = self._log.get(directory)
            if log is None:
                log = self._log[directory] = {}
            log[self._changes] = change
        self.changes += 1

    def _forget_directories(self) -> None:
        self._directories = {ROOT: self.root}


def _keep(change: _Change) -> None:
    for directory, name, node in change.names:
        if node is None:
            directory.stable.pop(name, None)
        else:
            directory.stable[name] = node


def _walk(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    for name, child in sorted((node.entries or {}).items()):
        yield f"{path}/{name}", child
        if child.entries is not None:
            yield from _walk(f"{path}/{name}", child)


def _copy(node: Node, copies: dict[Node, Node]) -> Node:
    if node in copies:
        return copies[node]
    copy = copies[node] = Node(node.number, None if node.entries is None else {}, 0)
    copy.data = copy.kept = node.data
    copy.links, copy.atime, copy.mtime, copy.ctime = node.links, node.atime, node.mtime, node.ctime
    if node.entries is not None:
        copy.entries = {name: _copy(child, copies) for name, child in node.entries.items()}
        copy.stable = dict(copy.entries)
    return copy
