"""Bar charts: stacked bars with their totals, and panels that compare the same groups by several measures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gristmill.page.drawing import INK, LEGEND_ROW, TEXT, Drawing, series_colour, text_width, ticks
from gristmill.page.formats import count, shortened

_WIDTH, _ROW, _BAR, _LEGEND = 900, 22, 14, 28  # pixels
_LABEL = 42  # characters of the name of a bar
_COLUMNS, _PANEL, _GAP = 3, 300, 20  # panels in a row; pixels of a panel, and between two panels
_HEAD, _FOOT, _THIN, _GROUP_GAP = 24, 22, 12, 8  # pixels: title of a panel, its ticks, a bar, between two groups
_GROUP = 16  # characters of the name of a group


def stacked_bars(label: str, names: Sequence[str], series: Sequence[tuple[str, str, Sequence[int]]]) -> Markup:
    """Draw a horizontal stacked bar for each of `names`, followed by its total. Each entry of `series` is
    (name, colour, values), with one value per bar. `names` and `series` must not be empty.
    """
    totals = [sum(parts) for parts in zip(*(values for _, _, values in series), strict=True)]
    labels = [shortened(name, _LABEL) for name in names]
    start, top = max(map(text_width, labels)) + 8, _LEGEND if len(series) > 1 else 0
    scale = (_WIDTH - start - text_width(count(max(totals))) - 10) / max(*totals, 1)
    drawing = Drawing(_WIDTH, _ROW * len(names) + top + 4)
    if top:
        letters = int((_WIDTH - start) / len(series) / text_width("x")) - 5
        drawing.legend(start, 14, [(shortened(name, max(letters, 4)), colour) for name, colour, _ in series])
    for row, (name, total) in enumerate(zip(labels, totals, strict=True)):
        x, y = start, top + _ROW * row + 4
        drawing.text(start - 8, y + 11, name, "end", INK)
        for part, colour, values in series:
            drawing.bar(x, y, scale * values[row], _BAR, colour, title=f"{part}: {count(values[row])}")
            x += scale * values[row]
        drawing.text(x + 8, y + 11, count(total), colour=INK)
    return drawing.finish(
        label, "; ".join(f"{name}: {count(total)}" for name, total in zip(names, totals, strict=True))
    )


@dataclass(frozen=True)
class Panel:
    """One panel of a bar chart, which shows one measure. `values` is indexed by [series][group]; no bar is
    drawn for None. A logarithmic axis needs at least one positive value.
    """

    title: str
    values: Sequence[Sequence[float | None]]
    logarithmic: bool = False

    def scale(self) -> tuple[Callable[[float], float], list[float]]:
        """Return (place, ticks) for the axis. `place` is a function that maps a value to its position on the
        axis, from 0 to 1.
        """
        given = [value for row in self.values for value in row if value is not None]
        if not self.logarithmic:
            high = 1.04 * max([*given, 1e-9])
            return lambda value: value / high, ticks(0, high, 4)
        positive = [value for value in given if value > 0]
        low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        high = max(high, low + 1)
        return (
            lambda value: max(0.0, (math.log10(value) - low) / (high - low)) if value > 0 else 0.0,
            [10.0**power for power in range(low, high + 1)],
        )


def bar_panels(label: str, groups: Sequence[str], names: Sequence[str], panels: Sequence[Panel]) -> Markup:
    """Draw `panels` and a legend of the series. `groups` are the names of the groups, at least one, and
    `names` those of the series.
    """
    left = max(text_width(shortened(group, _GROUP)) for group in groups) + 10
    tall = _HEAD + len(groups) * (_THIN * len(names) + _GROUP_GAP) + _FOOT
    places = [((_PANEL + _GAP) * (i % _COLUMNS) + left, tall * (i // _COLUMNS)) for i in range(len(panels) + 1)]
    x, y = places[-1]  # of the legend
    drawing = Drawing(_COLUMNS * (_PANEL + _GAP), max(y + tall, y + _HEAD + LEGEND_ROW * len(names)))
    for panel, corner in zip(panels, places, strict=False):
        _draw_panel(drawing, panel, *corner, _PANEL - left - 14, groups, names)
    drawing.legend(
        x, y + _HEAD + 8, [(shortened(name, 28), series_colour(i)) for i, name in enumerate(names)], rows=True
    )
    return drawing.finish(label, "; ".join(panel.title for panel in panels))


def _draw_panel(
    drawing: Drawing, panel: Panel, left: float, top: float, width: float, groups: Sequence[str], names: Sequence[str]
) -> None:
    place, marks = panel.scale()
    band = _THIN * len(names) + _GROUP_GAP
    bottom = top + _HEAD + band * len(groups)
    drawing.text(left, top + 14, panel.title, colour=INK, size=TEXT + 1)
    for value in marks:
        x = left + width * place(value)
        drawing.line(x, top + _HEAD, x, bottom)
        drawing.text(x, bottom + 15, f"{value:,g}", "middle")
    for row, group in enumerate(groups):
        y = top + _HEAD + band * row + _GROUP_GAP / 2
        drawing.text(left - 8, y + _THIN * len(names) / 2 + 4, shortened(group, _GROUP), "end", INK)
        for number, name in enumerate(names):
            measured = panel.values[number][row]
            if measured is not None:
                title = f"{name}, {group}: {measured:,.4g}"
                length, colour = width * place(measured), series_colour(number)
                drawing.bar(left, y + _THIN * number, length, _THIN - 1, colour, title)
