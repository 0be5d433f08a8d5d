"""Render the page of `diff` from the template corpora.html."""

from pathlib import Path

from markupsafe import Markup

from gristmill.page.histograms import HistogramRow, histogram_rows
from gristmill.page.render import render_template
from pipelines.explore.comparison.compare_corpora import CorpusComparison, Kind
from pipelines.explore.comparison.compare_distributions import LEAST_DISTANCE, DistributionChange
from pipelines.explore.comparison.corpora_table import TITLES, change_rows
from pipelines.report.bins import axis_for, cell_counts, quantile
from pipelines.report.corpus_charts import short

_CHARTS = 24  # distributions drawn: those with the largest distance


def corpora_page(comparison: CorpusComparison, samples: int) -> str:
    """Return a comparison of two corpora as a self-contained HTML page. It lists up to `samples` ids for each
    source and reason.
    """
    drawn = [change for change in comparison.distributions if change.distance >= LEAST_DISTANCE][:_CHARTS]
    ngrams = comparison.ngrams
    return render_template(
        Path(__file__).with_name("corpora.html"),
        title=comparison.new.manifest.corpus,
        kind="comparison of two corpora",
        old=comparison.old,
        new=comparison.new,
        sources=comparison.sources,
        kinds=[_kind(comparison, kind, title, samples) for kind, title in TITLES.items()],
        charts=[{"change": change, "svg": _chart(change)} for change in drawn],
        others=len(comparison.distributions) - len(drawn),
        ngrams=ngrams,
        lengths=sorted({change.words for change in ngrams.ngrams}) if ngrams is not None else [],
    )


def _kind(comparison: CorpusComparison, kind: Kind, title: str, samples: int) -> dict[str, object]:
    rows = [
        (source, reason, number, comparison.samples(source, kind, reason, samples))
        for source, change in comparison.sources.items()
        for reason, number in change_rows(change, kind)
    ]
    return {"kind": kind, "title": title, "rows": sorted(rows, key=lambda row: -row[2])}


def _chart(change: DistributionChange) -> Markup:
    sides = {"old": change.old, "new": change.new}
    axis = axis_for(sides.values(), [])
    rows = []
    for name, side in sides.items():
        heights = (cell_counts(side, axis, 1) ** 0.5).tolist()
        note = f"{sum(count for _, count, _ in side['bins']):,} docs"
        rows.append(HistogramRow(name, heights, heights, short(quantile(side, 0.5), change.column), note))
    ticks = [(axis.position(tick), short(tick, change.column)) for tick in axis.ticks()]
    return histogram_rows(f"distribution of {change.column} in {change.source}", rows, ticks)
