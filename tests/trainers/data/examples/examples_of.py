"""Examples of each kind of task, written to files and read back as the product reads its tasks."""

import json

from gristmill.config import parse
from gristmill.storage.disk import LocalPath
from trainers.tasks.read_examples import read_examples
from trainers.tasks.schema.task import Task

FIELDS = {
    "classify": {
        "columns": {"text": "a", "text_b": "b", "label": "label"},
        "labels": ["no", "yes"],
        "metrics": ["accuracy"],
    },
    "regress": {"columns": {"text": "a", "label": "label"}, "metrics": ["pearson"]},
    "tag": {"columns": {"words": "words", "tags": "tags"}, "labels": ["O", "B-X", "I-X"], "metrics": ["entity_f1"]},
    "span": {
        "columns": {"question": "q", "passage": "p", "answers": "answers"},
        "no_answer": True,
        "metrics": ["exact_match", "token_f1"],
    },
    "choose": {"columns": {"text": "q", "candidates": "choices", "label": "gold"}, "metrics": ["accuracy"]},
    "generate": {"columns": {"text": "q", "target": "answers"}, "metrics": ["exact_match"]},
}


def examples_of(kind, rows, folder, **fields):
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    values = {"kind": kind, "name": "toy", "files": {"train": "data.jsonl"}, **FIELDS[kind], **fields}
    return read_examples(parse(Task, values, "toy.yaml"), "train", LocalPath(folder))
