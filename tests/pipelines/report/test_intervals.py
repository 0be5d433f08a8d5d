"""Confidence intervals have their nominal coverage, agree with textbook formulas, and are exact if everything
is sampled.
"""

import numpy as np
import pytest
from scipy.stats import chi2, norm, skew, t

from pipelines.report.intervals import (
    SampleEstimate,
    add_intervals,
    estimate_count,
    estimate_pairs,
    estimate_ratio,
    estimate_sum,
    skewness,
)

RANDOM = np.random.default_rng(5)
DRAWS = 2000


def covered(truth: float, intervals: list[SampleEstimate]) -> float:
    return float(np.mean([each.low <= truth <= each.high for each in intervals]))


@pytest.mark.parametrize(("records", "share", "hits"), [(10_000, 0.05, 3000), (2000, 0.5, 100), (50_000, 0.01, 49_000)])
def test_counts_are_covered_as_often_as_promised(records, share, hits):
    sampled = RANDOM.binomial(records, share, DRAWS)
    found = [
        estimate_count(int(RANDOM.hypergeometric(hits, records - hits, n)), int(n), records) for n in sampled.tolist()
    ]
    assert 0.935 < covered(hits, found) < 0.97
    assert np.mean([each.estimate for each in found]) == pytest.approx(hits, rel=0.01)


def test_sums_and_shares_of_sums_are_covered_as_often_as_promised():
    lengths = RANDOM.lognormal(5, 0.7, 5000)
    left = np.where(RANDOM.random(5000) < 0.2, 0, lengths * RANDOM.uniform(0.7, 1, 5000))
    sums, shares = [], []
    for _ in range(DRAWS):
        chosen = RANDOM.random(5000) < 0.06
        x, y, n = lengths[chosen], left[chosen], int(chosen.sum())
        sums.append(estimate_sum(y.sum(), y @ y, n, 5000))
        squares = [x @ x, y @ y, (x - y) @ (x - y)]
        shares.append(estimate_ratio((x - y).sum(), x.sum(), squares, n, 5000))
    assert 0.93 < covered(left.sum(), sums) < 0.97
    truth = 1 - left.sum() / lengths.sum()
    assert 0.93 < covered(truth, shares) < 0.97
    share_of = np.mean([each.high - each.low for each in shares]) * lengths.sum()
    assert share_of < np.mean([each.high - each.low for each in sums]), "a ratio is better known than a sum"


def test_formulas_of_the_books():
    """The intervals are those of Wilson, Student and Garwood where samples are small compared with the
    population.
    """
    low, high = estimate_count(10, 100, 10**9)[1:]
    z = norm.ppf(0.975)
    for end in (low / 1e9, high / 1e9):  # the ends solve (p - share)^2 = z^2 p (1 - p) / n
        assert (end - 0.1) ** 2 == pytest.approx(z * z * end * (1 - end) / 100, rel=1e-5)
    values = np.array([3.0, 5.0, 10.0, 22.0])
    found = estimate_sum(values.sum(), values @ values, 4, 10**9)
    half = t.ppf(0.975, 3) * values.std(ddof=1) / 2
    assert found.high == pytest.approx(1e9 * (values.mean() + half))
    for pairs in (0, 1, 7):
        ends = chi2.ppf(0.025, 2 * pairs) / 2 if pairs else 0, chi2.ppf(0.975, 2 * pairs + 2) / 2
        assert estimate_pairs({2: pairs}, 0.1)[1:] == pytest.approx([100 * end for end in ends])


def test_a_sample_of_everything_is_exact():
    assert estimate_count(7, 20, 20) == (7, 7, 7)
    assert estimate_sum(30, 500, 20, 20) == (30, 30, 30)
    assert estimate_ratio(6, 30, [500, 400, 30], 20, 20) == (0.2, 0.2, 0.2)


def test_no_hit_and_all_hits_have_intervals_within_the_whole():
    none, every = estimate_count(0, 50, 1000), estimate_count(50, 50, 1000)
    assert (none.estimate, none.low, every.high) == (0, 0, 1000)
    assert 50 < none.high < 100
    assert every.low == pytest.approx(1000 - none.high)


def test_the_whole_has_no_more_duplicates_than_pairs_say():
    """With clusters of several sizes, the interval covers the number of pairs, and its upper end exceeds the
    number of removable copies.
    """
    sizes = np.array([1] * 6000 + [2] * 1000 + [3] * 300 + [20] * 30)
    pairs, extra = int((sizes * (sizes - 1) // 2).sum()), int((sizes - 1).sum())
    found, least = [], []
    for _ in range(500):
        chosen = RANDOM.binomial(sizes, 0.1)
        counts = dict(zip(*map(np.ndarray.tolist, np.unique(chosen, return_counts=True)), strict=True))
        found.append(estimate_pairs(counts, 0.1))
        least.append(np.maximum(chosen - 1, 0).sum() / chosen.sum())
    assert covered(pairs, found) > 0.93
    assert np.mean([each.high > extra for each in found]) > 0.99
    assert np.mean(least) < extra / sizes.sum() / 2, "the sample shows less than half of the duplicates"


def test_skewness_is_that_of_scipy():
    values = RANDOM.lognormal(5, 1, 500)
    assert skewness(values.sum(), (values**2).sum(), (values**3).sum(), 500) == pytest.approx(skew(values))
    assert skewness(30.0, 90.0, 270.0, 10) == 0


def test_distances_add_up_as_variances_do():
    total = add_intervals([SampleEstimate(10, 7, 14), SampleEstimate(20, 16, 23)])
    assert total == (30, 25, 35)
    assert add_intervals([SampleEstimate(10, 7, 14)]) == (10, 7, 14)
