"""Laws fitted to known functions, and the gradients on which the search for a mixture relies."""

import numpy as np
import pytest
from scipy.optimize import minimize

from gristmill.errors import UserError
from trainers.studies.fit_study import laws_of
from trainers.studies.laws import LAWS
from trainers.studies.laws.log_linear import _HUBER, _RIDGE, _centre_and_spread
from trainers.studies.laws.regression_law import fit_censored

DOMAINS = 4
WEIGHTS = np.array([-1.5, -0.5, 0.4, 1.0])


def mixtures(runs, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(DOMAINS), runs)


def truth(ratios):
    return 2.0 + np.exp(ratios @ WEIGHTS)


NOTHING = np.zeros(60, dtype=bool)


def test_log_linear_recovers_its_own_function():
    fitted = LAWS["log_linear"].fit(mixtures(60), truth(mixtures(60)))
    assert fitted.predict(mixtures(50, 1)) == pytest.approx(truth(mixtures(50, 1)), abs=2e-3)
    assert fitted.is_convex


def test_log_linear_is_not_misled_by_a_run_that_went_wrong():
    values = truth(mixtures(60))
    values[7] += 50
    fitted = LAWS["log_linear"].fit(mixtures(60), values)
    assert np.abs(fitted.predict(mixtures(50, 1)) - truth(mixtures(50, 1))).max() < 0.15


@pytest.mark.parametrize(("bend", "noise"), [(1.0, 1e-1), (0.1, 1e-4)])
def test_the_fit_of_log_linear_is_where_a_search_of_another_kind_finds_nothing_lower(bend, noise):
    """The objective is the Huber loss of residuals in units of the spread, plus the ridge. A simplex search
    that starts from the fit must not find a lower value.
    """
    ratios = mixtures(60)
    values = 2 + np.exp(bend * (ratios @ WEIGHTS)) + noise * np.random.default_rng(2).normal(size=60)
    fitted = LAWS["log_linear"].fit(ratios, values)
    centre, spread = _centre_and_spread(values)
    scaled = (values - centre) / spread

    def loss(found):
        residuals = np.abs(found[-1] + np.exp(ratios @ found[:-1]) - scaled)
        huber = np.where(residuals < _HUBER, residuals**2 / 2, _HUBER * residuals - _HUBER**2 / 2)
        return huber.mean() + _RIDGE / 60 / 2 * ((found[:-1] - found[:-1].mean()) ** 2).sum()

    fit = np.append(fitted.weights - np.log(spread), (fitted.offset - centre) / spread)
    lower = minimize(loss, fit, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-9, "fatol": 1e-15})
    assert loss(fit) <= lower.fun * (1 + 1e-5)


def test_polynomials_recover_polynomials():
    ratios, others = mixtures(60), mixtures(50, 1)

    def quadratic(x):
        return x @ WEIGHTS + 3 * x[:, 0] * x[:, 1] - x[:, 2] * x[:, 3]

    assert LAWS["linear"].fit(ratios, ratios @ WEIGHTS).predict(others) == pytest.approx(others @ WEIGHTS, abs=1e-4)
    fitted = LAWS["quadratic"].fit(ratios, quadratic(ratios))
    assert fitted.predict(others) == pytest.approx(quadratic(others), abs=1e-4)
    assert not fitted.is_convex


def test_gaussian_process_follows_a_function_of_several_minima():
    def waves(x):
        return np.sin(6 * x[:, 0]) + np.cos(5 * x[:, 1])

    fitted = LAWS["gaussian_process"].fit(mixtures(150), waves(mixtures(150)))
    assert np.corrcoef(fitted.predict(mixtures(50, 1)), waves(mixtures(50, 1)))[0, 1] > 0.97


@pytest.fixture(params=LAWS)
def name(request):
    if request.param == "lightgbm":
        pytest.importorskip("lightgbm", reason="the extra `studies` is not installed")
    return request.param


def test_gradients_are_those_of_the_predictions(name):
    fitted = LAWS[name].fit(mixtures(60), truth(mixtures(60)) + 0.05 * np.random.default_rng(2).normal(size=60))
    at, size = mixtures(3, 1), 1e-6 if fitted.is_smooth else 1e-2
    steps = size * np.eye(DOMAINS)
    numeric = [(fitted.predict(at + step) - fitted.predict(at - step)) / (2 * size) for step in steps]
    assert fitted.gradient(at) == pytest.approx(np.array(numeric).T, abs=1e-5)


def test_a_metric_that_never_changes_is_predicted_as_constant(name):
    fitted = LAWS[name].fit(mixtures(60), np.full(60, 3.5))
    assert fitted.predict(mixtures(5, 1)) == pytest.approx(np.full(5, 3.5), abs=1e-6)


def test_trees_follow_a_step_and_give_the_same_again():
    pytest.importorskip("lightgbm", reason="the extra `studies` is not installed")
    ratios, others = mixtures(120), mixtures(50, 1)
    fits = [LAWS["lightgbm"].fit(ratios, (ratios[:, 0] > 0.3).astype(float)) for _ in range(2)]
    assert np.abs(fits[0].predict(others) - (others[:, 0] > 0.3)).mean() < 0.1
    assert fits[0].model == fits[1].model
    assert np.argmax(fits[0].parameters()["gain"]) == 0


def test_a_law_whose_library_is_missing_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("trainers.studies.laws.boosted_trees.find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"law lightgbm: needs lightgbm, which is not installed; run: pip install .*studies"
    ):
        laws_of(["lightgbm"])


@pytest.mark.parametrize("name", ["log_linear", "quadratic"])
def test_censored_runs_keep_the_region_where_runs_diverge_unattractive(name):
    ratios = mixtures(60)
    values, censored = truth(ratios), truth(ratios) > np.quantile(truth(ratios), 0.8)
    values[censored] = np.nan
    fitted = fit_censored(LAWS[name], ratios, values, censored)
    worst = values[~censored].max()
    assert (fitted.predict(ratios[censored]) > worst - 0.2).all()
    others = mixtures(200, 1)
    assert np.abs(fitted.predict(others) - truth(others)).mean() < 0.05


def test_a_fit_to_measured_runs_that_promises_much_where_runs_diverge_is_corrected():
    """If the diverged runs were dropped, the fitted slope would lead straight to their mixtures."""
    ratios = mixtures(80)
    censored = ratios[:, 0] > 0.5
    values = np.where(censored, np.nan, -ratios[:, 0])
    dropped = LAWS["quadratic"].fit(ratios[~censored], values[~censored])
    fitted = fit_censored(LAWS["quadratic"], ratios, values, censored)
    assert dropped.predict(np.eye(4)[:1])[0] < -0.9
    assert fitted.predict(np.eye(4)[:1])[0] > -0.3
