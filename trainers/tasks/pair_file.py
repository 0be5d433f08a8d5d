"""Write the training examples of a task as pairs of texts, which a corpus can read as documents."""

import json

from gristmill.errors import UserError
from gristmill.storage.location import Location
from trainers.tasks.read_examples import read_examples
from trainers.tasks.schema.task import Task
from trainers.tasks.text_to_text import KINDS, render_inputs, render_targets


def write_pair_file(task: Task, data: Location | None, output: Location) -> int:
    """Write the split `train` of a task as JSON lines with the fields id, input and target. Returns the
    number of lines.

    Input and target are the same as in fine-tuning with `encoding.text_to_text`; the target is the first
    accepted answer. Raises UserError if the gold is hidden or the kind of task has no pairs.
    """
    if task.kind not in KINDS:
        raise UserError(f"{task.name}: a task of kind {task.kind} has no pairs; allowed: {', '.join(KINDS)}")
    examples = read_examples(task, "train", data)
    if not examples.labelled:
        raise UserError(
            f"{task.name}: its split train has no gold; if its files have it, take train out of `unlabelled`"
        )
    rows = zip(examples.ids, render_inputs(examples), render_targets(examples), strict=True)
    lines = [{"id": name, "input": given, "target": answers[0]} for name, given, answers in rows]
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    output.write_atomic(text.encode("utf-8", "surrogatepass"))
    return len(lines)
