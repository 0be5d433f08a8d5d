"""Caches: those of the product belong to a process, so each simulated process gets its own; paths are made once for all."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from gristmill.storage.disk import LocalPath
from tests.schedules.scheduler import World

# module and name of functions with a cache of what they have read from an output
_CACHED = (
    ("gristmill.storage.disk", "_verify"),
    ("gristmill.storage.remote", "_store"),
    ("pipelines.contracts.manifest", "_load_once"),
)


_LIMIT = 100_000
_children: dict[tuple[str, str], LocalPath] = {}
_parents: dict[str, LocalPath] = {}
_find_parent = LocalPath.parent.fget  # type: ignore[attr-defined]


def _child_once(path: LocalPath, name: str) -> LocalPath:
    """`path / name`, which takes a fifth of the time of a small build without a cache."""
    key = (str(path), name)
    found = _children.get(key)
    if found is None:
        if len(_children) > _LIMIT:
            _children.clear()
        found = _children[key] = path._make_child((name,))  # type: ignore[attr-defined]
    return found


def _parent_once(path: LocalPath) -> LocalPath:
    """`path.parent`."""
    key = str(path)
    found = _parents.get(key)
    if found is None:
        if len(_parents) > _LIMIT:
            _parents.clear()
        found = _parents[key] = _find_parent(path)
    return found


def _sibling(path: LocalPath, name: str) -> LocalPath:
    """`path.with_name(name)`; nearly all of these names occur once."""
    parts = [*path._parts[:-1], name]  # type: ignore[attr-defined]
    return LocalPath._from_parsed_parts(path._drv, path._root, parts)  # type: ignore[attr-defined]


@contextmanager
def own_caches(world: World) -> Iterator[None]:
    """While the block runs, a cached function remembers only what the same simulated process has called it with."""
    originals = []
    for module_name, name in _CACHED:
        module = sys.modules.get(module_name)
        if module is not None:
            original = getattr(module, name)
            originals.append((module, name, original))
            setattr(module, name, _by_process(original.__wrapped__, world))
    try:
        with patch.multiple(LocalPath, __truediv__=_child_once, parent=property(_parent_once), with_name=_sibling):
            yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


def _by_process(function: Any, world: World) -> Any:
    outside: dict[Any, Any] = {}

    def cached(*arguments: Any) -> Any:
        memory = outside if world.current is None else world.current.process.memory
        key = (function, arguments)
        if key not in memory:
            memory[key] = function(*arguments)
        return memory[key]

    return cached
