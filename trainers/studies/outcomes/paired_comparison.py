"""Compare entries with a baseline that was trained with the same seeds: the mean difference, its standard
error, and a verdict.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

VerdictWord = Literal["better", "tie", "worse", "open"]


@dataclass(frozen=True)
class PairedComparison:
    """A comparison of `entry` with a baseline on a metric for which lower is better, over the `pairs` seeds
    for which both have a value.

    `difference` is the mean of entry minus baseline, `error` is its standard error, and `low` and `high` are
    the ends of its t interval (`compare_pairs`). `mean` is the mean of the entry over all seeds for which it
    has a value. The verdict on the baseline itself is `tie`. For any other entry with fewer than two pairs,
    the verdict is `open`, and `error`, `low` and `high` are NaN.
    """

    entry: str
    pairs: int
    mean: float
    difference: float
    error: float
    low: float
    high: float
    verdict: VerdictWord
    reason: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the fields as JSON data, with None for numbers that are not finite."""
        plain = asdict(self)
        return {name: None if isinstance(v, float) and not np.isfinite(v) else v for name, v in plain.items()}


def compare_pairs(
    values: Mapping[str, Mapping[int, float | None]], baseline: str, level: float, margin: float
) -> list[PairedComparison]:
    """Compare every entry of `values` with `baseline`. `values` maps each entry to its values by seed, with
    None for a run without a value. Lower values are better.

    The verdict on an entry is based on its differences from the baseline (entry minus baseline) over the n
    seeds for which both have a value. With their mean m and standard deviation s, the interval is m ± t s /
    sqrt(n), where t is the quantile at (1 + `level`) / 2 of Student's t distribution with n - 1 degrees of
    freedom. An entry is better (worse) if the interval lies below (above) 0 and |m| is at least `margin`;
    otherwise it ties. With n < 2, the verdict is `open`. The verdict on the baseline itself is `tie`.
    """
    base = values[baseline]
    return [_compare(entry, its, base, entry == baseline, level, margin) for entry, its in values.items()]


def _compare(
    entry: str,
    its: Mapping[int, float | None],
    base: Mapping[int, float | None],
    is_base: bool,
    level: float,
    margin: float,
) -> PairedComparison:
    nothing = float("nan")
    own = [value for value in its.values() if value is not None]
    mean = float(np.mean(own)) if own else nothing
    if is_base:
        return PairedComparison(entry, len(own), mean, 0.0, 0.0, 0.0, 0.0, "tie", "the baseline")
    both = [(value, base.get(seed)) for seed, value in its.items()]
    gaps = np.array([value - other for value, other in both if value is not None and other is not None])
    missing = sum(value is None or other is None for value, other in both)
    lost = f"{missing} of {len(both)} pairs are incomplete" if missing else ""
    if len(gaps) < 2:
        difference = float(gaps.mean()) if len(gaps) else nothing
        reason = lost or "fewer than two pairs"
        return PairedComparison(entry, len(gaps), mean, difference, nothing, nothing, nothing, "open", reason)
    from scipy.special import stdtrit

    difference, error = float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(len(gaps)))
    width = float(stdtrit(len(gaps) - 1, (1 + level) / 2)) * error
    low, high = difference - width, difference + width
    verdict: VerdictWord = "tie"
    if abs(difference) >= margin and (high < 0 or low > 0):
        verdict = "better" if high < 0 else "worse"
    return PairedComparison(entry, len(gaps), mean, difference, error, low, high, verdict, lost)
