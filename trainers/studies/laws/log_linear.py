"""The log-linear law y = c + exp(k + w.x) of a metric y and a mixture x, the regression of Data Mixing Laws
(Ye et al., 2024, equation 1).

Since the shares of a mixture sum to 1, k is absorbed into w: y = c + exp(w.x). The law is convex.
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
points lead to the best minimum: on draws of 32 to 512 of RegMix's runs, all four lead to it in each of 40 fits.
"""
_FARTHEST = 100.0  # spreads from c to the lowest value, at most: farther away, the law is linear to within 1 %
_EXPONENT = 30.0  # exponents are clipped to this, so that a bad step of the search stays finite
_SAME = 1e-5  # relative difference of two losses below which two searches found the same minimum
_GAIN = 1e-10  # the search has converged if a step lowers the loss by less, in squares of the spread
_STEPS = 200  # of the search, at most; three to six are usual
_DAMPING, _LESS, _MORE = 1e-3, 8.0, 4.0  # of the search: at first, and its division and multiplication after a step
_STUCK = 1e8  # damping at which no step lowers the loss, so that rounding decides


@dataclass(frozen=True)
class LogLinear:
    """The log-linear law, fitted by minimising the Huber loss plus a small ridge penalty."""

    name: str = "log_linear"

    def minimum_runs(self, domains: int) -> int:
        """Return the smallest number of runs that a fit needs: one more than the number of parameters."""
        return domains + 2

    def require_library(self) -> None:
        """Do nothing: this law needs no optional library."""

    def fit(self, ratios: np.ndarray, values: np.ndarray, start: FittedLaw | None = None) -> "FittedLogLinear":
        """Return the law fitted to `values` [runs], measured on the mixtures `ratios` [runs, domains]. The
        search begins at `start` if that is a log-linear law with finite weights.
        """
        centre, spread = _centre_and_spread(values)
        if spread == 0:
            return FittedLogLinear(float(values[0]), np.full(ratios.shape[1], -np.inf))
        scaled = (values - centre) / spread
        lowest = float(scaled.min())
        if isinstance(start, FittedLogLinear) and np.isfinite(start.weights).all():
            # Of other values, its offset may lie above all of these.
            offset = min((start.offset - centre) / spread, lowest - _OFFSETS[0])
            starts = [np.append(start.weights - np.log(spread), offset)]
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
    """The fitted law y = `offset` + exp(`weights` . x) of a mixture x, with `weights` [domains]."""

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
        """Return the derivatives of `predict` with respect to each share, [mixtures, domains]."""
        excess = self._excess(ratios)
        return excess[:, None] * np.where(np.isfinite(self.weights), self.weights, 0.0)

    def parameters(self) -> dict[str, float | list[float]]:
        """Return `offset` and `weights` by name. The weights of a constant metric, which are minus infinity,
        become -1e300.
        """
        return {"offset": self.offset, "weights": np.where(np.isfinite(self.weights), self.weights, -1e300).tolist()}

    def _excess(self, ratios: np.ndarray) -> np.ndarray:
        if not np.isfinite(self.weights).all():  # a constant metric
            return np.zeros(len(ratios))
        return np.exp(ratios @ self.weights)


def _centre_and_spread(values: np.ndarray) -> tuple[float, float]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(middle), float((high - low) / 1.349 or np.std(values))  # 1.349: between a normal's quartiles


def _start(ratios: np.ndarray, values: np.ndarray, offset: float) -> np.ndarray:
    logarithms = np.log(values - offset)
    mean = logarithms.mean()
    gram = ratios.T @ ratios + 1e-2 * np.eye(ratios.shape[1])
    return np.append(np.linalg.solve(gram, ratios.T @ (logarithms - mean)) + mean, offset)


def _search(parameters: np.ndarray, ratios: np.ndarray, values: np.ndarray, lowest: float) -> tuple[np.ndarray, float]:
    """Minimise the loss from the starting point `parameters` by the method of Levenberg (1944) and Marquardt
    (1963). Returns the parameters found and their loss. The last parameter, the offset, is at least `lowest`.

    In the search, the law is y = m + (exp(s v.x) - 1) / s, where m is the highest value, v holds the slopes
    at y = m, and s is the curvature. It follows that w = s v - log s and c = m - 1 / s. Unlike w and c, v and
    s are hardly correlated.
    """
    highest = float(values.max())
    flattest = 1 / (highest - lowest)
    curvature = 1 / (highest - parameters[-1])
    found = np.append((parameters[:-1] + np.log(curvature)) / curvature, curvature)
    (loss, gradient, second), damping = _loss(found, ratios, values - highest), _DAMPING
    for _ in range(_STEPS):
        scale = np.diag(second) + 1e-12 * np.trace(second)
        free = len(found) - (found[-1] <= flattest and gradient[-1] > 0)
        while damping < _STUCK:
            damped = second[:free, :free] + damping * np.diag(scale[:free])
            tried = found.copy()
            tried[:free] -= np.linalg.solve(damped, gradient[:free])
            tried[-1] = min(max(tried[-1], flattest), 3 * found[-1])  # farther than threefold, exponents may overflow
            after = _loss(tried, ratios, values - highest)
            if after[0] <= loss:
                break
            damping *= _MORE
        else:
            break
        gain = loss - after[0]
        found, (loss, gradient, second), damping = tried, after, damping / _LESS
        if gain <= _GAIN:
            break
    slopes, curvature = found[:-1], found[-1]
    return np.append(curvature * slopes - np.log(curvature), highest - 1 / curvature), loss


def _loss(parameters: np.ndarray, ratios: np.ndarray, values: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    slopes, curvature, runs, domains = parameters[:-1], parameters[-1], len(values), ratios.shape[1]
    linear = ratios @ slopes
    exponentials = np.exp(np.minimum(curvature * linear, _EXPONENT))
    rises = (exponentials - 1) / curvature
    residuals = rises - values
    # Sums and minima of these short arrays take half the time of np.mean and np.clip.
    limited = np.minimum(np.maximum(residuals, -_HUBER), _HUBER)
    deviations, ridge = slopes - slopes.sum() / domains, _RIDGE / runs
    spread, mixed = ridge * deviations @ deviations, ridge * curvature * deviations
    loss = limited @ (residuals - 0.5 * limited) / runs + 0.5 * curvature**2 * spread

    changes = np.empty((runs, domains + 1))
    changes[:, :-1] = exponentials[:, None] * ratios
    changes[:, -1] = (linear * exponentials - rises) / curvature
    weights = _HUBER / np.maximum(np.abs(residuals), _HUBER) / runs
    gradient, second = changes.T @ (limited / runs), changes.T @ (weights[:, None] * changes)
    gradient += curvature * np.append(mixed, spread)
    second[:-1, :-1] += ridge * curvature**2 * (np.eye(domains) - 1 / domains)
    second[:-1, -1] += mixed
    second[-1, :-1] += mixed
    second[-1, -1] += spread
    return float(loss), gradient, second
