"""Write docs/task_file.md from the schema of tasks and from the tasks that are shipped: `python docs/task_file.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from training_file import section

from trainers.tasks.load_task import load_suite, load_task, shipped_suites, shipped_tasks
from trainers.tasks.schema.metric_names import METRIC_KINDS
from trainers.tasks.schema.task import Layout, Task, Templates
from trainers.tasks.schema.task_prompt import Generation, Prompt
from trainers.tasks.scores import METRICS

HEAD = """\
# The task file

A task is a YAML file with these fields. [tasks.md](tasks.md) explains how to write one. This page is generated from the
dataclasses that parse the file and from the shipped tasks (`python docs/task_file.py`); a test fails when they differ.
"""

SHIPPED = """\
## Shipped tasks

`finetune NAME` and `evaluate MODEL task=NAME` take one of these names; `evaluate` takes those with a prompt, and `blimp`. The
files are looked for below `data=DIR`, or below the directory that `$GRISTMILL_TASKS` names, in each of the folders; all also
with `.gz`. Nothing is downloaded. Gold that the authors keep to themselves is marked `hidden`: such a split is predicted, not
scored.
"""

METRICS_HEAD = """\
## Metrics

Values are from 0 to 1, in BLEU and chrF from 0 to 100; lower is better in perplexity and bits per byte. Each value has a 95 %
percentile interval of 1,000 bootstrap samples of the examples (Efron, 1979), from seed 0. Two runs are compared on the same
examples by the paired permutation test and a paired bootstrap interval of the difference. ROUGE, BLEU and chrF need the extra
`finetune`.

| metric | measures | source |
|---|---|---|
"""


def places(task: Task) -> str:
    """Return where the files of a task are looked for, as a table cell."""
    cells = []
    for _, layout in task.layouts:
        files = []
        for split in layout.files:
            hidden = " (hidden)" if split in layout.unlabelled else ""
            files.append(f"{split}{hidden} {' or '.join(f'`{name}`' for name in layout.names(split))}")
        folders = ", ".join(f"`{folder}`" for folder in layout.folders)
        cells.append(f"{folders}: {'; '.join(files)}")
    return "<br>".join(cells).replace("|", "\\|")


def gold(task: Task) -> str:
    """Return the labels of a task or their number, its range of scores, or ""."""
    names = task.label_names
    if names:
        return ", ".join(names) if len(names) <= 5 else f"{len(names)}"
    return f"{task.range[0]:g} to {task.range[1]:g}" if task.range else ""


def page() -> str:
    """Return the whole page."""
    pieces = [HEAD, section(Task, "Task"), section(Layout, "Layout"), section(Templates, "Templates")]
    pieces += [section(Prompt, "Prompt"), section(Generation, "Generation"), SHIPPED]
    pieces += ["| task | version | kind | labels | metrics | what it is | source |", "|---|---|---|---|---|---|---|"]
    tasks = [load_task(name) for name in shipped_tasks()]
    for task in tasks:
        metrics = ", ".join(task.metrics)
        pieces.append(
            f"| `{task.name}` | {task.version} | {task.kind} | {gold(task)} | {metrics} | {task.about} | {task.source} |"
        )
    pieces += ["\n### Suites\n", "| suite | version | columns | what it is | source |", "|---|---|---|---|---|"]
    for name in shipped_suites():
        suite = load_suite(name)
        columns = [
            column.task if column.split == "dev" else f"{column.task}/{column.split}" for column in suite.columns
        ]
        pieces.append(f"| `{name}` | {suite.version} | {', '.join(columns)} | {suite.about} | {suite.source} |")
    pieces += ["\n### Files\n", "| task | folders and files |", "|---|---|"]
    pieces += [f"| `{task.name}` | {places(task)} |" for task in tasks]
    rows = [f"| `{name}` | {', '.join(METRIC_KINDS[name])} | {METRICS[name].source} |" for name in METRICS]
    return "\n".join(pieces) + "\n\n" + METRICS_HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("task_file.md").write_text(page())
