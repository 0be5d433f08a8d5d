"""Sweep a threshold: for many values of a bound on one signal, show the share of each source's documents that
this bound alone would keep. The shares are computed from the histograms that a build publishes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gristmill.config import near_match
from gristmill.errors import UserError
from gristmill.page.lines import LineChart, Series, line_chart
from gristmill.page.render import render_template
from gristmill.storage.location import Location
from pipelines.contracts.lineage import open_corpus
from pipelines.report.bins import axis_for
from pipelines.report.corpus_charts import short
from pipelines.stages.materialise.column_profile import bin_width

_ROWS = 12  # thresholds in the printed table


def sweep(corpus: Location, signal: str, side: str, output: Location) -> None:
    """Print what share of each source's documents a bound on `signal` would keep, at several thresholds.
    Write a chart of the shares to `output`, as a self-contained HTML page. `side` is at_least or at_most.
    Raises UserError if the corpus has no histogram of `signal`.
    """
    opened = open_corpus(corpus)
    facts = next(step for step in opened.steps if step.label == "funnel").manifest.facts["distributions"]
    known = sorted({name for histograms in facts.values() for name in histograms})
    histograms = {
        source: signals[signal] for source, signals in facts.items() if signal in signals and signals[signal]["bins"]
    }
    if not histograms:
        raise UserError(f"--sweep {signal}: the corpus has no histogram of it{near_match(signal, known)}")
    _print(histograms, signal, side)
    page = _page(histograms, signal, side)
    output.write_atomic(page.encode())
    Console(highlight=False, emoji=False).print(f"chart: {output}", markup=False)


def kept_share(histogram: Mapping[str, Any], side: str, threshold: float) -> float:
    """Return the share of a histogram's documents (see `Histogram.facts`) that the bound `threshold` would
    keep. `side` is at_least, which drops documents without a value, or at_most, which keeps them. NaN and
    infinities count as dropped. If the threshold lies within a bin, the share may be an estimate.
    """
    total = histogram["missing"] + histogram["not_finite"] + sum(entry[1] for entry in histogram["bins"])
    kept = float(histogram["missing"]) if side == "at_most" else 0.0
    for floor, count, _ in histogram["bins"]:
        width = bin_width(floor, histogram["whole"])
        if threshold > histogram["maximum"] or (side == "at_most" and threshold == histogram["maximum"]):
            below = 1.0
        elif threshold <= histogram["minimum"] and (side == "at_least" or threshold < histogram["minimum"]):
            below = 0.0
        elif width == 1 and histogram["whole"]:  # one whole number
            below = float(floor < threshold) if side == "at_least" else float(floor <= threshold)
        else:
            below = float(np.clip((threshold - floor) / width, 0.0, 1.0))
        kept += count * (1 - below if side == "at_least" else below)
    return kept / total if total else 1.0


def _thresholds(histograms: Mapping[str, Mapping[str, Any]]) -> list[float]:
    axis = axis_for(histograms.values(), [])
    edges = sorted(
        {float(entry[0]) for h in histograms.values() for entry in h["bins"] if axis.low <= entry[0] <= axis.high}
    )
    places = np.unique(np.linspace(0, len(edges) - 1, min(_ROWS, len(edges))).round().astype(int))
    return [edges[index] for index in places]


def _print(histograms: Mapping[str, Mapping[str, Any]], signal: str, side: str) -> None:
    console = Console(highlight=False, emoji=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{signal} {'≥' if side == 'at_least' else '≤'}", justify="right")
    for source in histograms:
        table.add_column(source, justify="right")
    for threshold in _thresholds(histograms):
        shares = (kept_share(histogram, side, threshold) for histogram in histograms.values())
        table.add_row(short(threshold, signal), *(f"{100 * share:.1f} %" for share in shares))
    console.print("Share of the documents that this bound alone keeps")
    console.print(table)


def _page(histograms: Mapping[str, Mapping[str, Any]], signal: str, side: str) -> str:
    chart = _chart(histograms, signal, side)
    return render_template(
        Path(__file__).with_name("sweep.html"),
        title=chart.title,
        kind="threshold sweep",
        chart=chart,
        sources=[*histograms],
    )


def _chart(histograms: Mapping[str, Mapping[str, Any]], signal: str, side: str) -> LineChart:
    axis = axis_for(histograms.values(), [])
    edges = sorted({float(entry[0]) for h in histograms.values() for entry in h["bins"]})
    inside = [edge for edge in edges if axis.low <= edge <= axis.high]
    series = [
        Series(number, source, [(axis.position(edge), kept_share(histogram, side, edge)) for edge in inside])
        for number, (source, histogram) in enumerate(histograms.items())
    ]
    title = f"Share of the documents kept, {signal} {'at least' if side == 'at_least' else 'at most'}"
    ticks = [(axis.position(tick), short(tick, signal)) for tick in axis.ticks()]
    chart = line_chart(title, series, lambda share: f"{100 * share:.0f} %", (900, 420), zero=True, x_ticks=ticks)
    assert chart is not None  # every histogram has a bin
    return chart
