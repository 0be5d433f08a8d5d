"""Scores over training, their averages over the last checkpoints of a run, the signal and noise of each
score, and comparisons between runs. An average varies less than a single score, so it shows earlier which run
is better (Heineman et al., 2025, Signal and Noise).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import stdev, variance
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from gristmill.host import lent
from trainers.evaluation.suites.suite_result import PairedDifference, Z, suite_mean
from trainers.evaluation.suites.task_result import NoisyScore, centred_scale, difference_error, ratio_of, standard_error
from trainers.runs.stored_evaluations import StoredEvaluation
from trainers.tasks.load_task import Suite


@dataclass(frozen=True)
class LastAverage:
    """A score averaged over the checkpoints at `steps`. The error and interval of `score` are over items;
    `deviation` is the sample standard deviation over checkpoints, None for a single one. `influences`
    contains the influence of each item on the score, float64 [n]; it is None for the mean of a suite.
    """

    name: str
    steps: tuple[int, ...]
    score: NoisyScore
    deviation: float | None
    influences: np.ndarray | None = None

    def plain(self) -> dict[str, Any]:
        """Return the average as JSON data."""
        return {"steps": list(self.steps), **self.score.plain(), "deviation_of_checkpoints": self.deviation}


@dataclass(frozen=True)
class TaskSignal:
    """How well a score separates runs. `signal` is the largest difference between the averages of two runs.
    `noise` is the root mean square, over runs, of the standard deviation over the last checkpoints. Heineman
    et al. (2025, section 2) divide both by the mean score, which leaves their ratio unchanged. `at_chance` is
    true if no run is above chance.
    """

    name: str
    signal: float
    noise: float
    at_chance: bool = False

    @property
    def ratio(self) -> float:
        """`signal` divided by `noise`. If the noise is 0, the ratio is infinite, or 0 if the signal is 0 as
        well.
        """
        return self.signal / self.noise if self.noise > 0 else math.inf if self.signal > 0 else 0.0

    def plain(self) -> dict[str, Any]:
        """Return the signal as JSON data, with None for an infinite ratio."""
        ratio = self.ratio
        return {
            "name": self.name,
            "signal": self.signal,
            "noise": self.noise,
            "ratio": ratio if ratio < math.inf else None,
            "at_chance": self.at_chance,
        }


@dataclass(frozen=True)
class ScoreHistory:
    """The results of a run's checkpoints on the same items, ordered by step. `averages` covers the newest
    `last` checkpoints.
    """

    run: str
    results: tuple[StoredEvaluation, ...]
    suite: Suite | None
    last: int

    @property
    def names(self) -> list[str]:
        """The names of the scores."""
        return list(self.results[-1].scores)

    def points(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        """Return a pair for every checkpoint: its step, and its score named `name` as JSON data."""
        return [(result.step, result.scores[name]) for result in self.results]

    @cached_property
    def averages(self) -> dict[str, LastAverage]:
        """The average of each score over the last checkpoints, keyed by name. The mean of the suite, if there
        is one, comes first.
        """
        latest = self.results[-self.last :]
        steps = tuple(result.step for result in latest)
        rows = [_item_statistics(result) for result in latest]
        found: dict[str, LastAverage] = {}
        for name in rows[-1]:
            newest = latest[-1].scores[name]
            value, influences = ratio_of(np.mean([each[name] for each in rows], axis=0), newest["score"])
            error = standard_error(influences)
            low, high = value - Z * error, value + Z * error
            score = NoisyScore(value, error, low, high, len(influences), newest.get("chance"))
            found[name] = LastAverage(name, steps, score, self._deviation(name, latest), influences)
        if self.suite is None:
            return found
        mean = suite_mean(self.suite, self.run, list(found), [each.score for each in found.values()]).mean
        name = f"{self.suite.name}.mean"
        return {name: LastAverage(name, steps, mean, self._deviation(name, latest)), **found}

    @property
    def at_chance(self) -> tuple[str, ...]:
        """The names of the task scores that are not above chance when averaged over the last checkpoints."""
        return tuple(
            name
            for name, each in self.averages.items()
            if each.influences is not None and each.score.verdict in ("at", "below")
        )

    def _deviation(self, name: str, latest: Sequence[StoredEvaluation]) -> float | None:
        return stdev(result.scores[name]["value"] for result in latest) if len(latest) > 1 else None


def column_names(columns: Sequence[tuple[str, str]]) -> list[str]:
    """Return a name for each (task, split): the task, followed by the split if the task occurs more than
    once.
    """
    tasks = [task for task, _ in columns]
    return [task if tasks.count(task) == 1 else f"{task}/{split}" for task, split in columns]


def _item_statistics(result: StoredEvaluation) -> dict[str, np.ndarray]:
    """Return the main score of each item and its weight, float64 [n, 2], for each task, keyed by its name
    from `column_names`.
    """
    rows = pq.read_table(lent(result.rows), columns=["task", "split", "score", "weight"])
    task, split = (np.array(rows[name].to_pylist()) for name in ("task", "split"))
    statistics = np.stack([rows[name].to_numpy() for name in ("score", "weight")], axis=1)
    columns = [(each["task"], each["split"]) for each in result.record["tasks"]]
    names = column_names(columns)
    return {name: statistics[(task == t) & (split == s)] for name, (t, s) in zip(names, columns, strict=True)}


def signals(histories: Sequence[ScoreHistory]) -> list[TaskSignal]:
    """Return the signal and noise of every score; an empty list if there are fewer than two runs, or if a run
    has fewer than two checkpoints to average.
    """
    if len(histories) < 2 or any(min(len(history.results), history.last) < 2 for history in histories):
        return []
    found = []
    for name in histories[0].averages:
        values = [history.averages[name].score.value for history in histories]
        noise = math.sqrt(sum(_variance(history, name) for history in histories) / len(histories))
        unsure = all(history.averages[name].score.verdict in ("at", "below") for history in histories)
        found.append(TaskSignal(name, max(values) - min(values), noise, unsure))
    return found


def _variance(history: ScoreHistory, name: str) -> float:
    return variance(score["value"] for _, score in history.points(name)[-history.last :])


def compare_histories(histories: Sequence[ScoreHistory]) -> Iterator[PairedDifference]:
    """Yield, for every pair of runs, the difference in each averaged score and, if there is a suite, in the
    suite's mean. All runs must have been evaluated on the same items.
    """
    for a, b in combinations(histories, 2):
        scales, differences = [], []
        for name in (name for name, each in b.averages.items() if each.influences is not None):
            found = _difference(a, b, name)
            yield found
            chance = b.averages[name].score.chance or 0.0
            scales.append(centred_scale(chance) if a.suite is not None and a.suite.centred else 1.0)
            differences.append(found)
        if a.suite is not None:
            yield _mean_difference(a, differences, scales)


def _difference(a: ScoreHistory, b: ScoreHistory, name: str) -> PairedDifference:
    first, second = a.averages[name], b.averages[name]
    assert first.influences is not None
    assert second.influences is not None
    value, error = second.score.value - first.score.value, difference_error(first.influences, second.influences)
    return _tested(a.run, b.run, name, "average of checkpoints", value, error)


def _mean_difference(
    a: ScoreHistory, differences: Sequence[PairedDifference], scales: Sequence[float]
) -> PairedDifference:
    assert a.suite is not None
    count = len(differences)
    value = sum(scale * each.difference for scale, each in zip(scales, differences, strict=True)) / count
    intervals = [(scale, each.high - each.low) for scale, each in zip(scales, differences, strict=True)]
    errors = [scale * width / (2 * Z) if scale else 0.0 for scale, width in intervals]
    error = math.sqrt(sum(each**2 for each in errors)) / count
    return _tested(a.run, differences[0].b, a.suite.name, "mean", value, error)


def _tested(a: str, b: str, name: str, score: str, value: float, error: float) -> PairedDifference:
    p = math.erfc(abs(value) / error / math.sqrt(2)) if error > 0 else float(value == 0)
    return PairedDifference(a, b, name, score, value, value - Z * error, value + Z * error, p)


def plain_histories(histories: Sequence[ScoreHistory]) -> dict[str, Any]:
    """Return all scores of all checkpoints, their averages, signals and comparisons, as JSON data."""
    return {
        "format": "gristmill-checkpoint-scores/1",
        "runs": [
            {
                "run": history.run,
                "checkpoints": [_checkpoint(result) for result in history.results],
                "averages": {name: each.plain() for name, each in history.averages.items()},
                "not_above_chance": list(history.at_chance),
            }
            for history in histories
        ],
        "signals": [each.plain() for each in signals(histories)],
        "differences": [each.plain() for each in compare_histories(histories)],
    }


def _checkpoint(result: StoredEvaluation) -> Mapping[str, Any]:
    return {"step": result.step, "tokens": result.tokens, "checkpoint": result.checkpoint, "scores": result.scores}
