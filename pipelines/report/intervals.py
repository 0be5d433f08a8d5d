"""Estimate properties of a population of `records` records from a random sample of `sampled` records (at
least 2), drawn without replacement. Each estimate comes with an approximate 95 % confidence interval.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

LEVEL = 0.95
_TAIL = (1 - LEVEL) / 2
_Z = NormalDist().inv_cdf(1 - _TAIL)


class SampleEstimate(NamedTuple):
    """An estimate, with the lower and upper bounds of its 95 % confidence interval."""

    estimate: float
    low: float
    high: float


def estimate_count(hits: int, sampled: int, records: int) -> SampleEstimate:
    """Estimate how many of all `records` have a property that `hits` of the `sampled` records have. The
    interval is the score interval for a binomial proportion (Wilson 1927, "Probable inference, the law of
    succession, and statistical inference", eq. 5). Because sampling is without replacement, the variance is
    multiplied by the share not sampled (Cochran 1977, "Sampling Techniques", section 3.2).
    """
    share, rest = hits / sampled, 1 - sampled / records
    weight = _Z * _Z * rest / sampled
    centre = (share + weight / 2) / (1 + weight)
    half = sqrt(weight * share * (1 - share) + weight * weight / 4) / (1 + weight)
    low, high = max(hits, records * (centre - half)), min(records - (sampled - hits), records * (centre + half))
    return SampleEstimate(records * share, min(low, records * share), max(high, records * share))


def estimate_sum(total: float, squares: float, sampled: int, records: int) -> SampleEstimate:
    """Estimate the sum of a non-negative value over all records. `total` and `squares` are the sums of the
    value and of its square in the sample, which must have at least two records. The interval uses the
    variance of Cochran 1977, theorems 2.1 and 2.4, and quantiles of Student's t.
    """
    variance = max(0.0, squares - total * total / sampled) / (sampled - 1)
    half = _quantile_of_t(sampled - 1) * records * sqrt((1 - sampled / records) * variance / sampled)
    estimate = records * total / sampled
    return SampleEstimate(estimate, max(total, estimate - half), estimate + half)


def estimate_ratio(part: float, whole: float, squares: Sequence[float], sampled: int, records: int) -> SampleEstimate:
    """Estimate the ratio of one sum to another that includes it, such as bytes removed by a step to bytes
    that reach the step.

    `part` and `whole` are the two sums in the sample; `whole` must be positive. `squares` are the sums of
    squares of the whole, the remainder (whole - part) and the part. The variance is that of the residuals
    part - ratio * whole (Cochran 1977, section 6.4).
    """
    ratio = part / whole
    of_whole, of_rest, of_part = squares
    products = (of_whole + of_part - of_rest) / 2  # of whole and part, because the remainder is their difference
    residuals = max(0.0, of_part - 2 * ratio * products + ratio * ratio * of_whole) / (sampled - 1)
    half = _quantile_of_t(sampled - 1) * sqrt((1 - sampled / records) * residuals * sampled) / whole
    return SampleEstimate(ratio, max(min(0.0, ratio), ratio - half), min(1.0, ratio + half))


def estimate_pairs(cluster_sizes: Mapping[int, int], share: float) -> SampleEstimate:
    """Estimate the number of pairs of duplicates among all records. `cluster_sizes` maps each cluster size to
    the number of clusters of that size in the sample. `share` is the fraction of the records that was
    sampled.

    Clusters are treated as Poisson events, each weighted by its number of pairs. The interval is the gamma
    interval of Fay and Feuer (1997), "Confidence intervals for directly standardized rates: a method based on
    the gamma distribution".
    """
    from scipy.special import gammaincinv

    weights = {size * (size - 1) // 2: count for size, count in cluster_sizes.items() if size > 1}
    pairs = sum(weight * count for weight, count in weights.items())
    variance = sum(weight * weight * count for weight, count in weights.items())
    largest = max(weights, default=1)
    low = variance / pairs * float(gammaincinv(pairs * pairs / variance, _TAIL)) if pairs else 0.0
    above, spread = pairs + largest, variance + largest * largest
    high = spread / above * float(gammaincinv(above * above / spread, 1 - _TAIL))
    return SampleEstimate(pairs / share**2, low / share**2, high / share**2)


def skewness(total: float, squares: float, cubes: float, sampled: int) -> float:
    """Return the skewness (third standardised moment) of a value from the sums of its first three powers in
    the sample; 0 if the value hardly varies.
    """
    mean = total / sampled
    variance = squares / sampled - mean * mean
    if variance <= 1e-9 * mean * mean:
        return 0.0
    return float((cubes / sampled - 3 * mean * squares / sampled + 2 * mean**3) / variance**1.5)


def add_intervals(intervals: Sequence[SampleEstimate]) -> SampleEstimate:
    """Return the sum of independent estimates, with its interval. The distance from the sum to its lower
    bound is the square root of the sum of the squared distances from the estimates to their lower bounds;
    likewise for the upper bounds (Zou, Huang and Zhang 2009, "A note on confidence interval estimation for a
    linear function of binomial proportions").
    """
    total = sum(each.estimate for each in intervals)
    below = sqrt(sum((each.estimate - each.low) ** 2 for each in intervals))
    above = sqrt(sum((each.high - each.estimate) ** 2 for each in intervals))
    return SampleEstimate(total, total - below, total + above)


def _quantile_of_t(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - _TAIL))
