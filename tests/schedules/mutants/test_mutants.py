"""All mutants apply to the current code. `python -m tests.schedules.mutants` runs many schedules to check
that every mutant is found.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

from gristmill.storage.disk import LocalPath
from tests.schedules.choices import Default, Replay
from tests.schedules.explore import Scenario, run
from tests.schedules.memory_disk import ROOT
from tests.schedules.mutants.directed import directed_schedules
from tests.schedules.mutants.table import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_its_module(mutant):
    source = Path(find_spec(mutant.module).origin).read_text()
    compile(mutant.apply(source), mutant.module, "exec")


def test_names_are_unique():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_directed_schedules_find_a_lost_update():
    path = f"{ROOT}/count"

    def add_one():
        LocalPath(path).write_atomic(str(int(LocalPath(path).read_bytes()) + 1).encode())

    def start(world):
        world.disk.write(world.disk.create(path), b"0")
        for name in "AB":
            world.start(name, add_one)

    def judge(world):
        assert world.disk.peek(path) == b"2"

    scenario = Scenario("two that count", start, judge, faults=())
    assert run(scenario, Default())[1] is None
    failing = [decisions for decisions in directed_schedules(scenario) if run(scenario, Replay(decisions, 0))[1]]
    assert {len(decisions) for decisions in failing} >= {2}
