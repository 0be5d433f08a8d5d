"""Helpers that define small tasks, write their files and read their examples."""

import json

from gristmill.config import parse
from trainers.tasks.read_examples import read_examples
from trainers.tasks.schema.task import Task


def task_of(folder, kind, **fields):
    metrics = {
        "classify": "accuracy",
        "choose": "accuracy",
        "tag": "accuracy",
        "regress": "pearson",
        "span": "token_f1",
    }
    defaults = {"kind": kind, "name": "mine", "folder": str(folder), "metrics": [metrics.get(kind, "exact_match")]}
    return parse(Task, {**defaults, **fields}, "mine.yaml")


def read(task, split="train"):
    return read_examples(task, split, None)


def write_lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
