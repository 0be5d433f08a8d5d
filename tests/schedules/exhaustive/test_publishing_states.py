"""Publishing in every interleaving of two or three processes, with a kill or suspension at any point; two
scenarios are only sampled. Prints the number of states explored.
"""

import pytest

from tests.schedules.exhaustive.publishing_scenarios import (
    publish_a_removed_step,
    publish_a_step,
    publish_the_first,
    write_new,
    write_while_forgetting,
    write_while_old_files_are_removed,
    write_while_removed,
)
from tests.schedules.exhaustive.systematic import explore_all
from tests.schedules.explore import Tally, explore

KILL, SUSPENSION = {"kills": 1}, {"suspensions": 1}
FAULTS = pytest.mark.parametrize("faults", [KILL, SUSPENSION], ids=["kill", "suspension"])


def check(scenario, **faults):
    report = explore_all(scenario, **faults)
    print(f"{scenario.name}, {faults or 'no faults'}: {report}")
    assert not report.failure, report.failure


@pytest.mark.long
def test_of_two_builds_the_first_publishes():
    check(publish_the_first())


@pytest.mark.long
@pytest.mark.parametrize("faults", [{}, KILL, SUSPENSION], ids=["none", "kill", "suspension"])
def test_a_step_that_is_removed_is_never_published_without_its_files(faults):
    check(publish_a_removed_step(), **faults)


@pytest.mark.long
@pytest.mark.parametrize("faults", [{}, KILL, SUSPENSION], ids=["none", "kill", "suspension"])
def test_a_task_that_began_before_writes_nothing_once_its_step_is_removed(faults):
    check(write_while_forgetting(), **faults)


@pytest.mark.parametrize("scenario", [write_while_removed, write_while_old_files_are_removed])
def test_a_file_is_written_or_not_while_others_are_removed(scenario):
    found = explore(scenario(), iter(range(300)), Tally())  # all states would take minutes
    assert found is None, found.story()


@pytest.mark.slow
@FAULTS
def test_of_two_builds_the_first_publishes_with_a_fault(faults):
    check(publish_the_first(), **faults)


@pytest.mark.slow
def test_of_two_writers_and_a_sweeper_one_succeeds():
    check(write_new())


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@FAULTS
def test_of_two_writers_and_a_sweeper_one_succeeds_with_a_fault(faults):
    check(write_new(), **faults)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_a_published_step_is_whole():
    check(publish_a_step())


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@FAULTS
def test_a_published_step_is_whole_with_a_fault(faults):
    check(publish_a_step(), **faults)
