"""Scores of suites, and paired comparisons of models on the same items."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from trainers.evaluation.suites.task_result import NoisyScore, TaskResult, centred_scale, difference_error, ratio_of
from trainers.tasks.load_task import Suite
from trainers.tasks.scores.resampling import compare

_TIE = 0.05  # two models tie if p is at least this
_SHOTS = "@"  # before the number of shots in a name
Z = 1.959964  # standard errors in half a 95 % interval of a normal distribution


@dataclass(frozen=True)
class SuiteResult:
    """The mean score of a model over the tasks of a suite. `at_chance` names the tasks whose 95 % interval
    does not lie above chance.
    """

    suite: str
    model: str
    mean: NoisyScore
    tasks: tuple[str, ...]
    at_chance: tuple[str, ...]
    version: int = 1

    def plain(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        known = {"suite": self.suite, "version": self.version, "model": self.model, "mean": self.mean.plain()}
        return {**known, "tasks": list(self.tasks), "not_above_chance": list(self.at_chance)}


@dataclass(frozen=True)
class PairedDifference:
    """The difference between two models or runs, `b` minus `a`, in a score on the same items, with its 95 %
    interval and two-sided `p` value. The test is a permutation test for a task, and a normal approximation
    for the mean of a suite or an average of checkpoints.
    """

    a: str
    b: str
    name: str
    score: str
    difference: float
    low: float
    high: float
    p: float

    @property
    def tie(self) -> bool:
        """Whether `p`, not corrected for multiple comparisons, is at least 0.05."""
        return self.p >= _TIE

    def plain(self) -> dict[str, Any]:
        """Return the difference as JSON data, with None for a number that is not finite."""
        names = ("a", "b", "name", "score", "difference", "low", "high", "p", "tie")
        values = {name: getattr(self, name) for name in names}
        return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


def with_shots(name: str, shots: int) -> str:
    """Return the name of a task or suite with the number of shots appended."""
    return f"{name}{_SHOTS}{shots}"


def without_shots(name: str) -> str:
    """Return the name of a task without the number of shots."""
    return name.partition(_SHOTS)[0]


def suite_parts(suite: Suite, results: Sequence[TaskResult]) -> dict[str, list[int]]:
    """Return a mapping from the name of each mean of a suite to the indices of the results that it averages.
    All results must be of one model. If task names include numbers of shots, there is a mean for each number.
    """
    parts: dict[str, list[int]] = {}
    for place, result in enumerate(results):
        _, mark, shots = result.task.rpartition(_SHOTS)
        parts.setdefault(with_shots(suite.name, int(shots)) if mark else suite.name, []).append(place)
    return parts


def suite_results(suite: Suite, results: Sequence[TaskResult]) -> list[SuiteResult]:
    """Return the means of a suite, one for each number of shots, from the results of one model."""
    parts = suite_parts(suite, results).items()
    return [suite_result(replace(suite, name=name), [results[place] for place in places]) for name, places in parts]


def suite_result(suite: Suite, results: Sequence[TaskResult]) -> SuiteResult:
    """Return the mean of a suite from the results of one model."""
    names = [result.task for result in results]
    return suite_mean(suite, results[0].model, names, [result.scores[result.main] for result in results])


def suite_mean(suite: Suite, model: str, tasks: Sequence[str], scores: Sequence[NoisyScore]) -> SuiteResult:
    """Return the mean of a suite from the scores of its tasks. The errors of the scores are assumed to be
    independent.
    """
    each = [score.centred for score in scores] if suite.centred else scores
    count = len(each)
    value, error = sum(one.value for one in each) / count, math.sqrt(sum(one.error**2 for one in each)) / count
    chance = sum(one.chance or 0.0 for one in each) / count
    mean = NoisyScore(value, error, value - Z * error, value + Z * error, count, chance)
    low = tuple(task for task, one in zip(tasks, each, strict=True) if one.verdict in ("at", "below"))
    return SuiteResult(suite.name, model, mean, tuple(tasks), low, suite.version)


def compare_results(results: Sequence[TaskResult], suite: Suite | None = None) -> Iterator[PairedDifference]:
    """Yield a comparison of every pair of models on each task and, if `suite` is given, on each of its means
    over two or more tasks. All models must have results on the same tasks and items, in the same order.
    """
    models = list(dict.fromkeys(result.model for result in results))
    for first, second in combinations(models, 2):
        pairs = list(zip(_of(results, first), _of(results, second), strict=True))
        for a, b in pairs:
            metric, outcomes = a.measured[a.main]
            found = compare(metric, outcomes, b.measured[b.main][1])
            numbers = (found.difference, found.low, found.high, found.p)
            yield PairedDifference(first, second, a.task, a.main, *numbers)
        if suite is None:
            continue
        for name, places in suite_parts(suite, [a for a, _ in pairs]).items():
            if len(places) > 1:
                yield _suite_difference(replace(suite, name=name), first, second, [pairs[place] for place in places])


def _of(results: Sequence[TaskResult], model: str) -> list[TaskResult]:
    return [result for result in results if result.model == model]


def _suite_difference(
    suite: Suite, first: str, second: str, pairs: Sequence[tuple[TaskResult, TaskResult]]
) -> PairedDifference:
    differences, squares = [], []
    for a, b in pairs:
        (before, of_before), (after, of_after) = (ratio_of(each.statistics, each.main) for each in (a, b))
        scale = centred_scale(a.chance or 0.0) if suite.centred else 1.0
        differences.append(scale * (after - before))
        squares.append((scale * difference_error(of_before, of_after)) ** 2 if scale else 0.0)
    value, error = float(np.mean(differences)), math.sqrt(sum(squares)) / len(pairs)
    p = math.erfc(abs(value) / error / math.sqrt(2)) if error > 0 else float(value == 0)
    return PairedDifference(first, second, suite.name, "mean", value, value - Z * error, value + Z * error, p)
