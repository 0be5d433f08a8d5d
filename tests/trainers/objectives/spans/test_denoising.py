"""BART's five kinds of noise: figure 2 of the paper, what each kind leaves unchanged, and their shares."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import exp, factorial, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import UserError
from tests.trainers.objectives.packed import (
    BOS,
    EOS,
    FIRST,
    IGNORED,
    MASK,
    both_sides,
    context,
    one_side,
    packed,
    random_rows,
)
from trainers.objectives.shared.ragged import Ragged
from trainers.objectives.spans.denoising import (
    Denoising,
    delete_tokens,
    infill_spans,
    rotate_documents,
    shuffle_sentences,
)
from trainers.rows.batch import PADDING

NOTHING = {"infilling": 0.0, "permute_sentences": False}
LETTERS = "ABC.DE."
ONE = np.zeros(1, np.int64), np.full(1, 100)  # a document in a row that has room for 100 tokens more


def letters(text):
    """Return the ids of letters; `_` is the mask."""
    return np.array([MASK if letter == "_" else FIRST + ord(letter) for letter in text], dtype=np.int64)


def written(ragged):
    words = "".join("_" if token == MASK else chr(token - FIRST) for token in ragged.tokens.tolist())
    return [words[a:b] for a, b in pairwise(ragged.offsets.tolist())]


def ragged(*texts):
    return Ragged(letters("".join(texts)), np.cumsum([0, *(len(text) for text in texts)]))


def test_the_papers_figure():
    text = ragged(LETTERS)
    starts = np.array([letter in "AD" for letter in LETTERS])
    # Of the two sentences the second is drawn to change places with the first; the number is at the second sentence.
    assert written(shuffle_sentences(text, starts, np.full(7, 0.2))) == ["DE.ABC."]
    assert written(shuffle_sentences(text, starts, np.full(7, 0.9))) == ["ABC.DE."]
    assert written(rotate_documents(text, np.array([2.1 / 7]))) == ["C.DE.AB"]
    assert written(delete_tokens(text, np.array([letter in "BD" for letter in LETTERS]))) == ["AC.E."]
    made = Denoising(**NOTHING, masking=0.4).apply(packed([[letters(LETTERS).tolist()]] * 50), context())
    for encoder, _, target in both_sides(made).values():
        assert target == [BOS, *letters(LETTERS), EOS]
        assert all(token in (MASK, original) for token, original in zip(encoder, target, strict=True))
    assert (made.inputs == MASK).any()


def test_spans_of_infilling_become_one_mask_and_empty_ones_are_inserted():
    """A span of two tokens becomes one mask, and an empty span inserts a mask."""
    text, poisson = ragged(LETTERS), [exp(-3) * 3**k / factorial(k) for k in range(4)]
    below = np.cumsum([0, *poisson])
    lengths = np.array([below[0], below[2] + 0.01, 0, 0, 0, 0, 0]) + 1e-9
    # Two tokens of seven; slots: A, a mask, B, C, ., ... -- a number below (spans left / slots left) takes the slot.
    places = np.ones(14) * 0.999
    places[1] = places[4] = 0.0
    made = infill_spans(text, text.offsets, lengths, places, 2 / 7, 3.0, MASK, *ONE)
    assert written(made) == ["A_BC_E."]  # the empty span first, then one of two tokens: . and D
    places[4], places[2] = 0.999, 0.0
    assert written(infill_spans(text, text.offsets, lengths, places, 2 / 7, 3.0, MASK, *ONE)) == ["A__.DE."]


def test_a_shortened_document_may_grow_to_its_original_size():
    """Empty spans may insert as many masks as other noise has removed tokens."""
    text, offsets, lengths = ragged("A"), np.array([0, 6]), np.array([0.1, 0.1, 0.1, 0.1, 0.9, 0.9])
    full_row = np.zeros(1, np.int64), np.zeros(1, np.int64)
    assert written(infill_spans(text, offsets, lengths, np.full(12, 0.5), 0.9, 1.0, MASK, *full_row)) == ["_____"]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_no_document_outgrows_its_row_however_short_its_spans(share):
    """Rows must stay within the position table. With a mean span of one token, about half of all draws insert
    more than they remove.
    """
    sizes = np.arange(140).repeat(20)
    text = Ragged(np.arange(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]))
    rng = np.random.default_rng(0)
    room = np.arange(len(sizes)), np.maximum(0, 128 - sizes)
    made = infill_spans(text, text.offsets, rng.random(sizes.sum()), rng.random(2 * sizes.sum()), share, 1.0, -1, *room)
    assert (made.sizes <= np.maximum(sizes, 128)).all()
    together = np.zeros(len(sizes), np.int64), np.array([5])
    one = infill_spans(
        text, text.offsets, rng.random(sizes.sum()), rng.random(2 * sizes.sum()), share, 1.0, -1, *together
    )
    grown = np.cumsum(one.sizes - sizes)
    assert grown.max() <= 5
    assert (one.sizes > sizes).sum() > 100
    assert (made.sizes > sizes).any()
    kept = np.add.reduceat(np.append(made.tokens >= 0, False), made.offsets[:-1])[sizes > 0]
    np.testing.assert_array_equal(kept, (sizes - np.rint(sizes * share))[sizes > 0])


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_infilled_rows_stay_within_the_position_table(share):
    """Documents fill their rows, and spans are so short that many of them are empty."""
    objective = Denoising(infilling=share, mean_span=1.0, permute_sentences=False)
    settings = context()
    size = objective.room(settings.sequence_length, settings.family).length
    made = objective.apply(packed([[list(range(FIRST, FIRST + size))]] * 400), settings)
    assert made.positions.max() < settings.sequence_length
    assert made.decoder.positions.max() < settings.sequence_length


def test_infilling_takes_its_share_in_spans_of_poisson_lengths():
    count, size, mean = 4000, 200, 3.0
    text = Ragged(np.tile(np.arange(FIRST, FIRST + size), count), np.arange(count + 1) * size)
    rng, room = np.random.default_rng(0), (np.arange(count), np.full(count, size))
    made = infill_spans(
        text, text.offsets, rng.random(count * size), rng.random(2 * count * size), 0.3, mean, MASK, *room
    )
    spans, first_places = [], []
    for first, end in pairwise(made.offsets):
        tokens = made.tokens[first:end]
        kept = tokens[tokens != MASK]
        assert len(kept) == size - round(0.3 * size)
        assert (np.diff(kept) > 0).all()
        spans.append((tokens == MASK).sum())
        first_places.append(np.argmax(tokens == MASK) - len(kept) / (spans[-1] + 1))
    # A renewal process: lengths are drawn until 60 tokens are reached, the mean number of draws is near
    # 60 / 3 + (1 + 1 / 3) / 2 (the mean overshoot of Poisson lengths, given that the last one is not empty).
    draws = np.mean(spans)
    assert abs(draws - (60 / mean + 0.5 + 1 / (2 * mean))) < 0.35
    # Uniform places: the mean number of text tokens before the first of s spans among k is k / (s + 1).
    assert abs(np.mean(first_places)) < 5 * np.std(first_places) / sqrt(count)


@pytest.mark.long
def test_single_spans_are_poisson():
    """Only one token in a hundred is removed, so a document has a single nonempty span, and hardly any empty
    ones follow it.
    """
    count, size = 50_000, 100
    text = Ragged(np.tile(np.arange(size) + FIRST, count), np.arange(count + 1) * size)
    rng, room = np.random.default_rng(1), (np.arange(count), np.full(count, size))
    made = infill_spans(
        text, text.offsets, rng.random(count * size), rng.random(2 * count * size), 0.01, 1.0, MASK, *room
    )
    masks = np.add.reduceat(made.tokens == MASK, made.offsets[:-1])
    # The number of masks is 1 + the empty spans before it: geometric with success 1 - e^-1.
    for k in range(1, 5):
        expected = count * exp(-(k - 1)) * (1 - exp(-1))
        assert abs((masks == k).sum() - expected) < 5 * sqrt(expected)


@pytest.mark.parametrize("noise", ["masking", "deletion"])
def test_tokens_are_chosen_within_binomial_bounds(noise):
    rate, count = 0.3, 300 * 400
    rows = [[np.arange(FIRST, FIRST + 400).tolist()]] * 300
    made = Denoising(**NOTHING, **{noise: rate}).apply(packed(rows), context())
    left = (made.segments != PADDING).sum() - 2 * 300
    chosen = (made.inputs == MASK).sum() if noise == "masking" else count - left
    assert abs(chosen - rate * count) < 5 * sqrt(count * rate * (1 - rate))


def test_a_rotation_begins_anywhere():
    rows = [[np.arange(FIRST, FIRST + 10).tolist()] * 20] * 100
    made = Denoising(**NOTHING, rotate=True).apply(packed(rows), context())
    found = Counter(encoder[1] - FIRST for encoder, _, _ in both_sides(made).values())
    assert len(found) == 10
    assert sum((many - 200) ** 2 / 200 for many in found.values()) < 34  # chi-square, 9 degrees: p = 1e-4
    for encoder, _, target in both_sides(made).values():
        begin = encoder[1] - FIRST
        assert encoder[1:-1] == target[1:-1][begin:] + target[1:-1][:begin]


def sentences(text, starts):
    begins = sorted({0, *np.flatnonzero(starts).tolist()})
    return [tuple(text[a:b]) for a, b in pairwise([*begins, len(text)])]


@given(st.integers(0, 1000), st.sampled_from(["encoder_decoder", "decoder"]))
def test_permuted_sentences_are_whole_and_targets_the_original(seed, family):
    batch = packed(random_rows(seed, 4))
    starts = np.random.default_rng(seed).random(batch.inputs.shape) < 0.3
    batch = replace(batch, sentence_starts=starts & (batch.segments != PADDING))
    made = Denoising(infilling=0.0).apply(batch, context(family, seed))
    sides = both_sides(made) if family == "encoder_decoder" else one_side(made)
    for (row, number), side in sides.items():
        here = batch.segments[row] == number
        text = batch.inputs[row][here].tolist()
        if family == "encoder_decoder":
            assert side[2] == [BOS, *text, EOS]
            noisy = side[0][1:-1]
        else:
            noisy, asked = side[0][1 : len(text) + 1], [token for token in side[1] if token != IGNORED]
            assert asked == [*text, EOS]
            assert side[0][0] == BOS
            assert side[0][len(text) + 1] == EOS
            assert side[0][len(text) + 2 :] == text
        parts = sentences(text, starts[row][here])
        assert sorted(noisy) == sorted(text)
        while noisy:
            part = next(part for part in sorted(parts, key=len, reverse=True) if tuple(noisy[: len(part)]) == part)
            parts.remove(part)
            noisy = noisy[len(part) :]
        assert not parts


def test_every_order_of_sentences_is_as_likely():
    batch = packed([[letters("AB.C.D.").tolist()] * 300] * 20)
    starts = np.isin(batch.inputs, letters("ACD"))
    made = Denoising(infilling=0.0).apply(replace(batch, sentence_starts=starts), context())
    found = Counter(tuple(encoder) for encoder, _, _ in both_sides(made).values())
    assert len(found) == 6
    assert sum((many - 1000) ** 2 / 1000 for many in found.values()) < 25  # chi-square, 5 degrees: p = 1e-4


@given(st.integers(0, 1000))
def test_what_no_noise_meets_is_in_the_input(seed):
    """The kinds of noise used here keep the order, so the text that remains in the input is a subsequence of
    the original.
    """
    rows = random_rows(seed, 4)
    objective = Denoising(infilling=0.3, masking=0.2, deletion=0.2, permute_sentences=False)
    for (row, number), (encoder, _, target) in both_sides(objective.apply(packed(rows), context(seed=seed))).items():
        assert target == [BOS, *rows[row][number], EOS]
        rest = iter(rows[row][number])
        assert all(token in rest for token in encoder[1:-1] if token != MASK)


def test_a_document_never_loses_all_of_itself():
    made = Denoising(**NOTHING, deletion=0.99).apply(packed([[[FIRST + 1, FIRST + 2]] * 50] * 4), context())
    assert all(len(encoder) >= 3 for encoder, _, _ in both_sides(made).values())


def test_shards_without_sentences_are_refused():
    with pytest.raises(UserError, match="shards do not say where sentences begin"):
        Denoising().apply(packed([[[FIRST]]]), context())
    assert Denoising().needs_sentences
    assert not Denoising(permute_sentences=False).needs_sentences


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"infilling": 1.0}, "infilling: got 1.0"),
        ({"deletion": -0.1}, "deletion: got -0.1"),
        ({"mean_span": 0.9}, "mean_span: got 0.9"),
        (NOTHING, "no other noise"),
    ],
)
def test_knobs_out_of_range(knobs, message):
    with pytest.raises(ValueError, match=message):
        Denoising(**knobs).check()
