"""The scaling law, and the laws of mixtures, which predict a metric of a run from its mixture."""

from trainers.studies.laws.boosted_trees import BoostedTrees
from trainers.studies.laws.gaussian_process import GaussianProcess
from trainers.studies.laws.log_linear import LogLinear
from trainers.studies.laws.polynomials import Polynomial
from trainers.studies.laws.regression_law import Law

LAWS: dict[str, Law] = {
    law.name: law
    for law in (LogLinear(), Polynomial("linear", 1), Polynomial("quadratic", 2), GaussianProcess(), BoostedTrees())
}
