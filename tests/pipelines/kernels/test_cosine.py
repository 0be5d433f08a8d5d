"""Cosines, centroids, k-means and greedy elections against double precision, with blocks of any size."""

import numpy as np
import pytest

from pipelines.kernels.search import cosine
from pipelines.kernels.search.cosine import (
    STAYS,
    elect_by_cosine,
    follow_by_cosine,
    nearest_centroids,
    pair_cosines,
    spherical_kmeans,
    spread_first,
    unit_rows,
)


def vectors_of(seed, count, width=6, groups=12, spread=0.2):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(groups, width))[rng.integers(0, groups, count)] + spread * rng.normal(size=(count, width))
    ).astype(np.float16)


def exact(left, right):
    left, right = left.astype(np.float64), right.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=1)
    return ((left @ right.T) / lengths).astype(np.float32)


def greedy(vectors, least):
    cosines, kept, winner = exact(vectors, vectors), [], []
    for row in range(len(vectors)):
        like = [other for other in kept if cosines[row, other] >= np.float32(least)]
        winner.append(like[0] if like else STAYS)
        kept += [] if like else [row]
    return winner


@pytest.mark.long
@pytest.mark.parametrize(("block", "chunk", "pairs"), [(1024, 8192, 8192), (7, 3, 2), (1, 1, 1), (16, 1000, 5)])
@pytest.mark.parametrize("least", [0.3, 0.9, 0.99, 1.0])
def test_elections_do_not_depend_on_blocks(monkeypatch, block, chunk, pairs, least):
    for name, size in (("_BLOCK", block), ("_CHUNK", chunk), ("_PAIRS", pairs)):
        monkeypatch.setattr(cosine, name, size)
    vectors = vectors_of(1, 90)
    vectors[70:80] = vectors[50:60]
    expected = greedy(vectors, least)
    assert elect_by_cosine(vectors, least).tolist() == expected
    assert len({*expected}) > 3
    others, stay = vectors_of(2, 60), vectors[np.array(expected) == STAYS]
    like = exact(others, stay) >= np.float32(least)
    first = np.where(like.any(axis=1), like.argmax(axis=1), STAYS)
    assert follow_by_cosine(others, stay, least).tolist() == first.tolist()


def test_a_pair_at_the_threshold_is_alike():
    """With single precision alone, pairs of equal cosine would be decided differently."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(40, 300)).astype(np.float16)
    cosines = exact(vectors, vectors)
    for row in range(1, 40):
        pair = vectors[[0, row]]
        assert elect_by_cosine(pair, cosines[row, 0]).tolist() == [STAYS, 0]
        assert elect_by_cosine(pair, np.nextafter(cosines[row, 0], np.float32(2))).tolist() == [STAYS, STAYS]
    assert (
        pair_cosines(vectors, np.roll(vectors, 1, axis=0)).tolist()
        == cosines[np.arange(40), np.arange(-1, 39)].tolist()
    )


def test_vectors_of_zeros_are_like_none():
    vectors = np.zeros((3, 4), np.float16)
    assert elect_by_cosine(vectors, 0.5).tolist() == [STAYS] * 3
    assert pair_cosines(vectors, vectors).tolist() == [0, 0, 0]
    assert elect_by_cosine(vectors[:0], 0.5).tolist() == []


def test_the_nearest_centroid_is_the_first_of_the_highest(monkeypatch):
    vectors, centroids = vectors_of(4, 200), vectors_of(5, 30).astype(np.float32)
    centroids[20] = centroids[3]
    expected = exact(vectors, centroids).argmax(axis=1)
    assert nearest_centroids(vectors, centroids).tolist() == expected.tolist()
    monkeypatch.setattr(cosine, "_CHUNK", 7)
    monkeypatch.setattr(cosine, "_BLOCK", 11)
    assert nearest_centroids(vectors, centroids).tolist() == expected.tolist()
    assert 20 not in expected


def mean_cosine(sample, centroids):
    return exact(sample, centroids).max(axis=1).mean()


def test_kmeans_ends_where_no_centroid_moves():
    sample = vectors_of(6, 500)
    centroids = spherical_kmeans(sample, 12, 100)
    assert np.linalg.norm(centroids, axis=1) == pytest.approx(np.ones(12), abs=1e-6)
    nearest = nearest_centroids(sample, centroids)
    for number in range(12):
        own = unit_rows(sample[nearest == number]).sum(axis=0)
        assert centroids[number] == pytest.approx(own / np.linalg.norm(own), abs=1e-5)
    by_rounds = [mean_cosine(sample, spherical_kmeans(sample, 12, rounds)) for rounds in range(6)]
    assert by_rounds == sorted(by_rounds)
    assert by_rounds[-1] > by_rounds[0] + 0.01


def test_there_are_no_more_centroids_than_distinct_vectors():
    sample = np.eye(4, dtype=np.float16)[[2, 2, 0, 2, 0]]
    assert spherical_kmeans(sample, 9, 5).tolist() == np.eye(4)[[2, 0]].tolist()
    assert spherical_kmeans(sample, 1, 5) == pytest.approx(np.array([[2, 0, 3, 0]]) / 13**0.5)
    assert spherical_kmeans(sample[:0], 3, 5).shape == (0, 4)


def test_vectors_far_apart_come_first():
    """The first vectors are one from each group, however rare the group, and the result holds the same
    vectors as the sample.
    """
    rng = np.random.default_rng(5)
    groups = np.r_[np.zeros(2000, int), np.arange(1, 8).repeat(3)]
    rng.shuffle(groups[5:])
    sample = (np.eye(8)[groups] + 0.005 * rng.normal(size=(len(groups), 8))).astype(np.float16)
    for seed in range(5):
        spread = spread_first(sample, 8, seed)
        assert sorted(spread[:8].argmax(axis=1)) == list(range(8))
        assert sorted(map(bytes, spread)) == sorted(map(bytes, sample))
        assert spread_first(sample, 8, seed).tolist() == spread.tolist()
    assert spread_first(sample, 8, 0)[0].tolist() != spread_first(sample, 8, 1)[0].tolist()
    left = [row.tolist() for row in sample if row.tolist() not in spread[:8].tolist()]
    assert spread[8:].tolist() == left
    assert (
        mean_cosine(sample, spherical_kmeans(spread, 8, 50))
        > mean_cosine(sample, spherical_kmeans(sample, 8, 50)) + 0.001
    )


def test_vectors_that_are_equal_or_few_can_be_spread():
    same = np.ones((4, 3), np.float16)
    assert spread_first(same, 3, 0).tolist() == same.tolist()
    assert spread_first(same[:0], 3, 0).shape == (0, 3)
    with_zeros = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0]], np.float16)
    for seed in range(20):
        assert sorted(map(bytes, spread_first(with_zeros, 3, seed))) == sorted(map(bytes, with_zeros))
    assert sorted(map(bytes, spread_first(np.eye(3, dtype=np.float16), 9, 0))) == sorted(
        map(bytes, np.eye(3, dtype=np.float16))
    )
