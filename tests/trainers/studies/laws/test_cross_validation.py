"""Scores of laws: agreement with references, cross-validation against the truth, and the stopping rule."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from trainers.studies.laws import LAWS
from trainers.studies.laws.agreement import agreement, decision_accuracy
from trainers.studies.laws.cross_validation import LearningCurve, choose_law, cross_validate, learning_curve
from trainers.studies.laws.law_set import fit_laws

REGMIX = "mixtures/regmix"
TARGET = "metric/the_pile_pile_cc_val_loss"
LOG_LINEAR = LAWS["log_linear"]


def noisy(runs, seed=0, noise=0.05):
    generator = np.random.default_rng(seed)
    ratios = generator.dirichlet(np.ones(5), runs)
    return ratios, 1 + np.exp(ratios @ np.array([-2, -1, 0, 1, 1.5])) + noise * generator.normal(size=runs)


def test_agreement_is_what_scipy_and_a_count_of_pairs_say():
    measured, predicted = np.random.default_rng(0).normal(size=(2, 30)).round(1)
    scores = agreement(measured, predicted)
    assert scores.spearman == pytest.approx(spearmanr(measured, predicted).statistic)
    assert scores.low < scores.spearman < scores.high
    assert decision_accuracy(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])) == pytest.approx(2 / 3)
    assert agreement(measured, measured).slope == pytest.approx(1)
    assert agreement(measured, 2 * measured).slope == pytest.approx(0.5)
    assert agreement(measured, np.zeros(30)).spearman == 0


def test_no_run_is_predicted_by_a_fit_that_has_seen_it():
    ratios, values = noisy(40)
    nothing = np.zeros(40, dtype=bool)
    before = cross_validate([LAWS["linear"]], ratios, values, nothing).predicted
    values[3] += 100.0
    after = cross_validate([LAWS["linear"]], ratios, values, nothing).predicted
    assert after[3] == before[3]
    assert (after != before).sum() > 30


def test_censored_runs_are_fitted_and_not_scored():
    ratios, values = noisy(40)
    censored = np.arange(40) < 5
    result = cross_validate([LOG_LINEAR], ratios, np.where(censored, np.nan, values), censored)
    assert np.isnan(result.predicted[:5]).all()
    assert result.agreement.runs == 35


def test_the_law_that_generated_the_runs_is_chosen():
    ratios, _ = noisy(80)
    laws = [LAWS["quadratic"], LAWS["linear"]]
    values = ratios @ np.arange(5)
    assert choose_law(laws, ratios, values, np.zeros(80, dtype=bool)).name == "linear"
    laws = [LAWS["linear"], LAWS["quadratic"]]
    values = values + 5 * ratios[:, 0] * ratios[:, 1]
    assert cross_validate(laws, ratios, values, np.zeros(80, dtype=bool)).chosen == {"linear": 0, "quadratic": 10}


def test_the_stop_rule_asks_for_more_runs_only_while_they_help():
    assert LearningCurve(((32, 0.90), (64, 0.95), (115, 0.955))).is_enough
    assert not LearningCurve(((32, 0.80), (64, 0.90), (115, 0.95))).is_enough
    assert not LearningCurve(((20, 0.9),)).is_enough
    ratios, values = noisy(200)
    nothing = np.zeros(200, dtype=bool)
    validation = cross_validate([LOG_LINEAR], ratios, values, nothing)
    curve = learning_curve(LOG_LINEAR, ratios, values, nothing, validation)
    assert [runs for runs, _ in curve.points] == [50, 100, 150, 180]
    assert curve.is_enough


def test_the_bootstrap_covers_the_truth():
    ratios, values = noisy(60)
    at = np.random.default_rng(9).dirichlet(np.ones(5), 20)
    laws = fit_laws([LOG_LINEAR], "abcde", ["loss"], ratios, values[:, None], np.zeros((60, 1), dtype=bool), draws=60)
    low, high = np.quantile(laws.predict_resampled(at, np.ones(1)), [0.025, 0.975], axis=0)
    truth = 1 + np.exp(at @ np.array([-2, -1, 0, 1, 1.5]))
    assert ((low < truth) & (truth < high)).mean() > 0.7
    assert laws.effects(np.full(5, 0.2))[0].argmin() == 0


def read(directory, mixture, losses):
    header = (directory / losses).read_text().partition("\n")[0].split(",")
    ratios = np.genfromtxt(directory / mixture, delimiter=",", skip_header=1)[:, 1:]
    values = np.genfromtxt(directory / losses, delimiter=",", skip_header=1)[:, header.index(TARGET)]
    return ratios / ratios.sum(axis=1, keepdims=True), values


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "small", "large"),
    [(32, 0.88, 0.87), (64, 0.92, 0.92), (128, 0.94, 0.935), (512, 0.955, 0.95)],
)
def test_the_log_linear_law_predicts_the_test_mixtures_of_regmix(shared_data, runs, small, large):
    """The score is the Spearman correlation on RegMix's 256 test mixtures, averaged over 20 draws of `runs`
    from its 512 runs, or for all 512 runs at once. With at least 128 runs, the score from cross-validation is
    compared with it.
    """
    directory = shared_data / REGMIX
    ratios, values = read(directory, "train_mixture_1m.csv", "train_pile_loss_1m.csv")
    tests = [read(directory, f"test_mixture_{size}.csv", f"test_pile_loss_{size}.csv") for size in ("1m", "60m")]
    scores, validated = [], []
    for seed in range(20 if runs < 512 else 1):
        rows = np.random.default_rng(seed).permutation(512)[:runs]
        fitted = LOG_LINEAR.fit(ratios[rows], values[rows])
        scores.append([spearmanr(fitted.predict(x), y).statistic for x, y in tests])
        if runs >= 128 and seed < 5:
            ours = cross_validate([LOG_LINEAR], ratios[rows], values[rows], np.zeros(runs, dtype=bool)).agreement
            validated.append(ours.spearman)
    assert (np.mean(scores, axis=0) >= [small, large]).all(), np.mean(scores, axis=0)
    if validated:
        truth = np.mean(scores[: len(validated)], axis=0)[0]
        assert abs(np.mean(validated) - truth) <= (0.02 if runs == 512 else 0.04)
