"""The order of samples: sources keep their shares at every sample, no sequence is read twice in an epoch, and
within an order, a sample depends on its number alone.
"""

import itertools
import json
import math

import numpy as np
import pytest

from trainers.data.mixture_weights import build_mixture, epoch_cap
from trainers.data.order import MixtureExhausted, Order, OrderPhase, Stream, _replay_points


def order(weights, tokens, length=16, seed=0, fingerprint="corpus"):
    return staged([(math.inf, weights)], tokens, {}, length, seed, fingerprint)


def staged(stages, tokens, epochs, length=16, seed=0, fingerprint="corpus"):
    """Return an order over sources named s0, s1 and so on. `stages` holds pairs of (token count at which the
    stage ends, weights), and `epochs` maps source numbers to caps.
    """
    streams = [Stream(f"s{i}", size) for i, size in enumerate(tokens)]
    names = [stream.name for stream in streams]
    caps = {f"s{i}": epoch_cap(tokens[i], most) for i, most in epochs.items()}
    asked = build_mixture([(until, dict(zip(names, weights, strict=True))) for until, weights in stages], caps, names)
    return Order([OrderPhase(tuple(streams), length)], asked, seed, fingerprint)


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
        assert np.abs(realised - share * total).max() < 16


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


def test_any_sample_is_reached_from_its_number():
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
    found = drawn.totals(40)
    np.testing.assert_array_equal(found.sequences, np.bincount(samples.source, minlength=2))
    np.testing.assert_array_equal(found.tokens, np.bincount(samples.source, samples.tokens, minlength=2))
    np.testing.assert_array_equal(found.capacity, 16 * found.sequences)
    np.testing.assert_allclose(found.requested, found.tokens.sum() / 2)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_every_order_of_a_small_source_is_equally_likely(count):
    """The chi-square statistic of the orders of many epochs is within five standard deviations of its
    expected value.
    """
    epochs, orders = 300 * math.factorial(count), math.factorial(count)
    read = order((1.0,), (16 * count,)).take(0, epochs * count).sequence.reshape(epochs, count)
    observed = np.unique(read @ count ** np.arange(count), return_counts=True)[1]
    assert len(observed) == orders
    chi_square = ((observed - epochs / orders) ** 2).sum() / (epochs / orders)
    assert abs(chi_square - (orders - 1)) < 5 * math.sqrt(2 * (orders - 1))


@pytest.mark.parametrize("count", [4095, 4096])
def test_neighbours_are_independent_below_and_above_the_shuffle_limit(count):
    read = order((1.0,), (16 * count,)).take(0, 2 * count).sequence.reshape(2, count)
    for epoch in read:
        assert sorted(epoch) == list(range(count))
        assert abs(np.corrcoef(epoch[:-1], epoch[1:])[0, 1]) < 5 / math.sqrt(count)
    assert abs(np.corrcoef(*read)[0, 1]) < 5 / math.sqrt(count)


@pytest.mark.parametrize("change", [{"seed": 1}, {"fingerprint": "other"}, {"length": 8}])
def test_seed_corpus_and_length_change_the_order(change):
    usual = order((1.0,), (1000,)).take(0, 50)
    changed = order((1.0,), (1000,), **change).take(0, 50)
    assert list(usual.sequence) != list(changed.sequence)


def test_a_source_of_weight_zero_is_never_read():
    assert set(order((0.5, 0.0, 0.5), (100, 100, 100)).take(0, 100).source) == {0, 2}


def listed(rng, tokens, length):
    """Return random sequence sizes from 1 to `length` that add up to `tokens`, as a packing would list them."""
    ends = np.cumsum(rng.integers(1, length + 1, tokens))
    return np.diff([0, *ends[ends < tokens], tokens])


def random_order(seed, phases=3):
    """Return an order of random sources in a two-stage mixture, with phases of random sequence lengths, and
    the caps, in epochs, of some of its sources. Some sources list their sequences and some do not.
    """
    rng = np.random.default_rng(seed)
    names = [f"s{i}" for i in range(int(rng.integers(1, 6)))]
    tokens = {name: int(rng.integers(30, 900)) for name in names}
    parts, until = [], 0
    for number in range(phases):
        length = int(rng.integers(2, 40))
        until += int(rng.integers(1, 80))
        sizes = {name: listed(rng, tokens[name], length) if rng.random() < 0.6 else None for name in names}
        streams = tuple(Stream(name, tokens[name], sizes[name]) for name in names)
        parts.append(OrderPhase(streams, length, until if number < phases - 1 else None))
    # The first source has no cap: it can always give what the others may not.
    limits = {name: float(rng.choice([0.4, 1, 1.5, 2])) for name in names[1:] if rng.random() < 0.6}
    caps = {name: epoch_cap(tokens[name], most) for name, most in limits.items()}
    weights = [dict(zip(names, rng.random(len(names)) + 1e-9, strict=True)) for _ in range(2)]
    return Order(
        parts, build_mixture([(1_500.0, weights[0]), (math.inf, weights[1])], caps, names), seed, "corpus"
    ), limits


@pytest.mark.long
@pytest.mark.parametrize("phases", [1, 3])
def test_phases_follow_the_mixture_within_a_sequence(phases):
    """The deviation is at most the sequence length of the phase plus, after a change of phase, the longest
    sequence length of an earlier phase.
    """
    for seed in range(60):
        drawn, limits = random_order(seed, phases)
        samples = drawn.take(0, 400)
        total = np.cumsum(samples.tokens)
        read = np.array(
            [np.cumsum(np.where(samples.source == i, samples.tokens, 0)) for i in range(len(drawn.streams))]
        )
        starts, before = [0, *(phase.until for phase in drawn.phases[:-1]), 400], 0
        for phase, start, until in zip(drawn.phases, starts, starts[1:], strict=False):
            asked = drawn.mixture(start)
            for n in range(start, until):
                assert np.abs(read[:, n] - asked.requested(int(total[n]))).max() <= phase.length + before
            before = max(before, phase.length)
        for stream, tokens in zip(drawn.streams, read[:, -1], strict=True):
            assert tokens <= limits.get(stream.name, math.inf) * stream.tokens


def test_each_phase_begins_an_epoch_of_its_sequences_and_reads_them_once():
    for seed in range(40):
        drawn, _ = random_order(seed)
        samples = drawn.take(0, 400)
        starts = [0, *(phase.until for phase in drawn.phases[:-1]), 400]
        for index, stream in enumerate(drawn.streams):
            begun = 0
            for phase, start, until in zip(drawn.phases, starts, starts[1:], strict=False):
                here = (samples.source == index) & (samples.number >= start) & (samples.number < until)
                sizes = phase.streams[index].sizes
                if sizes is None:
                    sizes = np.diff([*range(0, stream.tokens, phase.length), stream.tokens])
                np.testing.assert_array_equal(samples.tokens[here], sizes[samples.sequence[here]])
                np.testing.assert_array_equal(samples.epoch[here], begun + np.arange(here.sum()) // len(sizes))
                begun += -(-here.sum() // len(sizes))
                for epoch in set(samples.epoch[here].tolist()):
                    sequences = samples.sequence[here & (samples.epoch == epoch)]
                    assert len(set(sequences.tolist())) == len(sequences)


def test_what_was_drawn_sums_over_phases():
    for seed in range(20):
        drawn, _ = random_order(seed)
        samples = drawn.take(0, 300)
        lengths = np.array([drawn.phases[drawn.phase_of(n)].length for n in samples.number])
        for n in (0, 1, 37, drawn.phases[0].until, drawn.phases[1].until, 300):
            found, many = drawn.totals(n), len(drawn.streams)
            np.testing.assert_array_equal(found.sequences, np.bincount(samples.source[:n], minlength=many))
            np.testing.assert_array_equal(found.tokens, np.bincount(samples.source[:n], samples.tokens[:n], many))
            np.testing.assert_array_equal(found.capacity, np.bincount(samples.source[:n], lengths[:n], many))
            assert found.requested.sum() == pytest.approx(samples.tokens[:n].sum())


def test_a_capped_source_gives_all_whole_sequences_that_its_cap_has_room_for():
    rng = np.random.default_rng(0)
    for length, most in itertools.product((3, 16, 50), (0.3, 1.0, 1.7, 2.0)):
        sizes = listed(rng, 700, length)
        phase = OrderPhase((Stream("rare", 700, sizes), Stream("web", 10_000)), length)
        stages = [(math.inf, {"rare": 1.0, "web": 1.0})]
        drawn = Order([phase], build_mixture(stages, {"rare": epoch_cap(700, most)}, ["rare", "web"]), 0, "corpus")
        free = Order([phase], build_mixture(stages, {}, ["rare", "web"]), 0, "corpus").take(0, 4_000)
        samples = drawn.take(0, 4_000)
        given = samples.sequence[samples.source == 0]
        in_order = np.cumsum(sizes[free.sequence[free.source == 0]])
        assert drawn.caps()[0] == drawn.mixture().caps[0] == in_order[in_order <= 700 * most][-1]
        # The mixture asks for no fraction of a sequence, so what is left of the cap may wait for the others to end.
        assert drawn.caps()[0] - length < sizes[given].sum() <= drawn.caps()[0]


def test_resuming_from_a_saved_state_replays_nothing_before_it():
    for seed in range(10):
        whole, _ = random_order(seed)
        expected = whole.take(0, 300)
        for at in (0, 1, whole.phases[0].until, whole.phases[1].until - 1, 250):
            record = json.loads(json.dumps(whole.state(at)))
            _replay_points.cache_clear()  # as in another process
            resumed, _ = random_order(seed)
            assert resumed.resume(record)
            part = resumed.take(at, 300 - at)
            for name in ("number", "source", "sequence", "tokens", "epoch"):
                np.testing.assert_array_equal(getattr(part, name), getattr(expected, name)[at:])
            np.testing.assert_array_equal(resumed.totals(300).tokens, whole.totals(300).tokens)
            np.testing.assert_array_equal(resumed.take(0, 300).sequence, expected.sequence)  # and back
            assert not random_order(seed + 100)[0].resume(record)
    far = order((0.5, 0.5), (1_600, 1_600))
    record = far.state(200)  # an epoch of both: replaying 10^12 of them would not end
    record |= {"sample": 200 * 10**12, "sequences": [10**14] * 2, "tokens": [16 * 10**14] * 2}
    assert far.resume(record)
    assert far.take(200 * 10**12, 10).epoch.tolist() == [10**12] * 10


@pytest.mark.parametrize("size", [1, 3, 50])
def test_steps_are_counted_in_tokens_drawn(size):
    for seed in range(20):
        drawn, _ = random_order(seed)
        sums = np.cumsum(drawn.take(0, 600).tokens)[size - 1 :: size]
        for tokens in (0, 1, 50, int(sums[1]) - 1, int(sums[1]), int(sums[-2])):
            assert drawn.steps(size, tokens) == (sums <= tokens).sum()


def test_a_budget_beyond_the_caps_exhausts_the_mixture():
    drawn = staged([(math.inf, (0.5, 0.5))], (100, 64), {0: 1, 1: 2})
    assert drawn.steps(3, 150) < drawn.steps(3, 200) <= 4
    with pytest.raises(MixtureExhausted) as error:
        drawn.steps(3, 229)
    assert (error.value.samples, error.value.tokens) == (15, 228)
