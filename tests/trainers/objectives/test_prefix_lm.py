"""Prefix language modelling for encoder-decoders and for decoders, against the paper's example and the causal
objective.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainers.objectives.packed import (
    BOS,
    EOS,
    FIRST,
    IGNORED,
    PAD,
    SENTENCE,
    both_sides,
    context,
    ids,
    one_side,
    packed,
    random_rows,
)
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.shared.pairs import documents_of

ORIGINAL = " ".join(SENTENCE)


def test_the_papers_example_for_an_encoder_decoder():
    batch = packed([[ids(ORIGINAL)]], frame=True)
    pairs = PrefixLM().split(documents_of(batch, context()), np.array([4]), context())
    assert pairs.inputs.tokens.tolist() == ids("Thank you for inviting </s>")
    assert pairs.targets.tokens.tolist() == ids("me to your party last week . </s>")


def test_the_papers_example_for_a_decoder():
    batch = packed([[ids(ORIGINAL)]], frame=True)
    pairs = PrefixLM().split(documents_of(batch, context("decoder")), np.array([4]), context("decoder"))
    assert pairs.inputs.tokens.tolist() == ids("Thank you for inviting")
    assert pairs.targets.tokens.tolist() == ids("me to your party last week . </s>")
    made = PrefixLM().apply(batch, context("decoder"))
    tokens, targets, prefix = one_side(made)[0, 0]
    assert tokens == ids("<s> " + ORIGINAL)
    split = targets.index(next(target for target in targets if target != IGNORED))
    assert targets == [IGNORED] * split + [*tokens[split + 1 :], EOS]
    assert prefix == [True] * (split + 1) + [False] * (len(tokens) - split - 1)


@given(st.integers(0, 1000), st.sampled_from([None, 0.25, 0.9]))
def test_first_and_second_part_are_the_document(seed, share):
    rows = random_rows(seed, 5)
    batch = packed(rows, frame=True, cut=(1, 3))
    sides = both_sides(PrefixLM(target_share=share).apply(batch, context(seed=seed)))
    for (row, number), (encoder, _, target) in sides.items():
        text = rows[row][number]
        goes_on = row in (1, 3) and number == len(rows[row]) - 1
        last = FIRST + 500 if goes_on else EOS
        assert encoder[-1] == EOS
        assert encoder[:-1] + target == (text if len(text) < 2 else [*text, last])
        if len(text) > 1:
            assert len(target) >= 2
            assert len(encoder) >= 2
        if len(text) > 1 and share is not None:
            assert len(target) - 1 == min(max(round(share * len(text)), 1), len(text) - 1)


@given(st.integers(0, 1000))
def test_with_a_loss_on_the_prefix_a_decoder_learns_all_of_the_text(seed):
    """Without a bidirectional prefix, the objective then equals the causal one for documents of more than one
    token.
    """
    rows = [[text for text in texts if len(text) > 1] for texts in random_rows(seed, 5)]
    batch = packed(rows, frame=True)
    made = PrefixLM(bidirectional_prefix=False, loss_on_prefix=True).apply(batch, context("decoder", seed))
    assert made.prefix is None
    expected = {key: side[:2] for key, side in one_side(batch).items()}
    assert {key: side[:2] for key, side in one_side(made).items()} == expected


def test_every_split_is_as_likely():
    batch = packed([[list(range(FIRST, FIRST + 8))] * 70] * 40, frame=True)
    sides = both_sides(PrefixLM().apply(batch, context()))
    found = Counter(len(encoder) - 1 for encoder, _, _ in sides.values())
    assert sorted(found) == list(range(1, 8))
    assert sum((many - 400) ** 2 / 400 for many in found.values()) < 28  # chi-square, 6 degrees: p = 1e-4


def test_documents_of_one_token_have_no_target():
    made = PrefixLM().apply(packed([[[FIRST], [FIRST, FIRST + 1]]], frame=True), context("decoder"))
    sides = one_side(made)
    assert sides[0, 0] == ([BOS], [IGNORED], [True])
    assert sides[0, 1] == ([BOS, FIRST, FIRST + 1], [IGNORED, FIRST + 1, EOS], [True, True, False])
    encoder = both_sides(PrefixLM().apply(packed([[[FIRST]]], frame=True), context()))
    assert encoder[0, 0] == ([FIRST, EOS], [], [])
    assert both_sides(PrefixLM().apply(packed([[[FIRST, FIRST + 1]]], frame=True), context()))[0, 0] == (
        [FIRST, EOS],
        [PAD, FIRST + 1],
        [FIRST + 1, EOS],
    )


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_shares_out_of_range(share):
    with pytest.raises(ValueError, match="target_share"):
        PrefixLM(target_share=share).check()
