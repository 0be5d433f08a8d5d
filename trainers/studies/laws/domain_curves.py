"""Curves of a study's predicted metrics against the share of one domain."""

from typing import Any

import numpy as np

from trainers.studies.laws.law_set import LawSet
from trainers.studies.laws.single_thread import single_threaded

_POINTS = 21  # of each curve


@single_threaded()
def domain_curves(laws: LawSet, runs: np.ndarray, centre: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """Return a curve for each domain whose share differs between runs: how the predicted metrics change with
    its share, while the other domains keep their proportions in the mixture `centre` [domains]. A domain that
    is all of `centre` has no curve.

    The curve spans the range of the domain's shares in `runs` [runs, domains]. `mean` is the mean of the
    `metrics` weighted by `weights` [metrics], which must sum to 1; `low` and `high` bound its 95 % bootstrap
    interval, and are None without bootstrap draws. All values except `shares` are differences from the values
    at `centre`.
    """
    curves: dict[str, Any] = {}
    mixtures = {}
    for i, name in enumerate(laws.domains):
        low, high = float(runs[:, i].min()), float(runs[:, i].max())
        if high > low and centre[i] < 1:
            mixtures[name] = _line(centre, i, np.linspace(low, high, _POINTS))
    if not mixtures:
        return curves
    stacked = np.concatenate([centre[None], *mixtures.values()])
    each = np.stack([law.predict(stacked) for law in laws.laws])
    each = each - each[:, :1]
    drawn = laws.predict_resampled(stacked, weights) if laws.resampled else np.empty((0, len(stacked)))
    ends = (
        np.quantile(drawn - drawn[:, :1], [0.025, 0.975], axis=0) if len(drawn) else np.full((2, len(stacked)), np.nan)
    )
    for number, (name, line) in enumerate(mixtures.items()):
        rows = slice(1 + number * _POINTS, 1 + (number + 1) * _POINTS)
        curves[name] = {
            "shares": line[:, laws.domains.index(name)].tolist(),
            "mean": (weights @ each[:, rows]).tolist(),
            "low": _listed(ends[0, rows]),
            "high": _listed(ends[1, rows]),
            "metrics": dict(zip(laws.metrics, each[:, rows].tolist(), strict=True)),
        }
    return curves


def _line(centre: np.ndarray, domain: int, shares: np.ndarray) -> np.ndarray:
    """Return mixtures [shares, domains], one for each of `shares`: `domain` gets that share, and the other
    domains divide the rest in the proportions of `centre`.
    """
    mixtures = centre[None] * ((1 - shares) / (1 - centre[domain]))[:, None]
    mixtures[:, domain] = shares
    return mixtures


def _listed(values: np.ndarray) -> list[float] | None:
    return None if np.isnan(values).any() else list(values.tolist())
