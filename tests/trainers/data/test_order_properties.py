"""Properties of orders and best-fit packing for arbitrary sources, weights and stopping points: nothing is
read twice in an epoch, and a sample depends on its number alone.
"""

import json
import math
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainers.data.mixture_weights import build_mixture
from trainers.data.order import Order, OrderPhase, Stream
from trainers.rows.best_fit import best_fit, cut_documents

LENGTH = 16


@st.composite
def orders(draw):
    """Draw two identical orders, their streams, and the sample at which the first phase ends (None if there
    is only one phase).
    """
    tokens = draw(st.lists(st.integers(1, 200), min_size=1, max_size=4))
    weights = draw(st.lists(st.floats(0.01, 1), min_size=len(tokens), max_size=len(tokens)))
    sizes = [draw(st.none() | st.lists(st.integers(1, LENGTH), min_size=1, max_size=9)) for _ in tokens]
    streams = [
        Stream(f"s{i}", count if listed is None else sum(listed), None if listed is None else np.array(listed))
        for i, (count, listed) in enumerate(zip(tokens, sizes, strict=True))
    ]
    names = [stream.name for stream in streams]
    until = draw(st.none() | st.integers(1, 60))
    phases = [OrderPhase(tuple(streams), LENGTH)] if until is None else [
        OrderPhase(tuple(streams), LENGTH, until), OrderPhase(tuple(streams), LENGTH)
    ]  # fmt: skip
    asked = build_mixture([(math.inf, dict(zip(names, weights, strict=True)))], {}, names)
    seed = draw(st.integers(0, 2**32))
    return [Order(phases, asked, seed, "corpus") for _ in range(2)], streams, until


def columns(samples):
    return [samples.source.tolist(), samples.sequence.tolist(), samples.tokens.tolist(), samples.epoch.tolist()]


@given(orders(), st.integers(0, 150), st.integers(0, 60), st.integers(0, 200))
def test_a_sample_is_a_function_of_its_number(case, first, count, before):
    (straight, other), _, _ = case
    whole = columns(straight.take(0, first + count))
    other.take(before, 1)
    record = json.loads(json.dumps(other.state(before)))
    assert other.clone().resume(record)
    assert columns(other.take(first, count)) == [column[first:] for column in whole]


@given(orders(), st.integers(1, 300))
def test_every_sequence_is_read_once_an_epoch(case, count):
    (order, _), streams, until = case
    samples = order.take(0, count)
    drawn = order.totals(count)
    assert drawn.tokens.tolist() == np.bincount(samples.source, samples.tokens, len(streams)).astype(int).tolist()
    for source, stream in enumerate(streams):
        full = -(-stream.tokens // LENGTH) if stream.sizes is None else len(stream.sizes)
        for epoch in np.unique(samples.epoch[samples.source == source]).tolist():
            here = (samples.source == source) & (samples.epoch == epoch)
            read = samples.sequence[here].tolist()
            assert len(set(read)) == len(read)
            assert set(read) <= set(range(full))
            if len(read) == full:
                assert samples.tokens[here].sum() == stream.tokens
            elif until is None:
                assert epoch == drawn.epochs[source] - 1  # the last one alone may be unfinished


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=12),
    st.integers(0, 2),
    st.integers(4, 20),
    st.integers(0, 2**64 - 1),
)
def test_best_fit_keeps_every_position_once_and_cuts_nothing_that_fits(sizes, marks, length, key):
    offsets = np.cumsum([7, *sizes])
    starts, counts = cut_documents(offsets, marks, length)
    order, first = best_fit(counts, length, key)
    pieces = sorted(zip(starts.tolist(), counts.tolist(), strict=True))
    assert [place for start, count in pieces for place in range(start, start + count)] == list(
        range(sum(sizes) + marks * len(sizes))
    )
    whole = [size + marks for size in sizes if size + marks]
    assert sorted(counts[counts < length].tolist()) == sorted(size % length for size in whole if size % length)
    assert sorted(order.tolist()) == list(range(len(counts)))
    rows = [counts[order[a:b]].sum() for a, b in pairwise(first)]
    assert all(0 < row <= length for row in rows)
    assert len(rows) < 2 or sum(sorted(rows)[:2]) > length  # no two could be one
