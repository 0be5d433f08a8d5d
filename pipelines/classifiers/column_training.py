"""Fit models of columns and of embeddings: logistic regression, which can fix the signs of coefficients,
ridge regression, and boosted trees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.errors import UserError
from gristmill.libraries.extras import install_extra
from pipelines.stages.score.column_model import ColumnModel, Method, ModelColumn, probability

_STEPS, _SWEEPS, _CONVERGED = 200, 1000, 1e-10


@dataclass(frozen=True)
class RegressionKnobs:
    """Arguments of the method `regression` (logistic regression)."""

    l2: float = 1.0
    """L2 penalty, above 0: half of this times the sum of the squared weights of the standardised columns is
    added to the sum of the losses.
    """

    def check(self) -> None:
        """Raise ValueError for a knob out of range."""
        if not 0 < self.l2 < float("inf"):
            raise ValueError(f"l2: got {self.l2}, expected a number above 0")


@dataclass(frozen=True)
class BoostedKnobs:
    """Arguments of scikit-learn's HistGradientBoostingClassifier. The defaults are the library's, except that
    early stopping is off.
    """

    trees: int = 100
    """Number of trees."""
    leaves: int = 31
    """Maximum number of leaves of a tree, 2 or more."""
    learning_rate: float = 0.1
    """Factor by which the values of every tree are multiplied."""
    min_documents: int = 20
    """Minimum number of training documents in a leaf."""
    l2: float = 0.0
    """L2 regularisation of the values of leaves."""

    def check(self) -> None:
        """Raise ValueError for a knob out of range."""
        for name, least in (("trees", 1), ("leaves", 2), ("min_documents", 1), ("l2", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected {least} or more")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate: got {self.learning_rate}, expected a number above 0")


@dataclass(frozen=True)
class Fit:
    """The settings for fitting a model. `signs` restricts the sign of each column's effect: 1, -1, or 0 for
    either.
    """

    method: Method
    columns: tuple[ModelColumn, ...]
    signs: tuple[int, ...]
    regression: RegressionKnobs
    boosted: BoostedKnobs
    seed: int

    def train(self, values: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> ColumnModel:
        """Return a model fitted to n documents, which must include both classes. `values`, float64 [n,
        columns], holds NaN for missing values. `positive`, bool [n], marks the documents of the positive
        class. `weights`, float64 [n], holds the weights of the documents.

        For boosted trees, raises UserError if scikit-learn is not installed, or if the exported trees do not
        reproduce scikit-learn's predictions.
        """
        arrays = (
            self._fit_regression(values, positive, weights)
            if self.method == "regression"
            else self._fit_trees(values, positive, weights)
        )
        return ColumnModel(self.method, self.columns, arrays)

    def _fit_regression(
        self, values: np.ndarray, positive: np.ndarray, weights: np.ndarray
    ) -> Mapping[str, np.ndarray]:
        known = ~np.isnan(values)
        shares = known * weights[:, None]
        totals = shares.sum(0)
        totals[totals == 0] = 1
        filled = np.where(known, values, 0.0)
        means = (shares * filled).sum(0) / totals
        scales = np.sqrt((shares * (filled - means) ** 2).sum(0) / totals)
        scales[scales == 0] = 1  # of a model without one source, a column may have become constant
        standard = np.where(known, (values - means) / scales, 0.0)
        fitted = fit_logistic(standard, positive, weights, self.signs, self.regression.l2)
        return {"means": means, "scales": scales, "weights": fitted[1:], "intercept": fitted[:1]}

    def _fit_trees(self, values: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> Mapping[str, np.ndarray]:
        try:
            from sklearn.ensemble import HistGradientBoostingClassifier
        except ImportError:
            command = install_extra("probe")
            raise UserError(
                f"method: boosted trees are trained by scikit-learn, which is not installed; run: {command}"
            ) from None
        knobs = self.boosted
        trained = HistGradientBoostingClassifier(
            max_iter=knobs.trees, max_leaf_nodes=knobs.leaves, learning_rate=knobs.learning_rate,
            min_samples_leaf=knobs.min_documents, l2_regularization=knobs.l2, monotonic_cst=list(self.signs),
            early_stopping=False, random_state=self.seed % (1 << 32),
        )  # fmt: skip
        trained.fit(values, positive, weights)
        arrays = export_trees(trained)
        odds, _ = ColumnModel("boosted", self.columns, arrays).evaluate(values)
        error = float(np.abs(probability(odds) - trained.predict_proba(values)[:, 1]).max())
        if error > 1e-6:  # its trees are private, so another version may store something else in them
            raise UserError(f"method: the exported trees differ from scikit-learn's by {error:.2g}; install the version of "
                            "constraints.txt")  # fmt: skip
        return arrays


def fit_logistic(
    values: np.ndarray, positive: np.ndarray, weights: np.ndarray, signs: Sequence[int], l2: float
) -> np.ndarray:
    """Fit a logistic regression and return its intercept followed by the coefficients of the columns, float64
    [1 + columns]. `values` must not contain NaN.

    The fit minimises the sum of the documents' logistic losses, weighted by `weights`, plus l2 / 2 times the
    sum of the squared coefficients. The intercept is not penalised. A 1 in `signs` keeps the column's
    coefficient from being negative, and a -1 from being positive.
    """
    rows = np.hstack([np.ones((len(values), 1)), values])
    penalty = np.array([0.0, *[l2] * values.shape[1]])
    low = np.array([-np.inf, *(0.0 if sign > 0 else -np.inf for sign in signs)])
    high = np.array([np.inf, *(0.0 if sign < 0 else np.inf for sign in signs)])
    target = positive.astype(np.float64)

    def loss(fitted: np.ndarray) -> float:
        odds = rows @ fitted
        return float(weights @ (np.logaddexp(0, odds) - target * odds) + penalty @ fitted**2 / 2)

    fitted = np.zeros(rows.shape[1])
    now = loss(fitted)
    for _ in range(_STEPS):
        shares = probability(rows @ fitted)
        gradient = rows.T @ (weights * (shares - target)) + penalty * fitted
        curvature = (rows * (weights * shares * (1 - shares))[:, None]).T @ rows + np.diag(penalty + _CONVERGED)
        step = _bounded_step(gradient, curvature, low - fitted, high - fitted)
        length = 1.0
        while (then := loss(fitted + length * step)) > now + 1e-4 * length * float(gradient @ step) and length > 1e-9:
            length /= 2
        fitted = fitted + length * step
        if np.abs(step).max() < _CONVERGED or now - then < 1e-14 * abs(now):
            break
        now = then
    return fitted


def fit_ridge(values: np.ndarray, targets: np.ndarray, weights: np.ndarray, l2: float) -> np.ndarray:
    """Fit a ridge regression (Hoerl and Kennard 1970, "Ridge Regression") and return its intercept followed
    by the coefficients of the columns, float64 [1 + columns]. `values` must not contain NaN.

    The fit minimises the sum of the documents' squared errors, weighted by `weights`, plus l2 times the sum
    of the squared coefficients. The intercept is not penalised.
    """
    total = weights.sum()
    means, mean = weights @ values / total, float(weights @ targets / total)
    centred = values - means
    weighted = centred * weights[:, None]
    gram = weighted.T @ centred + l2 * np.eye(values.shape[1])
    fitted = np.linalg.solve(gram, weighted.T @ (targets - mean))
    return np.array([mean - means @ fitted, *fitted])


def _bounded_step(gradient: np.ndarray, curvature: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the step within [low, high] that minimises gradient · step + step · curvature · step / 2."""
    if np.isinf(low).all() and np.isinf(high).all():
        unbounded: np.ndarray = np.linalg.solve(curvature, -gradient)
        return unbounded
    step = np.zeros(len(gradient))
    for _ in range(_SWEEPS):
        largest = 0.0
        for index in range(len(step)):
            slope = gradient[index] + curvature[index] @ step
            then = min(max(step[index] - slope / curvature[index, index], low[index]), high[index])
            largest = max(largest, abs(then - step[index]))
            step[index] = then
        if largest < _CONVERGED:
            break
    return step


def export_trees(trained: Any) -> dict[str, np.ndarray]:
    """Convert the trees of a fitted binary HistGradientBoostingClassifier to the arrays of a ColumnModel."""
    trees = [predictor[0].nodes for predictor in trained._predictors]
    nodes, sizes = np.concatenate(trees), np.array([len(tree) for tree in trees])
    roots = np.cumsum([0, *sizes[:-1]])
    first = np.repeat(roots, sizes)
    leaf = nodes["is_leaf"].astype(bool)
    columns = np.where(leaf, -1, nodes["feature_idx"]).astype(np.int32)
    lefts, rights = (np.where(leaf, 0, nodes[side].astype(np.int64) + first) for side in ("left", "right"))
    counts, expected = nodes["count"].astype(np.float64), np.where(leaf, nodes["value"], 0.0)
    for node in np.flatnonzero(~leaf)[::-1]:  # children come after their parents
        pair = [lefts[node], rights[node]]
        expected[node] = np.average(expected[pair], weights=counts[pair])
    return {
        "intercept": np.array([float(np.ravel(trained._baseline_prediction)[0])]), "roots": roots.astype(np.int64),
        "columns": columns, "thresholds": np.where(leaf, 0.0, nodes["num_threshold"]), "lefts": lefts, "rights": rights,
        "missing_left": nodes["missing_go_to_left"].astype(bool), "expected": expected,
    }  # fmt: skip
