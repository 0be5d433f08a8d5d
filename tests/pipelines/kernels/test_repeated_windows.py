"""Repeated windows against dictionaries and numpy."""

import random

import numpy as np
import pytest

from pipelines.kernels.search.repeated_windows import (
    changes,
    copy_ranges,
    elect_windows,
    find_keys,
    first_equal,
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
    keys = np.array([0, 5, 1 << 63, (1 << 64) - 1], np.uint64)
    assert find_keys(keys, np.array([5, 4, 1 << 63, 0], np.uint64)).tolist() == [1, -1, 2, 0]
    assert find_keys(keys[:0], keys).tolist() == [-1] * 4


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
    """The blocks have a middle in common, with up to eight other bytes on both sides, and no window twice."""
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
