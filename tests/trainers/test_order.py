"""The order of samples: exact shares at every sample, every sequence once per epoch, a function of the sample number alone."""

import math

import numpy as np
import pytest

from trainers.mixture import cap, mixture
from trainers.order import Order, Stream


def order(weights, tokens, length=16, seed=0, fingerprint="corpus"):
    return staged([(math.inf, weights)], tokens, {}, length, seed, fingerprint)


def staged(stages, tokens, epochs, length=16, seed=0, fingerprint="corpus"):
    """An order over sources s0, s1 ...; stages are (tokens at the end, weights), epochs a cap by number of the source."""
    streams = [Stream(f"s{i}", size) for i, size in enumerate(tokens)]
    names = [stream.name for stream in streams]
    caps = {f"s{i}": cap(tokens[i], length, most) for i, most in epochs.items()}
    asked = mixture([(until, dict(zip(names, weights, strict=True))) for until, weights in stages], caps, names)
    return Order(streams, asked, length, seed, fingerprint)


@pytest.mark.parametrize(
    ("weights", "tokens"),
    [
        ((1.0,), (1000,)),
        ((0.5, 0.5), (1000, 333)),
        ((0.9996, 0.0004), (5000, 100)),
        ((0.61, 0.17, 0.13, 0.05, 0.039, 0.001), (4000, 50, 16, 15, 999, 3)),
        ((1.0,) * 11, tuple(range(7, 700, 63))),
    ],
)
def test_realised_tokens_differ_from_the_request_by_less_than_a_sequence(weights, tokens):
    drawn = order(weights, tokens)
    samples = drawn.take(0, 20_000)
    total = np.cumsum(samples.tokens)
    for source, share in enumerate(np.array(weights) / sum(weights)):
        realised = np.cumsum(np.where(samples.source == source, samples.tokens, 0))
        assert np.abs(realised - share * total).max() < drawn.sequence_length


def test_a_rare_source_is_read():
    assert (order((0.9996, 0.0004), (5000, 100)).take(0, 10_000).source == 1).sum() == pytest.approx(4, abs=1)


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 32, 1000, 1024])
def test_an_epoch_reads_every_sequence_once_and_the_next_one_in_another_order(tokens):
    drawn = order((1.0,), (tokens,))
    per_epoch = -(-tokens // 16)
    first, second = drawn.take(0, per_epoch), drawn.take(per_epoch, per_epoch)
    for epoch in (first, second):
        assert sorted(epoch.sequence) == list(range(per_epoch))
        assert epoch.tokens.sum() == tokens
    if per_epoch > 10:
        assert list(first.sequence) != list(second.sequence)
        assert list(first.sequence) != sorted(first.sequence)


def test_any_sample_is_reached_from_its_number_alone():
    weights, tokens = (0.5, 0.3, 0.2), (777, 2000, 90)
    whole = order(weights, tokens).take(0, 500)
    jumping = order(weights, tokens)
    for first, count in ((300, 50), (0, 10), (499, 1), (10, 290)):
        part = jumping.take(first, count)
        for name in ("source", "sequence", "tokens"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[first : first + count])


def test_drawn_counts_sequences_and_tokens():
    drawn = order((0.5, 0.5), (100, 200))
    samples = drawn.take(0, 40)
    sequences, tokens = drawn.drawn(40)
    np.testing.assert_array_equal(sequences, np.bincount(samples.source, minlength=2))
    np.testing.assert_array_equal(tokens, np.bincount(samples.source, samples.tokens, minlength=2))


@pytest.mark.parametrize("change", [{"seed": 1}, {"fingerprint": "other"}, {"length": 8}])
def test_seed_corpus_and_length_change_the_order(change):
    usual = order((1.0,), (1000,)).take(0, 50)
    changed = order((1.0,), (1000,), **change).take(0, 50)
    assert list(usual.sequence) != list(changed.sequence)


def test_a_source_of_weight_zero_is_never_read():
    assert set(order((0.5, 0.0, 0.5), (100, 100, 100)).take(0, 100).source) == {0, 2}
