"""Paired comparisons against hand-computed values, and the treatment of missing runs."""

import math

import pytest

from trainers.studies.outcomes.paired_comparison import compare_pairs

BASE = {0: 2.0, 1: 2.2, 2: 1.9}


def compare(values, level=0.95, margin=0.0):
    return compare_pairs({"prior": BASE, "other": values}, "prior", level, margin)[1]


def test_the_interval_is_that_of_students_t():
    found = compare({0: 1.8, 1: 2.1, 2: 1.6})  # differences -.2, -.1, -.3: mean -.2, deviation .1
    assert (found.pairs, found.difference) == (3, pytest.approx(-0.2))
    assert found.error == pytest.approx(0.1 / math.sqrt(3))
    assert found.high - found.difference == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    assert found.verdict == "tie"  # three pairs are few: 4.3 standard errors
    assert compare({0: 1.8, 1: 2.1, 2: 1.6}, level=0.8).verdict == "better"


@pytest.mark.parametrize(
    ("shift", "margin", "verdict"),
    [(-0.1, 0.0, "better"), (0.1, 0.0, "worse"), (-0.1, 0.2, "tie"), (0.0, 0.0, "tie"), (-0.1, 0.09, "better")],
)
def test_the_rule(shift, margin, verdict):
    values = {seed: value + shift + 0.001 * seed for seed, value in BASE.items()}
    if shift == 0:
        values = {0: 2.01, 1: 2.19, 2: 1.9}
    assert compare(values, margin=margin).verdict == verdict


def test_seeds_are_paired_so_that_their_common_noise_cancels():
    noisy = {seed: value + 10 * seed for seed, value in BASE.items()}
    values = {"prior": noisy, "other": {seed: value - 0.01 - 0.0001 * seed for seed, value in noisy.items()}}
    assert compare_pairs(values, "prior", 0.95, 0.0)[1].verdict == "better"


def test_missing_runs_leave_their_pair_out():
    found = compare({0: 1.8, 1: None, 2: 1.7})
    assert (found.pairs, found.reason) == (2, "1 of 3 pairs are incomplete")
    assert compare({0: 1.8, 1: None, 2: None}).verdict == "open"
    nothing = compare({0: None, 1: None, 2: None})
    assert (nothing.verdict, nothing.fields()["mean"]) == ("open", None)
