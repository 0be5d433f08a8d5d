"""Scatter charts of two measures in the same unit, with the diagonal on which both are equal."""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from gristmill.page.drawing import MUTED, Drawing, series_colour, ticks

_SIZE, _LEFT, _TOP, _BOTTOM = 300, 58, 10, 42  # pixels


def scatter(
    label: str,
    points: Sequence[tuple[str, float, float]],
    axes: tuple[str, str],
    shown: Callable[[float], str],
) -> Markup:
    """Draw a scatter chart of `points`, each given as (name, x, y). Both axes have the same range; `axes` are
    their titles, and `shown` formats their values. `points` must not be empty.
    """
    values = [value for _, x, y in points for value in (x, y)]
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or max(1e-6, 1e-3 * abs(high))
    low, high = low - room, high + room
    plot = _SIZE - _LEFT - 12

    def place(value: float) -> float:
        return plot * (value - low) / (high - low)

    drawing = Drawing(_SIZE, _TOP + plot + _BOTTOM)
    for value in ticks(low, high, 4):
        drawing.line(_LEFT, _TOP + plot - place(value), _LEFT + plot, _TOP + plot - place(value))
        drawing.text(_LEFT - 6, _TOP + plot - place(value) + 4, shown(value), "end")
        drawing.text(_LEFT + place(value), _TOP + plot + 16, shown(value), "middle")
    drawing.line(_LEFT, _TOP + plot, _LEFT + plot, _TOP, MUTED, stroke_dasharray="4 3")
    for name, x, y in points:
        at = (_LEFT + place(x), _TOP + plot - place(y))
        title = f"{name}: {axes[0]} {shown(x)}, {axes[1]} {shown(y)}"
        drawing.add("circle", title=title, cx=at[0], cy=at[1], r=3.2, fill=series_colour(0), fill_opacity="0.75")
    drawing.text(_LEFT + plot / 2, _TOP + plot + 34, f"{axes[0]} →", "middle")
    drawing.text(_LEFT + 6, _TOP + 12, f"↑ {axes[1]}")
    return drawing.finish(label, f"{len(points)} points of {axes[1]} against {axes[0]}")
