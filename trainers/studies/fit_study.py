"""Fit laws to the runs of a table, measure how well they predict, and estimate whether more runs would
help.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.errors import ConfigError
from trainers.studies.laws import LAWS
from trainers.studies.laws.agreement import Agreement, agreement
from trainers.studies.laws.cross_validation import (
    CrossValidation,
    LearningCurve,
    choose_law,
    cross_validate,
    learning_curve,
)
from trainers.studies.laws.law_set import LawSet, fit_laws
from trainers.studies.laws.regression_law import Law, fit_censored
from trainers.studies.laws.single_thread import single_threaded
from trainers.studies.laws.sized_law import SizedLaw
from trainers.studies.run_table import RunTable

_LEAST_SCORED = 10  # runs; with fewer, a law cannot be judged


@dataclass(frozen=True)
class MetricFit:
    """The law chosen for one metric, and how well it predicts. `censored` is the number of runs without a
    value. `validation` cross-validates both the choice of the law and its fit. `curve` is the learning curve
    of the law, and `held_out` its agreement with the test runs, if there are any.
    """

    metric: str
    law: Law
    censored: int
    validation: CrossValidation
    curve: LearningCurve
    held_out: Agreement | None


def laws_of(names: Sequence[str]) -> list[Law]:
    """Return the laws with the given names. Raises ConfigError for an unknown name, and UserError if a law
    needs a library that is not installed.
    """
    for name in names:
        if name not in LAWS:
            raise ConfigError(f"--law: got {name!r}, allowed {', '.join(LAWS)}")
        LAWS[name].require_library()
    return [LAWS[name] for name in names]


def sized(laws: Sequence[Law], table: RunTable) -> list[Law]:
    """Return `laws`, each extended by a term for the sizes of the runs (`SizedLaw`) if `table` has sizes."""
    return [SizedLaw(law, len(table.size_names)) if table.size_names else law for law in laws]


@single_threaded()
def choose_laws(table: RunTable, laws: Sequence[Law], seed: int = 0) -> list[Law]:
    """Return, for each metric of `table`, the law with the smallest cross-validated error. Raises ConfigError
    if the table has too few runs for any of `laws`.
    """
    for law in laws:
        table.require_runs(law.name, max(_LEAST_SCORED, law.minimum_runs(table.features.shape[1]) + 1))
    columns = zip(table.values.T, table.censored.T, strict=True)
    return [choose_law(laws, table.features, values, censored, seed) for values, censored in columns]


@single_threaded()
def fit_metrics(table: RunTable, laws: Sequence[Law], tests: RunTable | None = None, seed: int = 0) -> list[MetricFit]:
    """Choose a law for each metric of `table`, and measure how well it predicts. `tests` holds further runs
    on which the chosen laws are also scored; its domains and metrics must be in the same order.

    Raises ConfigError if `table` has too few runs, or if fewer than two test runs have a value for a metric.
    """
    if tests is not None:
        for metric, measured in zip(tests.metrics, (~tests.censored).sum(axis=0).tolist(), strict=True):
            if measured < 2:
                raise ConfigError(
                    f"{metric}: {measured} of {len(tests.runs)} test runs have a value; scores need 2 or more: add test runs "
                    "or leave this metric out"
                )
    fits = []
    for column, (metric, law) in enumerate(zip(table.metrics, choose_laws(table, laws, seed), strict=True)):
        values, censored = table.values[:, column], table.censored[:, column]
        validation = cross_validate(laws, table.features, values, censored, seed)
        curve = learning_curve(law, table.features, values, censored, validation, seed)
        held_out = None
        if tests is not None:
            measured = ~tests.censored[:, column]
            predicted = fit_censored(law, table.features, values, censored).predict(tests.features[measured])
            held_out = agreement(tests.values[measured, column], predicted, seed=seed)
        fits.append(MetricFit(metric, law, int(censored.sum()), validation, curve, held_out))
    return fits


def law_set(table: RunTable, fits: Sequence[MetricFit], draws: int = 200, seed: int = 0) -> LawSet:
    """Fit the laws chosen in `fits` to all runs of `table` and to `draws` bootstrap samples of the runs."""
    laws = [fit.law for fit in fits]
    return fit_laws(laws, table.domains, table.metrics, table.features, table.values, table.censored, draws, seed)


def fit_record(table: RunTable, fits: Sequence[MetricFit], laws: LawSet, centre: np.ndarray) -> dict[str, Any]:
    """Return the results of a fit as JSON data. The effect of adding one percentage point of a domain is that
    at the mixture `centre` [domains].
    """
    record: dict[str, Any] = {"runs": list(table.runs), "domains": list(table.domains), "metrics": {}}
    rows = zip(fits, laws.laws, laws.effects(centre), table.values.T, strict=True)
    for fit, law, effects, measured in rows:
        record["metrics"][fit.metric] = {
            "law": fit.law.name,
            "negated": fit.metric in table.negated,
            "parameters": law.parameters(),
            "censored": fit.censored,
            "cross_validation": fit.validation.agreement.fields(),
            "laws_chosen": fit.validation.chosen,
            "held_out": fit.held_out.fields() if fit.held_out else None,
            "learning_curve": [{"runs": runs, "spearman": value} for runs, value in fit.curve.points],
            "enough_runs": None if fit.curve.last_gain is None else fit.curve.is_enough,
            "measured": _listed(measured),
            "predicted": _listed(fit.validation.predicted),
            "effect_of_one_point": dict(zip(table.domains, effects.tolist(), strict=True)),
        }
    return record


def _listed(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]


def fit_lines(table: RunTable, fits: Sequence[MetricFit]) -> list[str]:
    """Return the fits as lines for a terminal: a table with a row per metric, then a line per metric with its
    learning curve and whether more runs would help.
    """
    lines = [
        f"{len(table.runs)} runs, {len(table.domains)} domains; the scores are cross-validated in 10 folds",
        f"{'metric':32} {'law':16} {'censored':>8} {'spearman':>8} {'95 % interval':>14} {'decisions':>9} {'slope':>6} "
        f"{'error':>8}{'  held-out runs' if any(fit.held_out for fit in fits) else ''}",
    ]
    for fit in fits:
        scores = fit.validation.agreement
        test, interval = (
            f"  {fit.held_out.spearman:.3f}" if fit.held_out else "",
            f"{scores.low:.3f} to {scores.high:.3f}",
        )
        lines.append(
            f"{fit.metric[-32:]:32} {fit.law.name:16} {fit.censored:8} {scores.spearman:8.3f} {interval:>14} "
            f"{scores.decisions:9.1%} {scores.slope:6.2f} {scores.error:8.4f}{test}"
        )
    return lines + [f"{fit.metric}: {_stop_line(fit.curve)}" for fit in fits]


def _stop_line(curve: LearningCurve) -> str:
    points = ", ".join(f"{value:.3f} from {runs}" for runs, value in curve.points)
    if curve.last_gain is None:
        return f"spearman {points}; too few runs to say whether more would help"
    verdict = "enough runs" if curve.is_enough else "more runs would help"
    return f"spearman {points}; the last half of the runs added {curve.last_gain:+.3f}: {verdict}"
