"""The result of a model on a task: a row per item, metrics with standard errors and 95 % intervals, and the
chance level.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from trainers.engine.hardware.footprint import Footprint
from trainers.evaluation.scoring.scorer import Likelihoods
from trainers.evaluation.suites.items import Items
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.gold_scores import gold_scores
from trainers.tasks.scores.metric import TaskMetric, bounded_exp
from trainers.tasks.scores.outcomes import Outcomes
from trainers.tasks.scores.resampling import score

Measured = tuple[TaskMetric, Outcomes]
SOLVED = ("exact_match", "number_match")
"""Metrics of written answers that count an item as either solved or not. Others, such as F1, give partial credit."""
_NAMES = {
    "none": "accuracy",
    "token": "accuracy_per_token",
    "byte": "accuracy_per_byte",
    "character": "accuracy_per_character",
    "unconditional": "accuracy_unconditional",
    "calibrated": "calibrated_accuracy",
}


@dataclass(frozen=True)
class NoisyScore:
    """A score over `n` items (over `n` tasks for the mean of a suite), with its standard error and 95 %
    interval.
    """

    value: float
    error: float
    low: float
    high: float
    n: int
    chance: float | None = None

    @property
    def verdict(self) -> str:
        """`above`, `at` or `below`: where the interval lies relative to chance. Empty without a chance level."""
        if self.chance is None:
            return ""
        return "at" if self.low <= self.chance <= self.high else "above" if self.low > self.chance else "below"

    @property
    def centred(self) -> "NoisyScore":
        """The centred score (score - chance) / (1 - chance), with its error and interval: 0 at chance, at
        most 1 (Li et al., 2024, section 3.5). The score must have a chance level.
        """
        assert self.chance is not None
        off, scale = self.chance, centred_scale(self.chance)
        low, high = ((each - off) * scale for each in (self.low, self.high))
        return NoisyScore((self.value - off) * scale, self.error * scale, low, high, self.n, 0.0)

    def plain(self) -> dict[str, Any]:
        """Return the score as JSON data."""
        known = {"value": self.value, "error": self.error, "low": self.low, "high": self.high, "n": self.n}
        return known if self.chance is None else {**known, "chance": self.chance, "verdict": self.verdict}


def centred_scale(chance: float) -> float:
    """Return the factor 1 / (1 - chance) of a centred score; 0 if chance is 1."""
    return 1 / (1 - chance) if chance < 1 else 0.0


@dataclass(frozen=True)
class TaskResult:
    """The result of a model on a split of a task.

    - `form`: how the model was scored (`evaluation.scoring.forms`).
    - `measured`: each metric with its outcomes; the first is the main score.
    - `rows`: a row per item.
    - `subtasks` and `fields`: the names of the subtask and the field of each item.
    - `cut`: the number of items whose context was too long for the model; for facts, pairs of a statement and an
      object are counted instead of items.
    - `cost`: the cost of all tasks of the model together.
    - `items`: the items that were scored; None for texts and facts.
    - `truncated`: the number of written answers that reached the limit on tokens before they ended; None
      if no answers were written.
    - `version`: the version of the task.
    """

    model: str
    form: str
    task: str
    split: str
    measured: dict[str, Measured]
    chance: float | None
    rows: pa.Table
    subtasks: list[str] | None = None
    fields: list[str] | None = None
    cut: int = 0
    notes: tuple[str, ...] = ()
    cost: Footprint | None = None
    items: Items | None = None
    truncated: int | None = None
    version: str = "1"

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.task

    @property
    def main(self) -> str:
        """The name of the main score."""
        return next(iter(self.measured))

    @cached_property
    def scores(self) -> dict[str, NoisyScore]:
        """Every score by name, the main score first."""
        return {name: estimate(*one, self._chance(name)) for name, one in self.measured.items()}

    @property
    def statistics(self) -> np.ndarray:
        """The numerator and the weight that each item adds to the main score, float64 [n, 2]. The score is
        the ratio of the sums of the two columns; for perplexity, it is the exponential of this ratio.
        """
        metric, outcomes = self.measured[self.main]
        return metric.statistics(outcomes)

    def parts(self, names: Sequence[str]) -> dict[str, NoisyScore]:
        """Return the main score of each group of items, keyed by the group's name. `names` contains the name
        of each item's group.
        """
        metric, outcomes = self.measured[self.main]
        places: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            places.setdefault(name, []).append(place)
        return {
            name: estimate(metric, _only(outcomes, np.array(its)), self._chance(self.main))
            for name, its in sorted(places.items())
        }

    def _chance(self, name: str) -> float | None:
        return self.chance if "accuracy" in name or name.startswith(SOLVED) else None

    def plain(self) -> dict[str, Any]:
        """Return the result as JSON data, without its rows, items and cost."""
        parts = {"subtasks": self.subtasks, "fields": self.fields}
        return {
            "model": self.model,
            "task": self.task,
            "split": self.split,
            "version": self.version,
            "form": self.form,
            "main": self.main,
            "scores": {name: each.plain() for name, each in self.scores.items()},
            **{
                part: {name: each.plain() for name, each in self.parts(names).items()}
                for part, names in parts.items()
                if names is not None
            },
            "items_cut": self.cut,
            **({} if self.truncated is None else {"answers_truncated": self.truncated}),
            "notes": list(self.notes),
        }


def estimate(metric: TaskMetric, outcomes: Outcomes, chance: float | None = None) -> NoisyScore:
    """Return the score of a metric with its error (delta method) and its interval."""
    found = score(metric, outcomes)
    _, influences = ratio_of(metric.statistics(outcomes), metric.name)
    return NoisyScore(found.value, standard_error(influences), found.low, found.high, found.n, chance)


def ratio_of(statistics: np.ndarray, score: str) -> tuple[float, np.ndarray]:
    """Return the value of the score named `score`, and the influence of each item on the value (the item's
    term in the delta method), float64 [n]. `statistics`, float64 [n, 2], holds the numerator and the weight
    that each item adds. The value is the ratio of the sums of the two columns; for a perplexity, it is the
    exponential of this ratio (`bounded_exp`).
    """
    weights = statistics[:, 1].sum()
    value = float(statistics[:, 0].sum() / weights)
    influences = (statistics[:, 0] - value * statistics[:, 1]) / weights
    if not score.endswith("perplexity"):
        return value, influences
    perplexity = bounded_exp(value)
    return float(perplexity), perplexity * influences


def standard_error(influences: np.ndarray) -> float:
    """Return the standard error of a score by the delta method, given the influence of each item, float64
    [n].
    """
    n = len(influences)
    return float(np.sqrt((influences**2).sum() * n / max(1, n - 1)))


def difference_error(before: np.ndarray, after: np.ndarray) -> float:
    """Return the standard error of the difference between two scores on the same items, given the influence
    of each item on either score, float64 [n]. It is infinite for a single item.
    """
    return standard_error(after - before) if len(after) > 1 else float("inf")


def _only(outcomes: Outcomes, places: np.ndarray) -> Outcomes:
    arrays = ("gold", "predicted", "nats", "tokens", "text_bytes")
    known = {name: getattr(outcomes, name) for name in arrays}
    parts = {name: values[places] for name, values in known.items() if values is not None}
    lists = {"texts": outcomes.texts, "references": outcomes.references}
    parts |= {name: [values[place] for place in places] for name, values in lists.items() if values is not None}
    return replace(outcomes, **parts)


def item_result(
    model: str, form: str, items: Items, found: Likelihoods, without: Likelihoods | None,
    neutral: Likelihoods | None = None,
) -> TaskResult:  # fmt: skip
    """Return the result of a model on items. `found` holds the likelihood of every candidate of every item,
    given its context, in one flat list. `without` holds the likelihoods of the candidates given
    `Items.without`, the context without the question. `neutral` holds their likelihoods given the contexts in
    `Items.neutral`.
    """
    answers = items.answers
    lengths = {
        "tokens": found.tokens,
        "bytes": np.array([len(text.encode()) for text in answers], np.int64),
        "characters": np.array([len(text) for text in answers], np.int64),
    }
    bias = None if neutral is None else _bias(items, neutral)
    measured = _measured(items, found, lengths, without, bias)
    lists: dict[str, np.ndarray] = {"log_likelihood": found.log_likelihood, **lengths, "greedy": found.greedy}
    if without is not None:
        lists["log_likelihood_unconditional"] = without.log_likelihood
    if bias is not None:
        lists["log_share_without_content"] = bias
    columns: dict[str, Any] = {"id": pa.array(items.ids, pa.string())}
    columns |= {"gold": items.gold, "prediction": next(iter(measured.values()))[1].predicted}
    for name, names in (("subtask", items.subtasks), ("field", items.fields)):
        if names is not None:
            columns[name] = pa.array(names, pa.string())
    bounds = pa.array(items.offsets, pa.int32())
    lists["cut"] = found.cut
    columns |= {name: pa.ListArray.from_arrays(bounds, pa.array(values)) for name, values in lists.items()}
    return TaskResult(
        model, form, items.task.name, items.split, measured, items.chance, pa.table(columns), items.subtasks, items.fields,
        int(np.logical_or.reduceat(found.cut, items.offsets[:-1]).sum()), items.notes, items=items,
        version=str(items.task.version),
    )  # fmt: skip


def _measured(
    items: Items, found: Likelihoods, lengths: dict[str, np.ndarray], without: Likelihoods | None,
    bias: np.ndarray | None,
) -> dict[str, Measured]:  # fmt: skip
    accuracy = METRICS["accuracy"]
    if items.task.kind == "generate":
        right = Outcomes(gold=np.ones(len(items), np.int64), predicted=found.greedy.astype(np.int64))
        cost = Outcomes(nats=-found.log_likelihood, tokens=np.ones(len(items)))
        bits = _gold_bits(found.log_likelihood, lengths["bytes"])
        return {"accuracy": (accuracy, right), "perplexity": (METRICS["perplexity"], cost), "bits_per_byte": bits}
    scores = {"none": found.log_likelihood}
    if items.task.kind != "minimal_pairs":
        of = {"token": "tokens", "byte": "bytes", "character": "characters"}
        scores |= {name: found.log_likelihood / np.maximum(lengths[length], 1) for name, length in of.items()}
        if without is not None:
            scores["unconditional"] = found.log_likelihood - without.log_likelihood
        if bias is not None:
            scores["calibrated"] = found.log_likelihood - bias
    main = items.task.prompt.normalise if items.task.prompt is not None else "none"
    ordered = sorted(scores, key=lambda name: name != main)
    measured: dict[str, Measured] = {
        _NAMES[name]: (accuracy, Outcomes(gold=items.gold, predicted=_best(scores[name], items.offsets)))
        for name in ordered
    }
    gold = items.offsets[:-1] + items.gold
    if items.task.kind != "minimal_pairs":
        measured |= gold_scores(found.log_likelihood, scores[main], items.offsets, items.gold)
    return measured | {"bits_per_byte": _gold_bits(found.log_likelihood[gold], lengths["bytes"][gold])}


def _gold_bits(log_likelihood: np.ndarray, text_bytes: np.ndarray) -> Measured:
    return METRICS["bits_per_byte"], Outcomes(
        nats=-log_likelihood, text_bytes=np.maximum(text_bytes, 1).astype(np.float64)
    )


def _bias(items: Items, neutral: Likelihoods) -> np.ndarray:
    """Return the logarithm of each candidate's probability after the content-free texts, float64
    [candidates]. The probabilities of an item's candidates are scaled to sum to 1 for each text, then
    averaged over the texts. Calibration subtracts the result from the log-likelihoods, as with the matrix W
    and b = 0 of Zhao et al. (2021, section 5).
    """
    count, first = int(items.offsets[-1]), items.offsets[:-1]
    nats = neutral.log_likelihood.reshape(-1, count)
    item = np.repeat(np.arange(len(first)), np.diff(items.offsets))
    shares = np.exp(nats - np.maximum.reduceat(nats, first, axis=1)[:, item])
    shares /= np.add.reduceat(shares, first, axis=1)[:, item]
    return np.log(np.maximum(shares.mean(axis=0), np.finfo(np.float64).tiny))


def _best(scores: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    widest = int(np.diff(offsets).max())
    table = np.full((len(offsets) - 1, widest), -np.inf)
    item = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    table[item, np.arange(len(scores)) - offsets[item]] = scores
    return table.argmax(axis=1)
