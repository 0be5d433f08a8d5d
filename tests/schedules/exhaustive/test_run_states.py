"""Ledger, checkpoints and exports in every interleaving of two processes, with a kill or suspension at any
point. Prints the number of states explored.
"""

import pytest

from tests.schedules.exhaustive.run_scenarios import (
    replace_twice,
    replace_while_another_reads,
    save_by_two_attempts,
    save_while_another_copies,
)
from tests.schedules.exhaustive.systematic import explore_all

FAULTS = ({}, {"kills": 1}, {"suspensions": 1})
SMALL = {"export": replace_twice, "reader": replace_while_another_reads}


def check(scenario, **faults):
    report = explore_all(scenario, **faults)
    print(f"{scenario.name}, {faults or 'no faults'}: {report}")
    assert not report.failure, report.failure


@pytest.mark.slow
@pytest.mark.parametrize("faults", FAULTS, ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_an_export_is_whole_or_absent(name, faults):
    check(SMALL[name](), **faults)


@pytest.mark.slow
@pytest.mark.parametrize("faults", FAULTS, ids=str)
def test_the_ledger_is_that_of_the_newest_checkpoint(faults):
    check(save_while_another_copies(), **faults)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("faults", FAULTS, ids=str)
def test_of_two_attempts_at_a_run_the_later_goes_on(faults):
    check(save_by_two_attempts(), **faults)
