"""Damage to files: flipped bits and truncation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gristmill.errors import UserError

KILOBYTE = 1024


def flips(size: int, seed: int, count: int) -> Iterator[tuple[str, int]]:
    """Yield up to `count` pairs ("flip", position in bits): at the beginning, in the middle, at the end, then
    at random.
    """
    random = np.random.default_rng(seed)
    fixed = (range(min(16, size)), range(size // 2, min(size // 2 + 16, size)), range(max(0, size - 16), size))
    for number in range(count):
        places = fixed[number] if number < len(fixed) else range(size)
        if places:
            yield "flip", 8 * int(random.choice(places)) + int(random.integers(8))


def cuts(size: int, seed: int, count: int | None) -> Iterator[tuple[str, int]]:
    """Yield pairs ("cut", bytes left): every kilobyte, or a random `count` of those positions, and the file
    without its last byte.
    """
    every = list(range(0, size, KILOBYTE))
    if count is not None and len(every) > count:
        every = sorted(np.random.default_rng(seed).choice(every, count, replace=False).tolist())
    yield from (("cut", left) for left in every)
    if size:
        yield "cut", size - 1


def damage(path: Path, kind: str, where: int) -> None:
    content = bytearray(path.read_bytes())
    if kind == "flip":
        content[where // 8] ^= 1 << where % 8
    else:
        del content[where:]
    path.write_bytes(content)


@contextmanager
def damaged(path: Path, kind: str, where: int) -> Iterator[None]:
    content = path.read_bytes()
    damage(path, kind, where)
    try:
        yield
    finally:
        path.write_bytes(content)


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)


def unnamed(root: Path, path: Path, damage: tuple[str, int], read: Callable[[], bool]) -> str | None:
    """Damage the file and call `read()`. Return None if `read()` returns True or raises a UserError that
    names the file; otherwise a description of what went wrong.
    """
    name = f"{path.relative_to(root)}, {damage[0]} at {damage[1]}"
    with damaged(path, *damage):
        try:
            same = read()
        except UserError as error:
            return None if str(path) in str(error) else f"{name}: {error}"
        except Exception as error:
            return f"{name}: {error!r}"
    return None if same else f"{name}: nothing was said"
