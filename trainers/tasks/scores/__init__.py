"""Metrics. Each has one statistic for every example, from which its value, interval and paired test are
computed.

To add one: a TaskMetric in the file of its family, listed here, and its name and kinds in
`trainers.tasks.schema.metric_names`.
"""

from collections.abc import Sequence
from importlib.util import find_spec

from gristmill.errors import UserError
from gristmill.extras import install_extra
from trainers.tasks.scores import answer_scores, entity_scores, label_scores, number_scores, text_scores
from trainers.tasks.scores.metric import TaskMetric

METRICS: dict[str, TaskMetric] = {
    metric.name: metric
    for module in (label_scores, number_scores, entity_scores, answer_scores, text_scores)
    for metric in module.METRICS
}
"""Every metric by name."""


def require_libraries(metrics: Sequence[str]) -> None:
    """Raise UserError with the command that installs it if a library of one of these metrics is missing."""
    for name in metrics:
        module = text_scores.LIBRARIES.get(name)
        if module is not None and find_spec(module) is None:
            package = module.replace("_", "-")
            raise UserError(
                f"metrics: {name} needs {package}, which is not installed; run: {install_extra('finetune')}"
            )
