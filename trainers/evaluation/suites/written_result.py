"""Score a model on a task whose answers it writes."""

import numpy as np
import pyarrow as pa
import xxhash

from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.items import Items
from trainers.evaluation.suites.task_result import SOLVED, TaskResult
from trainers.tasks.schema.metric_names import WRITTEN_METRICS
from trainers.tasks.scores import METRICS, require_libraries
from trainers.tasks.scores.outcomes import Outcomes


def written_result(model: str, scorer: Scorer, items: Items, seed: int) -> TaskResult:
    """Let a model write an answer to each item, and return the answers with their metrics. The main score is
    a metric that counts solved items (SOLVED) if the task has one, otherwise its first metric of written
    answers.
    """
    prompt = items.task.prompt
    assert prompt is not None
    assert prompt.generation is not None
    assert items.references is not None
    metrics = sorted((m for m in items.task.metrics if m in WRITTEN_METRICS), key=lambda name: name not in SOLVED)
    require_libraries(metrics)
    how = prompt.generation
    texts = scorer.write(items.contexts, how, generators_of(items.ids, seed) if how.temperature else ())
    outcomes = Outcomes(references=items.references, texts=[each.text for each in texts])
    columns = {
        "id": pa.array(items.ids, pa.string()),
        "written": pa.array([each.text for each in texts], pa.string()),
        "references": pa.array(items.references, pa.list_(pa.string())),
        "tokens": np.array([each.tokens for each in texts], np.int64),
        "truncated": np.array([each.truncated for each in texts], bool),
        "cut": np.array([each.cut for each in texts], bool),
    }
    written = "greedy" if not how.temperature else f"sampled at temperature {how.temperature:g}"
    return TaskResult(
        model, f"{scorer.form.described}, answers written, {written}", items.task.name, items.split,
        {name: (METRICS[name], outcomes) for name in metrics}, items.chance, pa.table(columns), items.subtasks,
        items.fields, sum(each.cut for each in texts), items.notes, items=items,
        truncated=sum(each.truncated for each in texts), version=str(items.task.version),
    )  # fmt: skip


def generators_of(ids: list[str], seed: int) -> list[np.random.Generator]:
    """Return a random number generator for each of `ids`, seeded with `seed` and the id."""
    digests = (xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")) for name in ids)
    return [np.random.default_rng([seed, digest]) for digest in digests]
