"""Charts of histograms, one per row, above a common axis. Each row shows all documents, the kept documents in
front of them, and the bounds of filters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from gristmill.page.drawing import INK, KEPT, LINE, LOST, MUTED, SHADE, Drawing
from gristmill.page.formats import shortened

_WIDTH, _LEFT, _PLOT = 496, 90, 310  # pixels; the rest, on the right, is for notes
_ROW, _GAP, _FOOT = 52, 14, 24  # pixels: a row, its part above the bars, the labels of the axis
_SMALL = 9.5


@dataclass(frozen=True)
class Bound:
    """A filter's bound, with its label. `x` is its position on the axis, from 0 to 1."""

    x: float
    label: str


@dataclass(frozen=True)
class HistogramRow:
    """One row of a histogram chart. `every` holds the heights of its bars for all documents, and `kept` those
    for the kept documents. `shaded` lists the ranges that filters drop, as (start, end) positions on the
    axis, from 0 to 1.
    """

    name: str
    every: Sequence[float]
    kept: Sequence[float]
    median: str
    note: str = ""
    shaded: Sequence[tuple[float, float]] = ()
    bounds: Sequence[Bound] = field(default=())


def histogram_rows(label: str, rows: Sequence[HistogramRow], axis: Sequence[tuple[float, str]]) -> Markup:
    """Draw `rows` above a common axis, each row scaled to its own peak. `axis` lists the ticks as (position,
    label), with positions from 0 to 1.
    """
    drawing = Drawing(_WIDTH, _ROW * len(rows) + _FOOT)
    for number, row in enumerate(rows):
        bottom = float(_ROW * (number + 1))
        for start, end in row.shaded:
            drawing.bar(_at(start), bottom - _ROW + _GAP, _PLOT * (end - start), _ROW - _GAP, SHADE)
        peak = max(*row.every, 1e-9)
        for heights, colour in ((row.every, LOST), (row.kept, KEPT)):
            drawing.add("path", d=_steps(heights, (_ROW - _GAP) / peak, bottom), fill=colour)
        drawing.line(_LEFT, bottom, _LEFT + _PLOT, bottom, LINE)
        for bound in row.bounds:
            x, after = _at(bound.x), bound.x < 0.5
            drawing.line(x, bottom - _ROW + _GAP - 3, x, bottom, INK, stroke_dasharray="3 2")
            drawing.text(
                x + (4 if after else -4), bottom - _ROW + _GAP - 3, bound.label, None if after else "end", INK, _SMALL
            )
        drawing.text(_LEFT - 10, bottom - 8, shortened(row.name, 11), "end", INK)
        drawing.text(_at(1) + 8, bottom - 20, f"median {row.median}", colour=INK, size=10)
        drawing.text(_at(1) + 8, bottom - 6, row.note, colour=MUTED, size=_SMALL)
    for x, words in axis:
        drawing.text(_at(x), _ROW * len(rows) + 16, words, "middle")
    described = (f"{row.name}: median {row.median}{', ' if row.note else ''}{row.note}" for row in rows)
    return drawing.finish(label, "; ".join(described))


def _at(x: float) -> float:
    return _LEFT + _PLOT * x


def _steps(heights: Sequence[float], scale: float, bottom: float) -> str:
    path, before = f"M{_LEFT} {bottom:g}", 0.0
    for cell, height in enumerate(heights):
        height = round(scale * height, 1)
        if height != before:
            path += f"H{round(_at(cell / len(heights)), 1):g}V{round(bottom - height, 1):g}"
            before = height
    return f"{path}H{_LEFT + _PLOT}V{bottom:g}Z"
