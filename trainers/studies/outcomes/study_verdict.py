"""List the runs of a study's confirmation, and judge the study: its verdict compares the entries with the
baseline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gristmill.errors import UserError
from gristmill.page.formats import decimals, signed
from gristmill.storage.disk import LocalPath
from trainers.studies.designs.study_run import StudyRun
from trainers.studies.designs.study_runs import OpenStudy
from trainers.studies.outcomes.paired_comparison import PairedComparison, compare_pairs
from trainers.studies.outcomes.study_steps import DIGITS, doremi_mixture, read_proposal
from trainers.studies.outcomes.study_table import measured_metrics
from trainers.studies.proposals.baselines import baseline_mixtures
from trainers.studies.running.study_directory import RUNS
from trainers.studies.running.train_study_run import RunResult, read_result


@dataclass(frozen=True)
class StudyVerdict:
    """The comparisons of a study's entries with `baseline`: `overall` on the weighted mean of the metrics,
    and `by_metric` on each metric alone.
    """

    baseline: str
    overall: tuple[PairedComparison, ...]
    by_metric: dict[str, tuple[PairedComparison, ...]]

    def fields(self) -> dict[str, object]:
        """Return the verdict as JSON data."""
        return {
            "baseline": self.baseline,
            "overall": [each.fields() for each in self.overall],
            "by_metric": {name: [each.fields() for each in its] for name, its in self.by_metric.items()},
        }


def candidate_runs(
    opened: OpenStudy, root: LocalPath, proposal: Mapping[str, float] | None = None
) -> tuple[StudyRun, ...]:
    """Return the runs of the confirmation, ordered by seed. If `proposal` is given, it replaces the mixtures
    of both the proposal and DoReMi. Raises UserError if the study has no confirmation, or if the mixture of a
    candidate is missing.
    """
    confirmation = opened.study.confirmation
    if confirmation is None:
        raise UserError(f"study {opened.study.name}: confirmation: missing; add this section before the study runs")
    baselines = baseline_mixtures(opened.settings, opened.domains)
    mixtures: dict[str, Mapping[str, float]] = {}
    for name in confirmation.candidates:
        if name == "proposal":
            mixtures[name] = proposal or read_proposal(opened, root)
        elif name == "doremi":
            mixtures[name] = proposal or _doremi(opened, root)
        elif name in confirmation.own:
            mixtures[name] = opened.leaf_shares(f"confirmation.own.{name}", confirmation.own[name])
        else:
            mixtures[name] = opened.mixture(baselines[name])
    first = opened.study.proxies.seed
    seeds = range(first, first + confirmation.seeds)
    return tuple(opened.candidate(name, weights, seed) for seed in seeds for name, weights in mixtures.items())


def _doremi(opened: OpenStudy, root: LocalPath) -> dict[str, float]:
    found = doremi_mixture(opened, root)
    if not found:
        result = read_result(root / RUNS / opened.doremi[-1].key)
        why = f"{result.state}: {result.reason}" if result else "has not been trained"
        raise UserError(
            f"{root}: doremi has no mixture, because its run {why}; train it with `study run`, or remove it"
        )
    return opened.mixture(np.round(found["doremi"], DIGITS))


def judge(opened: OpenStudy, runs: Sequence[StudyRun], results: Mapping[str, RunResult]) -> StudyVerdict:
    """Return the verdict of the study: the entries of `runs`, compared with the baseline."""
    study = opened.study
    entries = list(dict.fromkeys(run.entry for run in runs))
    baseline = study.confirmation.baseline if study.confirmation else getattr(study.design, "baseline", entries[0])
    metrics = (
        measured_metrics(opened, {run.key: results[run.key] for run in runs if run.key in results}) or opened.metrics
    )
    weights = opened.settings.measured(metrics).metric_weights(metrics)
    rule = study.rule

    def compared(chosen: np.ndarray) -> tuple[PairedComparison, ...]:
        values: dict[str, dict[int, float | None]] = {entry: {} for entry in entries}
        for run in runs:
            values[run.entry][run.job.seed] = weighted_value(results.get(run.key), metrics, chosen)
        return tuple(compare_pairs(values, baseline, rule.level, rule.margin))

    alone = np.eye(len(metrics))
    by_metric = {name: compared(alone[i]) for i, name in enumerate(metrics)}
    return StudyVerdict(baseline, compared(weights), by_metric)


def weighted_value(result: RunResult | None, metrics: Sequence[str], weights: np.ndarray) -> float | None:
    """Return the mean of a run's `metrics`, weighted by `weights`, which must sum to 1. Return None if the
    run has not finished, or if it lacks a metric whose weight is not 0.
    """
    weighted = [(name, weight) for name, weight in zip(metrics, weights.tolist(), strict=True) if weight]
    if result is None or result.state != "finished" or any(name not in result.metrics for name, _ in weighted):
        return None
    return float(sum(weight * result.metrics[name] for name, weight in weighted))


def verdict_lines(verdict: StudyVerdict, level: float) -> list[str]:
    """Return the overall comparisons as lines for a terminal. `level` is the confidence level of the
    intervals.
    """
    lines = [f"{'':32} {'pairs':>5} {'mean':>8} {'difference':>10} {'error':>8} {f'{level:.0%} interval':>20}  verdict"]
    for each in verdict.overall:
        mean, error = decimals(each.mean, 4), decimals(each.error, 4)
        interval = f"{signed(each.low, 4)} to {signed(each.high, 4)}"
        shown = f"{signed(each.difference, 4):>10} {error:>8} {interval:>20}"
        note = f" ({each.reason})" if each.reason else ""
        if each.entry == verdict.baseline:
            lines.append(f"{each.entry[-32:]:32} {each.pairs:5} {mean:>8} {'':40}  the baseline")
        else:
            lines.append(f"{each.entry[-32:]:32} {each.pairs:5} {mean:>8} {shown}  {each.verdict}{note}")
    return lines
