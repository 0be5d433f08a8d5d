"""The cache of machine code is fresh: it knows what a kernel takes from other files, and does not grow."""

import importlib
import os
import sys

import numba
import pytest

from gristmill import compilation

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
"""


@pytest.fixture(params=["never", "always"])
def run(tmp_path, request, monkeypatch):
    """Write the two files and import them afresh, as another process would: the result of `caller`, and how often it came
    from the cache.
    """
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "caller.py").write_text(CALLER)

    def run(factor=1, entry=0, summand=0):
        source = PRIMITIVES.format(factor=factor, entry=entry, summand=summand, inline=request.param)
        if not (tmp_path / "primitives.py").exists() or (tmp_path / "primitives.py").read_text() != source:
            (tmp_path / "primitives.py").write_text(source)
        for name in ("primitives", "caller"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        compilation._digest_of_file.cache_clear()
        outermost = importlib.import_module("caller").outermost
        return outermost(10), sum(outermost.stats.cache_hits.values())

    yield run
    compilation._digest_of_file.cache_clear()


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
