"""Charts for the page of a study: the shares of domains, and differences from the baseline with their
intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gristmill.page.drawing import INK, LINE, LOST, MUTED, Drawing, series_colour, text_width, ticks
from gristmill.page.formats import shortened
from trainers.studies.outcomes.paired_comparison import PairedComparison

_WIDTH, _BAR, _GROUP, _LETTERS, _FOOT = 860, 11, 34, 24, 24  # pixels, and characters of a name
_TOP = 24


@dataclass(frozen=True)
class DomainShare:
    """A domain of a proposal. `prior` and `proposed` are its shares, `cap` is the largest share allowed (1
    without a limit), and `low` to `high` is the range of its share in the tie set (`TieSet`).
    """

    name: str
    prior: float
    proposed: float
    cap: float
    low: float
    high: float


def share_bars(rows: Sequence[DomainShare]) -> Markup:
    """Return a bar chart of each domain's prior and proposed share. A line shows the range from `low` to
    `high`, and a mark shows the cap unless it lies beyond the axis.
    """
    left = max(text_width(shortened(row.name, _LETTERS)) for row in rows) + 12
    most = min(1.0, 1.08 * max(max(row.prior, row.proposed, row.high) for row in rows))
    width, bottom = _WIDTH - left - 60, _TOP + _GROUP * len(rows)
    drawing = Drawing(_WIDTH, bottom + _FOOT)
    drawing.legend(left, 12, [("prior", series_colour(7)), ("proposed", series_colour(0)), ("cap in epochs", LOST)])
    for value in ticks(0, most, 6):
        x = left + width * value / most
        drawing.line(x, _TOP, x, bottom)
        drawing.text(x, bottom + 16, f"{100 * value:g} %", "middle")
    for number, row in enumerate(rows):
        y = _TOP + _GROUP * number + 4
        drawing.text(left - 8, y + _BAR + 4, shortened(row.name, _LETTERS), "end", INK)
        drawing.bar(left, y, width * row.prior / most, _BAR, series_colour(7), f"{row.name}: prior {row.prior:.2%}")
        title = f"{row.name}: proposed {row.proposed:.2%}, tied from {row.low:.2%} to {row.high:.2%}"
        drawing.bar(left, y + _BAR + 1, width * row.proposed / most, _BAR, series_colour(0), title)
        middle, ends = y + 1.5 * _BAR + 1, [left + width * end / most for end in (row.low, row.high)]
        drawing.line(ends[0], middle, ends[1], middle, INK, title=title, stroke_width=1.6)
        for end in ends:
            drawing.line(end, middle - 4, end, middle + 4, INK, stroke_width=1.6)
        if row.cap <= most:
            x = left + width * row.cap / most
            drawing.line(
                x, y - 2, x, y + 2 * _BAR + 3, LOST, title=f"{row.name}: at most {row.cap:.2%}", stroke_width=3
            )
    described = "; ".join(f"{row.name}: prior {row.prior:.1%}, proposed {row.proposed:.1%}" for row in rows)
    return drawing.finish("Prior and proposed mixture", described)


def difference_bars(rows: Sequence[PairedComparison]) -> Markup | None:
    """Return a chart of each entry's mean difference from the baseline, with its interval, or None if no
    entry has an interval. Entries without an interval are left out.
    """
    rows = [row for row in rows if row.error == row.error]
    if not rows:
        return None
    low, high = min(0.0, *(row.low for row in rows)), max(0.0, *(row.high for row in rows))
    room = 0.05 * (high - low) or 1e-3
    low, high = low - room, high + room
    left = max(text_width(shortened(row.entry, _LETTERS)) for row in rows) + 12
    width, row_height, bottom = _WIDTH - left - 70, 24, 8 + 24 * len(rows)
    drawing = Drawing(_WIDTH, bottom + _FOOT)

    def place(value: float) -> float:
        return left + width * (value - low) / (high - low)

    for value in ticks(low, high, 6):
        drawing.line(place(value), 4, place(value), bottom, INK if value == 0 else LINE)
        drawing.text(place(value), bottom + 16, f"{value:+g}" if value else "0", "middle")
    for number, row in enumerate(rows):
        y = 8 + row_height * number + row_height / 2
        colour = {"better": series_colour(0), "worse": LOST}.get(row.verdict, MUTED)
        drawing.text(left - 8, y + 4, shortened(row.entry, _LETTERS), "end", INK)
        title = f"{row.entry}: {row.difference:+.4f}, {row.low:+.4f} to {row.high:+.4f}"
        drawing.line(place(row.low), y, place(row.high), y, colour, title=title, stroke_width=2.5)
        drawing.add("circle", title=title, cx=place(row.difference), cy=y, r=4.5, fill=colour)
        drawing.text(place(high) + 6, y + 4, row.verdict, colour=INK)
    return drawing.finish("Differences from the baseline", "; ".join(f"{r.entry}: {r.verdict}" for r in rows))
