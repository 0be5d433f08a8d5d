"""The scores of an evaluation as lines of text."""

from collections.abc import Sequence

from trainers.evaluation.suites.clean_scores import CleanScore
from trainers.evaluation.suites.run_evaluation import Evaluation
from trainers.evaluation.suites.seed_scores import SeedScore
from trainers.evaluation.suites.suite_result import PairedDifference
from trainers.evaluation.suites.task_result import NoisyScore
from trainers.report.task_table import align


def evaluation_lines(evaluation: Evaluation) -> list[str]:
    """Return the results of an evaluation as lines of text, with the cost of each model at the end."""
    rows: list[Sequence[str]] = [
        ("model", "task", "split", "version", "items", "score", "value", "error", "95 % interval", "chance")
    ]
    for result in evaluation.results:
        counts = {
            name: score
            for name, score in result.scores.items()
            if name == result.main or not name.startswith("accuracy")
        }
        for name, score in counts.items():
            where = (result.model, result.task, result.split, result.version)
            rows.append((*where, f"{score.n:,}", name, *cells(score)))
    lines = align(rows)
    for result in evaluation.results:
        kind, names = ("source", result.subtasks) if result.main == "bits_per_byte" else ("field", result.fields)
        if names is not None:
            its: list[Sequence[str]] = [(name, f"{one.n:,}", *cells(one)) for name, one in result.parts(names).items()]
            lines += ["", f"{result.model}: {result.task} by {kind}", *align(its)]
    for mean in evaluation.means:
        low, high = f"{mean.mean.low:.4f}", f"{mean.mean.high:.4f}"
        text = f"{mean.model}: {mean.suite}.mean {mean.mean.value:.4f} ± {mean.mean.error:.4f} [{low}, {high}]"
        of = f"version {mean.version}, mean of {len(mean.tasks)} tasks"
        lines += ["", f"{text}, {of}", *_unsure(mean.at_chance)]
    lines += seed_lines(evaluation.seeds)
    lines += clean_lines(evaluation.clean) + difference_lines(evaluation.differences)
    return [*lines, "", *(f"cost of {model}: {cost}" for model, cost in evaluation.costs.items())]


def seed_lines(scores: Sequence[SeedScore]) -> list[str]:
    """Return an empty line and a table of means and deviations over seeds, or no lines if `scores` is empty."""
    if not scores:
        return []
    table: list[Sequence[str]] = [("over seeds", "runs", "mean", "deviation", "error of the mean", "models")]
    for each in scores:
        numbers = (f"{each.mean:.4f}", f"{each.deviation:.4f}", f"{each.error:.4f}")
        table.append((each.name, str(len(each.models)), *numbers, ", ".join(each.models)))
    return ["", *align(table)]


def clean_lines(scores: Sequence[CleanScore]) -> list[str]:
    """Return an empty line and a table of scores with and without the items that a corpus contains, or no
    lines if `scores` is empty.
    """
    if not scores:
        return []
    head = ("items", "searched", "found", "all items", "without found", "found only")
    table: list[Sequence[str]] = [("model", "task", "score", *head)]
    for each in scores:
        values = (
            "" if one is None else f"{one.value:.4f} ± {one.error:.4f}" for one in (each.whole, each.without, each.only)
        )
        counts = (f"{count:,}" for count in (each.items, each.searched, each.found))
        table.append((each.model, each.task, each.score, *counts, *values))
    return ["", *align(table)]


def difference_lines(differences: Sequence[PairedDifference]) -> list[str]:
    """Return an empty line and a table of paired comparisons, or no lines if there are none."""
    if not differences:
        return []
    table: list[Sequence[str]] = [("a", "b", "on", "score", "b - a", "95 % interval", "p", "")]
    for each in differences:
        numbers = (f"{each.difference:+.4f}", f"[{each.low:+.4f}, {each.high:+.4f}]", f"{each.p:.4f}")
        table.append((each.a, each.b, each.name, each.score, *numbers, "tie" if each.tie else ""))
    return ["", *align(table)]


def _unsure(names: Sequence[str]) -> list[str]:
    return [f"not above chance: {', '.join(names)}"] if names else []


def cells(score: NoisyScore) -> tuple[str, str, str, str]:
    """Return the value, error, interval and chance of a score as text. Chance is marked if the score is not
    above it.
    """
    mark = {"": "", "above": "", "at": " (at chance)", "below": " (below chance)"}[score.verdict]
    chance = "" if score.chance is None else f"{score.chance:.4f}{mark}"
    return f"{score.value:.4f}", f"{score.error:.4f}", f"[{score.low:.4f}, {score.high:.4f}]", chance
