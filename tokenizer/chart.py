"""Render the comparison of tokenizers as charts by group, alone or with the table as a page."""

import warnings
from collections.abc import Sequence
from html import escape
from io import BytesIO
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from tokenizer.compare import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES: dict[str, str] = {
    "tokens_per_word": "tokens per word",
    "bytes_per_token": "bytes per token",
    "coverage": "words known, %",
    "vocabulary_used": "vocabulary used, %",
    "megabytes_per_second": "MB per second",
}
_SHARES = ("coverage", "vocabulary_used")
_WIDE = 20  # values that differ by more than this factor are drawn on a logarithmic scale
_STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
    "th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}td:nth-child(-n+2){text-align:left}"
    "th{vertical-align:bottom}svg{max-width:100%;height:auto}"
)


def render_png(rows: Sequence[Row]) -> bytes:
    """The charts as a PNG image."""
    return _render(rows, format="png", dpi=120)


def render_page(rows: Sequence[Row]) -> bytes:
    """An HTML page without scripts or links: the charts as SVG and the table."""
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    chart = _render(rows, format="svg", metadata=metadata).decode()
    head = "".join(f"<th>{escape(name)}" for name in ("tokenizer", "texts", "MB", "tokens", *MEASURES.values()))
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}' for cell in cells(row))}\n" for row in rows)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Tokenizers</title><style>{_STYLE}</style>'
        f"<h1>Tokenizers</h1>{chart[chart.index('<svg') :]}<table><tr>{head}\n{body}</table></html>\n"
    ).encode()


def cells(row: Row) -> list[str]:
    """A row of the table as text."""
    values = [_value(row, name) for name in MEASURES]
    numbers = [
        f"{value:,.1f}" if name in _SHARES else f"{value:,.3f}" for name, value in zip(MEASURES, values, strict=True)
    ]
    return [row.tokenizer, row.group, f"{row.bytes / 1e6:,.2f}", f"{row.tokens:,}", *numbers]


def _value(row: Row, measure: str) -> float:
    value = float(getattr(row, measure))
    return 100 * value if measure in _SHARES else value


def _render(rows: Sequence[Row], **options: Any) -> bytes:
    import matplotlib

    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "gristmill", "text.parse_math": False}
    sink = BytesIO()
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # matplotlib may lack a font for a name; the browser has one
        _figure(rows).savefig(sink, **options)
    return sink.getvalue()


def _figure(rows: Sequence[Row]) -> "Figure":
    """One panel per measure, one bar per tokenizer and group."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    groups = list(dict.fromkeys(row.group for row in rows))
    names = list(dict.fromkeys(row.tokenizer for row in rows))
    height = 1.2 + 0.22 * len(groups) * (len(names) + 1)
    figure = Figure(figsize=(15, height), layout="constrained")
    panels = figure.subplots(1, len(MEASURES), sharey=True)
    for panel, (measure, title) in zip(panels, MEASURES.items(), strict=True):
        for number, name in enumerate(names):
            bars = [row for row in rows if row.tokenizer == name]
            positions = [groups.index(row.group) * (len(names) + 1) + number for row in bars]
            panel.barh(positions, [_value(row, measure) for row in bars], label=name)
        panel.set_title(title, fontsize=10)
        positive = [value for row in rows if (value := _value(row, measure)) > 0]
        if measure not in _SHARES and positive and max(positive) > _WIDE * min(positive):
            panel.set_xscale("log")
            # Whole decades, so that at least two ticks have labels.
            panel.set_xlim(10 ** floor(log10(min(positive))), 10 ** ceil(log10(max(positive))))
            # Matplotlib's default labels of a logarithmic axis are TeX source, which an SVG with text would
            # show as such.
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            panel.xaxis.set_minor_formatter(NullFormatter())
        panel.spines[["top", "right"]].set_visible(False)
    middles = [group * (len(names) + 1) + (len(names) - 1) / 2 for group in range(len(groups))]
    panels[0].set_yticks(middles, groups)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(names)))
    return figure
