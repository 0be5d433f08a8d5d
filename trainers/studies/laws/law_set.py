"""The laws of all metrics of a study, and their uncertainty: each law is also fitted to bootstrap draws of
the runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainers.studies.laws.regression_law import FittedLaw, Law, fit_censored
from trainers.studies.laws.single_thread import single_threaded
from trainers.studies.laws.sized_law import FittedSizedLaw

_ATTEMPTS = 20  # attempts to draw enough measured runs before all runs are used instead


@dataclass(frozen=True)
class LawSet:
    """A fitted law for each of `metrics`. `resampled` holds, for each bootstrap draw of the runs (Efron,
    1979), the same laws fitted to that draw. All laws of a draw are fitted to the same runs.
    """

    domains: tuple[str, ...]
    metrics: tuple[str, ...]
    laws: tuple[FittedLaw, ...]
    resampled: tuple[tuple[FittedLaw, ...], ...]

    @property
    def is_convex(self) -> bool:
        """Whether every law is convex, so that every weighted mean of them is convex too."""
        return all(law.is_convex for law in self.laws)

    @property
    def is_smooth(self) -> bool:
        """Whether every law is smooth, so that `gradient` returns true derivatives."""
        return all(law.is_smooth for law in self.laws)

    def predict(self, ratios: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted mean of each mixture's predicted metrics, [mixtures]. `weights` [metrics] must
        sum to 1.
        """
        return _weighted(self.laws, ratios, weights)

    def gradient(self, ratios: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the derivatives of `predict` (or approximate slopes, see `is_smooth`) with respect to each
        mixture's shares, [mixtures, domains].
        """
        return np.sum([w * law.gradient(ratios) for w, law in zip(weights, self.laws, strict=True) if w], axis=0)

    def predict_resampled(self, ratios: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the same weighted means as `predict`, but from the laws of each bootstrap draw, [draws,
        mixtures].
        """
        return np.array([_weighted(laws, ratios, weights) for laws in self.resampled])

    def effects(self, ratios: np.ndarray) -> np.ndarray:
        """Return the effect of each domain on each metric, [metrics, domains]: the change of the metric, to
        first order, if the domain replaces 1 % of the mixture `ratios` [domains].
        """
        return _effects(self.laws, ratios)

    def mean_effects(self, ratios: np.ndarray, weights: np.ndarray) -> dict[str, dict[str, float | None]]:
        """Return the effect of each domain (see `effects`) on the weighted mean of the metrics, keyed by
        domain: `effect`, and the ends of its 95 % bootstrap interval, `low` and `high`, which are None
        without draws. `weights` [metrics] must sum to 1.
        """
        best = weights @ _effects(self.laws, ratios)
        drawn = np.array([weights @ _effects(laws, ratios) for laws in self.resampled])
        limits = np.quantile(drawn, [0.025, 0.975], axis=0).tolist() if len(drawn) else [[None] * len(best)] * 2
        rows = zip(self.domains, best.tolist(), *limits, strict=True)
        return {name: {"effect": effect, "low": low, "high": high} for name, effect, low, high in rows}


@single_threaded()
def fit_laws(
    laws: Sequence[Law],
    domains: Sequence[str],
    metrics: Sequence[str],
    ratios: np.ndarray,
    values: np.ndarray,
    censored: np.ndarray,
    draws: int = 200,
    seed: int = 0,
) -> LawSet:
    """Fit each of `laws`, one per metric, to its column of `values` [runs, metrics], and again to each of
    `draws` bootstrap draws of the runs. `ratios` holds the mixtures of the runs, [runs, domains], followed by
    the size columns for laws with sizes (`SizedLaw`). `censored`, bool [runs, metrics], marks missing values.
    The size term of a law with sizes is left out of the result, so the law predicts for the target's size.
    """
    columns = [(law, values[:, m], censored[:, m]) for m, law in enumerate(laws)]
    fitted = tuple(fit_censored(law, ratios, column, missing) for law, column, missing in columns)
    generator, resampled = np.random.default_rng(seed), []
    least = max(law.minimum_runs(ratios.shape[1]) for law in laws)
    for _ in range(draws):
        rows = _draw(generator, censored, least)
        again = [
            fit_censored(law, ratios[rows], column[rows], missing[rows], start)
            for (law, column, missing), start in zip(columns, fitted, strict=True)
        ]
        resampled.append(_at_target(again))
    return LawSet(tuple(domains), tuple(metrics), _at_target(fitted), tuple(resampled))


def _at_target(laws: Sequence[FittedLaw]) -> tuple[FittedLaw, ...]:
    return tuple(law.law if isinstance(law, FittedSizedLaw) else law for law in laws)


def _draw(generator: np.random.Generator, censored: np.ndarray, least: int) -> np.ndarray:
    for _ in range(_ATTEMPTS):
        rows = generator.integers(0, len(censored), len(censored))
        if (~censored[rows]).sum(axis=0).min() >= least:
            return rows
    return np.arange(len(censored))


def _effects(laws: Sequence[FittedLaw], ratios: np.ndarray) -> np.ndarray:
    gradients = np.stack([law.gradient(ratios[None])[0] for law in laws])
    return np.asarray(0.01 * (gradients - (gradients @ ratios)[:, None]))


def _weighted(laws: Sequence[FittedLaw], ratios: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.sum([w * law.predict(ratios) for w, law in zip(weights, laws, strict=True) if w], axis=0)
