"""Rows of sentence pairs: which tokens each exchange reads, where parts are cut, and which pairs are
exchanged.
"""

from bisect import bisect_left, bisect_right

import numpy as np
import pytest

from trainers.rows.batch import Frame
from trainers.rows.sentence_pairs import MARKS, PairPacking, pair_sentences


def shard(seed, documents=80, longest=40):
    """Return (offsets, sentences, sentence offsets) of a random shard whose arrays do not start at 0. Some
    documents are empty, and some sentences start where another one starts or at the end of the document.
    """
    rng = np.random.default_rng(seed)
    starts, sizes = [], []
    for _ in range(documents):
        lengths = rng.integers(0, longest, rng.integers(0, 30)) if rng.random() < 0.9 else np.zeros(0, int)
        ends = np.cumsum(lengths)
        sizes.append(int(ends[-1]) if len(ends) else 0)
        starts.append(np.concatenate([[0], ends]) if sizes[-1] else np.zeros(0, int))
    offsets = np.concatenate([[5], 5 + np.cumsum(sizes)])
    values = np.concatenate([np.zeros(3), *starts]).astype(np.int32)
    return offsets, values, np.concatenate([[3], 3 + np.cumsum([len(s) for s in starts])])


def boundaries(offsets, sentences, sentence_offsets):
    """Return the positions, counted from the shard's first token, at which sentences begin or documents end."""
    found = set()
    for d in range(len(offsets) - 1):
        begin, size = int(offsets[d] - offsets[0]), int(offsets[d + 1] - offsets[d])
        found |= {begin, begin + size}
        found |= {begin + int(s) for s in sentences[sentence_offsets[d] : sentence_offsets[d + 1]] if s < size}
    return sorted(found)


@pytest.mark.long
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("length", [16, 32, 128])
def test_every_token_is_read_once_in_every_exchange_but_for_what_a_match_cuts_off(length, single):
    for seed in range(4):
        offsets, *rest = shard(seed)
        pairs = pair_sentences(offsets, *rest, length, 2, single, 3, seed)
        first, second = pairs.sizes[::2], pairs.sizes[1::2]
        for other, held in zip(pairs.other, np.abs(pairs.second), strict=True):
            np.testing.assert_array_equal(np.sort(other), np.arange(len(other)))
            np.testing.assert_array_equal(held > 0, second > 0)
            assert (held <= np.minimum(second, second[other])).all()
            assert np.abs(second - second[other]).max() <= max(1, (length - MARKS) // 8)
            read = np.zeros(offsets[-1] - offsets[0], dtype=int)
            for row in range(len(other)):
                for part, count in ((2 * row, first[row]), (2 * other[row] + 1, held[row])):
                    read[pairs.starts[part] : pairs.starts[part] + count] += 1
            assert read.max(initial=0) <= 1
            assert (read == 0).sum() == (second - held).sum()
        # Rows fit with their marks; counted are those of the stream, two a document.
        assert (first + second + np.where(second > 0, MARKS, MARKS - 1) <= length).all()
        assert pairs.marks.sum() == 2 * (len(offsets) - 1)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("length", [16, 32, 128])
def test_parts_are_whole_sentences_that_follow_each_other(length, single):
    for seed in range(4):
        arrays = shard(seed)
        offsets = arrays[0]
        pairs, places = pair_sentences(*arrays, length, 2, single, 0, seed), boundaries(*arrays)
        np.testing.assert_array_equal(pairs.other, [np.arange(len(pairs.document))])
        room, whole = length - MARKS, set(places)
        for row, d in enumerate(pairs.document):
            (a, b), (first, second) = pairs.starts[2 * row : 2 * row + 2], pairs.sizes[2 * row : 2 * row + 2]
            assert b == a + first
            assert offsets[d] <= a + offsets[0] < b + second + offsets[0] <= offsets[d + 1]
            if second:
                assert b in whole
                # B ends within a sentence where A is one, and only the beginning of the next has room.
                cut = b + second not in whole
                assert not cut or (first + second == room and second >= room // 8)
                assert not cut or bisect_left(places, b + second) - bisect_right(places, a) == 1
                assert not single or bisect_left(places, b + second) - bisect_left(places, b) == 1
                assert not single or bisect_left(places, b) - bisect_left(places, a) <= 1
            else:
                # A sentence of its own, or a row that is full of a longer one.
                assert bisect_left(places, b) - bisect_right(places, a) == 0
                assert b in whole or first == room + 1


def test_a_row_alone_has_no_room_for_a_part_of_its_neighbour():
    arrays = shard(1, documents=300)
    pairs, places = pair_sentences(*arrays, 64, 2, False, 0, 1), np.array(boundaries(*arrays))
    alone = np.flatnonzero(pairs.sizes[1::2] == 0)
    assert len(alone) > 20
    for row in alone:
        end = pairs.starts[2 * row] + pairs.sizes[2 * row]
        if end in places and end + arrays[0][0] != arrays[0][pairs.document[row] + 1]:
            assert pairs.sizes[2 * row] > (64 - MARKS) * 7 // 8


def test_a_pair_takes_as_many_sentences_as_fit():
    arrays = shard(1, documents=300)
    pairs, places = pair_sentences(*arrays, 64, 2, False, 0, 1), np.array(boundaries(*arrays))
    for row in np.flatnonzero(pairs.sizes[1::2]):
        end = pairs.starts[2 * row + 1] + pairs.sizes[2 * row + 1]
        if end in places and end + arrays[0][0] != arrays[0][pairs.document[row] + 1]:
            assert places[places > end][0] - pairs.starts[2 * row] > 64 - MARKS


def test_rows_are_divided_between_any_two_sentences_alike():
    offsets, values = np.array([0, 80_000]), np.arange(0, 80_000, 10, dtype=np.int32)
    pairs = pair_sentences(offsets, values, np.array([0, 8000]), 53, 2, False, 0, 1)  # five sentences of ten a row
    firsts, counts = np.unique(pairs.sizes[::2], return_counts=True)
    assert firsts.tolist() == [10, 20, 30, 40]
    assert np.abs(counts / 1600 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 1600)


def test_half_of_the_pairs_are_exchanged_and_each_time_others():
    pairs = pair_sentences(*shard(2, documents=600), 96, 2, False, 10, 5)
    paired = pairs.sizes[1::2] > 0
    moved = pairs.other != np.arange(len(paired))
    assert not moved[:, ~paired].any()
    assert abs(moved[pairs.second > 0].mean() - 0.5) < 0.001  # of those with a label
    assert (pairs.second[:, paired] < 0).mean() < 0.01
    share, count = moved[:, paired].mean(), 10 * paired.sum()
    assert share == pytest.approx(0.5, abs=5 * np.sqrt(0.25 / count))
    assert (pairs.sizes[2 * pairs.other[moved] + 1] > 0).all()
    together = [(moved[i] & moved[j])[paired].mean() for i in range(10) for j in range(i)]
    assert np.mean(together) == pytest.approx(0.25, abs=0.04)
    assert len({tuple(other) for other in pairs.other}) == 10
    rows = np.broadcast_to(np.arange(len(paired)), moved.shape)[moved]
    assert (pairs.document[rows] != pairs.document[pairs.other[moved]]).all()


@pytest.mark.parametrize(("documents", "length"), [(12, 128), (40, 512), (200, 512)])
def test_in_a_small_shard_half_of_the_labels_are_not_next_and_lengths_do_not_tell_which(documents, length):
    pairs = pair_sentences(*shard(7, documents, longest=80), length, 2, False, 40, 0)
    labels = (pairs.other != np.arange(len(pairs.document)))[pairs.second > 0]
    assert len(labels) > 0.5 * (pairs.second != 0).sum()
    assert 0.48 <= labels.mean() <= 0.52
    # A table from the lengths of A and B to the commoner label, of half of the exchanges, asked about the other half.
    half = np.repeat(np.arange(40) < 20, (pairs.second > 0).sum(axis=1))
    first = np.broadcast_to(pairs.sizes[::2], pairs.second.shape)[pairs.second > 0]
    for size in (pairs.second[pairs.second > 0], first, first + pairs.second[pairs.second > 0]):
        table = np.bincount(size[half], 2.0 * labels[half] - 1, minlength=length + 1)
        assert ((table[size[~half]] > 0) == labels[~half]).mean() <= 0.53 + 0.5 / np.sqrt((~half).sum())


def test_where_one_document_is_all_of_a_shard_there_is_no_other_document_and_no_label():
    values = np.arange(0, 20_000, 10, dtype=np.int32)
    pairs = pair_sentences(np.array([0, 20_000]), values, np.array([0, 2000]), 96, 2, False, 2, 3)
    assert (pairs.other == np.arange(len(pairs.document))).all()
    assert (pairs.second <= 0).all()
    balance = PairPacking((pairs,), Frame()).balance()
    assert (balance["not_next"], balance["without_label"]) == (0, (pairs.second < 0).mean())


def test_only_the_text_distinguishes_pairs():
    """The sizes of parts and rows have the same mean and standard deviation in both classes."""
    rng = np.random.default_rng(0)
    starts = [np.concatenate([[0], np.cumsum(rng.integers(5, 40, 60))]) for _ in range(2000)]
    offsets = np.concatenate([[0], np.cumsum([s[-1] for s in starts])])
    values, value_offsets = np.concatenate([s[:-1] for s in starts]).astype(np.int32), np.arange(2001) * 60
    pairs = pair_sentences(offsets, values, value_offsets, 256, 2, False, 4, 0)
    moved, paired = pairs.other != np.arange(len(pairs.document)), pairs.sizes[1::2] > 0
    first, second = pairs.sizes[::2], pairs.sizes[1::2]
    for size in (first, second, first + second):
        sizes = np.broadcast_to(size, moved.shape)
        one, two = sizes[moved], sizes[~moved & paired]
        assert one.mean() == pytest.approx(two.mean(), abs=5 * sizes.std() * np.sqrt(1 / len(one) + 1 / len(two)))
        assert one.std() == pytest.approx(two.std(), rel=0.05)


def test_rows_of_long_documents_are_full_but_for_half_a_sentence():
    lengths = np.random.default_rng(0).integers(5, 40, 8000)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    pairs = pair_sentences(starts[[0, -1]], starts[:-1].astype(np.int32), np.array([0, 8000]), 256, 2, False, 1, 0)
    # What is left of a row is half of the sentence that it ends in, and long ones are met more often (renewal theory).
    left = (lengths**2).mean() / (2 * lengths.mean())
    assert pairs.sizes.sum() / len(pairs.document) == pytest.approx(256 - MARKS - left, abs=1.5)


def test_another_seed_makes_other_pairs_and_the_same_seed_the_same():
    arrays = shard(3)
    one, again, other = (pair_sentences(*arrays, 64, 2, False, 2, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.other, again.other)
    np.testing.assert_array_equal(one.sizes, again.sizes)
    assert len(one.sizes) != len(other.sizes) or (one.sizes != other.sizes).any()


def test_parts_that_are_cut_exchange_among_themselves():
    """An end inside a sentence would otherwise reveal the class."""
    arrays = shard(4, documents=900, longest=90)
    pairs, places = pair_sentences(*arrays, 64, 2, False, 3, 4), set(boundaries(*arrays))
    ends, paired = (pairs.starts + pairs.sizes)[1::2].tolist(), pairs.sizes[1::2] > 0
    cut = paired & np.array([end not in places for end in ends])
    moved = pairs.other != np.arange(len(cut))
    assert cut.sum() > 500
    assert (cut[pairs.other] == cut).all()
    assert moved[:, cut].mean() == pytest.approx(0.5, abs=0.05)


def test_an_empty_shard_has_no_rows():
    pairs = pair_sentences(np.array([5, 5]), np.zeros(0, np.int32), np.array([0, 0]), 64, 2, False, 2, 0)
    assert pairs.other.shape == (2, 0)
