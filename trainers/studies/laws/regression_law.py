"""Protocols for laws of mixtures (`Law`, which is fitted to runs, and `FittedLaw`, which predicts), and
fitting with censored runs.

A law predicts one metric of a run, for which lower is better, from the run's mixture: the share of each
domain in the training tokens. A run that diverged has no measured value. It counts as censored: all that is
known is that its metric is no better than the worst value measured.
"""

from typing import Protocol

import numpy as np

_IMPUTATIONS = 20
_SETTLED = 1e-4  # the fit has converged if imputed values change by at most this share of the spread


class FittedLaw(Protocol):
    """A law with fitted parameters. Its methods take `ratios`, float64 [mixtures, columns], with one column
    for each domain; the shares in a row sum to 1. For a law with sizes (`SizedLaw`), further columns contain
    log(size / size of the target).
    """

    @property
    def is_convex(self) -> bool:
        """Whether `predict` is convex over all mixtures, so that a local minimum is also the global minimum."""
        ...

    @property
    def is_smooth(self) -> bool:
        """Whether `gradient` is the derivative of `predict`. Otherwise `gradient` is a slope over a finite
        distance.
        """
        ...

    def predict(self, ratios: np.ndarray) -> np.ndarray:
        """Return the predicted metric of each mixture, [mixtures]."""
        ...

    def gradient(self, ratios: np.ndarray) -> np.ndarray:
        """Return the derivatives of `predict` (or slopes, see `is_smooth`) with respect to each column of
        `ratios`, [mixtures, columns].
        """
        ...

    def parameters(self) -> dict[str, float | list[float]]:
        """Return the parameters of the law by name, as JSON data."""
        ...


class Law(Protocol):
    """A family of functions that predict a metric from a mixture. `fit` finds the one that fits the runs."""

    @property
    def name(self) -> str:
        """The name of the law in study files and for `--law`, for example `log_linear`."""
        ...

    def minimum_runs(self, domains: int) -> int:
        """Return the smallest number of measured runs that a fit needs."""
        ...

    def require_library(self) -> None:
        """Raise UserError if the law needs an extra that is not installed."""
        ...

    def fit(self, ratios: np.ndarray, values: np.ndarray, start: FittedLaw | None = None) -> FittedLaw:
        """Return the law fitted to the finite `values` [runs], measured on the mixtures `ratios` [runs,
        domains]. `start` is a fit to nearly the same runs, from which the search may begin.
        """
        ...


def fit_censored(
    law: Law, ratios: np.ndarray, values: np.ndarray, censored: np.ndarray, start: FittedLaw | None = None
) -> FittedLaw:
    """Return `law` fitted to `values` [runs], measured on the mixtures `ratios` [runs, domains]. `censored`,
    bool [runs], marks the runs without a value; their entries in `values` are ignored.

    The law is first fitted to the measured runs. Then each censored run is assigned the worse of the law's
    prediction for it and the worst measured value, and the law is fitted again, until the predictions
    converge (at most 20 times). This minimises the law's loss with a one-sided error for censored runs: a
    prediction worse than the worst measured value costs nothing (the iteration of Buckley and James, 1979,
    without their correction for the tail).
    """
    measured = ~censored
    fitted = law.fit(ratios[measured], values[measured], start)
    if measured.all():
        return fitted
    worst, spread = values[measured].max(), np.ptp(values[measured])
    filled = np.where(censored, np.inf, values)
    for _ in range(_IMPUTATIONS):
        again = np.where(censored, np.maximum(worst, fitted.predict(ratios)), values)
        if np.abs(again - filled).max() <= _SETTLED * spread:
            break
        filled = again
        fitted = law.fit(ratios, filled, fitted)
    return fitted
