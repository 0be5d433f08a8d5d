"""Metrics of predictions. To add one, add a TaskMetric to METRICS in the module of its family (such as
`label_scores`), and add its name and the kinds of tasks that it applies to in
`trainers.tasks.schema.metric_names`.
"""

from collections.abc import Sequence
from importlib.util import find_spec

from gristmill.errors import UserError
from gristmill.libraries.extras import install_extra
from trainers.tasks.scores import answer_scores, entity_scores, label_scores, number_scores, text_scores
from trainers.tasks.scores.metric import TaskMetric

METRICS: dict[str, TaskMetric] = {
    metric.name: metric
    for module in (label_scores, number_scores, entity_scores, answer_scores, text_scores)
    for metric in module.METRICS
}
"""The metrics that a task file can list, by name."""


def require_libraries(metrics: Sequence[str]) -> None:
    """Raise UserError if a library that one of `metrics` needs is missing. The message gives the command that
    installs it.
    """
    for name in metrics:
        module = text_scores.LIBRARIES.get(name)
        if module is not None and find_spec(module) is None:
            package = module.replace("_", "-")
            raise UserError(
                f"metrics: {name} needs {package}, which is not installed; run: {install_extra('finetune')}"
            )
