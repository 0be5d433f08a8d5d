"""Render a comparison of tokenizers as an SVG file with a chart for each measure, or as an HTML page with the
charts and a table.
"""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from gristmill.page.bars import Panel, bar_panels
from gristmill.page.drawing import standalone
from gristmill.page.render import render_template
from tokenizer.compare import Row

MEASURES: dict[str, str] = {
    "tokens_per_word": "tokens per word",
    "bytes_per_token": "bytes per token",
    "coverage": "words known, %",
    "vocabulary_used": "vocabulary used, %",
    "megabytes_per_second": "MB per second",
}
_SHARES = ("coverage", "vocabulary_used")
_WIDE = 20  # values that differ by more than this factor are drawn on a logarithmic scale


def render_page(rows: Sequence[Row]) -> bytes:
    """Render a self-contained HTML page with the charts and the table."""
    head = ("tokenizer", "texts", "MB", "tokens", *MEASURES.values())
    template = Path(__file__).with_name("comparison.html")
    body = [cells(row) for row in rows]
    return render_template(
        template, title="Tokenizers", kind="comparison", chart=_chart(rows), head=head, rows=body
    ).encode()


def render_svg(rows: Sequence[Row]) -> bytes:
    """Render the charts as an SVG file, for papers and slides."""
    return standalone(_chart(rows)).encode()


def cells(row: Row) -> list[str]:
    """Return the cells of one table row as text."""
    values = [_value(row, name) for name in MEASURES]
    numbers = [
        f"{value:,.1f}" if name in _SHARES else f"{value:,.3f}" for name, value in zip(MEASURES, values, strict=True)
    ]
    return [row.tokenizer, row.group, f"{row.bytes / 1e6:,.2f}", f"{row.tokens:,}", *numbers]


def _value(row: Row, measure: str) -> float:
    value = float(getattr(row, measure))
    return 100 * value if measure in _SHARES else value


def _chart(rows: Sequence[Row]) -> Markup:
    groups = list(dict.fromkeys(row.group for row in rows))
    names = list(dict.fromkeys(row.tokenizer for row in rows))
    by_place = {(row.tokenizer, row.group): row for row in rows}
    panels = []
    for measure, title in MEASURES.items():
        found = [[by_place.get((name, group)) for group in groups] for name in names]
        values = [[None if row is None else _value(row, measure) for row in series] for series in found]
        positive = [value for series in values for value in series if value]
        wide = measure not in _SHARES and bool(positive) and max(positive) > _WIDE * min(positive)
        panels.append(Panel(title, values, logarithmic=wide))
    return bar_panels("tokenizers compared", groups, names, panels)
