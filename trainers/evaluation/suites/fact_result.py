"""Measure which facts a model knows: for each subject of a relation, the model chooses among all objects of
the relation, once with each of the statements that express the relation.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.task_result import Measured, TaskResult
from trainers.tasks.read_facts import FactSet, Relation
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.gold_scores import gold_scores
from trainers.tasks.scores.outcomes import Outcomes

_REQUESTS = 100_000  # candidates in memory at once


def fact_result(model: str, scorer: Scorer, facts: FactSet, limit: int | None) -> TaskResult:
    """Return the result of a model on the first `limit` facts of each relation. For each subject, the model
    chooses among all objects of the relation, as in ParaRel (Elazar et al., 2021).

    `accuracy` (P@1), `gold_probability` and `reciprocal_rank` are measured with the relation's first
    statement (Petroni et al., 2019). `consistency` is the share of pairs of statements for which the model
    chooses the same object. `always_right` is the share of facts for which it chooses the right object with
    every statement. Chance is the accuracy of always choosing the relation's most common object.
    """
    assert facts.examples.targets is not None
    rows: dict[str, list[Any]] = {name: [] for name in ("id", "gold", "prediction", "predictions", "rank", "subtask")}
    lists: dict[str, list[np.ndarray]] = {
        name: [] for name in ("log_likelihood", "tokens", "bytes", "characters", "cut")
    }
    common, cut = 0, 0
    for relation in facts.relations:
        number = {text: place for place, text in enumerate(relation.objects)}
        every = np.array([number[facts.examples.targets[place][0]] for place in relation.places], np.int64)
        gold = every[:limit].tolist()
        common += gold.count(int(np.bincount(every).argmax()))
        for first, scores, tokens, cuts in _scored(scorer, facts, relation, limit):
            cut += int(cuts.sum())
            chosen = scores.argmax(axis=2)
            for fact in range(len(scores)):
                right, its = gold[first + fact], scores[fact, 0]
                rows["id"].append(facts.examples.ids[relation.places[first + fact]])
                rows["gold"].append(right)
                rows["prediction"].append(int(chosen[fact, 0]))
                rows["predictions"].append(chosen[fact].tolist())
                rows["rank"].append(1 + int((its > its[right]).sum()))
                rows["subtask"].append(f"{relation.name} {relation.label}")
                for name, values in _lengths(relation).items():
                    lists[name].append(values)
                lists["log_likelihood"].append(its)
                lists["tokens"].append(tokens[fact, 0])
                lists["cut"].append(cuts[fact, 0])
    columns: dict[str, Any] = {name: pa.array(values) for name, values in rows.items()}
    offsets = pa.array(np.cumsum([0, *map(len, lists["tokens"])]), pa.int32())
    columns |= {name: pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(v))) for name, v in lists.items()}
    count = len(rows["gold"])
    measured = _measured(rows, lists["log_likelihood"])
    return TaskResult(
        model, f"{scorer.form.described}, among the objects of the relation", facts.examples.task.name,
        facts.examples.split, measured, common / count, pa.table(columns), rows["subtask"], None, cut, facts.notes,
        version=str(facts.examples.task.version),
    )  # fmt: skip


def _lengths(relation: Relation) -> dict[str, np.ndarray]:
    return {
        "bytes": np.array([len(text.encode()) for text in relation.objects], np.int64),
        "characters": np.array([len(text) for text in relation.objects], np.int64),
    }


def _scored(
    scorer: Scorer, facts: FactSet, relation: Relation, limit: int | None
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Score the statements of the first `limit` facts of a relation, each with every object of the relation.
    For each block of facts, yield the index in `relation.places` of the first fact and three arrays [facts,
    statements, objects]: the log-likelihoods, the numbers of tokens, and whether the context was cut.
    """
    subjects, objects, statements = facts.examples.texts[0], relation.objects, relation.statements
    places = relation.places[:limit]
    size = max(1, _REQUESTS // (len(objects) * len(statements)))
    for first in range(0, len(places), size):
        names = [subjects[place].as_py() for place in places[first : first + size]]
        contexts, continuations = [], []
        for subject in names:
            for before, after in statements:
                contexts += [before.replace("[X]", subject)] * len(objects)
                continuations += [f" {text}{after}" for text in objects]
        found = scorer.score(contexts, continuations)
        shape = (len(names), len(statements), len(objects))
        scores, tokens, cut = (each.reshape(shape) for each in (found.log_likelihood, found.tokens, found.cut))
        yield first, scores, tokens, cut


def _measured(rows: dict[str, list[Any]], likelihoods: list[np.ndarray]) -> dict[str, Measured]:
    accuracy, gold = METRICS["accuracy"], np.array(rows["gold"], np.int64)
    measured = {"accuracy": (accuracy, Outcomes(gold=gold, predicted=np.array(rows["prediction"], np.int64)))}
    pairs = [list(combinations(each, 2)) for each in rows["predictions"]]
    if any(pairs):
        chosen = np.array([pair for its in pairs for pair in its], np.int64)
        bounds = np.cumsum([0, *map(len, pairs)])
        measured["consistency"] = (accuracy, Outcomes(gold=chosen[:, 0], predicted=chosen[:, 1], offsets=bounds))
    known = np.array([all(each == right for each in its) for its, right in zip(rows["predictions"], gold, strict=True)])
    measured["always_right"] = (accuracy, Outcomes(gold=np.ones(len(gold), np.int64), predicted=known.astype(np.int64)))
    flat, offsets = np.concatenate(likelihoods), np.cumsum([0, *map(len, likelihoods)])
    return measured | gold_scores(flat, flat, offsets, gold)
