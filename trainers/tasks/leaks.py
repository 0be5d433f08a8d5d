"""Leaks: examples that occur in two splits of a task."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import xxhash

from gristmill.errors import UserError
from gristmill.storage.location import Location
from trainers.tasks.examples import Examples
from trainers.tasks.read_examples import locate_example
from trainers.tasks.schema.task import Task


@dataclass(frozen=True)
class Leak:
    """A leak between two splits: `count` examples of `other` also occur in `split`. `kind` says whether their
    texts or their ids are the same. `pair` locates one such example: its index in `split` and its index in
    `other`.
    """

    kind: str
    split: str
    other: str
    count: int
    pair: tuple[int, int]

    def __str__(self) -> str:
        several = self.count > 1
        same = "text" if self.kind == "text" else "id"
        return (
            f"{self.count:,} example{'s' * several} of {self.other} {'have' if several else 'has'} the {same} of "
            f"{'some' if several else 'one'} of {self.split}"
        )


def check_leaks(task: Task, examples: Mapping[str, Examples], data: Location | None) -> list[Leak]:
    """Return the leaks between the splits in `examples`. If there are any, raises UserError unless the task
    sets `leak: report`.
    """
    leaks = find_leaks(examples)
    if leaks and task.leak == "refuse":
        leak = leaks[0]
        first, second = (
            locate_example(task, split, data, number)
            for split, number in zip((leak.split, leak.other), leak.pair, strict=True)
        )
        raise UserError(
            f"{second}: the {leak.kind} is also that of {first} ({task.name}: {leak}); remove the copies from one of the "
            f"files, or accept them with leak=report (leak: report in the task file)"
        )
    return leaks


def find_leaks(examples: Mapping[str, Examples]) -> list[Leak]:
    """Find the leaks between each pair of splits. Ids are compared only if they come from the files."""
    found = []
    for kind in ("id", "text"):
        keys = {split: _keys(split_examples, kind) for split, split_examples in examples.items()}
        for split, other in combinations(examples, 2):
            known = dict(zip(reversed(keys[split]), reversed(range(len(keys[split]))), strict=True))
            same = [number for number, key in enumerate(keys[other]) if key in known]
            if same:
                found.append(Leak(kind, split, other, len(same), (known[keys[other][same[0]]], same[0])))
    return found


def _keys(examples: Examples, kind: str) -> list[str] | list[bytes]:
    if kind == "id":
        return examples.ids if examples.own_ids else []
    columns = [texts.to_pylist() for texts in examples.texts]
    if examples.candidates is not None:
        columns.append(["\n".join(examples.candidates_of(i)) for i in range(len(examples))])
    return [xxhash.xxh3_128_digest("\0".join(texts).encode()) for texts in zip(*columns, strict=True)]
