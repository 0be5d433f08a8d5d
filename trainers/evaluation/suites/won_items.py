"""The items that one of two models solves and the other does not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from trainers.evaluation.suites.task_result import SOLVED, TaskResult

SHOWN = 10  # of each kind on a page
_CHARACTERS = 400  # from the end of a context, shown on a page


@dataclass(frozen=True)
class WonItems:
    """A comparison of two models on one task. `won` contains the indices of the items that only `b` solves,
    and `lost` those of the items that only `a` solves.
    """

    a: TaskResult
    b: TaskResult
    won: list[int]
    lost: list[int]

    def plain(self) -> dict[str, Any]:
        """Return the models, the task and the ids of the won and lost items as JSON data."""
        ids = self.a.rows["id"].to_pylist()
        known = {"a": self.a.model, "b": self.b.model, "task": self.a.task, "split": self.a.split}
        return {**known, "won": [ids[n] for n in self.won], "lost": [ids[n] for n in self.lost]}


def won_items(results: Sequence[TaskResult]) -> Iterator[WonItems]:
    """Yield a comparison of every pair of models on each task whose main score counts solved items. All
    models must have results on the same tasks and items, in the same order.
    """
    models = list(dict.fromkeys(result.model for result in results))
    for first, second in combinations(models, 2):
        pairs = zip(*([r for r in results if r.model == model] for model in (first, second)), strict=True)
        for a, b in pairs:
            if a.main.startswith(("accuracy", *SOLVED)):
                before, after = a.statistics[:, 0], b.statistics[:, 0]
                won, lost = (np.flatnonzero(each).tolist() for each in (after > before, after < before))
                yield WonItems(a, b, won, lost)


@dataclass(frozen=True)
class ShownItem:
    """An item as a page shows it. `context` is the end of the item's context; it is empty if each candidate
    has its own context, which is then part of the candidate. `gold`, `chosen_by_a` and `chosen_by_b` are
    indices of `candidates`.
    """

    id: str
    context: str
    candidates: list[str]
    gold: int
    chosen_by_a: int
    chosen_by_b: int


def shown_items(each: WonItems, numbers: Sequence[int]) -> list[ShownItem]:
    """Return the items at the first ten of the indices `numbers`, as a page shows them. The list is empty for
    a task of facts, because its result has no items.

    If the models write their answers, the candidates are an accepted answer, the answer of `each.a` and the
    answer of `each.b`, in this order.
    """
    items, shown = each.a.items, []
    if items is None:
        return []
    for number in numbers[:SHOWN]:
        first, last = items.offsets[number : number + 2].tolist()
        context = items.contexts[first]
        if items.references is not None:
            written = [result.rows["written"][number].as_py() for result in (each.a, each.b)]
            texts = [items.references[number][0], *written]
            shown.append(ShownItem(items.ids[number], _end(context), texts, 0, 1, 2))
            continue
        differs = len(set(items.contexts[first:last])) > 1  # the candidates are in the context, as in WinoGrande
        texts = [
            items.contexts[n] + items.continuations[n] if differs else items.continuations[n]
            for n in range(first, last)
        ]
        chosen = (int(result.rows["prediction"][number].as_py()) for result in (each.a, each.b))
        context = "" if differs else _end(context)
        shown.append(ShownItem(items.ids[number], context, texts, int(items.gold[number]), *chosen))
    return shown


def _end(context: str) -> str:
    return context if len(context) <= _CHARACTERS else f"…{context[-_CHARACTERS:]}"
