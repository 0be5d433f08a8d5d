"""Concurrent submissions of one command in random orders, with kills, suspensions, failed requests and lost
answers.
"""

import pytest

from tests.schedules.choices import Replay
from tests.schedules.explore import Tally, explore, run
from tests.schedules.scheduler import Decision
from tests.schedules.submissions.meetings_of_submissions import two_slots, two_versions


@pytest.mark.long
@pytest.mark.parametrize("scenario", [two_slots, two_versions], ids=["other slot", "other code"])
def test_of_submissions_at_the_same_moment_one_job_runs(scenario):
    tally = Tally()
    found = explore(scenario(), iter(range(150)), tally)
    assert found is None, found.story()
    assert {"kill", "suspend", "fail"} <= tally.actions.keys()


def test_a_submission_attaches_to_no_job_that_is_about_to_be_stopped():
    """Submission 3 finds the job that submission 1 has just started; that job will be stopped in favour of an
    older job of submission 2.
    """
    turns = [
        ("", 0, "submit 3"), ("submit 3", 2, "submit 2"), ("submit 2", 2, "submit 1"), ("submit 1", 2, "submit 2"),
        ("submit 3", 4, "submit 1"),
    ]  # fmt: skip
    decisions = [Decision(agent, number, "run", target) for agent, number, target in turns]
    world, what = run(two_slots(), Replay(decisions, 0))
    assert what is None
    assert {process.result for process in world.processes.values()} == {"build-tue-32c78e2d9182"}
