"""Sequences of whole sentences, against a direct implementation of RoBERTa's section 4.2."""

import numpy as np
import pytest

from trainers.rows.packing import pack
from trainers.rows.sentences import cut_at_sentences, mark_sentences

PLAIN = np.empty(0, np.int64), 0  # no room for marks that an objective adds


def shard(seed, documents=60):
    """Return (tokens, offsets, sentences, sentence offsets) of a random shard whose offsets do not start at
    0. Some documents are empty, and some sentences start where another one starts or at the end of the
    document.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 60, documents) * (rng.random(documents) < 0.9)
    offsets = np.concatenate([[5], 5 + np.cumsum(sizes)])
    tokens = rng.integers(10, 60_000, offsets[-1]).astype(np.uint16)
    starts = [
        np.sort(np.concatenate([[0], rng.integers(0, size + 1, rng.integers(0, 6))])) if size else np.zeros(0)
        for size in sizes
    ]
    values = np.concatenate([np.zeros(3), *starts]).astype(np.int32)
    return tokens, offsets, values, np.concatenate([[3], 3 + np.cumsum([len(s) for s in starts])])


def sentences_of(offsets, values, value_offsets, lead, marks):
    """Return the sizes of each document's sentences, including marks."""
    found = []
    for d in range(len(offsets) - 1):
        size = int(offsets[d + 1] - offsets[d])
        inner = sorted({int(s) for s in values[value_offsets[d] : value_offsets[d + 1]] if 0 < s < size})
        ends = [*(lead + s for s in inner), size + marks]
        found.append([end - begin for begin, end in zip([0, *ends], ends, strict=False) if end > begin])
    return found


def sequences(documents, length, across):
    """Return the sizes of sequences that take as many whole sentences as fit, from several documents if
    `across`. Sentences longer than a sequence are cut.
    """
    rows, room = [], []
    for document in documents:
        for sentence in document:
            if room and sum(room) + sentence > length:
                rows.append(sum(room))
                room = []
            while sentence > length:
                rows.append(length)
                sentence -= length
            room.append(sentence)
        if room and not across:
            rows.append(sum(room))
            room = []
    return [*rows, sum(room)] if room else rows


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize(("lead", "marks"), [(0, 0), (1, 1), (0, 1), (1, 2)])
@pytest.mark.parametrize("length", [2, 7, 32, 500])
def test_a_sequence_takes_as_many_whole_sentences_as_fit(across, lead, marks, length):
    for seed in range(5):
        _, *arrays = shard(seed)
        cuts = cut_at_sentences(*arrays, lead, marks, length, across, *PLAIN)
        assert np.diff(cuts).tolist() == sequences(sentences_of(*arrays, lead, marks), length, across)
        assert cuts[0] == 0
        assert cuts[-1] == arrays[0][-1] - arrays[0][0] + marks * (len(arrays[0]) - 1)


def test_an_empty_shard_has_no_sequences():
    nothing = (np.array([5]), np.zeros(0, np.int32), np.array([0]))
    assert cut_at_sentences(*nothing, 1, 2, 16, True, *PLAIN).tolist() == [0]
    empty = (np.array([5, 5, 5]), np.zeros(0, np.int32), np.array([0, 0, 0]))
    assert cut_at_sentences(*empty, 0, 0, 16, False, *PLAIN).tolist() == [0]
    assert cut_at_sentences(*empty, 1, 2, 16, False, *PLAIN).tolist() == [0, 2, 4]


@pytest.mark.parametrize(("before", "after"), [(-1, -1), (1, -1), (-1, 2), (1, 2)])
def test_sentences_are_marked_where_the_rows_have_them(before, after):
    tokens, offsets, values, value_offsets = shard(0)
    lead, marks, length = int(before >= 0), int(before >= 0) + int(after >= 0), 23
    stream_begins = np.zeros(offsets[-1] - offsets[0] + marks * (len(offsets) - 1), dtype=bool)
    place = 0
    for document in sentences_of(offsets, values, value_offsets, lead, marks):
        for sentence in document:
            stream_begins[place] = True
            place += sentence
    starts = np.arange(0, len(stream_begins), 10)
    counts, rows = np.full(len(starts), 10), np.arange(len(starts)) // 2
    shape = (rows[-1] + 1, length)
    filled, arrays = np.zeros(shape[0], dtype=np.int64), np.zeros((4, *shape), dtype=np.int64)
    begins = np.zeros(shape, dtype=bool)
    some = len(starts) // 4 * 2  # two pieces a row, as best-fit packing has them; the last row's in turn
    for part in (slice(0, some), slice(some, some + 1), slice(some + 1, None)):
        pieces = (starts[part], counts[part], rows[part], filled)
        mark_sentences(offsets, values, value_offsets, *pieces, lead, marks, begins)
        pack(tokens, offsets, *pieces, before, after, -1, *arrays)
    segments = arrays[3]
    for row in range(shape[0]):
        flat = np.concatenate([stream_begins[s : s + 10] for s in starts[rows == row]])
        new = np.diff(segments[row, : filled[row]], prepend=-1) != 0
        np.testing.assert_array_equal(begins[row, : filled[row]], flat | new)
        assert not begins[row, filled[row] :].any()
