"""Submissions of one command at the same moment, in random orders, with kills, suspensions, failed requests and lost answers."""

import pytest

from tests.schedules.explore import Tally, explore
from tests.schedules.submissions.meetings_of_submissions import two_slots, two_versions


@pytest.mark.parametrize("scenario", [two_slots, two_versions], ids=["other slot", "other code"])
def test_of_submissions_at_the_same_moment_one_job_runs(scenario):
    tally = Tally()
    found = explore(scenario(), iter(range(150)), tally)
    assert found is None, found.story()
    assert {"kill", "suspend", "fail"} <= tally.actions.keys()
