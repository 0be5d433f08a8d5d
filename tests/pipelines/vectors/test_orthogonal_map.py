"""Orthogonal Procrustes and CSLS, compared with scipy and plain loops."""

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from scipy.stats import ortho_group

from pipelines.kernels.search.cosine import unit_rows
from pipelines.vectors.orthogonal_map import fit_rotation, mean_similarity, mutual_pairs, retrieve


@pytest.fixture
def random():
    return np.random.default_rng(0)


def test_the_map_is_scipys(random):
    source, target = random.normal(size=(50, 8)), random.normal(size=(50, 8))
    fitted = fit_rotation(source, target)
    np.testing.assert_allclose(fitted, orthogonal_procrustes(source, target)[0], atol=1e-6)
    np.testing.assert_allclose(fitted @ fitted.T, np.eye(8), atol=1e-6)


def test_a_planted_rotation_is_recovered_from_fewer_noisy_pairs(random):
    rotation = ortho_group.rvs(8, random_state=random)
    source = random.normal(size=(30, 8))
    np.testing.assert_allclose(fit_rotation(source, source @ rotation), rotation, atol=1e-6)
    noisy = source @ rotation + random.normal(size=source.shape) * 0.05
    assert np.abs(fit_rotation(source, noisy) - rotation).max() < 0.1


@pytest.mark.long
@pytest.mark.parametrize("keys", [5, 1500])  # fewer than the ten nearest; and queries of several blocks below
def test_csls_ranks_as_equation_6_in_loops(random, keys):
    queries, targets = (unit_rows(random.normal(size=(size, 4))) for size in (1100, keys))
    cosines = queries.astype(float) @ targets.astype(float).T
    near_queries = np.array([np.mean(sorted(row)[-10:]) for row in cosines])
    near_targets = np.array([np.mean(sorted(column)[-10:]) for column in cosines.T])
    np.testing.assert_allclose(mean_similarity(queries, targets), near_queries, atol=1e-5)
    np.testing.assert_allclose(mean_similarity(targets, queries), near_targets, atol=1e-5)
    csls = 2 * cosines - near_queries[:, None] - near_targets[None, :]
    for penalty, scores in ((near_targets.astype(np.float32), csls), (np.zeros(keys, np.float32), cosines)):
        found = retrieve(queries, targets, penalty, 3)
        expected = -np.sort(-scores, axis=1)[:, :3]
        np.testing.assert_allclose(np.take_along_axis(scores, found, axis=1), expected, atol=1e-5)
        assert all(len(set(row)) == 3 for row in found.tolist())


def test_csls_corrects_a_hub():
    """The hub is the nearest target of every query by cosine, but of no query by CSLS."""
    queries = unit_rows(np.hstack([np.full((6, 1), 0.7), np.sqrt(0.51) * np.eye(6), np.zeros((6, 6))]))
    own = np.hstack([np.zeros((6, 1)), 0.91 * np.eye(6), np.sqrt(1 - 0.91**2) * np.eye(6)])  # cosine 0.65 to its query
    targets = unit_rows(np.vstack([own, np.eye(1, 13)]))  # the hub has 0.7 to every query
    by_cosine = retrieve(queries, targets, np.zeros(7, np.float32), 1)[:, 0]
    by_csls = retrieve(queries, targets, mean_similarity(targets, queries, 3), 1)[:, 0]
    assert (by_cosine == 6).all()
    assert (by_csls == np.arange(6)).all()


def test_mutual_pairs_are_nearest_in_both_directions(random):
    mapped, target = (unit_rows(random.normal(size=(60, 4))) for _ in range(2))
    cosines = mapped.astype(float) @ target.astype(float).T
    near = [np.sort(side, axis=1)[:, -10:].mean(axis=1) for side in (cosines, cosines.T)]
    csls = 2 * cosines - near[0][:, None] - near[1][None, :]
    expected = {(i, j) for i, j in np.ndindex(*csls.shape) if csls[i].argmax() == j and csls[:, j].argmax() == i}
    assert set(zip(*(rows.tolist() for rows in mutual_pairs(mapped, target)), strict=True)) == expected
    assert 0 < len(expected) < 60
