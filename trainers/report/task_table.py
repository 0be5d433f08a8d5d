"""Tables of the scores of fine-tuned runs, with one row per task, split, metric and configuration, summarised
over seeds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from trainers.report.read_runs import flat
from trainers.runs.run import SCORES, read_resolved
from trainers.tasks.load_task import Suite
from trainers.tasks.suite_mean import suite_score

_NOT_COMPARED = ("seed", "name", "budget.tokens", "batch.tokens")
_MOST_SHOWN = 3  # fields in the label of a configuration, unless it takes more to tell it from the others


@dataclass(frozen=True)
class Result:
    """The scores of one run on one split. In a run of several tasks, `task` names them all, joined by commas,
    and `split` is TASK.SPLIT. `scores` maps each metric to a `Score` of `trainers.tasks.scores.resampling` as
    JSON, and `floors` maps metrics to the score of majority predictions.
    """

    run: LocalPath
    task: str
    split: str
    config: dict[str, Any]
    scores: dict[str, dict[str, Any]]
    floors: dict[str, float]

    @property
    def seed(self) -> Any:
        """The seed of the run."""
        return self.config.get("seed")


@dataclass(frozen=True)
class Group:
    """The results of runs with the same settings on one task and split (see `group_results`). `label` names
    enough settings to tell the group from the other groups of its task and split; it is empty if there are no
    other groups.
    """

    task: str
    split: str
    label: str
    results: tuple[Result, ...]

    def values(self, metric: str) -> list[float]:
        """Return the values of a metric, one per run."""
        return [result.scores[metric]["value"] for result in self.results]


@dataclass(frozen=True)
class ScoreRow:
    """The scores of a group's runs on one metric. `values` holds the score of each run, and `deviation` is
    their sample standard deviation, None for a single run. `low` and `high` bound the 95 % bootstrap interval
    of a single run over its `n` examples; they are None for several runs. `floor` is the score of majority
    predictions.
    """

    group: Group
    metric: str
    values: tuple[float, ...]
    mean: float
    median: float
    n: int
    deviation: float | None
    low: float | None
    high: float | None
    floor: float | None
    signature: str | None


def read_results(runs: Sequence[LocalPath]) -> list[Result]:
    """Read the results of finished runs, one for each split that was scored. Raises UserError for a run
    without scores.
    """
    results = []
    for run in runs:
        scored = results_of(run)
        if scored is None:
            raise UserError(f"{run}: has no {SCORES}; it is written when a fine-tuning run ends")
        results += scored
    return results


def results_of(run: LocalPath) -> list[Result] | None:
    """Return the results of a run, or None if it has no scores: it is a pretraining run or has not finished."""
    try:
        record = read_json(run / SCORES)
    except FileNotFoundError:
        return None
    config = dict(flat(read_resolved(run)))
    floors = record.get("floors", {})
    return [
        Result(run, record["task"], split, config, its, floors.get(split, {}))
        for split, its in record["splits"].items()
    ]


def group_results(results: Sequence[Result]) -> list[Group]:
    """Group the results by task, split and settings. The seed, the run's name, `budget.tokens` and
    `batch.tokens` may differ within a group.
    """
    by_configuration: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        key = (result.task, result.split, tuple(sorted(_compared(result).items())))
        by_configuration.setdefault(key, []).append(result)
    groups = list(by_configuration.values())
    peers = _configurations(groups)
    labels = [_label(_compared(group[0]), peers[group[0].task, group[0].split]) for group in groups]
    return [Group(its[0].task, its[0].split, label, tuple(its)) for its, label in zip(groups, labels, strict=True)]


def _configurations(groups: Sequence[Sequence[Result]]) -> dict[tuple[str, str], list[Mapping[str, str]]]:
    """Return the compared settings of the groups of each task and split."""
    found: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for group in groups:
        found.setdefault((group[0].task, group[0].split), []).append(_compared(group[0]))
    return found


def _compared(result: Result) -> dict[str, str]:
    return {name: str(value) for name, value in result.config.items() if name not in _NOT_COMPARED}


def _differing(own: Mapping[str, str], peers: Sequence[Mapping[str, str]]) -> list[str]:
    return [name for name in own if any(peer.get(name) != own[name] for peer in peers)]


def _label(own: Mapping[str, str], peers: Sequence[Mapping[str, str]]) -> str:
    """Return a label for `own`: its first three settings that differ among `peers`, or more if three do not
    tell it from the others. The label ends in `...` if further settings differ. If `own` only lacks settings
    that others have, the label names up to three of these. `peers` includes `own`.
    """
    differing = _differing(own, peers)
    if not differing:
        lacking = dict.fromkeys(name for peer in peers for name in peer if name not in own)
        return " ".join(f"without {name}" for name in list(lacking)[:_MOST_SHOWN])
    shown = min(_MOST_SHOWN, len(differing))
    while (
        shown < len(differing)
        and sum(all(peer.get(name) == own[name] for name in differing[:shown]) for peer in peers) > 1
    ):
        shown += 1
    return " ".join([*(f"{name}={own[name]}" for name in differing[:shown]), *["..."] * (shown < len(differing))])


def score_rows(groups: Sequence[Group]) -> Iterator[ScoreRow]:
    """Yield a row for each metric of each group, which summarises the metric over the group's runs."""
    for group in groups:
        for metric, first in group.results[0].scores.items():
            values = group.values(metric)
            several = len(values) > 1
            yield ScoreRow(
                group=group,
                metric=metric,
                values=tuple(values),
                mean=mean(values),
                median=median(values),
                n=first["n"],
                deviation=stdev(values) if several else None,
                low=None if several else first["low"],
                high=None if several else first["high"],
                floor=group.results[0].floors.get(metric),
                signature=first.get("signature"),
            )


def table(results: Sequence[Result]) -> list[str]:
    """Return the lines of a table with a row per task, split, metric and configuration, summarised over the
    runs that differ only in their seed; the signatures of the metrics follow. For a single run, a 95 %
    interval takes the place of the standard deviation.
    """
    rows = list(score_rows(group_results(results)))
    lines = [
        ("task", "split", "metric", "examples", "runs", "mean", "spread", "median", "floor", "values", "configuration")
    ]
    for row in rows:
        shown = " ".join(f"{value:.4f}" for value in row.values)
        spread = f"± {row.deviation:.4f}" if row.deviation is not None else f"[{row.low:.4f}, {row.high:.4f}]"
        where = (row.group.task, row.group.split, row.metric, f"{row.n:,}", str(len(row.values)))
        floor = "" if row.floor is None else f"{row.floor:.4f}"
        lines.append((*where, f"{row.mean:.4f}", spread, f"{row.median:.4f}", floor, shown, row.group.label))
    signatures = {row.signature: f"{row.metric} is {row.signature}" for row in rows if row.signature}
    return [*align(lines), *signatures.values()]


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format each row of cells as a line of text, with aligned columns. `rows` must not be empty."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def suite_lines(suite: Suite, results: Sequence[Result]) -> list[str]:
    """Return a line per configuration with the suite's score, computed from the means over seeds. Results of
    different tasks belong to one configuration if they agree in all settings that vary within any task.
    """
    groups = group_results(results)
    tasks = _configurations([group.results for group in groups]).values()
    differing = dict.fromkeys(name for peers in tasks for own in peers for name in _differing(own, peers))
    means: dict[tuple[tuple[str, str], ...], dict[tuple[str, str], Mapping[str, float]]] = {}
    for group in groups:
        own = _compared(group.results[0])
        values = {metric: mean(group.values(metric)) for metric in group.results[0].scores}
        key = tuple((name, own[name]) for name in differing if name in own)
        means.setdefault(key, {})[group.task, group.split] = values
    configurations = [dict(key) for key in means]
    labels = [_label(own, configurations) for own in configurations]
    scores = [suite_score(suite, values) for values in means.values()]
    return [f"{score}{f'  {label}' if label else ''}" for score, label in zip(scores, labels, strict=True)]
