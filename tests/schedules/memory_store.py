"""An object store in memory, with the part of fsspec's interface that the product uses.

A request takes effect at an operation `head`, `get`, `list`, `put` or `delete`, where it may fail as with
HTTP 503. A request that has changed something is answered at a second operation, `answer`, where the answer
may be lost; other agents can run in between. Listings come in pages of two names. The fault ESTALE makes a
put that must create its object fail with a conflict, as S3 does for concurrent puts.
"""

import errno
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from tests.schedules.memory_disk import MemoryDisk
from tests.schedules.scheduler import World

_PAGE = 2


class Objects:
    """Gives tests access to the store's contents without counting as an operation. Paths are the same as in
    events.
    """

    def __init__(self, disk: MemoryDisk) -> None:
        self._objects = disk.objects

    def peek(self, path: str) -> bytes | None:
        found = self._objects.get(path)
        return found[0] if found is not None else None

    def names(self, path: str) -> list[str]:
        below = (name.removeprefix(f"{path}/") for name in self._objects if name.startswith(f"{path}/"))
        return sorted({name.partition("/")[0] for name in below})

    def files(self, below: str) -> dict[str, bytes]:
        return {path: data for path, (data, _) in self._objects.items() if path.startswith(f"{below}/")}


class MemoryStore:
    """The objects of a MemoryDisk, by path without the scheme. Directories are name prefixes."""

    def __init__(self, world: World, disk: MemoryDisk, host: Any) -> None:
        self._world, self._objects, self._disk, self._host = world, disk.objects, disk, host

    def _strip_protocol(self, url: str) -> str:
        return url.partition("://")[2].rstrip("/")

    def info(self, path: str) -> dict[str, Any]:
        self._world.step("head", path)
        if path in self._objects:
            data, modified = self._objects[path]
            etag = f"{hash(data):x}"
            return {"name": path, "size": len(data), "type": "file", "ETag": etag, "LastModified": modified}
        if any(name.startswith(f"{path}/") for name in self._objects):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def exists(self, path: str) -> bool:
        with suppress(FileNotFoundError):
            self.info(path)
            return True
        return False

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["LastModified"], UTC)

    def ls(self, path: str, detail: bool = False) -> list[str]:
        assert not detail
        rest = (name.removeprefix(f"{path}/") for name in self._below(path))
        found = sorted({f"{path}/{name.partition('/')[0]}" for name in rest})
        if not found:
            raise FileNotFoundError(path)
        return found

    def find(self, path: str, detail: bool = True, withdirs: bool = False) -> dict[str, dict[str, Any]]:
        found = {}
        for name in self._below(path):
            with suppress(KeyError):
                found[name] = {"name": name, "size": len(self._objects[name][0]), "type": "file"}
        return found

    def cat_file(self, path: str, **_: Any) -> bytes:
        self._world.step("get", path)
        if path not in self._objects:
            self._world.observe(None)
            raise FileNotFoundError(path)
        self._world.observe(self._objects[path][0])
        return self._objects[path][0]

    def cat_ranges(self, paths: Sequence[str], starts: Sequence[int], ends: Sequence[int], **_: Any) -> list[bytes]:
        return [self.cat_file(path)[start:end] for path, start, end in zip(paths, starts, ends, strict=True)]

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        assert mode == "rb"
        return io.BytesIO(self.cat_file(path))

    def get_file(self, path: str, local: str) -> None:
        data = self.cat_file(path)
        with self._host.open(local, "wb") as sink:
            sink.write(data)

    def put_file(self, local: str, path: str) -> None:
        with self._host.open(local) as source:
            data = source.read()
        self.pipe_file(path, data)

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        try:
            self._world.step("put", path)
        except OSError as error:
            if mode == "create" and error.errno == errno.ESTALE:
                raise OSError(errno.EIO, "conflict") from RuntimeError("ConditionalRequestConflict")
            raise
        if mode == "create" and path in self._objects:
            raise FileExistsError(path)
        self._objects[path] = (bytes(data), self._host.time())
        self._disk.changes += 1
        self._world.step("answer", path)

    def rm(self, path: str, recursive: bool = False) -> None:
        names = [path] if path in self._objects else list(self._below(path)) if recursive else []
        if not names:
            raise FileNotFoundError(path)
        for name in names:
            self._world.step("delete", name)
            self._objects.pop(name, None)
            self._disk.changes += 1
        self._world.step("answer", path)

    def rm_file(self, path: str) -> None:
        self._world.step("delete", path)
        self._objects.pop(path, None)
        self._disk.changes += 1
        self._world.step("answer", path)

    def _below(self, path: str) -> Iterator[str]:
        last = ""
        while True:
            self._world.step("list", path)
            page = sorted(name for name in self._objects if name.startswith(f"{path}/") and name > last)[:_PAGE]
            yield from page
            if len(page) < _PAGE:
                return
            last = page[-1]
