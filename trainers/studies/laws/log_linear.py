"""The log-linear law y = c + exp(k + w.x), the regression of Data Mixing Laws (Ye et al., 2024, equation 1).
Olmix uses it too.

The shares of a mixture sum to 1, so k is part of w here: y = c + exp(w.x). The law is convex, its predictions
are always above c, and a domain with a large w_i worsens the metric.
"""

from dataclasses import dataclass

import numpy as np

from trainers.studies.laws.regression_law import FittedLaw

_HUBER = 1.0
"""Threshold of Huber's loss, in units of the spread of the values. Larger residuals count linearly, so a
single failed run does not dominate. The residuals of RegMix's 512 runs are a quarter of the spread.
"""
_RIDGE = 1e-3
"""Weight of the squared deviations of w from their mean, divided by the number of runs. On draws of 32 of
RegMix's runs it raises the Spearman correlation on the test mixtures from .89 (at 1e-4) to .91. From 64 runs
on it makes no difference.
"""
_OFFSETS = (0.05, 0.3, 1.0, 3.0)
"""Starting points of c, as distances below the lowest value in units of the spread. With c fixed, the
logarithm of y - c is linear in x, which yields the starting point of w. The search ends once two starting
points lead to the best minimum: on draws of 32 to 512 of RegMix's runs, all four lead to it in 38 of 39 fits,
and three of them in the other.
"""
_FARTHEST = 100.0  # spreads from c to the lowest value, at most: farther away, the law is linear to within 1 %
_EXPONENT = 30.0  # exponents are clipped to this, so that a bad step of the search stays finite
_SAME = 1e-5  # relative difference of two losses below which two searches found the same minimum
_STEPS = 20  # of L-BFGS before its coordinates are chosen again
_ROUNDS = 50  # of choosing coordinates, at most; one to three are usual
_DAMPING = 1e-9  # share of the mean curvature that is added to every direction, so that flat ones have a scale too


@dataclass(frozen=True)
class LogLinear:
    """The law as a family, fitted by minimising Huber's loss with L-BFGS from several starting points."""

    name: str = "log_linear"

    def minimum_runs(self, domains: int) -> int:
        """Return one more than the number of parameters: one weight per domain, and the offset."""
        return domains + 2

    def require_library(self) -> None:
        """Do nothing: no extra is needed."""

    def fit(self, ratios: np.ndarray, values: np.ndarray, start: FittedLaw | None = None) -> "FittedLogLinear":
        """Return the law fitted to `values` [runs]. If `start` is log-linear, it is the only starting
        point.
        """
        centre, spread = _centre_and_spread(values)
        if spread == 0:
            return FittedLogLinear(float(values[0]), np.full(ratios.shape[1], -np.inf))
        scaled = (values - centre) / spread
        lowest = float(scaled.min())
        if isinstance(start, FittedLogLinear) and np.isfinite(start.weights).all():
            starts = [np.append(start.weights - np.log(spread), (start.offset - centre) / spread)]
        else:
            starts = [_start(ratios, scaled, lowest - offset) for offset in _OFFSETS]
        found: list[tuple[np.ndarray, float]] = []
        for x in starts:
            found.append(_search(x, ratios, scaled, lowest - _FARTHEST))
            least, *others = sorted(loss for _, loss in found)
            if others and others[0] - least <= _SAME * least:
                break
        best = min(found, key=lambda result: result[1])[0]
        return FittedLogLinear(float(best[-1] * spread + centre), best[:-1] + np.log(spread))


@dataclass(frozen=True)
class FittedLogLinear:
    """The fitted law y = `offset` + exp(`weights` . x), with `weights` [domains]."""

    offset: float
    weights: np.ndarray

    @property
    def is_convex(self) -> bool:
        """True: the exponential of a linear function is convex."""
        return True

    @property
    def is_smooth(self) -> bool:
        """True: the law has derivatives everywhere."""
        return True

    def predict(self, ratios: np.ndarray) -> np.ndarray:
        """Return the predicted metric, [mixtures]."""
        return self.offset + self._excess(ratios)

    def gradient(self, ratios: np.ndarray) -> np.ndarray:
        """Return the derivatives of `predict` by each share, [mixtures, domains]."""
        excess = self._excess(ratios)
        return excess[:, None] * np.where(np.isfinite(self.weights), self.weights, 0.0)

    def parameters(self) -> dict[str, float | list[float]]:
        """Return the offset c and the weights, which include k."""
        return {"offset": self.offset, "weights": np.where(np.isfinite(self.weights), self.weights, -1e300).tolist()}

    def _excess(self, ratios: np.ndarray) -> np.ndarray:
        if not np.isfinite(self.weights).all():  # a constant metric
            return np.zeros(len(ratios))
        return np.exp(ratios @ self.weights)


def _centre_and_spread(values: np.ndarray) -> tuple[float, float]:
    """Return the median and the standard deviation of `values`. The latter is estimated from the quartiles
    unless these are equal.
    """
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(middle), float((high - low) / 1.349 or np.std(values))  # 1.349: between a normal's quartiles


def _start(ratios: np.ndarray, values: np.ndarray, offset: float) -> np.ndarray:
    logarithms = np.log(values - offset)
    mean = logarithms.mean()
    gram = ratios.T @ ratios + 1e-2 * np.eye(ratios.shape[1])
    return np.append(np.linalg.solve(gram, ratios.T @ (logarithms - mean)) + mean, offset)


def _search(parameters: np.ndarray, ratios: np.ndarray, values: np.ndarray, lowest: float) -> tuple[np.ndarray, float]:
    """Return the minimum of the loss that L-BFGS finds from `parameters`, and the loss there. The last
    parameter, the offset, is at least `lowest`.

    The search runs in coordinates in which the loss has the same curvature in all directions: z = R p, where
    R is the triangular factor of the curvature. In the original coordinates, L-BFGS takes ten times as many
    steps, because the offset and the weights are strongly correlated. R is upper triangular, so the bound on
    the offset becomes a bound on the last coordinate.
    """
    from scipy.optimize import minimize

    loss = float("inf")
    for _ in range(_ROUNDS):
        factor = np.linalg.cholesky(_curvature(parameters, ratios, values)).T
        back = np.linalg.inv(factor)

        def scaled(z: np.ndarray, back: np.ndarray = back) -> tuple[float, np.ndarray]:
            value, gradient = _loss(back @ z, ratios, values)
            return value, back.T @ gradient

        bounds = [(None, None)] * ratios.shape[1] + [(lowest * factor[-1, -1], None)]
        start = factor @ parameters
        result = minimize(scaled, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS})
        parameters, loss = back @ result.x, float(result.fun)
        if result.nit < _STEPS:
            break
    return parameters, loss


def _curvature(parameters: np.ndarray, ratios: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the approximate second derivatives of the loss: those of squared residuals, weighted as Huber's
    loss weights them (Gauss and Newton; Holland and Welsch, 1977).
    """
    weights, offset = parameters[:-1], parameters[-1]
    excess = np.exp(np.minimum(ratios @ weights, _EXPONENT))
    importance = _HUBER / np.maximum(np.abs(offset + excess - values), _HUBER) / len(values)
    slopes = np.concatenate([excess[:, None] * ratios, np.ones((len(values), 1))], axis=1)
    second, domains = slopes.T @ (importance[:, None] * slopes), len(weights)
    second[:domains, :domains] += _RIDGE / len(values) * (np.eye(domains) - 1 / domains)
    return np.asarray(second + _DAMPING * np.trace(second) / len(second) * np.eye(len(second)))


def _loss(parameters: np.ndarray, ratios: np.ndarray, values: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean loss and its gradient with respect to the weights and the offset."""
    weights, offset, runs = parameters[:-1], parameters[-1], len(values)
    excess = np.exp(np.minimum(ratios @ weights, _EXPONENT))
    residuals = excess + (offset - values)
    # Sums and minima of these short arrays take half the time of np.mean, np.clip and np.append.
    slopes = np.minimum(np.maximum(residuals, -_HUBER), _HUBER)
    deviations, ridge = weights - weights.sum() / len(weights), _RIDGE / runs
    loss = slopes @ (residuals - 0.5 * slopes) / runs + 0.5 * ridge * deviations @ deviations
    slopes /= runs
    gradient = np.empty_like(parameters)
    gradient[:-1] = ratios.T @ (slopes * excess) + ridge * deviations
    gradient[-1] = slopes.sum()
    return float(loss), gradient
