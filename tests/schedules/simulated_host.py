"""The host of simulated processes: files in memory, virtual time, and a chance for other agents to run before
each operation.

Paths outside ROOT belong to the real machine: sources, configuration files, package data.
"""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import xxhash

from gristmill.host import Host, TimedOut
from tests.schedules.memory_disk import ROOT, MemoryDisk
from tests.schedules.memory_store import MemoryStore
from tests.schedules.open_files import Appender, InPlace, Reader, Writer
from tests.schedules.scheduler import Killed, World, os_error

Result = TypeVar("Result")
_BELOW = f"{ROOT}/"
_COPIES: set[str] = set()  # real files that native code was lent
_EPOCH = 1_700_000_000.0  # what time() says when the clock is at 0


class SimulatedHost(Host):
    """The host of all processes of a World; it knows which process is running."""

    def __init__(self, world: World, disk: MemoryDisk, scratch: str) -> None:
        self._world, self._disk, self._scratch = world, disk, scratch

    # Time, randomness, processes

    def monotonic(self) -> float:
        self._world.observe(self._world.now)
        return self._world.now

    def time(self) -> float:
        return _EPOCH + self._world.now

    def sleep(self, seconds: float) -> None:
        self._world.wait(seconds=seconds)

    def unique(self) -> str:
        agent = self._world.current
        if agent is None:
            return super().unique()
        agent.names += 1  # names do not depend on the seed, so that states of different schedules can be equal
        return xxhash.xxh3_128_hexdigest(f"{self._disk.worlds} {agent.name} {agent.names}".encode())

    def identity(self) -> dict[str, object]:
        agent = self._world.current
        if agent is None:
            return {"host": "nowhere", "pid": 1, "kernel": "none", "started": "0"}
        process = agent.process
        return {
            "host": process.machine,
            "pid": process.pid,
            "kernel": f"kernel of {process.machine}",
            "started": process.name,
        }

    def is_alive(self, identity: Mapping[str, object]) -> bool | None:
        agent = self._world.current
        if agent is None or identity.get("kernel") != f"kernel of {agent.process.machine}":
            return None
        found = [process for process in self._world.processes.values() if process.pid == identity.get("pid")]
        alive = any(process.alive and process.name == identity.get("started") for process in found)
        self._world.touch(f"process {identity.get('pid')}")
        self._world.observe(alive)
        return alive

    def repeat(self, seconds: float, call: Callable[[], bool]) -> Callable[[], None]:
        world, ended = self._world, [False]

        def work() -> None:
            while True:
                world.wait(lambda: ended[0], seconds)
                if ended[0] or not call():
                    return

        agent = world.spawn("beat", work)

        def end() -> None:
            ended[0] = True
            world.notify()
            world.wait(lambda: agent.ended)

        return end

    def within(self, seconds: float, call: Callable[[], Result]) -> Result:
        world, answer, errors = self._world, [], []

        def work() -> None:
            try:
                answer.append(call())
            except Exception as error:
                errors.append(error)

        agent = world.spawn("call", work)
        world.wait(lambda: agent.ended, seconds)
        if not agent.ended:
            raise TimedOut(f"no answer within {seconds:.0f} s")
        if errors:
            raise errors[0]
        return answer[0]

    def exit(self, status: int) -> NoReturn:
        agent = self._world.current
        if agent is None:
            raise SystemExit(status)
        process = agent.process
        process.result, process.done, process.alive = status, True, False
        self._world.notify()
        raise Killed

    # Files

    def open(self, path: str, mode: str = "rb", buffering: int = -1) -> IO[bytes]:
        if not _simulated(path):
            return super().open(path, mode, buffering)
        world, disk = self._world, self._disk
        if mode == "rb":
            world.step("open", path)
            return Reader(world, disk.file(path), path)
        if mode == "r+b":
            world.step("open", path)
            return InPlace(world, disk, disk.file(path), path)  # type: ignore[return-value]
        if mode == "ab":
            world.step("append", path)
            try:
                node = disk.file(path)
            except FileNotFoundError:
                node = disk.create(path)
            return Appender(world, disk, node, path)
        world.step("create", path)
        return Writer(world, disk, disk.create(path, new=mode == "xb"), path)

    def fsync(self, file: IO[bytes]) -> None:
        if not isinstance(file, (Reader, Writer, InPlace)):
            super().fsync(file)
            return
        self._world.step("fsync", file.path)
        self._disk.fsync(file.node)

    def fsync_directory(self, path: str) -> None:
        if not _simulated(path):
            super().fsync_directory(path)
            return
        self._world.step("fsync_directory", path)
        self._disk.fsync(self._disk.find(path))

    def rename(self, old: str, new: str) -> None:
        if not _simulated(old):
            super().rename(old, new)
            return
        self._world.step("rename", old, new)
        self._disk.rename(old, new)

    def link(self, old: str, new: str) -> None:
        if not _simulated(old):
            super().link(old, new)
            return
        self._world.step("link", old, new)
        self._disk.link(old, new)

    def unlink(self, path: str) -> None:
        if not _simulated(path):
            super().unlink(path)
            return
        self._world.step("unlink", path)
        self._disk.unlink(path)

    def mkdir(self, path: str) -> None:
        if not _simulated(path):
            super().mkdir(path)
            return
        self._world.step("mkdir", path)
        self._disk.mkdir(path)

    def rmdir(self, path: str) -> None:
        if not _simulated(path):
            super().rmdir(path)
            return
        self._world.step("rmdir", path)
        self._disk.rmdir(path)

    def entries(self, path: str) -> list[tuple[str, bool]]:
        if not _simulated(path):
            return super().entries(path)
        self._world.step("entries", path)
        found = self._disk.entries(path)
        if self._world.current is not None:
            self._world.current.random.shuffle(found)
        return found

    def stat(self, path: str) -> os.stat_result:
        if not _simulated(path):
            return super().stat(path)
        self._world.step("stat", path)
        return self._disk.stat(path)

    def utime(self, path: str, times: tuple[int, int]) -> None:
        if not _simulated(path):
            super().utime(path, times)
            return
        self._world.step("utime", path)
        node = self._disk.find(path)
        node.atime, node.mtime = times

    def remove_tree(self, path: str) -> None:
        if not _simulated(path):
            super().remove_tree(path)
            return
        for name, is_directory in self.entries(path):
            if is_directory:
                self.remove_tree(f"{path}/{name}")
            else:
                self.unlink(f"{path}/{name}")
        self.rmdir(path)

    @contextmanager
    def lock(self, path: str) -> Iterator[bool]:
        if not _simulated(path):
            with super().lock(path) as alone:
                yield alone
            return
        self._world.step("lock", path)
        node, agent = self._disk.find(path), self._world.current
        assert agent is not None
        holder: Any = node.holder
        if holder is not None and holder.process.alive and holder.process.machine == agent.process.machine:
            self._world.observe(False)
            yield False
            return
        node.holder = agent
        try:
            yield True
        finally:
            if node.holder is agent:
                node.holder = None
                self._world.touch(f"{path} lock")

    def probe(self, path: str) -> None:
        if not _simulated(path):
            super().probe(path)
            return
        self._world.step("probe", path)
        if self._disk.find(path).entries is None:
            raise os_error(errno.ENOTDIR, path)

    # Native code

    def lend(self, path: str) -> str:
        if not _simulated(path):
            return super().lend(path)
        self._world.step("native read", path)
        node = self._disk.find(path)
        if node.entries is None:
            return self._real_copy(node.data)
        directory = tempfile.mkdtemp(dir=self._scratch)
        for name, _ in self.entries(path):
            with suppress(IsADirectoryError):
                with self.open(f"{path}/{name}") as source:
                    data = source.read()
                Path(directory, name).write_bytes(data)
        return directory

    def _real_copy(self, data: bytes) -> str:
        real = f"{self._scratch}/{xxhash.xxh3_128_hexdigest(data)}"
        if real not in _COPIES:
            Path(real).write_bytes(data)
            _COPIES.add(real)
        return real

    def deliver(self, path: str, write: Callable[[str], None]) -> None:
        if not _simulated(path):
            super().deliver(path, write)
            return
        with tempfile.TemporaryDirectory(dir=self._scratch) as directory:
            inside = Path(directory, path.rpartition("/")[2])
            target_is_directory = False
            with suppress(FileNotFoundError):
                target_is_directory = self._disk.find(path).entries is not None
            if target_is_directory:
                inside.mkdir()
            write(str(inside))
            produced = sorted(each for each in inside.rglob("*") if each.is_file()) if inside.is_dir() else [inside]
            for each in produced:
                relative = "" if each == inside else f"/{each.relative_to(inside).as_posix()}"
                with self.open(f"{path}{relative}", "wb") as sink:
                    sink.write(each.read_bytes())

    def store(self, scheme: str, make: Callable[[], Any]) -> Any:
        return MemoryStore(self._world, self._disk, self) if scheme == "s3" else super().store(scheme, make)


def _simulated(path: str) -> bool:
    return path.startswith(_BELOW) or path == ROOT
