"""Paired comparisons of fine-tuned runs, from their stored predictions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gristmill.errors import UserError
from trainers.report.task_table import Group, Result
from trainers.tasks.predictions import compare_predictions, read_predictions
from trainers.tasks.scores.resampling import Difference

PREDICTIONS = "predictions"


@dataclass(frozen=True)
class RunComparison:
    """The difference between two runs in a task's first metric on the same examples, `b` minus `a`.

    Either `difference` is known, or `problem` says why it is not.
    """

    a: Result
    b: Result
    difference: Difference | None
    problem: str = ""


def compare_groups(groups: Sequence[Group]) -> Iterator[RunComparison]:
    """For each task and split, compare the first group of runs with every later group, and yield a comparison
    for each pair of runs: those with the same seed or, if both groups have a single run, these two.
    """
    first: dict[tuple[str, str], Group] = {}
    for group in groups:
        base = first.setdefault((group.task, group.split), group)
        if base is not group:
            for a, b in _pairs(base, group):
                yield _compare(a, b)


def _pairs(base: Group, group: Group) -> list[tuple[Result, Result]]:
    if len(base.results) == len(group.results) == 1:
        return [(base.results[0], group.results[0])]
    return [(a, b) for b in group.results for a in base.results if a.seed == b.seed]


def _compare(a: Result, b: Result) -> RunComparison:
    try:
        first, second = (read_predictions(result.run / PREDICTIONS / f"{result.split}.parquet") for result in (a, b))
        return RunComparison(a, b, compare_predictions(first, second))
    except UserError as error:
        return RunComparison(a, b, None, str(error))


def comparison_lines(comparisons: Sequence[RunComparison]) -> list[str]:
    """Return a line of text for each comparison."""
    lines = []
    for compared in comparisons:
        names = f"{compared.b.task} {compared.b.split}: {compared.b.run} against {compared.a.run}"
        change = compared.difference
        if change is None:
            lines.append(f"{names}: not compared: {compared.problem}")
        else:
            interval = f"[{change.low:+.4f}, {change.high:+.4f}]"
            lines.append(
                f"{names}: {change.metric} {change.difference:+.4f} {interval}, p {change.p:.3f}, {change.n:,} examples"
            )
    return lines
