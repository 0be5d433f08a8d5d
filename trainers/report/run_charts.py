"""Draw the charts of a report from the events of its runs, and select the events that the report lists as
text.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gristmill.events import DAMAGED
from gristmill.page.formats import compact, short_size
from gristmill.page.lines import LineChart, Mark, Series, line_chart
from trainers.data.document_loss import FIELD
from trainers.report.compare_runs import groups, measured, measured_documents, reason, without_likelihood
from trainers.report.read_runs import Run
from trainers.runs.progress import is_loss
from trainers.runs.stored_evaluations import versions_of

Event = Mapping[str, Any]
WIDE, LOW, CARD = (940, 340), (940, 220), (450, 210)
_SOURCES = 24  # sources with charts of their own, at most: those with the most tokens
# Numbers of a step's event that `optimization` does not draw, because another chart does or none should.
# Losses have their own charts.
_KNOWN = (
    "step", "steps", "tokens", "time", "bits_per_byte", "learning_rate", "gradient_norm", "tokens_per_second", "mfu",
    "memory_bytes", "joules",
)  # fmt: skip


class Curves:
    """Draws the charts of one or more runs. The x axis shows steps or, if the runs' steps differ in size, the
    tokens trained on.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self.by_step = len({run.step_positions for run in runs}) == 1
        self.axis = "steps" if self.by_step else "tokens: the runs' steps differ in size"
        self.reason, self.without_likelihood = reason(runs), without_likelihood(runs)
        self._over_all, self._of_one = groups(runs, measured), groups(runs, lambda run: measured(run, mixed=False))
        self._documents = groups(runs, measured_documents)
        names = dict.fromkeys(name for run in runs for event in run.steps for name in event if is_loss(name))
        self.other_losses = [name for name in names if name != "loss"]

    def overall(self) -> list[LineChart]:
        """Draw the losses over all sources. Only comparable runs share a chart."""
        return [
            drawn
            for title, field in self._fields()
            for drawn in self._losses(title, field, None, WIDE if field == "loss" else LOW)
        ]

    def scores(self) -> list[LineChart]:
        """Draw the scores of tasks at each validation, in one chart per metric."""
        metrics = dict.fromkeys(
            name for run in self._runs for event in run.validations for name in event.get("scores", {})
        )
        drawn = []
        for metric in metrics:

            def get(event: Event, metric: str = metric) -> float | None:
                return _field(metric)(event.get("scores", {}))

            series = [
                Series(i, run.name, self._points(run, run.validations, get), True) for i, run in enumerate(self._runs)
            ]
            drawn.append(line_chart(f"{metric}, validation", series, compact, CARD))
        return [each for each in drawn if each]

    def evaluations(self) -> list[LineChart]:
        """Draw the scores of evaluated checkpoints with their intervals, in one chart per evaluation and score."""
        found = dict.fromkeys(
            (event["name"], score) for run in self._runs for event in run.evaluations for score in event["scores"]
        )
        drawn = []
        for name, score in found:
            series = []
            for i, run in enumerate(self._runs):
                of = [event for event in run.evaluations if event["name"] == name and score in event["scores"]]
                each = [(self._x(run, event["step"]), event["scores"][score]) for event in of]
                band = tuple((x, its["low"], its["high"]) for x, its in each)
                series.append(Series(i, run.name, [(x, its["value"]) for x, its in each], True, band))
            title = score if len({name for name, _ in found}) == 1 else f"{score} ({name})"
            title += self._version_note(name, score)
            drawn.append(line_chart(title, series, compact, CARD))
        return [each for each in drawn if each]

    def _version_note(self, name: str, score: str) -> str:
        """Return a note if runs were evaluated with different versions of a task; otherwise an empty text."""
        events = [event for run in self._runs for event in run.evaluations if event["name"] == name]
        versions = [versions_of(event["scores"]) for event in events if score in event["scores"]]
        compared = [score] if not score.endswith(".mean") else sorted({each for its in versions for each in its})
        differing = {each: {its.get(each, "none") for its in versions} for each in compared}
        words = [
            f"versions {' and '.join(sorted(of))} of {each.removesuffix('.mean')}"
            for each, of in differing.items()
            if len(of) > 1
        ]
        return f": not comparable, {', '.join(words)}" if words else ""

    def by_source(self) -> list[tuple[str, list[LineChart]]]:
        """Draw the losses by source, for the first 24 sources in the order of `sources`. Returns (source, its
        charts); sources without losses are left out.
        """
        sections = []
        for name in self.sources()[:_SOURCES]:
            charts = (self._losses(title, field, name, CARD) for title, field in self._fields())
            sections.append((name, [each for several in charts for each in several]))
        return [(name, drawn) for name, drawn in sections if drawn]

    def sources(self) -> list[str]:
        """Return the sources of all runs, each once: those of the first run in descending order of tokens,
        then those that only later runs have.
        """
        return list(dict.fromkeys(name for run in self._runs for name in run.sources()))

    def optimization(self) -> list[LineChart]:
        """Draw the learning rate, the gradient norm, and every other number in the events of steps that is
        neither a loss nor in `_KNOWN`.
        """
        drawn = [
            self._of_steps("Learning rate", _field("learning_rate"), lambda value: f"{value:.3g}"),
            self._of_steps("Gradient norm, before clipping", _field("gradient_norm"), compact),
        ]
        others = {name: None for run in self._runs for event in run.steps for name in event if _is_number(event[name])}
        named = [name for name in others if name not in _KNOWN and not is_loss(name)]
        drawn += [self._of_steps(name.replace("_", " ").capitalize(), _field(name), compact) for name in named]
        return [each for each in drawn if each]

    def speed(self) -> list[LineChart]:
        """Draw tokens per second, model FLOPs utilisation and peak memory, in one chart each."""
        drawn = (
            self._of_steps("Tokens per second", _field("tokens_per_second"), compact),
            self._of_steps("Model FLOPs utilisation", _field("mfu"), lambda value: f"{100 * value:.3g} %"),
            self._of_steps("Peak memory of the first worker", _field("memory_bytes"), short_size),
        )
        return [each for each in drawn if each]

    def padding(self) -> list[LineChart]:
        """Draw the share of padding among all positions up to each step."""
        drawn = self._of_steps("Padding, share of all positions up to here", _padding, lambda value: f"{value:.3g} %")
        return [drawn] if drawn else []

    def _fields(self) -> list[tuple[str, str]]:
        others = [(f"{name.replace('_', ' ').capitalize()}, nats per target", name) for name in self.other_losses]
        return [("Loss, nats per target token", "loss"), ("Bits per byte of whole documents", FIELD), *others]

    def _losses(self, title: str, field: str, source: str | None, size: tuple[int, int]) -> list[LineChart]:
        get = _field(field) if source is None else _of_source(field, source)
        together = self._documents if field == FIELD else self._over_all if source is None else self._of_one
        drawn = []
        for numbers in together:
            runs = [(i, self._runs[i]) for i in numbers]
            series = [Series(i, run.name, self._points(run, run.steps, get)) for i, run in runs]
            series += [Series(i, run.name, self._points(run, run.validations, get), True) for i, run in runs]
            names = f": {', '.join(run.name for _, run in runs)}" if len(together) > 1 else ""
            marks = [mark for mark in self._marks() if mark.number in numbers] if source is None else []
            drawn.append(line_chart(f"{title}{names}", series, compact, size, marks))
        return [each for each in drawn if each]

    def _of_steps(
        self, title: str, get: Callable[[Event], float | None], shown: Callable[[float], str]
    ) -> LineChart | None:
        series = [Series(i, run.name, self._points(run, run.steps, get)) for i, run in enumerate(self._runs)]
        return line_chart(title, series, shown, CARD, zero=True)

    def _points(
        self, run: Run, events: Sequence[Event], get: Callable[[Event], float | None]
    ) -> list[tuple[float, float]]:
        found = ((self._x(run, event["step"]), get(event)) for event in events)
        return [(x, y) for x, y in found if y is not None]

    def _x(self, run: Run, step: int) -> float:
        return float(step if self.by_step else step * run.step_positions)

    def _marks(self) -> list[Mark]:
        return [
            Mark(i, self._x(run, event["step"]), f"{run.name}: {text(event)}", event["event"] == "skipped")
            for i, run in enumerate(self._runs)
            for event in happened(run)
            if event["event"] in ("resume", "skipped")
        ]


def happened(run: Run) -> Iterator[Event]:
    """Yield the events that the report lists for `run`: resumptions, excluded documents, skipped steps,
    stops, warnings, errors and damaged lines. A skipped step is left out if the run later resumed from an
    earlier step.
    """
    counted = {id(event) for event in run.skipped}
    for event in run.events:
        kind = event["event"]
        if kind in ("resume", "excluded", "stopped", "warning", "error", DAMAGED) or (
            kind == "skipped" and id(event) in counted
        ):
            yield event


def text(event: Event) -> str:
    """Describe an event in text: by its message or, if it has none, by its fields."""
    fields = {key: value for key, value in event.items() if key not in ("event", "time")}
    description = str(event.get("message", fields))
    return f"resumed {description}" if event["event"] == "resume" else description


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _field(name: str) -> Callable[[Event], float | None]:
    return lambda event: float(event[name]) if _is_number(event.get(name)) else None


def _of_source(name: str, source: str) -> Callable[[Event], float | None]:
    return lambda event: _field(name)(event["sources"].get(source, {}))


def _padding(event: Event) -> float | None:
    entries = event.get("data", {}).values()
    padding = sum(entry.get("padding", 0) for entry in entries)
    whole = padding + sum(entry.get("tokens", 0) for entry in entries)
    return 100 * padding / whole if whole else None
