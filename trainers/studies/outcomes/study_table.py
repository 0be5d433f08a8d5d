"""Tables of the runs of a study: their mixtures and metrics, to which the laws are fitted, and the noise and
signal of each metric.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from trainers.studies.designs.study_run import StudyRun
from trainers.studies.designs.study_runs import OpenStudy
from trainers.studies.run_table import RunTable
from trainers.studies.running.train_study_run import RunResult

RATIOS, METRICS = "ratios.csv", "metrics.csv"


@dataclass(frozen=True)
class MetricNoise:
    """How much a metric varies. `noise` is its standard deviation over `anchors` runs that train on the prior
    and differ only in their seeds. `signal` is its standard deviation over the mixtures.
    """

    metric: str
    anchors: int
    noise: float
    signal: float

    @property
    def ratio(self) -> float:
        """Signal divided by noise; infinite if the noise is 0."""
        return self.signal / self.noise if self.noise else float("inf")


def measured_metrics(opened: OpenStudy, results: Mapping[str, RunResult]) -> tuple[str, ...]:
    """Return those metrics of the study for which at least one finished run has a value."""
    there = {name for result in results.values() if result.state == "finished" for name in result.metrics}
    return tuple(name for name in opened.metrics if name in there)


def unmeasured_lines(opened: OpenStudy, results: Mapping[str, RunResult]) -> list[str]:
    """Return a list with one line that names the metrics for which no finished run has a value. The list is
    empty if all metrics have values or none does.
    """
    there = measured_metrics(opened, results)
    missing = [name for name in opened.metrics if name not in there]
    return [f"left out, because no run has a value: {', '.join(missing)}"] if there and missing else []


def run_table(opened: OpenStudy, results: Mapping[str, RunResult]) -> RunTable:
    """Return the table of the design's runs that finished or diverged. Missing values, among them all values
    of diverged runs, are NaN (censored). Raises UserError if no run has finished.
    """
    rows = [run for run in opened.points if run.key in results and results[run.key].state != "failed"]
    if not any(results[run.key].state == "finished" for run in rows):
        raise UserError(f"study {opened.study.name}: no run has finished; train them with `study run`")
    nothing = float("nan")
    metrics = measured_metrics(opened, {run.key: results[run.key] for run in rows})
    values = [[results[run.key].metrics.get(name, nothing) for name in metrics] for run in rows]
    ratios = np.array([list(opened.shares_of(run.weights).values()) for run in rows])
    ratios = ratios / ratios.sum(axis=1, keepdims=True)
    return RunTable(tuple(run.entry for run in rows), opened.domains, ratios, metrics, np.array(values))


def write_tables(table: RunTable, root: LocalPath) -> None:
    """Write `ratios.csv` and `metrics.csv` to `root`, in the form that `study fit --ratios --metrics` reads.
    Censored cells are empty.
    """
    for name, columns, rows in ((RATIOS, table.domains, table.ratios), (METRICS, table.metrics, table.values)):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["run", *columns])
        for run, row in zip(table.runs, rows.tolist(), strict=True):
            writer.writerow([run, *("" if np.isnan(cell) else repr(cell) for cell in row)])
        (root / name).write_atomic(text.getvalue().encode())


def metric_noise(opened: OpenStudy, results: Mapping[str, RunResult], table: RunTable) -> list[MetricNoise]:
    """Return the noise and the signal of each metric. The noise is NaN if fewer than two finished anchors
    have a value, and the signal is 0 if fewer than two runs in `table` have one.
    """
    finished = [results[r.key] for r in opened.anchors if r.key in results and results[r.key].state == "finished"]
    rows = []
    for column, name in enumerate(table.metrics):
        values = [result.metrics[name] for result in finished if name in result.metrics]
        noise = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
        measured = table.values[~table.censored[:, column], column]
        rows.append(
            MetricNoise(name, len(values), noise, float(np.std(measured, ddof=1)) if len(measured) > 1 else 0.0)
        )
    return rows


def missing_lines(runs: Sequence[StudyRun], results: Mapping[str, RunResult], censors: bool = True) -> list[str]:
    """Return up to three lines that name the runs that diverged, those that failed, and those that have not
    been trained. If `censors` is true, the text says that diverged runs count as no better than the worst;
    otherwise, that they are left out.
    """
    lines = []
    for state, meaning in (
        ("diverged", "count as no better than the worst" if censors else "are left out"),
        ("failed", "are left out, and trained again by the next `study run`"),
    ):
        its = [run for run in runs if run.key in results and results[run.key].state == state]
        if its:
            reason = results[its[0].key].reason
            lines.append(f"{len(its)} of {len(runs)} runs {state} and {meaning}: {_names(its)} ({reason})")
    untrained = [run for run in runs if run.key not in results]
    if untrained:
        lines.append(f"{len(untrained)} of {len(runs)} runs have not been trained yet: {_names(untrained)}")
    return lines


def repeated_lines(runs: Sequence[StudyRun]) -> list[str]:
    """Return a line for each entry whose settings and mixture equal those of an earlier entry, so that both
    have the same runs. Runs whose corpus is not built are ignored.
    """
    keys: dict[str, list[str]] = {}
    for run in runs:
        if run.is_ready:
            keys.setdefault(run.entry, []).append(run.key)
    first: dict[tuple[str, ...], str] = {}
    pairs = [(entry, first.setdefault(tuple(its), entry)) for entry, its in keys.items()]
    return [
        f"{entry} has the settings and the mixture of {other}: both have the same runs, so their difference says nothing"
        for entry, other in pairs
        if entry != other
    ]


def _names(runs: Sequence[StudyRun], most: int = 5) -> str:
    more = f" and {len(runs) - most} more" if len(runs) > most else ""
    return ", ".join(run.name for run in runs[:most]) + more
