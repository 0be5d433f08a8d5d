"""Repeated windows of text, against dictionaries and numpy."""

import random

import numpy as np
import pytest

from pipelines.kernels.search.repeated_windows import (
    WindowRuns,
    changes,
    copy_ranges,
    elect_windows,
    find_keys,
    find_repeats,
    first_equal,
    index_keys,
    sort_by,
)


def read_only(values):
    data = np.frombuffer(values, np.uint8)
    data.flags.writeable = False
    return data


@pytest.mark.parametrize("most", [2, 300, (1 << 64) - 1])
def test_rows_are_sorted_by_several_keys_and_equal_ones_keep_their_order(most):
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, most, (2, 2000), dtype=np.uint64, endpoint=True)
    assert sort_by(first, second).tolist() == np.lexsort((second, first)).tolist()
    assert sort_by(first[:0]).tolist() == []


def test_keys_are_found_and_others_are_not():
    keys = np.random.default_rng(3).permutation(np.array([*range(500), 1 << 63, (1 << 64) - 1], np.uint64))
    wanted = np.array([*range(600), 1 << 63, 1 << 62, (1 << 64) - 1], np.uint64)
    places = {key: place for place, key in enumerate(keys.tolist())}
    found = find_keys(keys, index_keys(keys), wanted)
    assert found.tolist() == [places.get(key, -1) for key in wanted.tolist()]
    assert find_keys(keys[:0], index_keys(keys[:0]), wanted[:3]).tolist() == [-1] * 3


def test_bytes_with_the_same_hash_are_compared():
    rng = random.Random(2)
    pieces = [bytes(rng.choices(b"ab", k=rng.choice([8, 9, 10, 17]))) for _ in range(600)]
    pieces += [b"a" * 8, b"a" * 9, b"b" + b"a" * 8, b"a" * 16 + b"b", b"a" * 17] * 2
    data, lengths = read_only(b"".join(pieces)), np.array([*map(len, pieces)])
    begins = np.cumsum(lengths) - lengths
    expected = [pieces.index(piece) for piece in pieces]
    for hashes in (np.zeros(len(pieces), np.uint64), lengths.astype(np.uint64)):
        assert first_equal(data, begins, lengths, hashes).tolist() == expected
    assert copy_ranges(data, begins[1::2], lengths[1::2]).tobytes() == b"".join(pieces[1::2])


@pytest.mark.parametrize("size", [10, 13])
def test_each_window_is_named_for_the_first_block_of_its_group_that_has_it(size):
    """The blocks share a middle, with up to eight random bytes on either side; no block contains a window
    twice.
    """
    rng = random.Random(size)
    blocks, keys = [], []
    for _ in range(300):
        left, right = (bytes(rng.choices(b"xy", k=rng.randrange(9))) for _ in range(2))
        blocks.append(left + b"0123456789"[: size - 1] + right + b"-" * 3)
        keys.append(rng.choice([3, 3, 3, 1 << 40, 9 + rng.randrange(200)]))
    bounds = np.append(0, np.cumsum([*map(len, blocks)]))
    runs = elect_windows(np.array(keys, np.uint64), bounds, read_only(b"".join(blocks)), size)
    found = {
        (block, window): (owner, window + shift)
        for block, low, high, owner, shift in zip(*map(np.ndarray.tolist, runs), strict=True)
        for window in range(low, high)
    }
    firsts, expected = {}, {}
    for block, (key, text) in enumerate(zip(keys, blocks, strict=True)):
        for window in range(len(text) - size + 1):
            first = firsts.setdefault((key, text[window : window + size]), (block, window))
            if first[0] != block:
                expected[block, window] = first
    assert found == expected
    assert changes(runs.blocks).sum() == len({*runs.blocks.tolist()})  # the runs of a block are neighbours
    assert len(runs.blocks) > len({*runs.blocks.tolist()}) > 100


def test_a_block_may_have_more_runs_than_there_are_blocks():
    text = bytes(range(50))
    short = [text[low : low + 10] for low in range(0, 41, 2)]
    blocks = [*short, *[text] * 4]
    bounds = np.append(0, np.cumsum([*map(len, blocks)]))
    runs = elect_windows(np.zeros(len(blocks), np.uint64), bounds, read_only(b"".join(blocks)), 10)
    for block in range(len(short), len(blocks)):
        mine = runs.blocks == block
        lows = np.arange(0, 41, 1 if block > len(short) else 2)
        assert runs.lows[mine].tolist() == lows.tolist()
        assert runs.highs[mine].tolist() == (lows + 1).tolist()
        owners = np.where(lows % 2, len(short), lows // 2)
        assert runs.owners[mine].tolist() == owners.tolist()
        assert runs.shifts[mine].tolist() == np.where(lows % 2, 0, -lows).tolist()


def test_windows_of_a_block_repeat_elsewhere_or_here_without_overlap():
    lows = np.arange(0, 20, 2)
    nothing = np.zeros(len(lows), np.int64)
    runs = WindowRuns(nothing, lows, lows + 1, nothing - 1, nothing)
    one = np.zeros(1, np.int64)
    found = find_repeats(one, one + 3, one + 20, one, runs, 10)  # the other windows occur here first
    assert np.stack(found).T.tolist() == [[0, 3 + low, 4 + low, -1 - run] for run, low in enumerate(lows.tolist())]
    documents, starts = np.array([0, 0, 0, 1]), np.array([0, 9, 10, 0])
    found = find_repeats(documents, starts, one.repeat(4) + 1, one.repeat(4), WindowRuns(*[nothing[:0]] * 5), 10)
    assert np.stack(found).T.tolist() == [[0, 10, 11, 0], [1, 0, 1, 0]]
