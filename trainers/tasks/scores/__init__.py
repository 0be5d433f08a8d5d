"""Metrics. Each has one statistic for every example, from which its value, interval and paired test are
computed.

To add one: a TaskMetric in the file of its family, listed here, and its name and kinds in
`trainers.tasks.schema.metric_names`.
"""

from trainers.tasks.scores import answer_scores, entity_scores, label_scores, number_scores, text_scores
from trainers.tasks.scores.metric import TaskMetric

METRICS: dict[str, TaskMetric] = {
    metric.name: metric
    for module in (label_scores, number_scores, entity_scores, answer_scores, text_scores)
    for metric in module.METRICS
}
"""Every metric by name."""
