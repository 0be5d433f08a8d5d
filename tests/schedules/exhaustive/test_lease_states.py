"""The lease in every interleaving of two or three processes, with a kill or suspension at any point. Prints
the number of states explored.
"""

import pytest

from tests.schedules.exhaustive.lease_scenarios import SUSPENSIONS, take_lease
from tests.schedules.exhaustive.systematic import explore_all

KILL, SUSPENSION = {"kills": 1}, {"suspensions": 1, "seconds": SUSPENSIONS}


def check(machines, **faults):
    report = explore_all(take_lease(machines), **faults)
    print(f"lease, machines {machines}, {faults or 'no faults'}: {report}")
    assert not report.failure, report.failure
    return report


@pytest.mark.long
@pytest.mark.parametrize("machines", ["aa", "ab"])
def test_two_processes(machines):
    assert check(machines).ends.keys() == {"A None, B None"}


@pytest.mark.slow
@pytest.mark.parametrize("machines", ["aa", "ab"])
def test_two_processes_with_a_kill(machines):
    assert check(machines, **KILL).ends.keys() == {"A None, B None", "A None, B killed", "A killed, B None"}


@pytest.mark.slow
@pytest.mark.parametrize("machines", ["aa", "ab"])
def test_two_processes_with_a_suspension(machines):
    ends = check(machines, **SUSPENSION).ends.keys()
    assert ends == {"A None, B None", "A None, B ConflictError", "A ConflictError, B None"}


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("machines", ["aa", "ab"])
def test_two_processes_with_a_kill_and_a_suspension(machines):
    check(machines, **KILL, **SUSPENSION)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("faults", [{}, KILL], ids=["no faults", "a kill"])
@pytest.mark.parametrize("machines", ["aaa", "aab"])
def test_three_processes(machines, faults):
    check(machines, **faults)
