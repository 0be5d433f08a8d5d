"""Mixtures drawn for designs: they respect the limits, keep a distance from one another and are reproducible,
and it is an error if there is no room for them.
"""

import numpy as np
import pytest

from gristmill.errors import ConfigError
from trainers.studies.designs.draw_mixtures import draw_mixtures
from trainers.studies.proposals.constraints import build_constraints
from trainers.studies.schema.study_designs import Simplex, Sobol, Swarm

DOMAINS = ("books", "code", "docs", "web")
PRIOR = np.array([0.1, 0.3, 0.05, 0.55])
LIMITS = build_constraints(
    DOMAINS, {"web": 0.1}, {"books": 0.2}, dict.fromkeys(DOMAINS, 100), 400, {"docs": 1.0}
)  # docs at most a quarter
FREE = build_constraints(DOMAINS, {}, {})


@pytest.mark.parametrize("design", [Swarm(runs=40), Sobol(runs=40), Simplex()])
def test_mixtures_respect_the_limits_and_differ(design):
    drawn = draw_mixtures(design, PRIOR, LIMITS)
    assert LIMITS.contains(drawn, 1e-5).all()
    assert np.abs(drawn.sum(axis=1) - 1).max() < 1e-9
    assert drawn[:, 0] == pytest.approx(0.2)
    distances = np.abs(drawn[:, None] - drawn[None]).sum(axis=2) / 2 + np.eye(len(drawn))
    assert distances.min() > (0 if isinstance(design, Simplex) else design.distance)
    assert (draw_mixtures(design, PRIOR, LIMITS) == drawn).all()


@pytest.mark.parametrize("design", [Swarm(runs=24), Sobol(runs=24)])
def test_limits_that_hardly_a_draw_respects_are_reached(design):
    """Such limits arise when a source is split into five languages and five quantiles, and most of the
    resulting domains are small.
    """
    tokens = {f"d{number:02}": max(1, 10**6 // number**2) for number in range(1, 26)}
    limits = build_constraints(tuple(tokens), {}, {}, tokens, sum(tokens.values()), 4.0)
    prior = np.array([*tokens.values()]) / sum(tokens.values())
    drawn = draw_mixtures(design, prior, limits)
    assert len(drawn) == 24
    assert limits.contains(drawn, 1e-5).all()
    assert (np.abs(drawn[:, None] - drawn[None]).sum(axis=2) / 2 + np.eye(24)).min() > design.distance


def test_a_swarm_is_centred_on_the_prior_and_spreads_with_small_strengths():
    near, far = (
        draw_mixtures(Swarm(runs=200, strengths=(s,), distance=0.0, temperature=1.0), PRIOR, FREE) for s in (20.0, 0.5)
    )
    assert near.mean(axis=0) == pytest.approx(PRIOR, abs=0.02)
    assert far.mean(axis=0) == pytest.approx(PRIOR, abs=0.07)
    assert far.std(axis=0).min() > 2 * near.std(axis=0).min()
    assert (draw_mixtures(Swarm(runs=5, seed=1), PRIOR, FREE) != draw_mixtures(Swarm(runs=5), PRIOR, FREE)).any()


def test_the_temperature_flattens_the_centre():
    root = PRIOR**0.5 / (PRIOR**0.5).sum()
    assert draw_mixtures(Swarm(runs=200, strengths=(20.0,), distance=0.0), PRIOR, FREE).mean(axis=0) == pytest.approx(
        root, abs=0.02
    )


def test_a_domain_that_the_prior_leaves_out_is_tried():
    prior = np.array([0.0, 0.3, 0.1, 0.6])
    assert draw_mixtures(Swarm(runs=20), prior, FREE)[:, 0].max() > 0


def test_sobol_fills_the_simplex_whatever_the_prior():
    drawn = draw_mixtures(Sobol(runs=128, distance=0.0), PRIOR, FREE)
    assert drawn.mean(axis=0) == pytest.approx(np.full(4, 0.25), abs=0.02)
    assert drawn.max(axis=0).min() > 0.7


def test_a_simplex_has_corners_middles_and_the_centre():
    drawn = draw_mixtures(Simplex(), PRIOR, FREE)
    assert len(drawn) == 4 + 6 + 1
    assert drawn[:4].tolist() == np.eye(4).tolist()
    assert drawn[-1].tolist() == [0.25] * 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("limits", "design", "message"),
    [
        (build_constraints(DOMAINS, {}, {"web": 0.5, "code": 0.2, "docs": 0.2}), Swarm(runs=9), "leave 1 of 4 domains"),
        (FREE, Swarm(runs=100, distance=0.6), r"allow \d+ of 100 mixtures"),
        (build_constraints(DOMAINS, {"web": 0.97}, {}), Sobol(runs=50), r"allow \d+ of 50 mixtures"),
    ],
)
def test_limits_without_room_are_an_error(limits, design, message):
    with pytest.raises(ConfigError, match=message):
        draw_mixtures(design, PRIOR, limits)
