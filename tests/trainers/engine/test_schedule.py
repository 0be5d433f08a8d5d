"""Learning-rate schedules."""

import math
from itertools import pairwise

import pytest

from trainers.config.job import Schedule
from trainers.engine.schedule import SCHEDULES, rate_fraction


@pytest.mark.parametrize("kind", SCHEDULES)
def test_warm_up_rises_to_the_peak_and_the_end_is_where_it_was_asked_for(kind):
    schedule = Schedule(kind, warmup_steps=10, final_fraction=0.1)
    rates = [rate_fraction(schedule, step, 100) for step in range(100)]
    assert rates[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert max(rates) == rates[10] == 1.0
    assert rates[-1] == pytest.approx({"constant": 1.0, "inverse_sqrt": math.sqrt(11 / 100)}.get(kind, 0.1))
    assert all(later <= earlier for earlier, later in pairwise(rates[10:]))


def test_wsd_is_stable_before_it_decays():
    schedule = Schedule("wsd", warmup_steps=0, final_fraction=0.0, decay_fraction=0.25)
    rates = [rate_fraction(schedule, step, 101) for step in range(101)]
    assert rates[:76] == [1.0] * 76
    assert rates[88] == pytest.approx(0.48)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", {0: 0.2, 3: 0.8, 4: 1.0, 54: 1.0, 104: 1.0}),
        ("linear", {0: 0.2, 3: 0.8, 4: 1.0, 29: 0.8, 54: 0.6, 104: 0.2}),
        ("cosine", {0: 0.2, 4: 1.0, 29: 0.882842712, 54: 0.6, 79: 0.317157288, 104: 0.2}),
        ("wsd", {0: 0.2, 4: 1.0, 79: 1.0, 92: 0.584, 104: 0.2}),
        ("inverse_sqrt", {0: 0.2, 4: 1.0, 19: 0.5, 44: 1 / 3, 124: 0.2, 1000: 0.2}),
    ],
)
def test_values_of_the_formulas(kind, expected):
    schedule = Schedule(kind, warmup_steps=4, final_fraction=0.2, decay_fraction=0.25)
    found = {step: rate_fraction(schedule, step, 105) for step in expected}
    assert found == pytest.approx(expected, abs=1e-9)
