"""Linear and quadratic laws: Scheffé's polynomials of mixtures (Scheffé, 1958), fitted by ridge regression.

Since the shares x_i of a mixture sum to 1, neither a constant nor squares are needed. A linear law is y = sum
b_i x_i; a quadratic law adds the sum of b_ij x_i x_j over i < j. The ridge penalty is chosen by generalised
cross-validation (Golub, Heath and Wahba, 1979).
"""

from dataclasses import dataclass

import numpy as np

from trainers.studies.laws.regression_law import FittedLaw

_RIDGES = np.logspace(-8, 2, 41)  # relative to the largest singular value


@dataclass(frozen=True)
class Polynomial:
    """The family of polynomial laws of degree 1 or 2."""

    name: str
    degree: int

    def minimum_runs(self, domains: int) -> int:
        """Return the smallest number of runs that a fit needs: one more than the number of domains. A
        quadratic law needs no more, because the ridge penalty determines the coefficients of the products.
        """
        return domains + 1

    def require_library(self) -> None:
        """Do nothing: this law needs no optional library."""

    def fit(self, ratios: np.ndarray, values: np.ndarray, start: FittedLaw | None = None) -> "FittedPolynomial":
        """Return the law fitted to `values` [runs]. `start` is ignored."""
        features = _features(ratios, self.degree)
        mean = values.mean()
        left, singular, right = np.linalg.svd(features, full_matrices=False)
        projected = left.T @ (values - mean)
        outside = max(0.0, float(((values - mean) ** 2).sum() - (projected**2).sum()))
        ridges = singular[0] ** 2 * _RIDGES[:, None]
        kept = singular**2 / (singular**2 + ridges)  # [ridges, singular values]
        errors = outside + (((1 - kept) * projected) ** 2).sum(axis=1)
        freedom = len(values) - kept.sum(axis=1)
        scores = np.where(freedom > 0.5, errors / np.maximum(freedom, 0.5) ** 2, np.inf)
        ridge = ridges[int(np.argmin(scores)), 0]
        coefficients = right.T @ (singular / (singular**2 + ridge) * projected)
        domains = ratios.shape[1]
        products = np.zeros((domains, domains))
        products[np.triu_indices(domains, 1)] = coefficients[domains:] if self.degree == 2 else 0.0
        return FittedPolynomial(coefficients[:domains] + mean, products + products.T)


@dataclass(frozen=True)
class FittedPolynomial:
    """The fitted law y = x . `linear` + x . `products` . x / 2 of a mixture x. `linear` is [domains];
    `products` is [domains, domains], symmetric with a zero diagonal.
    """

    linear: np.ndarray
    products: np.ndarray

    @property
    def is_convex(self) -> bool:
        """Whether the curvature is 0 or more in every direction within the simplex."""
        domains = len(self.linear)
        within = np.eye(domains) - 1 / domains
        curvatures = np.linalg.eigvalsh(within @ self.products @ within)
        return bool(curvatures[0] >= -1e-12 * max(1.0, abs(curvatures[-1])))

    @property
    def is_smooth(self) -> bool:
        """True: a polynomial has derivatives everywhere."""
        return True

    def predict(self, ratios: np.ndarray) -> np.ndarray:
        """Return the predicted metric, [mixtures]."""
        return ratios @ self.linear + 0.5 * ((ratios @ self.products) * ratios).sum(axis=1)

    def gradient(self, ratios: np.ndarray) -> np.ndarray:
        """Return the derivatives of `predict` with respect to each share, [mixtures, domains]."""
        return self.linear + ratios @ self.products

    def parameters(self) -> dict[str, float | list[float]]:
        """Return the coefficients: `linear`, and the entries of `products` above the diagonal, row by row.
        The list of products is empty if all are 0.
        """
        above = self.products[np.triu_indices(len(self.linear), 1)]
        return {"linear": self.linear.tolist(), "products": above.tolist() if above.any() else []}


def _features(ratios: np.ndarray, degree: int) -> np.ndarray:
    if degree == 1:
        return ratios
    first, second = np.triu_indices(ratios.shape[1], 1)
    return np.concatenate([ratios, ratios[:, first] * ratios[:, second]], axis=1)
