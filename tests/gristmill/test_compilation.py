"""The cache of machine code is fresh: it knows what a kernel takes from other files, and does not grow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRIMITIVES = """
import numpy as np
from gristmill.compilation import kernel

FACTOR, TABLE = {factor}, np.array([{entry}, 2])


@kernel(inline="{inline}")
def scaled(x):
    return x * FACTOR + {summand}
"""
CALLER = """
from gristmill.compilation import kernel
from primitives import TABLE, scaled


@kernel()
def middle(x):
    return scaled(x) + TABLE[0]


@kernel(nogil=True)
def outermost(x):
    return middle(x) + 1


if __name__ == "__main__":
    import caller

    print(caller.outermost(10), sum(caller.outermost.stats.cache_hits.values()))
"""


@pytest.fixture(params=["never", "always"])
def run(tmp_path, request):
    """Write the two files and run `caller` in a process of its own: its result, and how often it came from the cache."""
    (tmp_path / "caller.py").write_text(CALLER)

    def run(factor=1, entry=0, summand=0):
        source = PRIMITIVES.format(factor=factor, entry=entry, summand=summand, inline=request.param)
        if not (tmp_path / "primitives.py").exists() or (tmp_path / "primitives.py").read_text() != source:
            (tmp_path / "primitives.py").write_text(source)
        paths = os.pathsep.join([str(tmp_path), str(ROOT)])
        environment = os.environ | {
            "PYTHONPATH": paths,
            "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [sys.executable, tmp_path / "caller.py"], capture_output=True, text=True, env=environment, check=True
        )
        return tuple(map(int, done.stdout.split()))

    return run


def test_what_other_files_hold_is_never_stale(run, tmp_path):
    assert run() == (11, 0)
    for name in ("primitives.py", "caller.py"):
        os.utime(tmp_path / name, (1, 1))  # the same text at another time
    assert run() == (11, 1)
    files = {path.relative_to(tmp_path) for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert run(factor=3) == (31, 0)
    assert run(factor=3, entry=5) == (36, 0)
    assert run(factor=3, entry=5, summand=7) == (43, 0)
    assert run(factor=3, entry=5, summand=7) == (43, 1)
    assert {path.relative_to(tmp_path) for path in (tmp_path / "cache").rglob("*") if path.is_file()} == files
