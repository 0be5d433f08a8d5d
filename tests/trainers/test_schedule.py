"""Learning-rate schedules."""

from itertools import pairwise

import pytest

from trainers.config import Schedule
from trainers.schedule import SCHEDULES, rate_fraction


@pytest.mark.parametrize("kind", SCHEDULES)
def test_warm_up_rises_to_the_peak_and_the_end_is_where_it_was_asked_for(kind):
    schedule = Schedule(kind, warmup_steps=10, final_fraction=0.1)
    rates = [rate_fraction(schedule, step, 100) for step in range(100)]
    assert rates[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert max(rates) == rates[10] == 1.0
    assert rates[-1] == pytest.approx(1.0 if kind == "constant" else 0.1)
    assert all(later <= earlier for earlier, later in pairwise(rates[10:]))


def test_wsd_is_stable_before_it_decays():
    schedule = Schedule("wsd", warmup_steps=0, final_fraction=0.0, decay_fraction=0.25)
    rates = [rate_fraction(schedule, step, 101) for step in range(101)]
    assert rates[:76] == [1.0] * 76
    assert rates[88] == pytest.approx(0.48)
