"""Gradient-boosted trees (Ke et al., 2017, LightGBM), the law of RegMix (Liu et al., 2024).

A leaf needs only 3 runs. With LightGBM's default of 20, a set of 32 runs could not be split at all. The
number of trees is fixed, because early stopping on the test mixtures, as in RegMix's notebook, would tune the
law to them.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from gristmill.errors import UserError
from gristmill.libraries.extras import install_extra
from trainers.studies.laws.regression_law import FittedLaw

_TREES = 400
_SETTINGS = {
    "objective": "regression",
    "learning_rate": 0.05,
    "num_leaves": 8,
    "min_data_in_leaf": 3,
    "lambda_l2": 0.01,  # as in RegMix
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}
_STEP = 0.01  # change of a share on each side over which a slope is measured: one percentage point


@dataclass(frozen=True)
class BoostedTrees:
    """The family of boosted-tree laws, fitted with LightGBM."""

    name: str = "lightgbm"

    def minimum_runs(self, domains: int) -> int:
        """Return the smallest number of runs that a fit needs: twice the number of domains, but at least 16."""
        return max(16, 2 * domains)

    def require_library(self) -> None:
        """Raise UserError if LightGBM is missing; the message gives the command that installs it."""
        if find_spec("lightgbm") is None:
            raise UserError(f"law {self.name}: needs lightgbm, which is not installed; run: {install_extra('studies')}")

    def fit(self, ratios: np.ndarray, values: np.ndarray, start: FittedLaw | None = None) -> "FittedTrees":
        """Return the law fitted to `values` [runs]. `start` is ignored."""
        self.require_library()
        import lightgbm

        centre, spread = float(np.median(values)), float(values.std()) or 1.0
        data = lightgbm.Dataset(ratios, (values - centre) / spread, params={"verbosity": -1})
        booster = lightgbm.train(_SETTINGS, data, _TREES)
        return FittedTrees(centre, spread, booster.model_to_string())


@dataclass(frozen=True)
class FittedTrees:
    """A fitted boosted-tree law. It predicts `centre` plus `spread` times the sum of the trees in `model`,
    which is in LightGBM's text format.
    """

    centre: float
    spread: float
    model: str

    @property
    def is_convex(self) -> bool:
        """False: a sum of trees is in general not convex."""
        return False

    @property
    def is_smooth(self) -> bool:
        """False: the predictions are piecewise constant."""
        return False

    @cached_property
    def _booster(self) -> Any:
        import lightgbm

        return lightgbm.Booster(model_str=self.model)

    def predict(self, ratios: np.ndarray) -> np.ndarray:
        """Return the predicted metric, [mixtures]."""
        return self.centre + self.spread * np.asarray(self._booster.predict(ratios, num_threads=1))

    def gradient(self, ratios: np.ndarray) -> np.ndarray:
        """Return the slope of the metric with respect to each domain's share, [mixtures, domains]: a central
        difference over two percentage points.
        """
        columns = []
        for step in _STEP * np.eye(ratios.shape[1]):
            columns.append((self.predict(ratios + step) - self.predict(ratios - step)) / (2 * _STEP))
        return np.stack(columns, axis=1)

    def parameters(self) -> dict[str, float | list[float]]:
        """Return `gain`: for each domain, its share of the total reduction of the squared error, as LightGBM
        measures it.
        """
        gains = np.asarray(self._booster.feature_importance("gain"), dtype=float)
        return {"gain": (gains / (gains.sum() or 1.0)).tolist()}
