"""Convert the fixed bins of a column's histogram into what a chart needs: an axis, counts per cell, and
quantiles.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.page.drawing import round_step, ticks
from pipelines.stages.materialise.column_profile import bin_width

_CELLS = 60  # number of cells on a chart's axis
_LOG_FROM = 200.0  # axes that reach further than this are logarithmic
_TAIL = 0.003  # share of the documents at either end that may lie beyond the axis


@dataclass(frozen=True)
class Axis:
    """A horizontal axis from `low` to `high`, divided into `cells` cells. A logarithmic axis places x at
    sign(x) log10(1 + |x|), which is linear near 0.
    """

    low: float
    high: float
    logarithmic: bool
    cells: int

    def position(self, value: float) -> float:
        """Return the position of a value on the axis: 0 at `low`, 1 at `high`."""
        low, high = self._bend(self.low), self._bend(self.high)
        return (self._bend(value) - low) / (high - low)

    def ticks(self) -> list[float]:
        """Return round values for the ticks."""
        if self.logarithmic:
            powers = [0.0, *(sign * 10.0**e for e in range(13) for sign in (-1, 1))]
            inside = [p for p in sorted(powers) if self.low <= p <= self.high]
            return inside[:: max(1, math.ceil(len(inside) / 6))]
        return ticks(self.low, self.high, 5)

    def _bend(self, value: float) -> float:
        return math.copysign(math.log10(1 + abs(value)), value) if self.logarithmic else value


def axis_for(histograms: Iterable[Mapping[str, Any]], bounds: Sequence[float]) -> Axis:
    """Choose a common axis for histograms that shows nearly all documents and all `bounds`. At least one
    histogram must have bins.
    """
    histograms = [h for h in histograms if h["bins"]]
    whole = all(h["whole"] for h in histograms)
    low = min([quantile(h, _TAIL) for h in histograms] + list(bounds))
    high = max([_upper(h, quantile(h, 1 - _TAIL)) for h in histograms] + list(bounds))
    logarithmic = max(abs(low), abs(high)) > _LOG_FROM
    if logarithmic:
        return Axis(low if low < 0 else 0.0 if low < 10 else low, high + 0.05 * abs(high), True, _CELLS)
    low = 0.0 if 0 < low < high / 2 else low
    width = max(round_step((high - low) / _CELLS), 1.0 if whole else 0.01)
    low, high = math.floor(low / width) * width, math.ceil(round(high / width, 6)) * width
    if bounds and max(bounds) >= high:
        high += 2 * width
    if bounds and min(bounds) <= low:
        low -= 2 * width
    return Axis(low, high, False, max(1, round((high - low) / width)))


def cell_counts(histogram: Mapping[str, Any], axis: Axis, which: int) -> np.ndarray:
    """Return the number of documents in each cell of the axis, float64 [cells]; the documents of a bin are
    spread evenly over it. `which` selects the documents: 1 for all, 2 for kept documents. Documents whose
    values lie outside the axis count in its first or last cell.
    """
    edges, cumulative = [0.0], [0.0]
    for entry in histogram["bins"]:
        low, high = axis.position(entry[0]), axis.position(_upper(histogram, entry[0]))
        low, high = min(max(low, 0.0), 1 - 1e-9), min(max(high, 1e-9), 1.0)
        edges += [low, high]
        cumulative += [cumulative[-1], cumulative[-1] + entry[which]]
    at = np.interp(np.linspace(0, 1, axis.cells + 1), edges, cumulative, left=0.0)
    at[-1] = cumulative[-1]
    return np.diff(at)


def quantile(histogram: Mapping[str, Any], share: float, which: int = 1) -> float:
    """Return the lower end of the bin in which the cumulative count reaches `share` of the documents. `which`
    selects the documents: 1 for all, 2 for kept documents. The histogram must not be empty.
    """
    total, seen = sum(entry[which] for entry in histogram["bins"]), 0
    for entry in histogram["bins"]:
        seen += entry[which]
        if seen >= share * total and entry[which]:
            return float(entry[0])
    return float(histogram["bins"][-1][0])


def _upper(histogram: Mapping[str, Any], floor: float) -> float:
    """Return the upper end of the bin that begins at `floor`, or the histogram's maximum if that is lower,
    but at least floor + 1 (whole numbers) or floor + 0.01.
    """
    least = floor + (1.0 if histogram["whole"] else 0.01)
    return min(floor + bin_width(floor, histogram["whole"]), max(histogram["maximum"], least))
