"""Intervals and paired tests: deterministic, of the right size, and equal to resampling example by example."""

import numpy as np
import pytest

from tests.trainers.tasks.test_scores import TEXTS, tag_outcomes, text_outcomes
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.outcomes import Outcomes
from trainers.tasks.scores.resampling import compare, score

GENERATOR = np.random.default_rng(1)
GOLD = GENERATOR.integers(0, 2, 400)


def labels(error, seed=2):
    wrong = np.random.default_rng(seed).random(len(GOLD)) < error
    return Outcomes(GOLD, np.where(wrong, 1 - GOLD, GOLD), labels=("a", "b"))


def test_the_interval_of_a_share_is_that_of_the_binomial():
    measured = score(METRICS["accuracy"], labels(0.2))
    spread = 1.96 * np.sqrt(measured.value * (1 - measured.value) / 400)
    assert (measured.low, measured.high) == pytest.approx((measured.value - spread, measured.value + spread), abs=0.006)
    assert (measured.n, measured.repetitions, measured.seed) == (400, 1000, 0)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    first, again, other = (score(METRICS["matthews"], labels(0.2), seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)
    assert first.value == other.value
    bare = score(METRICS["matthews"], labels(0.2), repetitions=0)
    assert bare.value == first.value
    assert np.isnan([bare.low, bare.high]).all()


def test_weights_give_what_a_metric_of_the_resampled_examples_gives(monkeypatch):
    """The memory limit is lowered, so that the weights are computed in pieces."""
    monkeypatch.setattr("trainers.tasks.scores.resampling._CELLS", 1000)
    outcomes = labels(0.3)
    generator = np.random.default_rng(5)
    values = []
    for _ in range(50):
        rows = generator.integers(0, 400, 400)
        drawn = Outcomes(outcomes.gold[rows], outcomes.predicted[rows], labels=outcomes.labels)
        statistics = METRICS["macro_f1"].statistics(drawn)
        values.append(METRICS["macro_f1"].value(statistics, np.ones((1, 400)))[0])
    measured = score(METRICS["macro_f1"], outcomes, repetitions=50, seed=5)
    assert (measured.low, measured.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("spearman", Outcomes(np.arange(30.0), np.arange(30.0) + np.random.default_rng(0).normal(0, 8, 30))),
        ("entity_f1", tag_outcomes([("B-PER I-PER O", "B-PER I-PER O"), ("O B-LOC", "O O"), ("B-LOC", "B-LOC")])),
        ("token_f1", Outcomes(texts=["a b", "c d", "e"], references=[["a b"], ["c"], ["x"]])),
        ("perplexity", Outcomes(nats=np.array([2.0, 9.0, 3.0]), tokens=np.array([1.0, 3.0, 2.0]))),
        ("bleu", text_outcomes(TEXTS)),
        ("chrf", text_outcomes(TEXTS)),
        ("rouge2", text_outcomes(TEXTS)),
    ],
)
def test_every_family_has_an_interval_around_its_value(name, outcomes):
    measured = score(METRICS[name], outcomes, repetitions=200)
    assert measured.low <= measured.value <= measured.high
    assert measured.low < measured.high


def test_a_correlation_with_a_constant_is_0_and_has_an_interval():
    constant = score(METRICS["pearson"], Outcomes(np.array([1.0, 2.0]), np.array([1.0, 1.0])), repetitions=50)
    assert (constant.value, constant.low, constant.high) == (0.0, 0.0, 0.0)
    two = score(METRICS["pearson"], Outcomes(np.array([1.0, 2.0]), np.array([1.0, 2.0])), repetitions=50)
    assert (two.value, two.low, two.high) == (1.0, 0.0, 1.0)


def test_a_better_run_is_told_from_an_equal_one():
    better = compare(METRICS["accuracy"], labels(0.3), labels(0.15, seed=3))
    assert better.p < 0.01
    assert 0 < better.low < better.difference < better.high
    assert better.difference == pytest.approx(better.b - better.a)
    equal = compare(METRICS["accuracy"], labels(0.2), labels(0.2, seed=4))
    assert equal.p > 0.05
    assert equal.low < 0 < equal.high
    same = compare(METRICS["accuracy"], labels(0.2), labels(0.2))
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)


@pytest.mark.long
def test_the_paired_test_of_a_mean_is_that_of_all_swaps():
    """With few examples, all combinations of swaps can be tried. The p value is the share of combinations
    whose absolute difference is at least the measured one.
    """
    first = Outcomes(np.zeros(8, int), np.array([1, 1, 1, 1, 0, 0, 1, 0]), labels=("a", "b"))
    second = Outcomes(np.zeros(8, int), np.array([0, 0, 0, 0, 0, 0, 0, 1]), labels=("a", "b"))
    gains = (second.predicted == 0).astype(float) - (first.predicted == 0)
    signs = np.array([[1 - 2 * (number >> bit & 1) for bit in range(8)] for number in range(256)])
    exact = np.mean(np.abs(signs @ gains) >= abs(gains.sum()) - 1e-12)
    assert compare(METRICS["accuracy"], first, second, repetitions=20_000).p == pytest.approx(exact, abs=0.01)
    # Spearman, too, is computed from swapped predictions, though it is no function of sums.
    rho = compare(
        METRICS["spearman"], Outcomes(np.arange(9.0), np.arange(9.0)), Outcomes(np.arange(9.0), -np.arange(9.0))
    )
    assert rho.difference == pytest.approx(-2)
    assert rho.p < 0.02
