"""Curves of the metrics over the share of one domain, against the law that generated the runs."""

import numpy as np
import pytest

from trainers.studies.laws import LAWS
from trainers.studies.laws.domain_curves import domain_curves
from trainers.studies.laws.law_set import fit_laws

CENTRE = np.array([0.5, 0.3, 0.2])
SLOPES = np.array([[-1.0, 0.0, 1.0], [0.5, -2.0, 0.0]])
WEIGHTS = np.array([0.75, 0.25])


def fitted(draws):
    ratios = np.random.default_rng(0).dirichlet(np.ones(3), 60)
    values = ratios @ SLOPES.T + 0.01 * np.random.default_rng(1).normal(size=(60, 2))
    missing = np.zeros(values.shape, bool)
    return fit_laws([LAWS["linear"]] * 2, "abc", "xy", ratios, values, missing, draws), ratios


def test_curves_follow_the_law_with_the_others_in_proportion():
    laws, ratios = fitted(draws=40)
    curves = domain_curves(laws, ratios, CENTRE, WEIGHTS)
    assert set(curves) == set("abc")
    for i, name in enumerate("abc"):
        curve = curves[name]
        shares = np.array(curve["shares"])
        assert (shares[0], shares[-1]) == (pytest.approx(ratios[:, i].min()), pytest.approx(ratios[:, i].max()))
        others = np.where(np.arange(3) == i, 0, CENTRE)
        mixtures = np.eye(3)[i] * shares[:, None] + (others / others.sum()) * (1 - shares)[:, None]
        truth = (mixtures - CENTRE) @ SLOPES.T
        assert curve["metrics"]["x"] == pytest.approx(truth[:, 0], abs=0.03)
        assert curve["mean"] == pytest.approx(truth @ WEIGHTS, abs=0.03)
        assert (np.array(curve["low"]) <= np.array(curve["mean"]) + 1e-12).all()
        widths = np.array(curve["high"]) - np.array(curve["low"])
        nearest = np.abs(shares - CENTRE[i]).argmin()
        assert widths.argmin() in (nearest - 1, nearest, nearest + 1)  # nothing is uncertain at the centre


def test_a_share_that_never_changes_has_no_curve_and_without_draws_there_is_no_interval():
    laws, ratios = fitted(draws=0)
    assert domain_curves(laws, ratios, CENTRE, WEIGHTS)["a"]["low"] is None
    fixed = np.column_stack([np.full(60, 0.5), ratios[:, :2] / ratios[:, :2].sum(axis=1, keepdims=True) / 2])
    assert set(domain_curves(laws, fixed, CENTRE, WEIGHTS)) == {"b", "c"}
    assert domain_curves(laws, np.tile(CENTRE, (5, 1)), CENTRE, WEIGHTS) == {}
