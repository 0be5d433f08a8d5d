"""The tie set of a proposal: the mixtures that the runs cannot distinguish from it."""

from dataclasses import dataclass, replace

import numpy as np

from trainers.studies.proposals.constraints import MixtureConstraints
from trainers.studies.proposals.objective import MixtureObjective, minimise

_STEPS = 101  # shares of each domain that are tested
_LEAST_CUTOFF = 1.96  # standard errors: the two-sided 95 % level of one comparison under a normal distribution
_CALIBRATION = 40  # bootstrap draws whose best mixture is searched for


@dataclass(frozen=True)
class TieSet:
    """The set of all mixtures whose objective exceeds that of `best` [domains] by at most `cutoff` standard
    errors of the difference.

    The standard error is computed over the bootstrap draws and multiplied by `inflation`, because the
    residuals of a fit with p parameters are too small by a factor of (1 - p / runs) ** .5 (Efron and
    Tibshirani, 1993, section 9.3).
    """

    objective: MixtureObjective
    best: np.ndarray
    inflation: float
    cutoff: float = _LEAST_CUTOFF

    def calibrate(self, constraints: MixtureConstraints) -> "TieSet":
        """Return the set with its cutoff estimated so that, in 95 % of repeated studies, it would contain the
        truly best mixture.

        The bootstrap takes `best` as the truth. For each of up to 40 draws, it measures by how many standard
        errors the objective of `best`, under the laws of the draw, exceeds its minimum. The cutoff is the 95
        % quantile of these excesses, but at least 1.96.
        """
        exceeded = []
        for laws in self.objective.laws.resampled[:_CALIBRATION]:
            drawn = replace(self.objective, laws=replace(self.objective.laws, laws=laws))
            own = minimise(drawn, constraints, starts=[self.best])
            gap = float(np.subtract(*drawn.value(np.stack([self.best, own]))))
            error = float(self.differences(own[None])[1][0])
            exceeded.append(gap / error if error > 0 else 0.0)
        return replace(self, cutoff=max(_LEAST_CUTOFF, float(np.quantile(exceeded, 0.95))))

    def differences(self, ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how much the objective of each mixture exceeds that of `best`, and the standard error of
        this difference, each [mixtures].
        """
        at = np.concatenate([self.best[None], ratios])
        values, drawn = self.objective.value(at), self.objective.laws.predict_resampled(at, self.objective.weights)
        return values[1:] - values[0], self.inflation * (drawn[:, 1:] - drawn[:, :1]).std(axis=0)

    def contains(self, ratios: np.ndarray) -> np.ndarray:
        """Return whether each of the mixtures `ratios` [mixtures, domains] is in the set, bool [mixtures]."""
        differences, errors = self.differences(ratios)
        return np.asarray(differences <= self.cutoff * errors + 1e-12)

    def ranges(self, constraints: MixtureConstraints) -> np.ndarray:
        """Return the smallest and the largest share, [domains, 2], that each domain can take within the set
        and the constraints if the other domains keep their proportions.
        """
        limits = np.repeat(self.best[:, None], 2, axis=1)
        for i, share in enumerate(self.best):
            others = np.delete(np.arange(len(self.best)), i)
            rest = self.best[others].sum()
            if rest <= 0:
                continue
            shares = np.linspace(constraints.lower[i], constraints.upper[i], _STEPS)
            mixtures = self.best * ((1 - shares) / rest)[:, None]
            mixtures[:, i] = shares
            tied = shares[constraints.contains(mixtures) & self.contains(mixtures)]
            limits[i] = min([share, *tied]), max([share, *tied])
        return limits
