"""The geometry of charts, in pixels: the page draws them as inline SVG and escapes all text."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LEFT, RIGHT, TOP, BOTTOM = 52, 14, 8, 24  # pixels around the plot
_BUCKETS = 240  # parts of a long line, each drawn as its lowest and highest point
_SETTLING = 0.1  # the first part of each run, whose points may lie beyond the axis
_LOGARITHMIC = 30.0  # ratio of the highest to the median value above which an axis is logarithmic


@dataclass(frozen=True)
class Series:
    """Points (x, y) of one run, in the order of x; validations are `dotted`, each point drawn as a dot."""

    run: int
    points: list[tuple[float, float]]
    dotted: bool = False


@dataclass(frozen=True)
class Mark:
    """An event at `x` in a run, in words."""

    run: int
    x: float
    kind: str
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart: lines as SVG path data, dots and marks in pixels, ticks as (pixel, label)."""

    title: str
    width: int
    height: int
    lines: list[tuple[int, bool, str]]
    dots: list[tuple[int, float, float, float, float]]
    marks: list[tuple[Mark, float]]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    cut: bool = False
    logarithmic: bool = False
    box: tuple[int, int, int, int] = field(default=(0, 0, 0, 0))


def chart(
    title: str,
    series: Sequence[Series],
    shown: Callable[[float], str],
    size: tuple[int, int],
    marks: Sequence[Mark] = (),
    zero: bool = False,
) -> Chart | None:
    """The chart of `series`; None where they have no point.

    With `zero` the axis begins at 0; otherwise it may leave out values that only the first steps reach.
    `shown` makes the label of a value.
    """
    series = [Series(s.run, [p for p in s.points if math.isfinite(p[1])], s.dotted) for s in series]
    series = [s for s in series if s.points]
    if not series:
        return None
    width, height = size
    box = (LEFT, TOP, width - LEFT - RIGHT, height - TOP - BOTTOM)
    end = max([x for s in series for x, _ in s.points] + [m.x for m in marks])
    values = sorted(y for s in series for _, y in s.points)
    logarithmic = zero and values[0] > 0 and values[-1] > _LOGARITHMIC * values[len(values) // 2]
    bend = math.log10 if logarithmic else float
    low, high, cut = _range(series, zero, logarithmic)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (bend(y) - bend(low)) / (bend(high) - bend(low)) if y > 0 or not logarithmic else 0.0
        return round(box[2] * x / end, 1), round(box[3] * (1 - share), 1)

    dots = [(s.run, *place(x, y), x, y) for s in series if s.dotted for x, y in s.points]
    return Chart(
        title,
        width,
        height,
        [(s.run, s.dotted, _path([place(x, y) for x, y in thinned(s.points)])) for s in series],
        dots,
        [(mark, place(mark.x, high)[0]) for mark in marks],
        [(place(x, high)[0], compact(x)) for x in ticks(0, end, max(2, width // 80))],
        [(place(0, y)[1], shown(y)) for y in (_powers(low, high) if logarithmic else ticks(low, high, height // 38))],
        cut,
        logarithmic,
        box,
    )


def _range(series: Sequence[Series], zero: bool, logarithmic: bool) -> tuple[float, float, bool]:
    """(low, high, whether the beginning of a run lies beyond); last points and validations never do."""
    every = [y for s in series for _, y in s.points]
    ends: dict[int, float] = {}
    for s in series:
        ends[s.run] = max(ends.get(s.run, 0.0), s.points[-1][0])
    settled = [
        y for s in series for x, y in s.points if s.dotted or x > _SETTLING * ends[s.run] or (x, y) == s.points[-1]
    ]
    low, high = min(every), max(every)
    if logarithmic:
        return low / 1.1, high * 1.1, False
    if zero:
        return min(0.0, low), high * 1.05 if high > 0 else 1.0, False
    low, top = min(settled), max(settled)
    room = max(0.06 * (top - low), 1e-3 * abs(top), 1e-12)
    cut = high > top + 0.5 * (top - low)
    return min(low, min(every)) - room, (top if cut else high) + room, cut


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """`points`; of many, the lowest and highest of each of _BUCKETS equal parts, so that no peak is lost."""
    if len(points) <= 2 * _BUCKETS:
        return list(points)
    kept = [points[0]]
    for bucket in range(_BUCKETS):
        part = points[bucket * len(points) // _BUCKETS : (bucket + 1) * len(points) // _BUCKETS]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return [*kept, points[-1]]


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values from `low` to `high`, at most about `most`."""
    step = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(step))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= step * 0.999999)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    several = [m * 10.0**e for e in exponents for m in ((1, 2, 5) if len(exponents) < 4 else (1,))]
    return [value for value in several if low <= value <= high]


def compact(value: float) -> str:
    """A number in few characters."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.4g} {unit}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"
