"""How the metrics change with the share of one domain, according to the laws of a study."""

from typing import Any

import numpy as np

from trainers.studies.laws.law_set import LawSet
from trainers.studies.laws.single_thread import single_threaded

_POINTS = 21  # of each curve


@single_threaded()
def domain_curves(laws: LawSet, runs: np.ndarray, centre: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """Return, by domain, the predicted metrics as its share changes while the other domains keep the proportions that they
    have in the mixture `centre` [domains]. Shares span those of `runs` [runs, domains], so that no law extrapolates in this
    domain.

    `mean` is the mean of the metrics weighted by `weights` [metrics], with its 95 % bootstrap interval `low` to `high`, and
    `metrics` has each metric; all as differences from their values at `centre`. A domain whose share is the same in all runs,
    or is all of `centre`, has no curve.
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
    """Return the mixtures in which a domain has each of `shares` and the others share the rest as in `centre`, [shares,
    domains].
    """
    mixtures = centre[None] * ((1 - shares) / (1 - centre[domain]))[:, None]
    mixtures[:, domain] = shares
    return mixtures


def _listed(values: np.ndarray) -> list[float] | None:
    return None if np.isnan(values).any() else list(values.tolist())
