"""Charts of how the predicted metrics change with the share of a domain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from gristmill.page.drawing import INK, LINE, MUTED, Drawing, series_colour, series_dashes, ticks
from gristmill.page.formats import shortened

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _FOOT = 420, 190, 58, 14, 44, 40  # pixels
_EDGE = 30  # pixels from an end of the axis; closer labels are aligned with their mark
_NAMED, _LETTERS = 5, 12  # metrics in the legend, and characters of each name
_MOST = 24  # charts; of more domains, those whose share changes the mean most


@dataclass(frozen=True)
class DomainChart:
    """A chart of the predicted metrics against the share of the domain `name`. `note` gives the share at
    which the mean of the metrics is lowest.
    """

    name: str
    note: str
    svg: Markup


def domain_charts(curves: Mapping[str, Any], shares: Sequence[tuple[str, Mapping[str, float]]]) -> list[DomainChart]:
    """Return charts of at most 24 of the `curves` (from `domain_curves`), beginning with those along which
    the mean of the metrics varies most. `shares` holds the mixtures that the charts mark, as pairs (name,
    shares by domain).
    """
    reach = {name: max(curve["mean"]) - min(curve["mean"]) for name, curve in curves.items()}
    chosen = sorted(curves, key=lambda name: -reach[name])[:_MOST]
    return [_chart(name, curves[name], [(label, its[name]) for label, its in shares if name in its]) for name in chosen]


def _chart(name: str, curve: Mapping[str, Any], marks: Sequence[tuple[str, float]]) -> DomainChart:
    across, lines = curve["shares"], curve["metrics"]
    band = [*(curve["low"] or []), *(curve["high"] or [])]
    heights = [0.0, *curve["mean"], *band, *(value for line in lines.values() for value in line)]
    low, high = min(heights), max(heights)
    room = 0.04 * (high - low) or 1e-6
    low, high, right = low - room, high + room, max([across[-1], *(share for _, share in marks)])
    left = min([across[0], *(share for _, share in marks)])
    bottom, width = _TOP + _HEIGHT, _WIDTH - _LEFT - _RIGHT

    def place(share: float, value: float) -> tuple[float, float]:
        return (
            round(_LEFT + width * (share - left) / (right - left), 1),
            round(bottom - _HEIGHT * (value - low) / (high - low), 1),
        )

    def path(points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)

    drawing = Drawing(_WIDTH, bottom + _FOOT)
    named = [("mean", INK), *((shortened(metric, _LETTERS), series_colour(n)) for n, metric in enumerate(lines))]
    drawing.legend(_LEFT, 12, named[: 1 + _NAMED] if len(lines) <= _NAMED else named[:1])
    for value in ticks(low, high, 5):
        y = place(left, value)[1]
        drawing.line(_LEFT, y, _LEFT + width, y, MUTED if value == 0 else LINE)
        drawing.text(_LEFT - 6, y + 4, f"{value:+g}" if value else "0", "end")
    for share in ticks(left, right, 5):
        drawing.text(place(share, 0)[0], bottom + 16, f"{100 * share:g} %", "middle")
    for label, share in marks:
        x = place(share, 0)[0]
        title = f"{label}: {share:.1%} {name}"
        drawing.line(x, _TOP, x, bottom, MUTED, title=title, stroke_dasharray="3 3")
        anchor = "end" if x > _LEFT + width - _EDGE else "middle" if x > _LEFT + _EDGE else None
        drawing.text(x, _TOP - 5 if label == "prior" else _TOP + 9, label, anchor)
    if curve["low"]:
        outline = [place(x, y) for x, y in zip(across, curve["low"], strict=True)]
        outline += [place(x, y) for x, y in zip(across[::-1], curve["high"][::-1], strict=True)]
        drawing.add("path", d=f"{path(outline)}Z", fill=INK, opacity=".12")
    for number, (metric, line) in enumerate(lines.items()):
        points = path([place(x, y) for x, y in zip(across, line, strict=True)])
        colour, dashes = series_colour(number), series_dashes(number)
        drawing.add(
            "path", title=metric, d=points, fill="none", stroke=colour, stroke_width=1.3, stroke_dasharray=dashes
        )
    points = path([place(x, y) for x, y in zip(across, curve["mean"], strict=True)])
    drawing.add("path", title="mean", d=points, fill="none", stroke=INK, stroke_width=2.4)
    drawing.text(_LEFT + width / 2, bottom + 33, f"share of {shortened(name, 24)}", "middle")
    best = min(range(len(across)), key=lambda k: curve["mean"][k])
    note = f"lowest mean at {across[best]:.0%}"
    return DomainChart(name, note, drawing.finish(f"Metrics by the share of {name}", f"{name}: {note}"))
