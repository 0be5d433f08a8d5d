"""Concurrent processes on an object store, with lost answers, failed and late requests, kills and
suspensions.
"""

import itertools

import pytest

from tests.schedules.explore import Tally, explore
from tests.schedules.stores.store_scenarios import take_store_lease, write_new_object

SCENARIOS = {"lease": take_store_lease, "write_new": write_new_object}


@pytest.mark.long
@pytest.mark.parametrize("name", SCENARIOS)
def test_some_schedules(name):
    tally = Tally()
    found = explore(SCENARIOS[name](), iter(range(60)), tally)
    assert found is None, found.story()
    assert {"kill", "suspend", "fail"} <= tally.actions.keys()


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", SCENARIOS)
def test_many_schedules(name):
    tally = Tally()
    found = explore(SCENARIOS[name](), itertools.islice(itertools.count(1000), 20_000), tally)
    print(f"{name}: {tally}")
    assert found is None, found.story()
