"""Open files of the simulated host, where reading, writing and flushing are separate operations."""

import io
from typing import Any

from tests.schedules.memory_disk import MemoryDisk, Node
from tests.schedules.scheduler import World


class Reader(io.BytesIO):
    """An open file whose contents are loaded completely at the first read."""

    def __init__(self, world: World, node: Node, path: str) -> None:
        super().__init__()
        self.node, self.path = node, path
        self._world, self._loaded = world, False

    def _load(self) -> None:
        if not self._loaded:
            self._loaded = True
            self._world.step("read", self.path)
            self._world.observe(self.node.data)
            position = super().tell()
            super().seek(0)
            super().write(self.node.data)
            super().seek(position)

    def read(self, size: int | None = -1, /) -> bytes:
        self._load()
        return super().read(size)

    def read1(self, size: int | None = -1, /) -> bytes:
        self._load()
        return super().read1(size)

    def readinto(self, buffer: Any, /) -> int:
        self._load()
        return super().readinto(buffer)

    def readline(self, size: int | None = -1, /) -> bytes:
        self._load()
        return super().readline(size)

    def readlines(self, size: int | None = None, /) -> list[bytes]:
        self._load()
        return super().readlines(size)

    def __next__(self) -> bytes:
        self._load()
        return super().__next__()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence == 2:
            self._load()
        return super().seek(offset, whence)

    def writable(self) -> bool:
        return False


class Writer(io.BytesIO):
    """A file open for writing. On a flush or close, its buffer reaches the disk in two halves."""

    def __init__(self, world: World, disk: MemoryDisk, node: Node, path: str) -> None:
        super().__init__()
        self.node, self.path = node, path
        self._world, self._disk = world, disk
        self._written = 0

    def flush(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        if data == self.node.data and self._written == len(data):
            return
        middle = (self._written + len(data)) // 2 if len(data) > self._written else len(data) // 2
        self._world.step("part", self.path)
        self._disk.write(self.node, data[:middle])
        self._world.step("rest", self.path)
        self._disk.write(self.node, data)
        self._written = len(data)

    def close(self) -> None:
        if not self.closed:
            try:
                self.flush()
            finally:
                super().close()

    def readable(self) -> bool:
        return False

    def __del__(self) -> None:
        """Discard what was never flushed or closed."""


class Appender(Writer):
    """A file open for appending. Data goes to the end of the file, after anything that others have written in
    the meantime.
    """

    def flush(self) -> None:
        if self.closed:
            return
        data = self.getvalue()[self._written :]
        if not data:
            return
        self._written += len(data)
        for kind, piece in (("part", data[: len(data) // 2]), ("rest", data[len(data) // 2 :])):
            self._world.step(kind, self.path)
            self._disk.write(self.node, self.node.data + piece)


class InPlace:
    """An open file that is read and overwritten in place, unbuffered."""

    def __init__(self, world: World, disk: MemoryDisk, node: Node, path: str) -> None:
        self.node, self.path = node, path
        self._world, self._disk, self._position = world, disk, 0

    def __enter__(self) -> "InPlace":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """Do nothing, since the file is unbuffered."""

    def flush(self) -> None:
        """Do nothing, since the file is unbuffered."""

    def seek(self, position: int) -> int:
        self._position = position
        return position

    def read(self, size: int = -1) -> bytes:
        self._world.step("read", self.path)
        self._world.observe(self.node.data)
        data = self.node.data[self._position :] if size < 0 else self.node.data[self._position : self._position + size]
        self._position += len(data)
        return data

    def write(self, data: bytes) -> int:
        half = len(data) // 2
        for kind, piece in (("part", data[:half]), ("rest", data[half:])):
            self._world.step(kind, self.path)
            before, start = self.node.data, self._position
            self._disk.write(self.node, before[:start].ljust(start, b"\0") + piece + before[start + len(piece) :])
            self._position += len(piece)
        return len(data)
