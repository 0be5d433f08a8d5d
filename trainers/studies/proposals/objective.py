"""The objective that a proposal minimises, and the search for its minimum."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from trainers.studies.laws.law_set import LawSet
from trainers.studies.proposals.constraints import MixtureConstraints

_SMALLEST = 1e-12  # smaller shares count as this one in the logarithm of the divergence
_POOL, _AVERAGED = 2000, 40  # random mixtures per pool if a law has no derivatives; the number of best ones averaged
_WIDTHS = (1.0, 0.5, 0.5, 0.2, 0.2, 0.1)  # of the pools around the best mixture so far, relative to the first pool
_STARTS = 12  # random starting points if a law is not convex


@dataclass(frozen=True)
class MixtureObjective:
    """The function that a proposal minimises: the weighted mean of the predicted metrics, plus `kl` times the
    Kullback-Leibler divergence, in nats, of the mixture from `prior` [domains]. `weights` [metrics] sum to 1.
    """

    laws: LawSet
    weights: np.ndarray
    kl: float
    prior: np.ndarray

    def value(self, ratios: np.ndarray) -> np.ndarray:
        """Return the objective of each mixture, [mixtures]."""
        return self.laws.predict(ratios, self.weights) + self.penalty(ratios)

    def penalty(self, ratios: np.ndarray) -> np.ndarray:
        """Return the divergence term of the objective for each mixture, [mixtures]."""
        if not self.kl:
            return np.zeros(len(ratios))
        return self.kl * (ratios * self._logarithms(ratios)).sum(axis=1)

    def gradient(self, ratios: np.ndarray) -> np.ndarray:
        """Return the derivatives of `value` with respect to each share, [mixtures, domains]."""
        slopes = self.laws.gradient(ratios, self.weights)
        return slopes + self.kl * (1 + self._logarithms(ratios)) if self.kl else slopes

    def _logarithms(self, ratios: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(ratios, _SMALLEST) / np.maximum(self.prior, _SMALLEST))


def minimise(
    objective: MixtureObjective,
    constraints: MixtureConstraints,
    seed: int = 0,
    starts: Sequence[np.ndarray] = (),
) -> np.ndarray:
    """Return the mixture [domains] with the lowest objective found within the constraints.

    The search is sequential quadratic programming (SLSQP; Kraft, 1988) from each of `starts`, which must
    satisfy the constraints. By default, it starts from the prior, the uniform mixture and, unless the laws
    are convex, random mixtures. If a law has no derivatives, random mixtures are searched instead.
    """
    from scipy.optimize import minimize

    if not starts:
        uniform = np.full_like(objective.prior, 1 / len(objective.prior))
        starts = [constraints.project(objective.prior), constraints.project(uniform)]
        starts.extend([] if objective.laws.is_convex else constraints.sample(_STARTS, seed))
    if not objective.laws.is_smooth:
        return _search_samples(objective, constraints, np.array(starts), seed)
    level = float(objective.value(starts[0][None])[0])
    scale = float(np.abs(objective.gradient(starts[0][None])).max()) or 1.0
    sums = {"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: np.ones((1, len(x)))}
    bounds = list(zip(constraints.lower, constraints.upper, strict=True))
    search = partial(minimize, jac=True, method="SLSQP", bounds=bounds, constraints=[sums])

    def scaled(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = x[None]
        return (float(objective.value(at)[0]) - level) / scale, objective.gradient(at)[0] / scale

    results = [search(scaled, start, options={"ftol": 1e-12, "maxiter": 500}) for start in starts]
    found = np.array(
        [constraints.project(result.x) for result in results if np.isfinite(result.x).all()] + list(starts)
    )
    return np.asarray(found[int(np.argmin(objective.value(found)))])


def _search_samples(
    objective: MixtureObjective, constraints: MixtureConstraints, starts: np.ndarray, seed: int
) -> np.ndarray:
    """Return the best mixture found, [domains]. The search starts from the best of `starts` and contracts a
    pool of random mixtures around the best mixture so far, in several steps. Each step tries the mean of the
    40 best mixtures in the pool.

    The mean is taken, as in RegMix, because the single best of many predictions is usually the one with the
    luckiest error. Uniform draws rarely come close to mixtures of few domains, so each draw is moved towards
    the allowed mixture with the largest share of a random domain.
    """
    generator, domains = np.random.default_rng(seed), len(constraints.domains)
    corners = np.stack([constraints.project(1e3 * one) for one in np.eye(domains)])[
        generator.integers(0, domains, _POOL)
    ]
    pool = corners + generator.random((_POOL, 1)) * (constraints.sample(_POOL, seed) - corners)
    best = starts[int(np.argmin(objective.value(starts)))]
    for width in _WIDTHS:
        tried = best + width * (pool - best)
        centre = tried[np.argsort(objective.value(tried), kind="stable")[:_AVERAGED]].mean(axis=0)
        at = np.stack([best, constraints.project(centre)])
        best = at[int(np.argmin(objective.value(at)))]
    return np.asarray(best)
