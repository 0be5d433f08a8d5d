"""Leases: a process notices another one that works in the same place, and waits for it or takes over from it,
by its own clock alone.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gristmill.errors import ConflictError
from gristmill.host import Host, use_host
from gristmill.storage.lease import LEASE, TIMEOUT_SECONDS, Lease, acquire, lock
from gristmill.storage.parsing import parse_location
from gristmill.storage.remote import write_url

ROOT = Path(__file__).parents[3]


class Watch(Host):
    """A host with a simulated clock, which may start at any value. `sleep` advances the clock and calls what
    is due.
    """

    def __init__(self, start=0.0, due=()):
        self.now, self.due, self.said = start, sorted(due, key=lambda each: each[0]), []
        self.start = start

    def sleep(self, seconds):
        self.now += seconds
        while self.due and self.passed >= self.due[0][0]:
            self.due.pop(0)[1]()

    @property
    def passed(self):
        return self.now - self.start

    def monotonic(self):
        return self.now

    def take(self, place, work="building", **options):
        with use_host(self):
            return acquire(place, work, self.said.append, **options)


def foreign(place, **facts):
    lease = Lease(place / LEASE, "building")

    def beat():
        lease.count += 1
        state = json.loads(lease.state()) | {"host": "elsewhere", "kernel": "another", **facts}
        content = json.dumps(state).encode()
        if place.local:
            (place / LEASE).write_bytes(content)
        else:
            write_url((place / LEASE).url, place.remote, content)

    beat()
    return beat


def holder(place):
    return json.loads((place / LEASE).read_bytes())["holder"]


@pytest.fixture(params=["disk", "store"])
def place(request, tmp_path):
    if request.param == "disk":
        return tmp_path
    s3 = request.getfixturevalue("s3")
    request.getfixturevalue("monkeypatch").setenv("GRISTMILL_CACHE", str(tmp_path / "cache"))
    return parse_location(f"s3://bucket/{tmp_path.name}", s3.remote)


def test_a_lease_is_there_while_it_is_held_and_beats(place):
    with lock(place, "building", pytest.fail, beat=0.01):
        first = (place / LEASE).read_bytes()
        assert json.loads(first)["pid"] == os.getpid()
        while (place / LEASE).read_bytes() == first:
            time.sleep(0.01)
    assert not (place / LEASE).exists()
    with pytest.raises(KeyError), lock(place, "building", pytest.fail):
        raise KeyError
    assert not (place / LEASE).exists()


def test_leases_do_not_fill_the_cache_of_remote_files(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path / "cache"))
    lease = Watch().take(parse_location(f"s3://bucket/{tmp_path.name}", s3.remote))
    assert lease.beat()
    lease.release()
    assert not (tmp_path / "cache").exists()


@pytest.mark.long
def test_who_comes_second_waits_until_the_first_is_done(place):
    beat = foreign(place)
    watch = Watch(due=[*((second, beat) for second in range(20, 61, 20)), (75, (place / LEASE).unlink)])
    lease = watch.take(place)
    assert 75 <= watch.passed < 77
    assert holder(place) == lease.holder
    assert watch.said == [
        f"{place}: another process is building here (host elsewhere, pid {os.getpid()}); waiting for it; this process "
        "takes over if the lease is not renewed for 30 s",
        f"{place}: it is done; continuing",
    ]


@pytest.mark.long
def test_a_lease_that_stands_still_is_taken_over(place):
    beat = foreign(place)
    watch = Watch(due=[(20, beat), (45, beat)])
    lease = watch.take(place)
    assert 45 + TIMEOUT_SECONDS <= watch.passed < 45 + TIMEOUT_SECONDS + 3
    assert holder(place) == lease.holder
    assert "not responding" in watch.said[-1]


def test_a_process_that_stops_while_it_takes_over_is_not_waited_for_without_end(tmp_path):
    foreign(tmp_path)
    watch = Watch()
    with (
        Host().lock(str(tmp_path)),
        pytest.raises(ConflictError, match="has stopped and keeps others from it; end the"),
    ):
        watch.take(tmp_path)
    assert 3 * TIMEOUT_SECONDS <= watch.passed < 4 * TIMEOUT_SECONDS
    assert watch.take(tmp_path).holder == holder(tmp_path)


@pytest.mark.parametrize("hours", [-7, 7])
def test_clocks_that_disagree_by_hours_change_nothing(tmp_path, monkeypatch, hours):
    """Neither file times nor the time of day matter, only the time that passes while waiting."""
    foreign(tmp_path)
    now = time.time()
    os.utime(tmp_path / LEASE, (now + hours * 3600, now + hours * 3600))
    monkeypatch.setattr(time, "time", lambda: now - hours * 3600)
    watch = Watch(start=1e6 * hours)
    watch.take(tmp_path)
    assert TIMEOUT_SECONDS <= watch.passed < TIMEOUT_SECONDS + 3


def test_a_dead_process_of_this_machine_is_not_waited_for(tmp_path):
    script = (
        "import sys; from gristmill.storage.disk import LocalPath; from gristmill.storage.lease import acquire; "
        "acquire(LocalPath(sys.argv[1]), 'building', print); print('taken', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "taken\n"
        with pytest.raises(
            ConflictError, match=rf"another process is building here .*pid {process.pid}\); wait for it"
        ):
            Watch().take(tmp_path, wait=False)
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet waited for
        watch = Watch()
        lease = watch.take(tmp_path)
    assert watch.passed == 0
    assert holder(tmp_path) == lease.holder


def test_a_process_id_that_was_given_again_is_another_process(tmp_path):
    own = json.loads(Lease(tmp_path / LEASE, "building").state())
    foreign(tmp_path, kernel=own["kernel"], started="1")
    watch = Watch()
    watch.take(tmp_path)
    assert watch.passed == 0


def test_the_process_id_of_another_container_says_nothing(tmp_path):
    """Containers may share a host name and have equal process ids."""
    own = json.loads(Lease(tmp_path / LEASE, "building").state())
    foreign(tmp_path, host=own["host"], started="1")
    watch = Watch()
    watch.take(tmp_path)
    assert watch.passed >= TIMEOUT_SECONDS


def test_without_waiting_a_live_holder_is_a_conflict_and_a_dead_one_is_none(place):
    beat = foreign(place)
    watch = Watch(due=[(5, beat)])
    with pytest.raises(ConflictError, match=r"another process is building here \(host elsewhere, pid"):
        watch.take(place, "training", wait=False)
    assert 5 <= watch.passed < 8
    assert "checking whether it is alive" in watch.said[0]
    watch = Watch()
    watch.take(place, "training", wait=False)
    assert TIMEOUT_SECONDS <= watch.passed < TIMEOUT_SECONDS + 3


@pytest.mark.long
def test_of_several_that_come_at_once_one_holds_the_lease(tmp_path):
    for stale in (False, True) * 10:
        if stale:
            foreign(tmp_path)
        together, found = threading.Barrier(6), []

        def come(together=together, found=found):
            watch = Watch()
            together.wait()
            try:
                found.append(watch.take(tmp_path, wait=False))
            except ConflictError:
                found.append(None)

        threads = [threading.Thread(target=come) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (lease,) = [lease for lease in found if lease is not None]
        assert len(found) == 6
        assert holder(tmp_path) == lease.holder
        lease.release()
        assert not list(tmp_path.iterdir())


def test_a_lease_that_was_lost_is_left_alone_and_told(place):
    told = threading.Event()
    with lock(place, "building", pytest.fail, beat=0.01, lost=told.set):
        foreign(place, holder="other")
        while not told.wait(1):  # in a store, a beat that had read the lease before may have replaced it
            foreign(place, holder="other")
    assert holder(place) == "other"


def test_a_lease_that_is_gone_is_lost(place):
    lease = Watch().take(place)
    foreign(place, holder="other")
    (place / LEASE).unlink()  # the other has finished
    assert not lease.beat()
    assert not (place / LEASE).exists()
    with pytest.raises(ConflictError, match="another process took over"):
        lease.check()


def test_a_lease_that_is_garbage_is_written_again(tmp_path):
    lease = Watch().take(tmp_path)
    (tmp_path / LEASE).write_bytes(b"\x00" * 40)
    assert lease.beat()
    assert holder(tmp_path) == lease.holder
    (tmp_path / LEASE).write_bytes(b"[1]")
    watch = Watch()
    watch.take(tmp_path)  # nobody's, and it stands still
    assert TIMEOUT_SECONDS <= watch.passed < TIMEOUT_SECONDS + 3


def test_a_directory_that_cannot_be_written_fails_at_once(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="Not a directory"):
        Watch().take(tmp_path / "file")
