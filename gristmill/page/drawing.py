"""Inline SVG drawings, and the colours, ticks and text widths that charts need. Lengths are in CSS pixels.
Colours are variables of `page.css`, so that one drawing works in light mode, in dark mode and in print.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

from markupsafe import Markup, escape

from gristmill.terminal import printable

INK, MUTED, LINE, KEPT, LOST, SHADE = (f"var(--{name})" for name in ("ink", "muted", "line", "kept", "lost", "shade"))
COLOURS = 8
"""The number of colours for series. Further series differ by their dashes."""

TEXT = 11.5
"""The font size of a label, in pixels."""

LEGEND_ROW = 18
"""The distance from one row of a legend to the next, in pixels."""


def series_colour(number: int) -> str:
    """Return the colour of the series with index `number`. Colours repeat after COLOURS series."""
    return f"var(--series-{number % COLOURS})"


def series_dashes(number: int) -> str | None:
    """Return the dash pattern of the series with index `number`, or None for a solid line. Colour and dashes
    together distinguish the first 3 x COLOURS series.
    """
    return None if number < COLOURS else "7 3" if number < 2 * COLOURS else "2 3"


class Drawing:
    """An SVG image of `width` x `height` pixels at full size. Later shapes cover earlier ones."""

    def __init__(self, width: float, height: float) -> None:
        self._width, self._height = width, height
        self._marks: list[str] = []

    def add(self, tag: str, words: str = "", *, title: str | None = None, **attributes: Any) -> None:
        """Draw an SVG element with the text `words` and the tooltip `title`. Numeric attributes are in pixels
        and rounded to tenths; pass other values as text. In attribute names, `_` becomes `-` and a trailing
        `_` is dropped. Attributes that are None are omitted.
        """
        written = "".join(
            f' {name.rstrip("_").replace("_", "-")}="{_escaped(value if isinstance(value, str) else f"{round(value, 1):g}")}"'
            for name, value in attributes.items()
            if value is not None
        )
        inside = _escaped(words) + (f"<title>{_escaped(title)}</title>" if title is not None else "")
        self._marks.append(f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>")

    def text(
        self, x: float, y: float, words: str, anchor: str | None = None, colour: str = MUTED, size: float | None = None
    ) -> None:
        """Draw text with its baseline at `y`. `anchor` says which point of the text is at `x`: its start
        (None), its `middle` or its `end`.
        """
        if words:
            self.add("text", words, x=x, y=y, text_anchor=anchor, fill=colour, font_size=size)

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = LINE, **attributes: Any) -> None:
        """Draw a straight line."""
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, **attributes)

    def bar(self, x: float, y: float, width: float, height: float, colour: str, title: str | None = None) -> None:
        """Draw a filled rectangle, or nothing if its width is not positive."""
        if width > 0:
            self.add("rect", title=title, x=x, y=y, width=width, height=height, fill=colour)

    def legend(self, x: float, y: float, names: Sequence[tuple[str, str]], rows: bool = False) -> None:
        """Draw a legend of (name, colour) pairs, which starts at `x` with the baseline of its first row at
        `y`. With `rows`, each pair has its own row; otherwise, all share one.
        """
        for name, colour in names:
            self.bar(x, y - 9, 10, 10, colour)
            self.text(x + 15, y, name, colour=INK)
            x, y = (x, y + LEGEND_ROW) if rows else (x + text_width(name) + 32, y)

    def open_plot(self, x: float, y: float, width: float, height: float) -> None:
        """Until `close_plot`, clip everything drawn to a rectangle and measure positions from its top-left
        corner, (x, y).
        """
        self._marks.append(f'<svg x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" overflow="hidden">')

    def close_plot(self) -> None:
        """Undo the clipping and the move of the origin by `open_plot`."""
        self._marks.append("</svg>")

    def finish(self, label: str, description: str) -> Markup:
        """Return the SVG element. Screen readers read `label` and `description` instead of the image."""
        size = f'viewBox="0 0 {self._width:g} {self._height:g}" width="{self._width:g}" height="{self._height:g}"'
        head = f'<svg class="chart" {size} font-size="{TEXT}" role="img" aria-label="{_escaped(label)}">'
        return Markup(f"{head}<desc>{_escaped(description)}</desc>{''.join(self._marks)}</svg>")


def standalone(svg: str) -> str:
    """Return a finished drawing as the text of an SVG file, with the colours of light mode and no background."""
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"(--[\w-]+): (#[0-9a-f]+)", style.partition("@media")[0]))
    head = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" '
    return head + re.sub(r"var\((--[\w-]+)\)", lambda found: light[found[1]], svg.removeprefix("<svg "))


def text_width(words: str) -> float:
    """Estimate the width of a label in pixels."""
    return 0.58 * TEXT * sum(2 if east_asian_width(letter) in "WF" else 1 for letter in printable(words))


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return evenly spaced round values in [low, high], at most `most` + 1 of them. `low` must be below
    `high`.
    """
    step = round_step((high - low) / max(1, most))
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) + 1)]


def powers(low: float, high: float) -> list[float]:
    """Return the tick values of a logarithmic axis that lie between `low` and `high`: 1, 2 and 5 times each
    power of ten if the axis spans few decades, otherwise only the powers of ten.
    """
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    several = [m * 10.0**e for e in exponents for m in ((1, 2, 5) if len(exponents) < 4 else (1,))]
    return [value for value in several if low <= value <= high]


def round_step(width: float) -> float:
    """Return the smallest number that is 1, 2 or 5 times a power of ten and at least `width`, which must be
    above 0.
    """
    power = 10.0 ** math.floor(math.log10(width))
    return next(float(f"{step * power:.12g}") for step in (1, 2, 5, 10) if step * power >= width * 0.999999)


def _escaped(text: str) -> str:
    return str(escape(printable(text)))
