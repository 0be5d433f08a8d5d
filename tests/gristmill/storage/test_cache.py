"""The local cache: its size limit, and the leftovers of killed processes."""

import errno
import os
import time

import pytest

from gristmill.errors import UserError
from gristmill.storage import cache
from gristmill.storage.disk import LocalPath


def filled(tmp_path, monkeypatch, names):
    """Fill a cache with one file of 10 bytes per name, last used the given number of seconds ago; return a
    function that lists the files.
    """
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path))
    for name, age in names.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"0123456789")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    return lambda: {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}


def test_what_killed_processes_left_goes_when_room_is_made(tmp_path, monkeypatch):
    left = filled(tmp_path, monkeypatch, {"aa/aa1": 9000, "bb/bb1": 8000, "old.tmp": 200_000, "new.tmp": 1000})
    cache._make_room(10)
    assert left() == {"bb/bb1", "new.tmp"}


def test_only_the_files_of_this_cache_are_counted_and_evicted(tmp_path, monkeypatch):
    left = filled(tmp_path, monkeypatch, {"machine_code/kernel.nbc": 9000, "aa/aa1": 8000, "packing/old": 7000})
    cache._make_room(20)
    assert left() == {"machine_code/kernel.nbc", "aa/aa1", "packing/old"}
    cache._make_room(0)
    assert left() == {"machine_code/kernel.nbc"}


def test_a_limit_that_is_no_number(tmp_path, monkeypatch):
    filled(tmp_path, monkeypatch, {"x.tmp": 0})
    monkeypatch.setenv("GRISTMILL_CACHE_BYTES", "20 GiB")
    with pytest.raises(UserError, match="GRISTMILL_CACHE_BYTES: got '20 GiB', expected a number of bytes"):
        cache._keep(tmp_path / "x.tmp", "ab" * 16)


def test_a_file_is_last_used_when_it_is_added_however_long_its_transfer_took(tmp_path, monkeypatch, new_process):
    left = filled(tmp_path, monkeypatch, {"x.tmp": 100})
    monkeypatch.setenv("GRISTMILL_CACHE_BYTES", "5")
    cache._keep(tmp_path / "x.tmp", "ab" * 16)
    assert left() == {f"ab/{'ab' * 16}"}


@pytest.fixture
def new_process(monkeypatch):
    """Forget what this process has added to the cache, as a new process would."""

    def forget():
        monkeypatch.setattr(cache, "_added", [None])

    forget()
    return forget


def test_computed_files_count_towards_the_limit(tmp_path, monkeypatch, new_process):
    left = filled(tmp_path, monkeypatch, {"packing/old": 9000, "aa/used": 100})
    monkeypatch.setenv("GRISTMILL_CACHE_BYTES", "30")
    cache.store("packing", "new", b"0123456789")
    assert left() == {"packing/old", "packing/new", "aa/used"}
    cache.store("packing", "newer", b"0123456789")
    assert left() == {"packing/new", "packing/newer", "aa/used"}


def test_processes_that_add_little_keep_the_limit(tmp_path, monkeypatch, new_process):
    left = filled(tmp_path, monkeypatch, {f"aa/{n}": 9000 - n for n in range(200)})
    monkeypatch.setenv("GRISTMILL_CACHE_BYTES", "2000")
    for name in ("first", "second"):  # each adds less than 1 %
        cache.store("packing", name, b"0123456789")
    assert len(left()) == 201  # one process checks the limit only when it first adds a file
    new_process()
    cache.store("packing", "third", b"0123456789")
    assert left() == {f"aa/{n}" for n in range(3, 200)} | {"packing/first", "packing/second", "packing/third"}


def test_a_file_that_is_used_while_room_is_made_is_not_evicted(tmp_path, monkeypatch):
    left = filled(tmp_path, monkeypatch, {"aa/aa1": 9000, "aa/aa2": 8000, "aa/aa3": 7000})
    unlink = LocalPath.unlink

    def meanwhile(path, **named):
        os.utime(tmp_path / "aa/aa2")
        unlink(path, **named)

    monkeypatch.setattr(LocalPath, "unlink", meanwhile)
    cache._make_room(10)
    assert left() == {"aa/aa2"}


def test_the_file_of_another_user_is_found(tmp_path, monkeypatch):
    checksum = "ab" * 16
    filled(tmp_path, monkeypatch, {f"ab/{checksum}": 9000})

    def refuse(*arguments, **named):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refuse)
    assert cache.lookup(checksum).read_bytes() == b"0123456789"
    assert cache.lookup("cd" * 16) is None
