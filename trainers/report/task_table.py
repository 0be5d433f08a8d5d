"""The scores of fine-tuned runs as a table: one line for each task and configuration, over its seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from trainers.report.read_runs import flat
from trainers.runs.run import read_resolved

SCORES = "scores.json"
_NOT_COMPARED = ("seed", "name", "budget.tokens", "batch.tokens")


@dataclass(frozen=True)
class Result:
    """The scores of one run: {metric: value} of one split of its task."""

    run: LocalPath
    task: str
    split: str
    config: dict[str, Any]
    scores: dict[str, dict[str, float]]


def read_results(runs: Sequence[LocalPath]) -> list[Result]:
    """The results of finished runs, one for each split that was scored. Raises UserError for a run without scores."""
    results = []
    for run in runs:
        try:
            record = read_json(run / SCORES)
        except FileNotFoundError:
            raise UserError(f"{run}: has no {SCORES}; it is written when a fine-tuning run ends") from None
        config = dict(flat(read_resolved(run)))
        results += [Result(run, record["task"], split, config, its) for split, its in record["splits"].items()]
    return results


def table(results: Sequence[Result]) -> list[str]:
    """Lines: task, split and metric, then mean, standard deviation, median and all values over the runs that differ in
    nothing but their seed; one run alone shows its 95 % interval.
    """
    lines = [("task", "split", "metric", "runs", "mean", "spread", "median", "values")]
    for group in _groups(results):
        for metric in group[0].scores:
            values = [result.scores[metric]["value"] for result in group]
            entry = group[0].scores[metric]
            spread = f"± {stdev(values):.4f}" if len(values) > 1 else f"[{entry['low']:.4f}, {entry['high']:.4f}]"
            shown = " ".join(f"{value:.4f}" for value in values)
            first = group[0]
            statistics = (f"{mean(values):.4f}", spread, f"{median(values):.4f}", shown)
            lines.append((first.task, first.split, metric, str(len(values)), *statistics))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _groups(results: Sequence[Result]) -> list[list[Result]]:
    """Results of the same task, split and configuration, but for the seed."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        compared = {name: str(value) for name, value in result.config.items() if name not in _NOT_COMPARED}
        key = (result.task, result.split, tuple(sorted(compared.items())))
        groups.setdefault(key, []).append(result)
    return list(groups.values())
