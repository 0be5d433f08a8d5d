"""Write evaluation items to a JSONL file. The step `decontaminate` reads the file and searches a corpus for
the items.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from gristmill.storage.location import Location
from trainers.tasks.examples import Examples
from trainers.tasks.harness_format.harness_docs import render_rows
from trainers.tasks.harness_format.harness_task import HarnessTask, without_shots
from trainers.tasks.read_examples import read_examples
from trainers.tasks.schema.task import Task


def item_name(task: str, split: str, identifier: str) -> str:
    """Return the id of an item in the item file: `TASK/SPLIT/IDENTIFIER`."""
    return f"{task}/{split}/{identifier}"


def write_item_file(columns: Sequence[tuple[Task | HarnessTask, str]], data: Location | None, output: Location) -> int:
    """Write the items of every (task, split) to `output` as JSONL, and return their number.

    The field `answer` lists the gold texts of an item; it is empty if there are none, as in a `classify`
    task.
    """
    lines = [json.dumps(item, ensure_ascii=False) for task, split in columns for item in _items(task, split, data)]
    output.write_atomic("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass"))
    return len(lines)


def _items(task: Task | HarnessTask, split: str, data: Location | None) -> Iterator[dict[str, Any]]:
    if isinstance(task, HarnessTask):
        for number, row in enumerate(render_rows(without_shots(task), data, 0, None)[0]):
            asked = dict.fromkeys([*row.contexts, *row.continuations] if len(set(row.contexts)) > 1 else row.contexts)
            answer = row.references or [row.continuations[row.gold].strip()]
            yield {"id": item_name(task.name, split, str(number)), "prompt": "\n".join(asked), "answer": answer}
        return
    examples = read_examples(task, split, data)
    texts = [column.to_pylist() for column in examples.texts]
    for number, identifier in enumerate(examples.ids):
        prompt = "\n".join(column[number] for column in reversed(texts))  # a passage comes before its question
        yield {"id": item_name(task.name, split, identifier), "prompt": prompt, "answer": _answer(examples, number)}


def _answer(examples: Examples, number: int) -> list[str]:
    if examples.candidates is not None:
        if examples.task.kind == "minimal_pairs":
            return [examples.candidates_of(number)[0]]
        gold = -1 if examples.labels is None else int(examples.labels[number])
        return [examples.candidates_of(number)[gold]] if gold >= 0 else []
    return list(examples.targets[number]) if examples.targets is not None else []
