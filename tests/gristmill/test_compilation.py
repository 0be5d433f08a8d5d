"""The cache of machine code is fresh: it knows what a kernel takes from other files, and does not grow."""

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numba
import pytest

from gristmill import compilation
from gristmill.host import Host

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


PROCESS = """
import sys, time
from pathlib import Path
import caller, primitives
Path(sys.argv[1]).touch()
while not Path("go").exists():
    time.sleep(0.01)
assert caller.outermost(10) == 11
print(sum(each.stats.cache_misses.total() for each in (caller.outermost, caller.middle, primitives.scaled)))
"""


def test_processes_that_begin_together_compile_once(tmp_path):
    (tmp_path / "primitives.py").write_text(PRIMITIVES.format(factor=1, entry=0, summand=0, inline="never"))
    (tmp_path / "caller.py").write_text(CALLER)
    variables = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}",
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, f"ready{number}"], cwd=tmp_path, env=variables, stdout=subprocess.PIPE
        )
        for number in range(3)
    ]
    while not all((tmp_path / f"ready{number}").exists() for number in range(3)):
        assert not any(process.poll() for process in started)
        time.sleep(0.01)
    (tmp_path / "go").touch()
    misses = [int(process.communicate(timeout=300)[0]) for process in started]
    assert sorted(misses) == [0, 0, 3]


def test_a_process_that_stands_still_while_it_compiles_stops_no_other(run, tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "_PATIENCE", 0.3)
    with Host().lock(str(tmp_path / "caller.py")) as held:
        assert held
        assert run() == (11, 0)
    assert compilation._compiling == set()
