"""The exhaustive search on toy scenarios: it reaches all ends, and skipping orders of commuting operations
hides none of them.
"""

import itertools

import pytest

from tests.schedules.exhaustive.systematic import explore_all
from tests.schedules.explore import Scenario
from tests.schedules.memory_disk import ROOT
from tests.schedules.simulation import Simulation


def counting(processes: int, ends: set, *, locked: bool = False) -> Scenario:
    """Return a scenario of processes that each write a file of their own, then add 1 to a shared file. At the
    end of a run, (number of killed processes, contents of the shared file) is added to `ends`.
    """

    def add(world: Simulation, name: str) -> None:
        with world.host.open(f"{ROOT}/{name}", "wb") as own:
            own.write(b"1")
        if locked:
            while True:
                try:
                    world.host.mkdir(f"{ROOT}/lock")
                    break
                except FileExistsError:
                    world.host.sleep(1)
        with world.host.open(f"{ROOT}/count") as source:
            count = int(source.read())
        with world.host.open(f"{ROOT}/.count.{name}", "wb") as sink:
            sink.write(b"%d" % (count + 1))
        world.host.rename(f"{ROOT}/.count.{name}", f"{ROOT}/count")
        if locked:
            world.host.rmdir(f"{ROOT}/lock")

    def start(world: Simulation) -> None:
        world.disk.write(world.disk.create(f"{ROOT}/count"), b"0")
        for name in "ABC"[:processes]:
            world.start(name, lambda name=name: add(world, name))

    def judge(world: Simulation) -> None:
        killed = sum(process.killed for process in world.processes.values())
        ends.add((killed, world.disk.peek(f"{ROOT}/count")))

    return Scenario("counting", start, judge, limit=500)


@pytest.mark.long
def test_all_ends_are_reached_and_skipping_what_commutes_loses_none():
    for processes, kills in ((2, 0), (2, 1), (3, 0)):
        all_ends, ends = set(), set()
        everything = explore_all(counting(processes, all_ends), kills=kills, commuting=False)
        fewer = explore_all(counting(processes, ends), kills=kills)
        assert ends == all_ends
        assert fewer.states == everything.states
        assert fewer.transitions < everything.transitions
        expected = {(0, b"%d" % count) for count in range(1, processes + 1)}
        if kills:
            expected.add((1, b"1"))  # who renames has no operation after it
        assert ends == expected


@pytest.mark.long
def test_a_lock_that_is_never_lost_loses_no_update():
    ends = set()
    report = explore_all(counting(3, ends, locked=True))
    assert ends == {(0, b"3")}
    assert report.failure == ""


def test_a_failure_comes_with_its_story():
    def judge(world: Simulation) -> None:
        assert world.disk.peek(f"{ROOT}/count") == b"2", "an update was lost"

    scenario = counting(2, set())
    report = explore_all(Scenario(scenario.name, scenario.start, judge))
    assert "an update was lost" in report.failure
    assert "rename .count.A -> count" in report.failure


def test_as_many_orders_as_there_are_of_writers_that_see_each_other():
    orders = set()

    def start(world: Simulation) -> None:
        world.facts["order"] = ""

        def write(name: str) -> None:
            for number in range(2):
                world.host.mkdir(f"{ROOT}/{name}{number}")
                world.facts["order"] += name
                world.touch("order")

        for name in "AB":
            world.start(name, lambda name=name: write(name))

    explore_all(Scenario("writers", start, lambda world: orders.add(world.facts["order"])))
    assert orders == {"".join(order) for order in itertools.permutations("AABB")}
