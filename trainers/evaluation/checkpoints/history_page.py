"""The page with the scores of checkpoints, rendered from the template history.html."""

from collections.abc import Sequence
from pathlib import Path

from gristmill.page.formats import compact
from gristmill.page.lines import LineChart, Series, line_chart
from gristmill.page.render import render_template
from trainers.evaluation.checkpoints.score_history import ScoreHistory, compare_histories, signals
from trainers.evaluation.evaluation_page import short_names

_SIZE = (450, 230)


def render_histories(histories: Sequence[ScoreHistory], title: str) -> str:
    """Return the page about the score histories of runs as self-contained HTML."""
    runs = [history.run for history in histories]
    return render_template(
        Path(__file__).with_name("history.html"),
        title=title,
        kind="evaluation of checkpoints",
        runs=runs,
        names=short_names(runs),
        versions=histories[0].results[-1].versions,
        histories=histories,
        charts=charts(histories),
        signals=signals(histories),
        differences=list(compare_histories(histories)),
    )


def charts(histories: Sequence[ScoreHistory]) -> list[LineChart]:
    """Return a line chart for each score that has a finite value, with steps on the x-axis and a line for
    each run. All runs must have the same scores.
    """
    names = short_names([history.run for history in histories])
    drawn = []
    for score in histories[0].names:
        series = []
        for number, history in enumerate(histories):
            points = history.points(score)
            band = tuple((float(step), its["low"], its["high"]) for step, its in points)
            values = [(float(step), its["value"]) for step, its in points]
            series.append(Series(number, names[history.run], values, True, band))
        drawn.append(line_chart(score, series, compact, _SIZE))
    return [each for each in drawn if each]
