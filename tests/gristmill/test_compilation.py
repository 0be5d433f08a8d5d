"""The cache of compiled kernels: never stale, shared by a user's clones of the repository, and limited in
size.
"""

import errno
import importlib
import os
import shutil
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


@kernel(nogil=True)
def outermost(x):
    return middle(x) + 1  # defined below


@kernel()
def middle(x):
    return scaled(x) + TABLE[0]
"""


@pytest.fixture(params=["never", "always"])
def run(tmp_path, request, monkeypatch):
    """Return a function that writes `primitives.py` and imports it and `caller.py` afresh, as another process
    would. The function returns the result of `outermost` and the number of its cache hits.
    """
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "caller.py").write_text(CALLER)

    def run(factor=1, entry=0, summand=0, folder=tmp_path):
        source = PRIMITIVES.format(factor=factor, entry=entry, summand=summand, inline=request.param)
        if not (folder / "primitives.py").exists() or (folder / "primitives.py").read_text() != source:
            (folder / "primitives.py").write_text(source)
        for name in ("primitives", "caller"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        compilation._digest_of_file.cache_clear()
        outermost = importlib.import_module("caller").outermost
        return outermost(10), sum(outermost.stats.cache_hits.values())

    yield run
    compilation._digest_of_file.cache_clear()


@pytest.mark.long
def test_what_other_files_hold_is_never_stale(run, tmp_path):
    assert run() == (11, 0)
    for name in ("primitives.py", "caller.py"):
        os.utime(tmp_path / name, (1, 1))  # the same text at another time
    assert run() == (11, 1)
    assert run(factor=3) == (31, 0)
    assert run(factor=3, entry=5) == (36, 0)
    assert run(factor=3, entry=5, summand=7) == (43, 0)
    assert run(factor=3, entry=5, summand=7) == (43, 1)
    assert run(factor=3) == (31, 1)  # as in a clone of another version, in turn with this one


@pytest.mark.long
def test_the_place_of_a_clone_does_not_matter(run, tmp_path, monkeypatch):
    assert run() == (11, 0)
    (tmp_path / "clone").mkdir()
    for name in ("primitives.py", "caller.py"):
        (tmp_path / name).rename(tmp_path / "clone" / name)
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.syspath_prepend(tmp_path / "clone")
    assert run(folder=tmp_path / "clone") == (11, 1)


EDITED = """
from numba.core import types
from numba.extending import intrinsic
from gristmill.compilation import kernel

@intrinsic
def seven(context):
    return types.int64(), lambda context, builder, signature, arguments: context.get_constant(types.int64, {constant})

@kernel()
def plain(x, more=(2, 3)):
    {docstring}
    return x + {summand} + more[0]  {comment}

@kernel()
def special(x):
    return x + seven()
"""


def test_only_what_is_computed_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)

    def run(docstring='"""Add."""', summand=1, comment="", constant=7):
        values = {"docstring": docstring, "summand": summand, "comment": comment, "constant": constant}
        (tmp_path / "edited.py").write_text(EDITED.format(**values))
        monkeypatch.delitem(sys.modules, "edited", raising=False)
        compilation._digest_of_file.cache_clear()
        module = importlib.import_module("edited")
        results = module.plain(10), module.special(10)
        return results, [sum(each.stats.cache_hits.values()) for each in (module.plain, module.special)]

    assert run() == ((13, 17), [0, 0])
    assert run() == ((13, 17), [1, 1])
    assert run(comment="# sums\n") == ((13, 17), [1, 0])  # an intrinsic is compiled from its file
    assert run(docstring='"""Add one.\n\n    And two.\n    """') == ((13, 17), [1, 0])
    assert run(summand=2) == ((14, 17), [0, 0])
    assert run(constant=8) == ((13, 18), [1, 0])


@pytest.mark.long
def test_it_keeps_a_limit_and_what_was_used_last(run, tmp_path, monkeypatch):
    assert run() == (11, 0)
    folder = tmp_path / "cache" / "machine_code"
    old = sorted(folder.iterdir())
    for path in old:
        os.utime(path, (1, 1))
    assert run() == (11, 1)
    used = [path for path in old if path.stat().st_mtime > 1]
    assert sum("outermost" in path.name for path in used) == 1
    held = sum(path.stat().st_size for path in used)
    monkeypatch.setattr(compilation, "_LIMIT", held)
    compilation._make_room.cache_clear()
    assert run(factor=3) == (31, 0)
    assert all(path.exists() for path in used)
    assert not any(path.exists() for path in set(old) - set(used))


def test_entries_of_another_user_are_used(run, tmp_path, monkeypatch):
    assert run() == (11, 0)
    for path in (tmp_path / "cache").rglob("*.nbc"):
        os.utime(path, (1, 1))
    monkeypatch.setattr(os, "utime", not_the_owner)
    assert run() == (11, 1)


def not_the_owner(path, times=None):
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.long
@pytest.mark.parametrize(
    "damage", [lambda content: content[:100], lambda content: b"", lambda content: content[:-1] + b"x"]
)
def test_damaged_entries_are_compiled_again(run, tmp_path, damage):
    assert run() == (11, 0)
    for path in (tmp_path / "cache").rglob("*.nbc"):
        path.write_bytes(damage(path.read_bytes()))
    assert run() == (11, 0)
    assert run() == (11, 1)


@pytest.mark.long
def test_a_directory_that_is_removed_or_full_stops_nothing(run, tmp_path, monkeypatch):
    assert run() == (11, 0)
    shutil.rmtree(tmp_path / "cache")
    assert run() == (11, 0)
    assert run() == (11, 1)
    monkeypatch.setattr(Path, "write_bytes", full_disk)
    assert run(factor=3) == (31, 0)
    assert not list((tmp_path / "cache").rglob("*.nbc.*"))


def full_disk(path, content):
    path.touch()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_where_it_is(tmp_path, monkeypatch):
    beside = Path(compilation.__file__).parent / "__pycache__" / "machine_code"
    for name, variables, expected in (
        ("", {"XDG_CACHE_HOME": str(tmp_path / "xdg")}, tmp_path / "xdg" / "gristmill" / "machine_code"),
        ("", {"HOME": str(tmp_path)}, tmp_path / ".cache" / "gristmill" / "machine_code"),
        (str(tmp_path / "own"), {"HOME": str(tmp_path)}, tmp_path / "own" / "machine_code"),
        ("", {"HOME": "/proc"}, beside),
        ("/proc/own", {"HOME": str(tmp_path)}, tmp_path / ".cache" / "gristmill" / "machine_code"),
    ):
        with monkeypatch.context() as patch:
            patch.delenv("XDG_CACHE_HOME", raising=False)
            for variable, value in variables.items():
                patch.setenv(variable, value)
            assert compilation._folder.__wrapped__(name) == expected


def test_a_cache_of_another_user_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert compilation._folder.__wrapped__("") != tmp_path / "gristmill" / "machine_code"


@pytest.mark.long
def test_without_a_cache_each_process_compiles(run, monkeypatch):
    monkeypatch.setattr(compilation, "_folder", lambda own: None)
    assert run() == (11, 0)
    assert run() == (11, 0)


POINT = """
from typing import NamedTuple


class Point(NamedTuple):
    {first}: int
    {second}: int
"""
USER = """
from gristmill.compilation import kernel


@kernel()
def x_of(point):
    return point.x
"""


MAKER = """
from point import Point
from gristmill.compilation import kernel


@kernel()
def y_of(x, y):
    return Point(x, y).y


@kernel()
def y_within(pair):
    return pair[1].y
"""


def test_the_fields_of_a_named_tuple_count(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "maker.py").write_text(MAKER)
    for first, second in (("x", "y"), ("y", "x")):
        (tmp_path / "point.py").write_text(POINT.format(first=first, second=second))
        for name in ("point", "user", "maker"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        compilation._digest_of_file.cache_clear()
        point = importlib.import_module("point").Point(x=3, y=4)
        assert importlib.import_module("user").x_of(point) == 3
        assert importlib.import_module("maker").y_of(3, 4) == (4 if first == "x" else 3)
        assert importlib.import_module("maker").y_within((7, point)) == 4


def test_the_module_of_a_named_tuple_counts(tmp_path, monkeypatch):
    """A cache entry names the classes of the arguments, so it cannot be loaded once one of them has moved."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "user.py").write_text(USER)
    for module in ("point", "moved"):
        (tmp_path / f"{module}.py").write_text(POINT.format(first="x", second="y"))
        for name in ("point", "user"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        point = importlib.import_module(module).Point(x=3, y=4)
        (tmp_path / f"{module}.py").unlink()
        assert importlib.import_module("user").x_of(point) == 3
        monkeypatch.delitem(sys.modules, module)


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


@pytest.mark.long
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


@pytest.mark.long
def test_a_process_that_stands_still_while_it_compiles_stops_no_other(run, tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "_LONGEST_WAIT", 0.3)
    run()
    folder = tmp_path / "cache" / "machine_code"
    for path in folder.glob("*.nbc"):
        path.unlink()
    (of_caller,) = folder.glob("caller-*.lock")
    with Host().lock(str(of_caller)) as held:
        assert held
        assert run() == (11, 0)
    assert compilation._compiling == set()
