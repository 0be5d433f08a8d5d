"""A law of mixtures for runs of several sizes: y = f(x) + sum_j A_j (S_j^-a_j - T_j^-a_j).

f is any law of the mixture x, S_j is a size of the run (its parameters or its tokens), and T_j is the
corresponding size of the target. For a run of the target's size, the law is f alone. Adding the size term of
Hoffmann et al. (2022) to f makes this the additive law of Shukor et al. (2025). We compared it with a law in
which size multiplies the effect of the mixture, on RegMix's runs of 1M and 60M parameters: with 8 to 64 large
runs in the fit, the error of the multiplicative law on held-out large runs is two to six times as high.
"""

from dataclasses import dataclass

import numpy as np

from trainers.studies.laws.regression_law import FittedLaw, Law

_EXPONENT = 0.31  # between those of parameters and tokens in Hoffmann et al. (2022); used with fewer than three sizes
_EXPONENTS = np.linspace(0.05, 1.0, 20)
_ROUNDS = 30
_SETTLED = 1e-5  # the fit has converged if the size term changes by at most this share of the spread


@dataclass(frozen=True)
class SizedLaw:
    """The family of laws for runs of several sizes: `law`, which predicts from the mixture, plus a size term.
    The last `sizes` columns of the inputs are log(size / size of the target).
    """

    law: Law
    sizes: int

    @property
    def name(self) -> str:
        """The name of the law of mixtures."""
        return self.law.name

    def minimum_runs(self, domains: int) -> int:
        """Return the smallest number of runs that a fit needs: as many as the law of mixtures, plus two for
        each size. `domains` includes the size columns.
        """
        return self.law.minimum_runs(domains - self.sizes) + 2 * self.sizes

    def require_library(self) -> None:
        """Raise UserError if the law of mixtures needs an extra that is not installed."""
        self.law.require_library()

    def fit(self, ratios: np.ndarray, values: np.ndarray, start: FittedLaw | None = None) -> "FittedSizedLaw":
        """Return the law fitted to `values` [runs]. The law of mixtures and the size term are fitted
        alternately, each to the residuals of the other.
        """
        mixtures, sizes = ratios[:, : -self.sizes], ratios[:, -self.sizes :]
        fitted, part = (
            (start.law, start.part(sizes)) if isinstance(start, FittedSizedLaw) else (None, np.zeros(len(values)))
        )
        factors, exponents = np.zeros(self.sizes), np.full(self.sizes, _EXPONENT)
        for _ in range(_ROUNDS):
            fitted = self.law.fit(mixtures, values - part, fitted)
            factors, exponents = _size_part(sizes, values - fitted.predict(mixtures))
            before, part = part, _part(sizes, factors, exponents)
            if np.abs(part - before).max() <= _SETTLED * np.ptp(values):
                break
        fitted = self.law.fit(mixtures, values - part, fitted)
        return FittedSizedLaw(fitted, factors, exponents)


@dataclass(frozen=True)
class FittedSizedLaw:
    """A fitted law for runs of several sizes: the law of mixtures, `law`, and a size term. For each size j,
    `factors` holds A_j T_j^-a_j and `exponents` holds a_j, as defined in the module.
    """

    law: FittedLaw
    factors: np.ndarray
    exponents: np.ndarray

    @property
    def is_convex(self) -> bool:
        """Whether the law of mixtures is convex."""
        return self.law.is_convex

    @property
    def is_smooth(self) -> bool:
        """Whether the law of mixtures is smooth."""
        return self.law.is_smooth

    def part(self, sizes: np.ndarray) -> np.ndarray:
        """Return the size term of each run, [runs], which is 0 at the target's size."""
        return _part(sizes, self.factors, self.exponents)

    def predict(self, ratios: np.ndarray) -> np.ndarray:
        """Return the predicted metric, [mixtures]. In `ratios`, the size columns follow the domains."""
        count = len(self.factors)
        return self.law.predict(ratios[:, :-count]) + self.part(ratios[:, -count:])

    def gradient(self, ratios: np.ndarray) -> np.ndarray:
        """Return the derivatives of `predict` with respect to each share and size column, [mixtures,
        columns].
        """
        count = len(self.factors)
        by_size = -self.factors * self.exponents * np.exp(-self.exponents * ratios[:, -count:])
        return np.concatenate([self.law.gradient(ratios[:, :-count]), by_size], axis=1)

    def parameters(self) -> dict[str, float | list[float]]:
        """Return the parameters of the law of mixtures, plus `size_factors` and `size_exponents` with one
        value for each size.
        """
        sizes = {"size_factors": self.factors.tolist(), "size_exponents": self.exponents.tolist()}
        return {**self.law.parameters(), **sizes}


def _part(sizes: np.ndarray, factors: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    return np.asarray((np.exp(-exponents * sizes) - 1) @ factors)


def _size_part(sizes: np.ndarray, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit a power law of each size, and one constant, to `residuals` by least squares. Returns the factors
    and the exponents, each [sizes]. A size with fewer than three different values has a fixed exponent.
    """
    exponents = np.full(sizes.shape[1], _EXPONENT)
    factors, best = _factors(sizes, residuals, exponents)
    for column in range(sizes.shape[1]):
        if len(np.unique(sizes[:, column])) < 3:
            continue
        for exponent in _EXPONENTS:
            tried = np.where(np.arange(len(exponents)) == column, exponent, exponents)
            its, error = _factors(sizes, residuals, tried)
            if error < best:
                factors, best, exponents = its, error, tried
    return factors, exponents


def _factors(sizes: np.ndarray, residuals: np.ndarray, exponents: np.ndarray) -> tuple[np.ndarray, float]:
    features = np.concatenate([np.exp(-exponents * sizes) - 1, np.ones((len(sizes), 1))], axis=1)
    solution = np.linalg.lstsq(features, residuals, rcond=None)[0]
    return solution[:-1], float(((residuals - features @ solution) ** 2).sum())
