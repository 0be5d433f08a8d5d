"""The file system in memory behaves like the real one, and a loss of power destroys only what could be lost
on a real disk.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gristmill.host import Host
from gristmill.storage.disk import LocalPath
from tests.schedules.choices import Default, Random
from tests.schedules.memory_disk import ROOT, MemoryDisk
from tests.schedules.scheduler import World
from tests.schedules.simulated_host import SimulatedHost
from tests.schedules.simulation import Simulation, scratch

NAMES = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "missing/a", "a/below")


def operations(host: Host, root: str) -> dict[str, Callable[[str, str], object]]:
    def write(mode: str, path: str) -> None:
        with host.open(path, mode) as file:
            file.write(path.removeprefix(root).encode() + mode.encode())

    def read(path: str) -> bytes:
        with host.open(path) as file:
            return file.read(2) + file.read()

    def overwrite(path: str) -> bytes:
        with host.open(path, "r+b", 0) as file:
            before = file.read()
            file.seek(0)
            file.write(b"over")
        return before

    def size_and_kind(path: str) -> tuple[int, bool]:
        status = host.stat(path)
        return status.st_size * (status.st_mode & 0o100000 > 0), status.st_mode & 0o040000 > 0

    return {
        "write": lambda path, _: write("wb", path),
        "create": lambda path, _: write("xb", path),
        "append": lambda path, _: write("ab", path),
        "read": lambda path, _: read(path),
        "overwrite": lambda path, _: overwrite(path),
        "rename": host.rename,
        "link": host.link,
        "unlink": lambda path, _: host.unlink(path),
        "mkdir": lambda path, _: host.mkdir(path),
        "rmdir": lambda path, _: host.rmdir(path),
        "entries": lambda path, _: sorted(host.entries(path)),
        "stat": lambda path, _: size_and_kind(path),
        "remove_tree": lambda path, _: host.remove_tree(path),
    }


def outcome(call: Callable[[str, str], object], pair: list[str]) -> object:
    try:
        return call(*pair)
    except OSError as error:
        return type(error), error.errno


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_it_answers_as_the_real_file_system_does(seed, tmp_path):
    chance, disk = random.Random(seed), MemoryDisk()
    simulated = operations(SimulatedHost(World(Default()), disk, scratch()), ROOT)
    real = operations(Host(), str(tmp_path))
    for _ in range(300):
        name, pair = chance.choice(sorted(real)), chance.choices(NAMES, k=2)
        expected = outcome(real[name], [f"{tmp_path}/{path}" for path in pair])
        assert outcome(simulated[name], [f"{ROOT}/{path}" for path in pair]) == expected, (name, pair)
        files = {f"/{path.relative_to(tmp_path)}": path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert {path.removeprefix(ROOT): data for path, data in disk.files().items()} == files


def test_an_open_file_stays_readable_when_its_name_is_gone():
    disk = MemoryDisk()
    host = SimulatedHost(World(Default()), disk, scratch())
    with host.open(f"{ROOT}/a", "wb") as file:
        file.write(b"content")
    with host.open(f"{ROOT}/a") as file:
        host.unlink(f"{ROOT}/a")
        assert file.read() == b"content"


def written(seed: int, *, fsync: bool, fsync_directory: bool) -> tuple[bytes | None, list[str]]:
    disk = MemoryDisk()
    host = SimulatedHost(World(Default()), disk, scratch())

    def write(path: str, data: bytes, *, durable: bool) -> None:
        with host.open(path, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                host.fsync(file)

    write(f"{ROOT}/a", b"before", durable=True)
    host.fsync_directory(ROOT)
    write(f"{ROOT}/.a.tmp", b"afterwards", durable=fsync)
    host.rename(f"{ROOT}/.a.tmp", f"{ROOT}/a")
    if fsync_directory:
        host.fsync_directory(ROOT)
    disk.lose_power("", random.Random(seed))
    return disk.peek(f"{ROOT}/a"), disk.names(ROOT) or []


def test_a_loss_of_power_keeps_what_was_made_durable_and_may_lose_the_rest():
    assert {written(seed, fsync=True, fsync_directory=True)[0] for seed in range(100)} == {b"afterwards"}
    assert {written(seed, fsync=True, fsync_directory=False)[0] for seed in range(100)} == {b"before", b"afterwards"}
    careless = {written(seed, fsync=False, fsync_directory=True)[0] for seed in range(100)}
    assert careless == {b"", b"after", b"afterwards"}
    left = {tuple(written(seed, fsync=True, fsync_directory=False)[1]) for seed in range(100)}
    assert left == {("a",), (".a.tmp", "a")}


def test_names_of_one_directory_become_durable_in_order():
    kept = set()
    for seed in range(200):
        disk = MemoryDisk()
        for name in "abc":
            disk.fsync(disk.create(f"{ROOT}/{name}"))
        disk.lose_power("", random.Random(seed))
        kept.add(tuple(disk.names(ROOT) or ()))
    assert kept == {(), ("a",), ("a", "b"), ("a", "b", "c")}


def test_another_machine_loses_nothing():
    disk = MemoryDisk()
    disk.machine = lambda: "a"
    disk.write(disk.create(f"{ROOT}/a"), b"content")
    disk.lose_power("b", random.Random(1))
    assert disk.files() == {f"{ROOT}/a": b"content"}


def test_a_snapshot_can_be_restored_again_and_again():
    disk = MemoryDisk()
    disk.mkdir(f"{ROOT}/d")
    disk.write(disk.create(f"{ROOT}/d/a"), b"one")
    disk.link(f"{ROOT}/d/a", f"{ROOT}/b")
    kept = disk.snapshot()
    for _ in range(2):
        disk.write(disk.file(f"{ROOT}/b"), b"two")
        assert disk.peek(f"{ROOT}/d/a") == b"two"
        disk.unlink(f"{ROOT}/d/a")
        disk.rmdir(f"{ROOT}/d")
        disk.restore(kept)
        assert disk.files() == {f"{ROOT}/b": b"one", f"{ROOT}/d/a": b"one"}


def test_a_write_is_seen_in_halves_and_a_kill_leaves_what_was_written():
    states = set()

    class KillAt(Default):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def disturb(self, world, current):
            if world.steps == self.number and current.process.alive:
                world.kill(current.process)

    for number in range(12):
        world = Simulation(KillAt(number))

        def work(world=world) -> None:
            with world.host.open(f"{ROOT}/a", "wb") as file:
                file.write(b"1234")
                file.flush()
                world.host.fsync(file)
            world.host.rename(f"{ROOT}/a", f"{ROOT}/b")

        world.start("A", work)
        world.run()
        states.add(tuple(world.disk.files().items()))
    a, b = f"{ROOT}/a", f"{ROOT}/b"
    assert states == {(), ((a, b""),), ((a, b"12"),), ((a, b"1234"),), ((b, b"1234"),)}


def test_two_that_append_to_a_file_keep_what_the_other_has_written():
    path = f"{ROOT}/log"

    def append(name):
        with LocalPath(path).open("ab") as log:
            for number in range(3):
                log.write(f"{name}{number}\n".encode())
                log.flush()

    for seed in range(10):
        world = Simulation(Random(seed))
        for name in "AB":
            world.start(name, partial(append, name))
        world.run()
        assert sorted(world.disk.peek(path)) == sorted(b"A0\nA1\nA2\nB0\nB1\nB2\n")


def test_native_code_reads_and_writes_copies(tmp_path):
    world = Simulation(Default())

    def work() -> bytes:
        host = world.host
        host.mkdir(f"{ROOT}/d")
        host.deliver(f"{ROOT}/d/a", lambda path: Path(path).write_bytes(b"content") and None)
        host.deliver(f"{ROOT}/d", lambda path: Path(path, "b").write_bytes(b"more") and None)
        assert [path.name for path in sorted(Path(host.lend(f"{ROOT}/d")).iterdir())] == ["a", "b"]
        return Path(host.lend(f"{ROOT}/d/a")).read_bytes()

    process = world.start("A", work)
    world.run()
    assert process.error is None
    assert process.result == b"content"
    assert world.disk.peek(f"{ROOT}/d/b") == b"more"


def test_a_lock_is_for_one_process_and_ends_with_it():
    world, got = Simulation(Default()), []

    def hold(seconds: float) -> None:
        with world.host.lock(ROOT) as alone:
            got.append(alone)
            world.host.sleep(seconds)

    def later(seconds: float) -> None:
        world.host.sleep(seconds)
        hold(0)

    world.start("A", lambda: hold(10))
    world.start("B", lambda: later(5))
    world.start("C", lambda: later(20))
    world.run()
    assert got == [True, False, True]


def test_leftovers_are_temporary_files_and_leases():
    disk = MemoryDisk()
    for name in ("a", ".a.1.tmp", ".lease", ".other"):
        disk.create(f"{ROOT}/{name}")
    assert disk.leftovers() == [f"{ROOT}/.a.1.tmp", f"{ROOT}/.lease"]
