"""Line charts: curves over steps or thresholds, with dots, shaded bands and markers of events."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from markupsafe import Markup

from gristmill.page.drawing import Drawing, powers, series_colour, series_dashes, ticks
from gristmill.page.formats import compact

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 8, 24  # pixels around the plot
_BUCKETS = 240  # a long line is divided into this many parts; the lowest and highest point of each are drawn
_SETTLING = 0.1  # the first part of each line, which may reach beyond the axis
_LOGARITHMIC = 30.0  # minimum ratio of the highest to the middle value for a logarithmic axis


@dataclass(frozen=True)
class Series:
    """One series of a line chart. `points` are (x, y), ordered by x; if `dotted`, each also gets a dot.
    `number` determines the colour and the dashes. `band` lists (x, low, high); the area between low and high
    is shaded behind the line.
    """

    number: int
    name: str
    points: list[tuple[float, float]]
    dotted: bool = False
    band: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True)
class Mark:
    """An event at `x`. It is drawn as a dotted vertical line in the colour of the series with the same
    `number`, or as a triangle on the axis if it is `brief`.
    """

    number: int
    x: float
    text: str
    brief: bool = False


@dataclass(frozen=True)
class LineChart:
    """A line chart with its layout computed. Positions are in pixels from the top left of the plot; `box` is
    the plot's left, top, width and height in the drawing. `cut` says whether the beginning of a line is cut
    off at the top.
    """

    title: str
    size: tuple[int, int]
    box: tuple[int, int, int, int]
    lines: list[tuple[Series, list[tuple[float, float]]]]
    dots: list[tuple[Series, float, float, str]]
    marks: list[tuple[Mark, float]]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    description: str
    cut: bool
    logarithmic: bool
    bands: list[tuple[Series, list[tuple[float, float]]]] = field(default_factory=list)

    def svg(self) -> Markup:
        """Return the chart as an SVG element."""
        left, top, width, height = self.box
        drawing = Drawing(*self.size)
        for y, label in self.y_ticks:
            drawing.line(left, top + y, left + width, top + y)
            drawing.text(left - 8, top + y + 4, label, "end")
        for x, label in self.x_ticks:
            drawing.text(left + x, top + height + 18, label, "end" if x > width - 12 else "middle")
        drawing.open_plot(left, top, width + 4, height)
        for mark, x in self.marks:
            if mark.brief:
                triangle = f"M{x - 4:g} {height}L{x + 4:g} {height}L{x:g} {height - 8}Z"
                drawing.add("path", title=mark.text, d=triangle, fill="var(--lost)")
            else:
                colour = series_colour(mark.number)
                drawing.line(x, 0, x, height, colour, title=mark.text, stroke_width=1.2, stroke_dasharray="2 3")
        for series, points in self.bands:
            outline = "M" + "L".join(f"{x:g} {y:g}" for x, y in points) + "Z"
            drawing.add("path", d=outline, fill=series_colour(series.number), opacity=".14")
        for series, points in self.lines:
            name = "validation" if series.dotted else "train" if self.dots else "sole"
            path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
            colour, dashes = series_colour(series.number), series_dashes(series.number)
            drawing.add("path", class_=f"curve {name}", d=path, stroke=colour, stroke_dasharray=dashes)
        for series, x, y, text in self.dots:
            drawing.add("circle", title=text, cx=x, cy=y, r=2.6, fill=series_colour(series.number))
        drawing.close_plot()
        return drawing.finish(self.title, self.description)


def line_chart(
    title: str,
    series: Sequence[Series],
    shown: Callable[[float], str],
    size: tuple[int, int],
    marks: Sequence[Mark] = (),
    zero: bool = False,
    x_ticks: Sequence[tuple[float, str]] | None = None,
) -> LineChart | None:
    """Lay out a chart of `series`. Returns None if no series has a finite point. `shown` formats the labels
    of the value axis. The x axis starts at 0.

    With `zero`, the value axis includes 0, unless all values are positive and the highest exceeds 30 times
    the median: then the axis is logarithmic. Without `zero`, high values that occur only at the beginning of
    a line may be cut off.
    """
    series = [_finite(s) for s in series]
    series = [s for s in series if s.points]
    if not series:
        return None
    width, height = size
    box = (_LEFT, _TOP, width - _LEFT - _RIGHT, height - _TOP - _BOTTOM)
    end = max([x for s in series for x, _ in s.points] + [m.x for m in marks] + [x for x, _ in x_ticks or ()]) or 1
    values = sorted(y for s in series for _, y in s.points)
    logarithmic = zero and values[0] > 0 and values[-1] > _LOGARITHMIC * values[len(values) // 2]
    bend = math.log10 if logarithmic else float
    low, high, cut = _range(series, zero, logarithmic)
    if x_ticks is None:
        x_ticks = [(x, compact(x)) for x in ticks(0, end, max(2, width // 80))]

    def place(x: float, y: float) -> tuple[float, float]:
        share = (bend(y) - bend(low)) / (bend(high) - bend(low)) if y > 0 or not logarithmic else 0.0
        return round(box[2] * x / end, 1), round(box[3] * (1 - share), 1)

    return LineChart(
        title,
        size,
        box,
        [(s, [place(x, y) for x, y in thinned(s.points)]) for s in series],
        [(s, *place(x, y), f"{s.name}: {y:.4f} at {compact(x)}") for s in series if s.dotted for x, y in s.points],
        [(mark, place(mark.x, high)[0]) for mark in marks],
        [(place(x, high)[0], label) for x, label in x_ticks],
        [(place(0, y)[1], shown(y)) for y in (powers(low, high) if logarithmic else ticks(low, high, height // 38))],
        "; ".join(map(_described, series)),
        cut,
        logarithmic,
        [(s, _outline(s.band, place)) for s in series if s.band],
    )


def _finite(series: Series) -> Series:
    points = [point for point in series.points if math.isfinite(point[1])]
    return replace(series, points=points, band=tuple(edge for edge in series.band if all(map(math.isfinite, edge))))


def _outline(
    band: Sequence[tuple[float, float, float]], place: Callable[[float, float], tuple[float, float]]
) -> list[tuple[float, float]]:
    return [place(x, high) for x, _, high in band] + [place(x, low) for x, low, _ in reversed(band)]


def _described(series: Series) -> str:
    values = [y for _, y in series.points]
    kind = f"{series.name}, dots" if series.dotted else series.name
    return f"{kind}: first {values[0]:.4g}, last {values[-1]:.4g}, lowest {min(values):.4g}, highest {max(values):.4g}"


def _range(series: Sequence[Series], zero: bool, logarithmic: bool) -> tuple[float, float, bool]:
    """Return (low, high, cut): the ends of the value axis, and whether the beginning of a line exceeds
    `high`.
    """
    edges = [y for s in series for _, *both in s.band for y in both]
    every = [y for s in series for _, y in s.points] + edges
    ends: dict[int, float] = {}
    for s in series:
        ends[s.number] = max(ends.get(s.number, 0.0), s.points[-1][0])
    settled = [
        y for s in series for x, y in s.points if s.dotted or x > _SETTLING * ends[s.number] or (x, y) == s.points[-1]
    ]
    low, high = min(every), max(every)
    if logarithmic:
        return low / 1.1, high * 1.1, False
    if zero:
        return min(0.0, low), high * 1.05 if high > 0 else 1.0, False
    low, top = min(settled), max([*settled, *edges])
    room = max(0.06 * (top - low), 1e-3 * abs(top), 1e-12)
    cut = high > top + 0.5 * (top - low)
    return min(low, min(every)) - room, (top if cut else high) + room, cut


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return `points` or, if there are more than 480, a selection that keeps the peaks: the first and last
    point, and the lowest and highest of each of 240 equal parts.
    """
    if len(points) <= 2 * _BUCKETS:
        return list(points)
    kept = [points[0]]
    for bucket in range(_BUCKETS):
        part = points[bucket * len(points) // _BUCKETS : (bucket + 1) * len(points) // _BUCKETS]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return [*kept, points[-1]]
