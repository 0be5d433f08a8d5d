"""The score of a fine-tuning suite: the mean over those of its columns (pairs of task and split) that were
scored.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trainers.tasks.load_task import Suite, load_task


@dataclass(frozen=True)
class SuiteScore:
    """The score of a suite. `columns` maps each column to its score, or to None if it was not scored. `mean`
    is the mean of the scores, or None if there are none.
    """

    suite: str
    mean: float | None
    columns: dict[str, float | None]

    @property
    def scored(self) -> int:
        """The number of columns that were scored."""
        return sum(value is not None for value in self.columns.values())

    def __str__(self) -> str:
        if self.mean is None:
            return f"{self.suite}: none of {len(self.columns)} columns is scored"
        of = "" if self.scored == len(self.columns) else f" of {len(self.columns)}"
        return f"{self.suite}: {self.mean:.4f}, the mean of {self.scored}{of} columns"


def suite_score(suite: Suite, values: Mapping[tuple[str, str], Mapping[str, float]]) -> SuiteScore:
    """Return the score of a fine-tuning suite: the mean over its columns that were scored. A column's score
    is the mean of its task's metrics, as in GLUE and SuperGLUE (Wang et al., 2019). `values` maps each scored
    (task, split) to {metric: value}.
    """
    columns: dict[str, float | None] = {}
    for column in suite.columns:
        name = column.task if column.split == "dev" else f"{column.task}/{column.split}"
        measured = values.get((column.task, column.split))
        metrics = load_task(column.task).metrics
        columns[name] = None if measured is None else sum(measured[metric] for metric in metrics) / len(metrics)
    scored = [value for value in columns.values() if value is not None]
    return SuiteScore(suite.name, sum(scored) / len(scored) if scored else None, columns)
