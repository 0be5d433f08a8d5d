"""Fit the scaling law L(N, D) = E + A / N^a + B / D^b (Hoffmann et al., 2022, equation 2), with bootstrap
intervals.

N is the number of parameters and D the number of training tokens. As in that paper, L-BFGS minimises the
Huber loss of the difference in log L, from a grid of starting points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gristmill.errors import ConfigError
from trainers.studies.laws.single_thread import single_threaded

_HUBER = 1e-3  # threshold in log L (Hoffmann et al., 2022, section D.2)
_STARTS = tuple((e, a, b) for e in (-1.0, 0.0, 1.0) for a in (0.2, 0.5) for b in (0.2, 0.5))  # log E, exponents
_PARAMETERS = 5
_DAMPING = 1e-9  # share of the curvature that is added to every direction, so that flat ones have a scale too
_STEPS, _ROUNDS = 30, 20  # of L-BFGS before its coordinates are chosen again; of choosing them, at most
_PRECISION, _DRAWN_PRECISION = 1e-13, 1e-10  # relative change of the loss that ends the search for all runs, for a draw
_LEAST_LEVELS = 3
"""The fewest different sizes, and the fewest different numbers of tokens, in a fit. Two cannot distinguish a power law
from a constant.
"""


@dataclass(frozen=True)
class ScalingLaw:
    """The law L(N, D) = exp(`logarithms`[0]) + exp(`logarithms`[1]) / N^a + exp(`logarithms`[2]) / D^b for a
    model of N parameters trained on D tokens. `exponents` holds a and b.
    """

    logarithms: np.ndarray
    exponents: np.ndarray

    def predict(self, parameters: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the predicted loss of each run, [runs], given its `parameters` and `tokens`, both [runs]."""
        return np.exp(_log_loss(np.append(self.logarithms, self.exponents), np.log(parameters), np.log(tokens))[0])

    def coefficients(self) -> dict[str, float]:
        """Return E, A, B, a and b by name."""
        values = [*np.exp(self.logarithms).tolist(), *self.exponents.tolist()]
        return dict(zip(("E", "A", "B", "a", "b"), values, strict=True))

    @property
    def model_share(self) -> float:
        """The exponent with which the compute-optimal model size N grows with compute C: N ~ C^(b / (a + b)),
        where C ~ N D. NaN if a + b is 0.
        """
        total = float(self.exponents.sum())
        return float(self.exponents[1]) / total if total else float("nan")


@dataclass(frozen=True)
class ScalingFit:
    """A scaling law fitted to runs. `resampled` holds the laws fitted to the bootstrap draws."""

    law: ScalingLaw
    resampled: tuple[ScalingLaw, ...]

    def interval(self, values: Sequence[float]) -> tuple[float, float]:
        """Return the ends of the 95 % interval of a quantity, given its value for each law in `resampled`."""
        low, high = np.quantile(np.array(values), [0.025, 0.975])
        return float(low), float(high)


@single_threaded()
def fit_scaling(
    parameters: np.ndarray, tokens: np.ndarray, losses: np.ndarray, draws: int = 200, seed: int = 0
) -> ScalingFit:
    """Fit the law to runs with `parameters`, `tokens` and finite `losses` above 0, each [runs], and to each
    of `draws` bootstrap samples.

    A bootstrap sample keeps the runs and draws the residuals in log L, because there are usually few runs.
    Residuals are scaled by (1 - 5 / runs)^-.5 (Efron and Tibshirani, 1993, section 9.3).

    Raises ConfigError if there are fewer than eight runs, or fewer than three different values of
    `parameters` or of `tokens`, or if a loss is not above 0.
    """
    for name, values in (("parameters", parameters), ("tokens", tokens)):
        if (levels := len(np.unique(values))) < _LEAST_LEVELS:
            raise ConfigError(
                f"{name}: the runs have {levels} different values; a scaling law needs {_LEAST_LEVELS} or more"
            )
    if len(losses) < _PARAMETERS + 3:
        raise ConfigError(
            f"losses: {len(losses)} runs have a value; a scaling law of 5 parameters needs {_PARAMETERS + 3} or more"
        )
    if (losses <= 0).any():
        raise ConfigError(f"losses: got {losses.min():g}, allowed above 0")
    at = np.log(parameters), np.log(tokens), np.log(losses)
    found = min((_search(np.array(start), *at) for start in _starts(*at)), key=lambda result: result[1])[0]
    fitted = _log_loss(found, *at[:2])[0]
    residuals = (at[2] - fitted) * (1 - _PARAMETERS / len(losses)) ** -0.5
    generator, resampled = np.random.default_rng(seed), []
    for _ in range(draws):
        drawn = fitted + generator.choice(residuals, len(residuals))
        resampled.append(_law(_search(found, *at[:2], drawn, _DRAWN_PRECISION)[0]))
    return ScalingFit(_law(found), tuple(resampled))


def _law(found: np.ndarray) -> ScalingLaw:
    return ScalingLaw(found[:3], found[3:])


def _starts(sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray) -> list[list[float]]:
    """Return the starting points of the search. In each, E is a share of the smallest loss; the other two
    terms, at the mean log size and the mean log number of tokens, add up to the rest of the mean loss.
    """
    starts = []
    for e, a, b in _STARTS:
        constant = float(np.exp(losses.min()) / (1 + np.exp(-e)))
        rest = np.log(max(1e-6, float(np.exp(losses).mean()) - constant) / 2)
        starts.append([np.log(constant), rest + a * float(sizes.mean()), rest + b * float(tokens.mean()), a, b])
    return starts


def _search(
    start: np.ndarray, sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray, precision: float = _PRECISION
) -> tuple[np.ndarray, float]:
    """Search from `start` for the parameters of the law that minimise the mean Huber loss. Return these
    parameters and this mean. `sizes`, `tokens` and `losses`, each [runs], are logarithms.
    """
    from scipy.optimize import minimize

    middle = float(sizes.mean()), float(tokens.mean())
    at = sizes - middle[0], tokens - middle[1]

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        predicted, slopes = _log_loss(x, *at)
        gaps = (predicted - losses) / _HUBER
        clipped = np.clip(gaps, -1, 1)
        return float((clipped * (gaps - 0.5 * clipped)).mean()), slopes.T @ clipped / (_HUBER * len(losses))

    x = np.append(start[:3] - np.array([0.0, middle[0] * start[3], middle[1] * start[4]]), start[3:])
    loss = float("inf")
    for _ in range(_ROUNDS):  # in coordinates of equal curvature, as in `log_linear`
        predicted, slopes = _log_loss(x, *at)
        importance = 1 / np.maximum(np.abs(predicted - losses), _HUBER)
        second = slopes.T @ (importance[:, None] * slopes) / (_HUBER * len(losses))
        back = np.linalg.inv(np.linalg.cholesky(second + _DAMPING * np.trace(second) * np.eye(_PARAMETERS)).T)

        def scaled(z: np.ndarray, origin: np.ndarray = x, back: np.ndarray = back) -> tuple[float, np.ndarray]:
            value, gradient = objective(origin + back @ z)
            return value, back.T @ gradient

        options = {"maxiter": _STEPS, "ftol": precision, "gtol": 1e-9}
        result = minimize(scaled, np.zeros(_PARAMETERS), jac=True, method="L-BFGS-B", options=options)
        x, before, loss = x + back @ result.x, loss, float(result.fun)
        if result.nit < _STEPS or before - loss <= precision * loss:
            break
    return np.append(x[:3] + np.array([0.0, middle[0] * x[3], middle[1] * x[4]]), x[3:]), loss


def _log_loss(x: np.ndarray, sizes: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log L of each run, [runs], and its derivatives with respect to `x`, [runs, 5]. `x` holds log E,
    log A, log B, a and b; `sizes` and `tokens` are logarithms.
    """
    terms = np.stack([np.full(len(sizes), x[0]), x[1] - x[3] * sizes, x[2] - x[4] * tokens], axis=1)
    highest = terms.max(axis=1)
    total = highest + np.log(np.exp(terms - highest[:, None]).sum(axis=1))
    shares = np.exp(terms - total[:, None])
    return total, np.concatenate([shares, -shares[:, 1:] * np.stack([sizes, tokens], axis=1)], axis=1)
