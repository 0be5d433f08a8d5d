"""Caches: each simulated process gets its own copy of the product's per-process caches, while paths are
cached globally.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PosixPath
from typing import Any

from gristmill.storage.disk import LocalPath
from tests.schedules.scheduler import World

# module and name of functions with a cache of what they have read from an output
_CACHED = (
    ("gristmill.storage.disk", "_verify"),
    ("gristmill.storage.remote", "_store"),
    ("pipelines.contracts.lineage", "_index"),
    ("pipelines.contracts.manifest", "_load_once"),
)


# modules that account for processor time, which nobody asks for here, and whose blocks agents would leave in another order
_ACCOUNTING = (
    "gristmill.storage.disk", "gristmill.storage.store", "pipelines.building.annotate", "pipelines.building.build",
    "pipelines.building.publish", "pipelines.contracts.edits", "pipelines.contracts.manifest",
)  # fmt: skip
_LIMIT = 100_000
_children: dict[tuple[str, str], LocalPath] = {}
_paths: dict[str, LocalPath] = {}
_parents: dict[str, LocalPath] = {}
_find_parent = LocalPath.parent.fget  # type: ignore[attr-defined]


def _child_once(path: LocalPath, name: str) -> LocalPath:
    """`path / name`, cached. Uncached, the operator takes a fifth of the time of a small build."""
    try:
        key = (path._str, name)  # type: ignore[attr-defined]
    except AttributeError:  # str(path) was never called
        key = (str(path), name)
    found = _children.get(key)
    if found is None:
        if len(_children) > _LIMIT:
            _children.clear()
        found = _children[key] = path._make_child((name,))  # type: ignore[attr-defined]
        str(found)
    return found


def _path_once(cls: type[LocalPath], *parts: Any, **_: Any) -> LocalPath:
    if len(parts) != 1 or cls is not LocalPath:
        return PosixPath.__new__(cls, *parts)
    if type(parts[0]) is LocalPath:
        return parts[0]
    key = str(parts[0])
    found = _paths.get(key)
    if found is None:
        if len(_paths) > _LIMIT:
            _paths.clear()
        found = _paths[key] = PosixPath.__new__(cls, key)
    return found


def _parent_once(path: LocalPath) -> LocalPath:
    key = str(path)
    found = _parents.get(key)
    if found is None:
        if len(_parents) > _LIMIT:
            _parents.clear()
        found = _parents[key] = _find_parent(path)
    return found


def _sibling(path: LocalPath, name: str) -> LocalPath:
    """`path.with_name(name)`, left uncached because nearly all of these names occur only once."""
    parts = [*path._parts[:-1], name]  # type: ignore[attr-defined]
    sibling = LocalPath._from_parsed_parts(path._drv, path._root, parts)  # type: ignore[attr-defined]
    parent = str(_parent_once(path))
    if parent not in (".", "/"):
        sibling._str = f"{parent}/{name}"
    return sibling


_QUICK = {
    "__new__": _path_once, "__truediv__": _child_once, "with_name": _sibling, "parent": property(_parent_once),
}  # fmt: skip


@contextmanager
def quick_paths() -> Iterator[None]:
    """Cache paths while the block runs. A search enters the block only once, since each change to a class
    makes the interpreter discard specialised code.
    """
    if LocalPath.__dict__.get("with_name") is _sibling:
        yield
        return
    own = {name: LocalPath.__dict__[name] for name in _QUICK if name in LocalPath.__dict__}
    for name, function in _QUICK.items():
        setattr(LocalPath, name, function)
    try:
        yield
    finally:
        for name in _QUICK:
            if name in own:
                setattr(LocalPath, name, own[name])
            else:
                delattr(LocalPath, name)


@contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes of modules, given as (module, name, value), while the block runs. `unittest.mock` is
    twenty times slower, which matters because a run takes a hundredth of a second.
    """
    absent = object()
    before = [(module, name, module.__dict__.get(name, absent)) for module, name, _ in replacements]
    for module, name, value in replacements:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in reversed(before):
            if value is absent:
                delattr(module, name)
            else:
                setattr(module, name, value)


@contextmanager
def own_caches(world: World) -> Iterator[None]:
    """While the block runs, give each simulated process its own caches for cached functions."""
    originals = []
    for module_name, name in _CACHED:
        module = sys.modules.get(module_name)
        if module is not None:
            original = getattr(module, name)
            originals.append((module, name, original))
            setattr(module, name, _by_process(original.__wrapped__, world))
    for module_name in _ACCOUNTING:
        module = sys.modules.get(module_name)
        if module is not None:
            originals.append((module, "spend", module.spend))
            module.spend = _spend_nothing  # type: ignore[attr-defined]
    try:
        with quick_paths():
            yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


class _Nothing:
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_nothing = _Nothing()


def _spend_nothing(purpose: str) -> _Nothing:
    return _nothing


def _by_process(function: Any, world: World) -> Any:
    outside: dict[Any, Any] = {}

    def cached(*arguments: Any) -> Any:
        memory = outside if world.current is None else world.current.process.memory
        key = (function, arguments)
        if key not in memory:
            memory[key] = function(*arguments)
        return memory[key]

    return cached
