"""Leaks: examples that occur in two splits of a task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import xxhash

from gristmill.errors import UserError
from gristmill.storage.location import Location
from trainers.tasks.examples import Examples
from trainers.tasks.read_examples import read_examples
from trainers.tasks.schema.task import Task


@dataclass(frozen=True)
class Leak:
    """The `count` examples of `other` that are also in `split`, with the same texts or the same id (`kind`).
    `ids` is one such pair.
    """

    kind: str
    split: str
    other: str
    count: int
    ids: tuple[str, str]

    def __str__(self) -> str:
        first, second = self.ids
        same = "texts" if self.kind == "text" else "ids"
        return f"{self.count:,} examples of {self.other} have the {same} of some of {self.split}, such as {second} of {first}"


def read_splits(task: Task, splits: Sequence[str], data: Location | None) -> dict[str, Examples]:
    """Read the examples of several splits. Raises UserError if an example occurs in two of them, unless the
    task has `leak: report`.
    """
    examples = {split: read_examples(task, split, data) for split in splits}
    leaks = find_leaks(examples)
    if leaks and task.leak == "refuse":
        raise UserError(
            f"{task.name}: {leaks[0]}; remove them from one of the files, or accept them with leak: report (leak=report)"
        )
    return examples


def find_leaks(examples: Mapping[str, Examples]) -> list[Leak]:
    """Find the leaks between every two splits. Ids are compared only if they come from the files."""
    found = []
    for kind in ("id", "text"):
        keys = {split: _keys(split_examples, kind) for split, split_examples in examples.items()}
        for split, other in combinations(examples, 2):
            known = dict(zip(reversed(keys[split]), reversed(range(len(keys[split]))), strict=True))
            same = [number for number, key in enumerate(keys[other]) if key in known]
            if same:
                pair = examples[split].ids[known[keys[other][same[0]]]], examples[other].ids[same[0]]
                found.append(Leak(kind, split, other, len(same), pair))
    return found


def _keys(examples: Examples, kind: str) -> list[str] | list[bytes]:
    """What two examples must not share: the id, or a hash of all their texts."""
    if kind == "id":
        return examples.ids if examples.own_ids else []
    columns = [texts.to_pylist() for texts in examples.texts]
    if examples.candidates is not None:
        columns.append(["\n".join(examples.candidates_of(i)) for i in range(len(examples))])
    return [xxhash.xxh3_128_digest("\0".join(texts).encode()) for texts in zip(*columns, strict=True)]
