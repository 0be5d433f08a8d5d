"""The metrics of a classifier against their written-out definitions."""

import numpy as np
import pytest

from pipelines.classifiers.classifier_metrics import average_precision, calibration, precision_recall, roc_auc
from pipelines.classifiers.fasttext_training import verdict
from pipelines.classifiers.judged_sources import graded_verdict


def sample(seed, size=300, levels=None):
    generator = np.random.default_rng(seed)
    scores = generator.random(size)
    if levels:
        scores = np.floor(scores * levels) / levels  # many ties
    return scores, generator.random(size) < scores * 0.8 + 0.1


@pytest.mark.parametrize("levels", [None, 7, 1])
def test_roc_auc_is_the_share_of_pairs_in_order(levels):
    scores, positive = sample(1, levels=levels)
    pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    assert roc_auc(scores, positive) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("levels", [None, 7])
def test_points_of_the_curve(levels):
    scores, positive = sample(2, levels=levels)
    points = precision_recall(scores, positive)
    thresholds = [point["threshold"] for point in points]
    assert thresholds == sorted(set(thresholds))
    for point in points:
        chosen = scores >= point["threshold"]
        assert point["precision"] == pytest.approx(positive[chosen].mean())
        assert point["recall"] == pytest.approx(positive[chosen].sum() / positive.sum())
        assert point["kept"] == pytest.approx(chosen.mean())
    recalls = [point["recall"] for point in points[::-1]]
    assert recalls[-1] == 1
    if levels is None:
        assert max(np.diff(recalls)) < 0.02
    else:
        assert len(points) == levels


def test_the_curve_has_every_hundredth_of_recall():
    points = precision_recall(np.arange(200, 0, -1) / 200, np.arange(200) % 2 == 1)
    assert [point["recall"] for point in points[::-1]] == [number / 100 for number in range(101)]


@pytest.mark.parametrize("levels", [None, 7])
def test_average_precision_is_the_sum_over_thresholds(levels):
    scores, positive = sample(3, levels=levels)
    total, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = scores >= threshold
        now = positive[chosen].sum() / positive.sum()
        total, recall = total + (now - recall) * positive[chosen].mean(), now
    assert average_precision(scores, positive) == pytest.approx(total)


def test_calibration():
    scores = np.array([0.05, 0.08, 0.1, 0.99, 1.0])
    rows, error = calibration(scores, np.array([False, True, False, True, True]))
    assert [(row["from"], row["to"], row["documents"], row["share_positive"]) for row in rows] == [
        (0.0, 0.1, 2, 0.5),
        (0.1, 0.2, 1, 0.0),
        (0.9, 1.0, 2, 1.0),
    ]
    assert error == pytest.approx((2 * (0.5 - 0.065) + 1 * 0.1 + 2 * (1 - 0.995)) / 5)


def test_perfect_and_reversed_scores():
    positive = np.array([True] * 5 + [False] * 5)
    scores = np.linspace(1, 0.1, 10)
    assert roc_auc(scores, positive) == average_precision(scores, positive) == 1
    assert roc_auc(1 - scores, positive) == 0


def entry(held_out, spearman, left_out):
    return {"held_out": held_out, "spearman": spearman, "spearman_left_out": left_out}


@pytest.mark.parametrize(
    ("entries", "learned"),
    [
        ([], "unknown"),
        ([{"held_out": 5}], "unknown"),
        ([entry(50, 0.8, 0.5)], "class"),
        ([entry(50, 0.8, 0.3)], "source"),
        ([entry(90, 0.8, 0.3), entry(10, 0.8, 0.8)], "source"),
        ([entry(10, 0.8, 0.3), entry(90, 0.8, 0.8)], "class"),
        ([entry(50, -0.2, -0.15)], "nothing"),
        ([entry(50, 0.0, 0.6)], "nothing"),
    ],
)
def test_what_a_model_of_scores_learned(entries, learned):
    assert graded_verdict(entries) == learned


@pytest.mark.parametrize(
    ("roc_auc_held_out", "left_out", "learned"),
    [
        (0.9, [None], "unknown"),
        (0.9, [0.8, None], "class"),
        (0.9, [0.8, 0.5], "source"),
        (0.5, [0.9], "nothing"),
        (0.4, [0.5], "nothing"),
    ],
)
def test_what_a_classifier_learned(roc_auc_held_out, left_out, learned):
    assert verdict(roc_auc_held_out, [{"roc_auc": value, "held_out": 50} for value in left_out]) == learned
