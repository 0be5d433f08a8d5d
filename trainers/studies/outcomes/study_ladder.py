"""Fit the scaling law of a metric to a ladder (runs with several model sizes and numbers of tokens), and test
it on the runs of the largest model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.errors import ConfigError, UserError
from trainers.studies.designs.study_runs import OpenStudy
from trainers.studies.laws.scaling_law import ScalingFit, ScalingLaw, fit_scaling
from trainers.studies.outcomes.study_table import measured_metrics
from trainers.studies.outcomes.study_verdict import weighted_value
from trainers.studies.run_files import listed, read_run_columns
from trainers.studies.running.train_study_run import RunResult

SCALING = "scaling.json"
_SIZES = ("parameters", "tokens")


@dataclass(frozen=True)
class Ladder:
    """Runs of several sizes. `parameters`, `tokens` (read in training) and `losses` (the values of `metric`)
    are [runs]. Runs without a value are left out and named in `missing`.
    """

    metric: str
    runs: tuple[str, ...]
    parameters: np.ndarray
    tokens: np.ndarray
    losses: np.ndarray
    missing: tuple[str, ...] = ()

    def select(self, rows: np.ndarray) -> "Ladder":
        """Return a ladder of only those runs for which `rows`, bool [runs], is true."""
        names = tuple(run for run, kept in zip(self.runs, rows, strict=True) if kept)
        columns = {name: getattr(self, name)[rows] for name in (*_SIZES, "losses")}
        return replace(self, runs=names, **columns)


@dataclass(frozen=True)
class ScalingPrediction:
    """The prediction for a run that was held out of the fit: its measured loss, its predicted loss, and the
    ends of a 95 % prediction interval.
    """

    run: str
    parameters: float
    tokens: float
    measured: float
    predicted: float
    low: float
    high: float


@dataclass(frozen=True)
class StudyScaling:
    """The scaling law of a ladder. `fit` is fitted to all runs. `held_out` holds the predictions for the runs
    of the largest model, from a fit to the other runs; if it is empty, `reason` says why.
    """

    ladder: Ladder
    fit: ScalingFit
    held_out: tuple[ScalingPrediction, ...]
    reason: str = ""


def read_ladder(path: Path, metric: str | None = None, key: str | None = None) -> Ladder:
    """Read a ladder from a CSV file of runs with the columns `parameters`, `tokens` and one or more metrics.
    `metric` chooses one of several metrics. `key` is the column that names the runs (for the default, see
    `read_run_columns`).

    Raises ConfigError if a column is missing, if the file has several metrics and `metric` is not given, or
    if a value is invalid.
    """
    read = read_run_columns(path, key, (*_SIZES, metric) if metric else ())
    others = [name for name in read.columns if name not in _SIZES]
    for name in _SIZES:
        if name not in read.columns:
            raise ConfigError(f"{path}: has no column {name}; a ladder needs the parameters and the tokens of each run")
    if len(others) != 1:
        raise ConfigError(f"{path}: has the metrics {listed(others) or 'none'}; choose one with --metric")
    sizes, tokens, losses = (read.values[:, read.columns.index(name)] for name in (*_SIZES, others[0]))
    runs = next(iter(read.keys.values()))
    for run, *its in zip(runs, sizes, tokens, strict=True):
        if not all(value > 0 for value in its):
            raise ConfigError(f"{path}: {run}: parameters or tokens are missing or not above 0")
    return _ladder(others[0], runs, sizes, tokens, losses)


def ladder_of(opened: OpenStudy, results: Mapping[str, RunResult]) -> Ladder:
    """Return the ladder of a study's finished proxy runs. The loss of a run is the weighted mean of its
    metrics. Raises UserError if no proxy run has finished.
    """
    runs = [run for run in opened.proxies if run.key in results and results[run.key].state == "finished"]
    if not runs:
        raise UserError(f"study {opened.study.name}: no run has finished; train them with `study run`")
    its = [results[run.key] for run in runs]
    metrics = measured_metrics(opened, results)
    weights = opened.settings.measured(metrics).metric_weights(metrics)
    losses = [weighted_value(result, metrics, weights) for result in its]
    sizes = np.array([[float(result.parameters), float(result.tokens)] for result in its])
    names = tuple(run.name for run in runs)
    return _ladder("mean of the metrics", names, sizes[:, 0], sizes[:, 1], np.array(losses, np.float64))


def _ladder(
    metric: str, runs: tuple[str, ...], parameters: np.ndarray, tokens: np.ndarray, losses: np.ndarray
) -> Ladder:
    measured = np.isfinite(losses)
    missing = tuple(run for run, there in zip(runs, measured, strict=True) if not there)
    return Ladder(metric, runs, parameters, tokens, losses, missing).select(measured)


def fit_ladder(ladder: Ladder, draws: int = 200, seed: int = 0) -> StudyScaling:
    """Fit the scaling law to all runs. To test it, fit it again without the runs of the largest model, and
    predict their losses. Raises ConfigError if the law cannot be fitted to all runs.
    """
    fit = fit_scaling(ladder.parameters, ladder.tokens, ladder.losses, draws, seed)
    largest = ladder.parameters == ladder.parameters.max()
    try:
        smaller = ladder.select(~largest)
        without = fit_scaling(smaller.parameters, smaller.tokens, smaller.losses, draws, seed)
    except ConfigError as error:
        return StudyScaling(ladder, fit, (), f"the largest model cannot be held out: {error}")
    return StudyScaling(ladder, fit, _predictions(without, smaller, ladder.select(largest), seed))


def _predictions(fit: ScalingFit, fitted: Ladder, others: Ladder, seed: int) -> tuple[ScalingPrediction, ...]:
    at = others.parameters, others.tokens
    inside = np.log(fitted.losses / fit.law.predict(fitted.parameters, fitted.tokens))
    drawn = np.array([law.predict(*at) for law in fit.resampled])
    noise = np.random.default_rng(seed).choice(inside, drawn.shape)
    low, high = np.quantile(drawn * np.exp(noise), [0.025, 0.975], axis=0)
    columns = (others.parameters, others.tokens, others.losses, fit.law.predict(*at), low, high)
    rows = zip(others.runs, *(column.tolist() for column in columns), strict=True)
    return tuple(ScalingPrediction(*row) for row in rows)


def _shown_numbers(law: ScalingLaw) -> dict[str, float]:
    return {**law.coefficients(), "model_share": law.model_share}


def _intervals(fit: ScalingFit) -> dict[str, tuple[float, float]]:
    drawn = [_shown_numbers(law) for law in fit.resampled]
    return {name: fit.interval([each[name] for each in drawn]) for name in _shown_numbers(fit.law)}


def scaling_record(found: StudyScaling) -> dict[str, Any]:
    """Return a scaling fit as JSON data: the metric, the runs, the law with its 95 % intervals, and the
    predictions for the held-out runs.
    """
    return {
        "metric": found.ladder.metric,
        "runs": list(found.ladder.runs),
        "law": _shown_numbers(found.fit.law),
        "intervals": {name: list(pair) for name, pair in _intervals(found.fit).items()},
        "held_out": [vars(row) for row in found.held_out],
    }


def scaling_lines(found: StudyScaling) -> list[str]:
    """Return the law and its predictions for the held-out runs as lines for a terminal."""
    ladder, intervals = found.ladder, _intervals(found.fit)
    lines = [f"{ladder.metric}, {len(ladder.runs)} runs: L = E + A / parameters^a + B / tokens^b"]
    if ladder.missing:
        lines.append(f"left out, because they have no value: {listed(ladder.missing)}")
    words = {"model_share": "the best model size grows with compute to the power of"}
    for name, value in _shown_numbers(found.fit.law).items():
        low, high = intervals[name]
        lines.append(f"{words.get(name, name)} {value:.4g} (95 % interval {low:.4g} to {high:.4g})")
    if found.reason:
        return [*lines, found.reason]
    lines.append("the runs of the largest model, predicted from the others:")
    lines.append(f"{'run':32} {'parameters':>11} {'tokens':>11} {'measured':>9} {'predicted':>9} {'95 % interval':>18}")
    for row in found.held_out:
        interval = f"{row.low:.4f} to {row.high:.4f}"
        lines.append(
            f"{row.run[-32:]:32} {row.parameters:11.4g} {row.tokens:11.4g} {row.measured:9.4f} {row.predicted:9.4f} "
            f"{interval:>18}"
        )
    inside = sum(row.low <= row.measured <= row.high for row in found.held_out)
    return [*lines, f"{inside} of {len(found.held_out)} measured values lie in their interval"]
