"""Fill in the middle: the paper's two orders, their shares, and documents that stay unchanged."""

from collections import Counter
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainers.objectives.packed import BOS, EOS, FIRST, IGNORED, context, one_side, packed, random_rows
from tokenizer.vocabulary.specials import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, SPECIAL_IDS
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.shared.pairs import documents_of

PREFIX, MIDDLE, SUFFIX = (SPECIAL_IDS[name] for name in (FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX))
DECODER = context("decoder")


def test_the_papers_orders():
    text = [FIRST + k for k in range(6)]
    documents = documents_of(packed([[text] * 3], frame=True), DECODER)
    cuts = np.array([[1, 3]] * 3)
    pairs = FillInTheMiddle().move_middle(documents, np.array([0, 1, 2]), cuts, DECODER)
    before, middle, after = text[:1], text[1:3], text[3:]
    offsets = pairs.targets.offsets
    found = [pairs.targets.tokens[offsets[i] : offsets[i + 1]].tolist() for i in range(3)]
    assert found == [
        [*text, EOS],
        [PREFIX, *before, SUFFIX, *after, MIDDLE, *middle, EOS],
        [PREFIX, SUFFIX, *after, MIDDLE, *before, *middle, EOS],
    ]
    assert not len(pairs.inputs.tokens)


def parts(tokens):
    """Return (prefix, middle, suffix) of a text that has been cut. If the suffix comes first, the prefix is
    empty and the middle begins with it.
    """
    suffix, middle = tokens.index(SUFFIX), tokens.index(MIDDLE)
    return tokens[1:suffix], tokens[middle + 1 :], tokens[suffix + 1 : middle]


@pytest.mark.long
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0]))
def test_the_document_is_what_its_parts_say(seed, rate, spm):
    rows = random_rows(seed, 5)
    batch = packed(rows, frame=True, cut=(2,))
    made = FillInTheMiddle(rate=rate, spm=spm).apply(batch, context("decoder", seed))
    assert made.prefix is None
    packed_sides = one_side(batch)
    for (row, number), (tokens, targets, _) in one_side(made).items():
        text = rows[row][number]
        assert tokens[0] == BOS
        assert tokens[1:] == targets[:-1]
        if len(tokens) > 1 and tokens[1] == PREFIX:
            before, middle, after = parts(tokens[1:])
            assert before + middle + after == text
            assert targets[-1] == EOS
            if spm == 0.0:
                assert tokens[1 : 2 + len(before)] == [PREFIX, *before]
        else:
            expected = packed_sides[row, number]
            assert (tokens, targets)[1] == ([] if not expected[1] else [*text, expected[1][-1]])
        if rate in (0.0, 1.0):
            assert (PREFIX in tokens) == (rate == 1.0)


def test_shares_and_cuts_are_within_bounds():
    text = [FIRST + k for k in range(4)]
    made = one_side(FillInTheMiddle(rate=0.9, spm=0.5).apply(packed([[text] * 100] * 40, frame=True), DECODER))
    cut = [tokens[1:] for tokens, _, _ in made.values() if PREFIX in tokens]
    assert abs(len(cut) - 0.9 * 4000) < 5 * sqrt(4000 * 0.09)
    # With an empty prefix PSM and SPM are the same text; two cuts at 0 to 4 are both at least 1 in 16 of 25 cases.
    certain = [tokens for tokens in cut if tokens[1] == text[0]]
    assert abs(len(certain) - 0.5 * 16 / 25 * len(cut)) < 5 * sqrt(len(cut) * 0.32 * 0.68)
    assert sum(tokens[1] == SUFFIX for tokens in cut) + len(certain) == len(cut)
    sizes = Counter((len(before), len(middle)) for before, middle, _ in map(parts, certain))
    pairs = {(a, b - a): 1 + (a != b) for a in range(1, 5) for b in range(a, 5)}
    assert sizes.keys() == pairs.keys()
    expected = {cuts: len(certain) * ways / 16 for cuts, ways in pairs.items()}
    assert sum((sizes[c] - e) ** 2 / e for c, e in expected.items()) < 34  # chi-square, 9 degrees: p = 1e-4


def test_a_document_without_tokens_predicts_what_follows_it():
    made = FillInTheMiddle(rate=0.0).apply(packed([[[]]], frame=True), DECODER)
    assert one_side(made) == {(0, 0): ([BOS], [EOS], [False])}
    assert (made.targets != IGNORED).sum() == 1


@pytest.mark.parametrize("knobs", [{"rate": 1.1}, {"spm": -0.1}])
def test_shares_out_of_range(knobs):
    with pytest.raises(ValueError, match=next(iter(knobs))):
        FillInTheMiddle(**knobs).check()
