"""Concurrent builds in an object store, for fixed seeds."""

import pytest

from tests.schedules.explore import Tally, explore
from tests.schedules.stores.builds_on_a_store import two_store_builds


@pytest.mark.faults
def test_two_builds_on_a_store():
    tally = Tally()
    found = explore(two_store_builds(), iter(range(12)), tally)
    assert found is None, found.story()
    assert {"kill", "suspend", "fail"} <= tally.actions.keys()
