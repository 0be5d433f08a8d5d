"""A Gaussian process over mixtures (Rasmussen and Williams, 2006, chapters 2 and 5): the law for a metric
that follows no formula.

The metric is standardised before the fit. The kernel of two mixtures x and z is s^2 exp(-|x - z|^2 / (2 l^2))
+ a^2 x.z, and the variance of the noise is n^2. The four parameters s, l, a and n maximise the marginal
likelihood.
"""

from dataclasses import dataclass

import numpy as np

from trainers.studies.laws.regression_law import FittedLaw

_STARTS = ((0.0, -1.0, 0.0, -1.5), (0.0, 0.5, 0.0, -1.5))  # logarithms of s, l, a, n of standardised values
_BOUNDS = ((-4.0, 4.0), (-3.0, 3.0), (-4.0, 4.0), (-6.0, 1.0))


@dataclass(frozen=True)
class GaussianProcess:
    """The family of Gaussian-process laws with the kernel that the module describes."""

    name: str = "gaussian_process"

    def minimum_runs(self, domains: int) -> int:
        """Return the smallest number of runs that a fit needs: twice the number of domains."""
        return 2 * domains

    def require_library(self) -> None:
        """Do nothing: this law needs no optional library."""

    def fit(self, ratios: np.ndarray, values: np.ndarray, start: FittedLaw | None = None) -> "FittedProcess":
        """Return the law fitted to `values` [runs]. If `start` is a fitted Gaussian process, its s, l, a and
        n are kept.
        """
        from scipy.linalg import cho_factor, cho_solve
        from scipy.optimize import minimize

        mean, spread = float(values.mean()), float(values.std()) or 1.0
        scaled = (values - mean) / spread
        distances, products = _distances(ratios, ratios), ratios @ ratios.T
        if isinstance(start, FittedProcess):
            chosen = start.logarithms
        else:
            results = [
                minimize(_evidence, x, (distances, products, scaled), jac=True, method="L-BFGS-B", bounds=_BOUNDS)
                for x in _STARTS
            ]
            chosen = min(results, key=lambda result: result.fun).x
        factor = cho_factor(_covariance(chosen, distances, products), lower=True)
        return FittedProcess(mean, spread, chosen, ratios, cho_solve(factor, scaled))


@dataclass(frozen=True)
class FittedProcess:
    """A fitted Gaussian process. For a mixture x, it predicts `mean` plus `spread` times sum_i
    `coefficients`[i] k(x, `runs`[i]), where k is the kernel. `logarithms` holds log s, log l, log a and log
    n.
    """

    mean: float
    spread: float
    logarithms: np.ndarray
    runs: np.ndarray
    coefficients: np.ndarray

    @property
    def is_convex(self) -> bool:
        """False: the posterior mean need not be convex."""
        return False

    @property
    def is_smooth(self) -> bool:
        """True: the posterior mean has derivatives everywhere."""
        return True

    def predict(self, ratios: np.ndarray) -> np.ndarray:
        """Return the predicted metric, [mixtures]."""
        radial, linear = self._kernels(ratios)
        return self.mean + self.spread * (radial + linear) @ self.coefficients

    def gradient(self, ratios: np.ndarray) -> np.ndarray:
        """Return the derivatives of `predict` with respect to each share, [mixtures, domains]."""
        radial, _ = self._kernels(ratios)
        length, slope = np.exp(2 * self.logarithms[1]), np.exp(2 * self.logarithms[2])
        weighted = radial * self.coefficients
        inner = (weighted @ self.runs - weighted.sum(axis=1)[:, None] * ratios) / length
        return self.spread * (inner + slope * (self.coefficients @ self.runs))

    def parameters(self) -> dict[str, float | list[float]]:
        """Return the kernel's s, l and a and the noise's n by name, for metric values scaled to mean 0 and
        variance 1.
        """
        return dict(zip(("s", "l", "a", "n"), np.exp(self.logarithms).tolist(), strict=True))

    def _kernels(self, ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scale, length, slope, _ = np.exp(2 * self.logarithms)
        radial = scale * np.exp(-0.5 * _distances(ratios, self.runs) / length)
        return radial, slope * ratios @ self.runs.T


def _distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the squared Euclidean distances between the rows of `first` and `second`, [first, second]."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2 * first @ second.T
    return np.maximum(squares, 0.0)


def _covariance(logarithms: np.ndarray, distances: np.ndarray, products: np.ndarray) -> np.ndarray:
    scale, length, slope, noise = np.exp(2 * logarithms)
    return scale * np.exp(-0.5 * distances / length) + slope * products + (noise + 1e-9) * np.eye(len(distances))


def _evidence(
    logarithms: np.ndarray, distances: np.ndarray, products: np.ndarray, values: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the negative log marginal likelihood, up to a constant, and its gradient with respect to
    `logarithms` (Rasmussen and Williams, equations 5.8 and 5.9).
    """
    from scipy.linalg import cho_factor, cho_solve

    scale, length, slope, noise = np.exp(2 * logarithms)
    radial = scale * np.exp(-0.5 * distances / length)
    factor = cho_factor(_covariance(logarithms, distances, products), lower=True)
    solved, inverse = cho_solve(factor, values), cho_solve(factor, np.eye(len(values)))
    likelihood = 0.5 * values @ solved + np.log(np.diag(factor[0])).sum()
    inner = inverse - np.outer(solved, solved)
    by_kernel = [2 * radial, radial * distances / length, 2 * slope * products]
    gradient = [0.5 * (inner * by).sum() for by in by_kernel] + [noise * np.trace(inner)]
    return float(likelihood), np.array(gradient)
