"""A parallel-coordinates chart: each run of a study is a line through the shares of its domains and the
weighted mean of its metrics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gristmill.page.drawing import INK, LINE, MUTED, Drawing, series_colour, ticks
from gristmill.page.formats import shortened

_WIDTH, _HEIGHT, _TOP, _LEFT, _RIGHT, _LETTERS = 860, 300, 40, 56, 72, 16  # pixels, and characters of a name
_MOST = 400  # lines; of more runs, some are left out evenly
_BEST = 0.25  # share of the runs that are highlighted


@dataclass(frozen=True)
class SwarmRun:
    """A run of a study: its mixture by domain, and its `value`, the weighted mean of the metrics."""

    name: str
    shares: Mapping[str, float]
    value: float


def swarm_lines(domains: Sequence[str], runs: Sequence[SwarmRun], baseline: str = "prior") -> Markup | None:
    """Return a parallel-coordinates chart of runs, or None for fewer than two runs. There is an axis for the
    share of each domain, and a last axis for the value; lower values are better and are drawn higher. Each
    run is a line through its shares and its value. The run named `baseline` and the best quarter of the runs
    are highlighted. If there are more than 400 runs, only every n-th run is drawn.
    """
    if len(runs) < 2:
        return None
    ranked = sorted(runs, key=lambda run: run.value)
    best = {run.name for run in ranked[: max(1, round(_BEST * len(ranked)))]}
    low, high = ranked[0].value, ranked[-1].value
    most = max(max(run.shares.values()) for run in runs) or 1.0
    across, bottom = (_WIDTH - _LEFT - _RIGHT) / len(domains), _TOP + _HEIGHT

    def place(share: float) -> float:
        return bottom - _HEIGHT * share / most

    drawing = Drawing(_WIDTH, bottom + 28)
    drawing.legend(_LEFT, 14, [(f"best {_BEST:.0%}", series_colour(0)), ("others", MUTED), (baseline, INK)])
    for value in ticks(0, most, 5):
        drawing.text(_LEFT - 8, place(value) + 4, f"{100 * value:g} %", "end")
    for number, name in enumerate((*domains, "mean of metrics")):
        x = _LEFT + across * number
        drawing.line(x, _TOP, x, bottom, LINE)
        drawing.text(x, bottom + 18, shortened(name, _LETTERS), "middle", INK)
    for value in ticks(low, high, 4) if high > low else [low]:
        y = _TOP + _HEIGHT * (value - low) / ((high - low) or 1.0)
        drawing.text(_WIDTH - _RIGHT + 8, y + 4, f"{value:.3f}")
    shown = runs[:: -(-len(runs) // _MOST)]
    for run in sorted(shown, key=lambda run: (run.name == baseline, run.name in best)):
        points = [(_LEFT + across * n, place(run.shares.get(name, 0.0))) for n, name in enumerate(domains)]
        points.append((_WIDTH - _RIGHT, _TOP + _HEIGHT * (run.value - low) / ((high - low) or 1.0)))
        colour = INK if run.name == baseline else series_colour(0) if run.name in best else MUTED
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in ((round(x, 1), round(y, 1)) for x, y in points))
        width, opacity = (2.0, "1") if run.name == baseline else (1.3, "0.85" if run.name in best else "0.4")
        title = f"{run.name}: {run.value:.4f}"
        drawing.add("path", title=title, d=path, fill="none", stroke=colour, stroke_width=width, opacity=opacity)
    described = f"{len(runs)} mixtures of {len(domains)} domains; the best is {ranked[0].name} with {low:.4f}"
    return drawing.finish("Mixtures and their metric", described)
