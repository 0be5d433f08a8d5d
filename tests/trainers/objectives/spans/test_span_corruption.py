"""Span corruption against the published examples and lengths, and the distribution of the noise."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import ConfigError
from tests.trainers.objectives.packed import (
    EOS,
    FIRST,
    IGNORED,
    MASK,
    SENTENCE,
    VOCABULARY,
    both_sides,
    context,
    ids,
    packed,
    random_rows,
)
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.objectives.shared.pairs import documents_of, encoder_decoder_rows
from trainers.objectives.spans.span_corruption import SpanCorruption, amounts, noise_spans

ORIGINAL = " ".join(SENTENCE)
IID = "for inviting last"
SPANS = "for inviting me your party last"
# style, the noise, input, target: Raffel et al. 2020, table 3 and figure 2.
PUBLISHED = [
    ("replace", IID, "Thank you X me to your party Y week .", "X for inviting Y last"),
    ("replace", SPANS, "Thank you X to Y week .", "X for inviting me Y your party last"),
    ("drop", IID, "Thank you me to your party week .", IID),
    ("mass", IID, "Thank you M M me to your party M week .", ORIGINAL),
]


def pair(objective, noise, words=ORIGINAL):
    """Return (input, target) of a document whose noise is the words in `noise`. The final <eos> of both is
    removed.
    """
    documents = documents_of(packed([[ids(words)]]), context())
    chosen = np.isin(documents.content.tokens, ids(noise))
    pairs = objective.corrupt(documents, chosen, context())
    assert pairs.inputs.tokens[-1] == pairs.targets.tokens[-1] == EOS
    return pairs.inputs.tokens[:-1].tolist(), pairs.targets.tokens[:-1].tolist()


@pytest.mark.parametrize(("style", "noise", "given_", "asked"), PUBLISHED)
def test_published_examples(style, noise, given_, asked):
    assert pair(SpanCorruption(style=style), noise) == (ids(given_), ids(asked))


def test_a_closing_sentinel_ends_the_target_if_configured():
    given_, asked = pair(SpanCorruption(closing_sentinel=True), IID)
    assert given_ == ids("Thank you X me to your party Y week .")
    assert asked == ids("X for inviting Y last Z")
    assert both_sides(SpanCorruption(closing_sentinel=True).apply(packed([[ids("week")]]), context()))[0, 0][2] == []


def test_bert_style_noise_becomes_masks_and_random_words():
    documents = documents_of(packed([[ids(ORIGINAL)] * 300] * 20), context())
    chosen = np.isin(documents.content.tokens, ids(IID))
    pairs = SpanCorruption(style="bert").corrupt(documents, chosen, context())
    marked, held = pairs.inputs, documents.content
    inputs = marked.tokens[marked.tokens != EOS]
    assert (inputs[~chosen] == held.tokens[~chosen]).all()
    masked, count = (inputs[chosen] == MASK).sum(), chosen.sum()
    assert abs(masked - 0.9 * count) < 5 * sqrt(count * 0.09)
    random = inputs[chosen][inputs[chosen] != MASK]
    assert random.min() >= FIRST
    assert random.max() < VOCABULARY
    assert len(np.unique(random)) > 0.7 * (VOCABULARY - FIRST)
    assert pairs.targets.tokens[pairs.targets.tokens != EOS].tolist() == held.tokens.tolist()


def test_random_words_are_all_that_are_no_special_wherever_those_are():
    specials = {"<eos>": 0, "<mask>": 5, "<pad>": 9, "<last>": 12}
    scattered = replace(context(), specials=specials, vocab_size=12)
    documents = documents_of(packed([[[3] * 500]] * 10), scattered)
    objective = SpanCorruption(style="bert", noise="tokens")
    inputs = objective.corrupt(documents, np.ones(5000, dtype=bool), scattered).inputs.tokens
    found = Counter(inputs[(inputs != 5) & (inputs != 0)].tolist())
    assert sorted(found) == [1, 2, 3, 4, 6, 7, 8, 10, 11]
    expected = found.total() / 9
    assert sum((many - expected) ** 2 / expected for many in found.values()) < 32  # chi-square, 8 degrees: p = 1e-4


def test_deshuffling_asks_for_the_order_and_every_order_is_as_likely():
    batch = packed([[ids("you for me")] * 600] * 20)
    sides = both_sides(SpanCorruption(style="deshuffle").apply(batch, context()))
    assert all(target == [*ids("you for me"), EOS] for _, _, target in sides.values())
    found = Counter(tuple(tokens[:-1]) for tokens, _, _ in sides.values())
    assert len(found) == 6
    expected = len(sides) / 6
    assert sum((count - expected) ** 2 / expected for count in found.values()) < 25  # chi-square, 5 degrees: p = 1e-4


# (inputs, rate, mean span) -> (tokens, targets), the published lengths; the last two count one token a sentinel.
LENGTHS = [((512, 0.15, 3.0), (568, 114)), ((64, 0.20, 2.0), (70, 22)), ((64, 0.20, 1.0), (63, 27))]


@pytest.mark.parametrize(("asked", "published"), LENGTHS)
def test_published_lengths(asked, published):
    length, rate, mean_span = asked
    objective = SpanCorruption(rate=rate, mean_span=mean_span)
    tokens = objective.stream_length(length, "encoder_decoder")
    made = objective.apply(packed([[list(range(FIRST, FIRST + tokens))]]), context())
    encoder, decoder, target = both_sides(made)[0, 0]
    assert (tokens, len(target)) == published
    assert len(encoder) == length
    assert len(decoder) == len(target)
    assert encoder[-1] == target[-1] == EOS


def test_published_amounts():
    assert amounts(568, 0.15, 3.0) == (85, 28)
    assert amounts(32, 0.25, 2.0) == (8, 4)


def runs(mask):
    return int(mask[0]) + int((np.diff(mask.astype(int)) == 1).sum())


@given(
    st.lists(st.integers(0, 70), min_size=1, max_size=6),
    st.floats(0.01, 0.99),
    st.floats(1, 10),
    st.integers(0, 2**32 - 1),
)
def test_noise_has_its_tokens_and_spans_in_every_document(sizes, rate, mean_span, seed):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    noise = noise_spans(offsets, np.random.default_rng(seed).random(offsets[-1]), rate, mean_span)
    for first, end in pairwise(offsets):
        size, here = end - first, noise[first:end]
        if size < 2:
            assert not here.any()
            continue
        wanted = min(max(round(size * rate), 1), size - 1)
        spans = min(max(round(wanted / mean_span), 1), wanted, size - wanted)
        assert here.sum() == wanted
        assert runs(here) == spans
        assert not here[0]
        assert here[-1]


def test_every_way_to_lay_the_spans_is_as_likely():
    size, rate, mean_span, count = 10, 0.4, 2.0, 40_000
    offsets = np.arange(count + 1) * size
    noise = noise_spans(offsets, np.random.default_rng(0).random(count * size), rate, mean_span)
    found = Counter(map(tuple, noise.reshape(count, size).astype(int)))
    # 4 tokens of noise in 2 spans, 6 of text in 2: each side is cut at one of its borders.
    assert len(found) == comb(3, 1) * comb(5, 1)
    expected = count / len(found)
    assert sum((many - expected) ** 2 / expected for many in found.values()) < 42  # chi-square, 14 degrees: p = 1e-4


def test_tokens_chosen_one_by_one_are_within_binomial_bounds():
    rows = [[np.arange(FIRST, FIRST + 500).tolist()]] * 200
    for rate in (0.15, 0.5):
        objective = SpanCorruption(rate=rate, noise="tokens", style="mass")
        made = objective.apply(packed(rows), context())
        count, chosen = 200 * 500, (made.inputs == MASK).sum()
        assert abs(chosen - rate * count) < 5 * sqrt(count * rate * (1 - rate))
        by_column = (made.inputs == MASK).mean(0)[:500]
        assert abs(by_column - rate).max() < 6 * sqrt(rate * (1 - rate) / 200)


def is_part(some, all_of_them):
    """Return whether `some` is a subsequence of `all_of_them`."""
    rest = iter(all_of_them)
    return all(token in rest for token in some)


def put_back(encoder, target):
    """Restore the document from an input with sentinels and its target."""
    names = {SPECIAL_IDS[f"<extra_id_{number}>"] for number in range(100)}
    spans, current = {}, None
    for token in target[:-1]:
        if token in names:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return [word for token in encoder[:-1] for word in (spans[token] if token in names else [token])]


@given(
    st.integers(0, 1000),
    st.sampled_from(["spans", "tokens"]),
    st.floats(0.05, 0.9),
    st.sampled_from([1.0, 3.0, 8.0]),
    st.booleans(),
)
def test_the_original_is_in_input_and_target(seed, noise, rate, mean_span, closing):
    rows = random_rows(seed, 4)
    objective = SpanCorruption(rate=rate, mean_span=mean_span, noise=noise, closing_sentinel=closing)
    sides = both_sides(objective.apply(packed(rows), context(seed=seed)))
    texts = {(r, s): text for r, row in enumerate(rows) for s, text in enumerate(row) if text}
    assert sides.keys() == texts.keys()
    for key, text in texts.items():
        encoder, _, target = sides[key]
        assert put_back(encoder, target or [EOS]) == text
        assert bool(target) == (len(text) > 1 if noise == "spans" else EOS not in encoder[:-1] and encoder[:-1] != text)


@given(st.integers(0, 1000), st.sampled_from(["spans", "tokens"]))
def test_dropped_tokens_are_the_target(seed, noise):
    rows = random_rows(seed, 4)
    sides = both_sides(SpanCorruption(noise=noise, style="drop", rate=0.4).apply(packed(rows), context(seed=seed)))
    for r, row in enumerate(rows):
        for s, text in enumerate(row):
            if text:
                encoder, _, target = sides[r, s]
                assert sorted(encoder[:-1] + target[:-1]) == sorted(text)
                assert is_part(encoder[:-1], text)
                assert is_part(target[:-1], text)


def test_running_out_of_sentinels_is_refused_or_by_chance_leaves_the_rest_unchanged():
    with pytest.raises(ConfigError, match="205 runs of noise, there are 100 sentinels"):
        SpanCorruption().stream_length(3690, "encoder_decoder")
    short = {name: number for name, number in SPECIAL_IDS.items() if not name.startswith("<extra_id_") or number < 9}
    few = type(context())(3, short, VOCABULARY, "encoder_decoder", 64, decoder_start="<pad>")
    documents = documents_of(packed([[ids(ORIGINAL)]]), few)
    objective = SpanCorruption(noise="tokens", rate=0.1)
    pairs = objective.corrupt(documents, np.isin(documents.content.tokens, ids("you inviting to week")), few)
    assert pairs.inputs.tokens[:-1].tolist() == ids("Thank X for Y me to your party last week .")
    assert pairs.targets.tokens[:-1].tolist() == ids("X you Y inviting")
    with pytest.raises(ConfigError, match="needs the special <extra_id_0>"):
        SpanCorruption().apply(packed([[ids(ORIGINAL)]]), type(few)(3, {"<eos>": 2}, 9, "decoder", 64))


def test_documents_without_noise_have_no_target():
    made = SpanCorruption().apply(packed([[ids("week"), ids("you for")]]), context())
    sides = both_sides(made)
    assert sides[0, 0] == ([*ids("week"), EOS], [], [])
    assert sides[0, 1] == ([*ids("you X"), EOS], [0, *ids("X for")], [*ids("X for"), EOS])
    assert (made.targets != IGNORED).sum() == 3


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"rate": 0.0}, "rate: got 0.0"),
        ({"rate": 1.0}, "rate: got 1.0"),
        ({"mean_span": 0.5}, "mean_span: got 0.5"),
        ({"style": "drop", "closing_sentinel": True}, "closing_sentinel: got true"),
    ],
)
def test_knobs_out_of_range(knobs, message):
    with pytest.raises(ValueError, match=message):
        SpanCorruption(**knobs).check()


def test_a_decoder_reads_the_corrupted_text_and_then_its_noise():
    documents = documents_of(packed([[ids(ORIGINAL)]]), context("decoder"))
    noise = np.isin(documents.content.tokens, ids(SPANS))
    pairs = SpanCorruption().corrupt(documents, noise, context("decoder"))
    assert pairs.inputs.tokens.tolist() == ids("Thank you X to Y week . </s>")
    assert pairs.targets.tokens.tolist() == ids("X for inviting me Y your party last </s>")
    assert encoder_decoder_rows(pairs, packed([[]]), context(), None).inputs.shape == (1, 8)
