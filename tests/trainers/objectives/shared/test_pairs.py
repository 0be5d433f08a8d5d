"""Pairs as rows: targets are shifted as in the stock models, no text is cut, and documents keep their
positions.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import ConfigError
from tests.trainers.objectives.packed import (
    BOS,
    EOS,
    FIRST,
    MASK,
    PAD,
    VOCABULARY,
    both_sides,
    chosen,
    context,
    one_side,
    packed,
    random_rows,
)
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.mixture import ObjectiveMixture
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.sentences.gap_sentences import GapSentences
from trainers.objectives.shared.pairs import Pairs, decoder_rows, documents_of, encoder_decoder_rows
from trainers.objectives.shared.ragged import Ragged
from trainers.objectives.spans.denoising import Denoising
from trainers.objectives.spans.salient_spans import SalientSpans
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.rows.batch import IGNORED, PADDING

texts = st.lists(
    st.lists(st.lists(st.integers(FIRST, VOCABULARY - 1), max_size=12), max_size=4), min_size=1, max_size=4
)


def ragged(lists):
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    return Ragged(np.array([token for one in lists for token in one], dtype=np.int64), offsets)


def pairs(*items):
    rows, segments, inputs, targets = zip(*items, strict=True)
    return Pairs(ragged(inputs), ragged(targets), np.array(rows), np.array(segments))


TWO = pairs((0, 0, [200, 201, EOS], [300, EOS]), (0, 1, [202], [301, 302, 303]), (2, 0, [203, 204], []))
BLANK = packed([[], [], []])


def test_an_encoder_reads_the_inputs_and_its_decoder_the_targets_shifted():
    batch = encoder_decoder_rows(TWO, BLANK, context(), None)
    assert both_sides(batch) == {
        (0, 0): ([200, 201, EOS], [PAD, 300], [300, EOS]),
        (0, 1): ([202], [PAD, 301, 302], [301, 302, 303]),
        (2, 0): ([203, 204], [], []),
    }
    assert batch.positions[0, :4].tolist() == [0, 1, 2, 0]
    assert batch.decoder.positions[0, :5].tolist() == [0, 1, 0, 1, 2]
    assert batch.inputs.shape == batch.targets.shape == (3, 8)
    padding = batch.segments == PADDING
    assert (batch.inputs[padding] == PAD).all()
    assert not batch.positions[padding].any()
    assert (batch.targets[batch.decoder.segments == PADDING] == IGNORED).all()


@pytest.mark.parametrize("start", ["<pad>", "<eos>"])
def test_decoders_read_what_the_stock_models_make_of_their_labels(start):
    import torch
    from transformers.models.bart.modeling_bart import shift_tokens_right
    from transformers.models.t5.modeling_t5 import T5Config, T5ForConditionalGeneration

    batch = encoder_decoder_rows(pairs((0, 0, [200], [300, 301, 302, EOS])), packed([[]]), context(start=start), None)
    labels = torch.from_numpy(batch.targets)
    if start == "<eos>":
        expected = shift_tokens_right(labels, PAD, EOS)
    else:
        sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 400}
        model = T5ForConditionalGeneration(T5Config(**sizes, pad_token_id=PAD, decoder_start_token_id=PAD))
        expected = model._shift_right(labels)
    real = batch.decoder.segments[0] != PADDING
    assert batch.decoder.inputs[0][real].tolist() == expected[0].numpy()[real].tolist()


def test_a_decoder_reads_input_and_target_as_one_text():
    batch = decoder_rows(TWO, BLANK, context("decoder"), None, True, False)
    none = IGNORED
    assert one_side(batch) == {
        (0, 0): ([BOS, 200, 201, EOS, 300], [none, none, none, 300, EOS], [True] * 4 + [False]),
        (0, 1): ([BOS, 202, 301, 302], [none, 301, 302, 303], [True, True, False, False]),
        (2, 0): ([BOS, 203], [none, none], [True, True]),
    }
    everything = decoder_rows(TWO, BLANK, context("decoder"), None, False, True)
    assert everything.prefix is None
    assert [side[:2] for side in one_side(everything).values()] == [
        ([BOS, 200, 201, EOS, 300], [200, 201, EOS, 300, EOS]),
        ([BOS, 202, 301, 302], [202, 301, 302, 303]),
        ([BOS, 203], [none, none]),
    ]


def test_a_mode_leads_every_input():
    mode = SPECIAL_IDS["<reserved_0>"]
    encoder = encoder_decoder_rows(TWO, BLANK, context(), mode)
    assert both_sides(encoder)[0, 1] == ([mode, 202], [PAD, 301, 302], [301, 302, 303])
    decoder = decoder_rows(TWO, BLANK, context("decoder"), mode, True, False)
    assert one_side(decoder)[0, 1] == (
        [BOS, mode, 202, 301, 302],
        [-100, -100, 301, 302, 303],
        [True] * 3 + [False] * 2,
    )


@given(texts, st.booleans())
def test_documents_are_the_texts_between_the_marks(rows, frame):
    batch = packed(rows, frame=frame)
    documents = documents_of(batch, context())
    held = [(r, s, text) for r, row in enumerate(rows) for s, text in enumerate(row) if text or frame]
    offsets = documents.content.offsets
    found = [documents.content.tokens[a:b].tolist() for a, b in pairwise(offsets)]
    numbers = zip(documents.rows.tolist(), documents.segments.tolist(), found, strict=True)
    assert list(numbers) == held
    assert (documents.following == (EOS if frame else IGNORED)).all()
    assert batch.inputs[documents.text].tolist() == documents.content.tokens.tolist()


@given(texts, st.sampled_from([None, BOS]), st.sampled_from([None, EOS]), st.integers(0, 2**16))
def test_lists_get_marks_unless_they_are_left_out(rows, before, after, bits):
    lists = [text for row in rows for text in row]
    wanted = np.array([bool(bits >> i & 1) for i in range(len(lists))], dtype=bool)
    marked = ragged(lists).with_marks(before, after, wanted)
    expected = [
        [*([] if before is None else [before]), *text, *([] if after is None else [after])] if keep else []
        for text, keep in zip(lists, wanted, strict=True)
    ]
    assert marked.tokens.tolist() == [token for one in expected for token in one]
    assert marked.sizes.tolist() == [len(one) for one in expected]


FAMILIES = ("encoder_decoder", "decoder")
PAIRED = [
    SpanCorruption(),
    SpanCorruption(noise="tokens", closing_sentinel=True),
    *(SpanCorruption(noise="tokens", style=style) for style in ("drop", "mass", "bert", "deshuffle")),
    SpanCorruption(rate=0.5, mean_span=1.0, style="drop", bidirectional_prefix=True),
    PrefixLM(),
    PrefixLM(target_share=0.25),
    Denoising(),
    Denoising(infilling=0.2, masking=0.1, deletion=0.1, rotate=True),
    ObjectiveMixture(),
    FillInTheMiddle(),
    GapSentences(),
    GapSentences(rate=0.6, choose="random"),
    SalientSpans(rate=0.5),
    SalientSpans(unit="sentences"),
]
CASES = [(one, family) for one in PAIRED for family in FAMILIES if family in one.families]


def sample_batch(objective, count=12, seed=0):
    batch = packed(random_rows(seed, count), length=160, frame=objective.frame.before is not None, cut=(1, 4))
    starts = np.random.default_rng(1).random(batch.inputs.shape) < 0.2
    return replace(batch, sentence_starts=starts & (batch.segments != PADDING), spans=spans_of(batch, 1))


def spans_of(batch, seed):
    """Return random spans of one to three tokens, some of them adjacent."""
    rng = np.random.default_rng(seed)
    spans = np.stack([np.arange(batch.inputs.shape[1]) // 3, rng.integers(0, 2, batch.inputs.shape[1])], axis=1)
    inside = (batch.segments != PADDING) & (rng.random(batch.inputs.shape) < 0.6)
    return np.where(inside[..., None], spans, -1)


def rows_of(batch):
    """Return the arrays of each row by segment, without padding."""
    sides = one_side(batch) if batch.decoder is None else both_sides(batch)
    return [{key[1]: value for key, value in sides.items() if key[0] == row} for row in range(len(batch.inputs))]


@pytest.mark.parametrize(("objective", "family"), CASES)
def test_rows_do_not_depend_on_other_rows(objective, family):
    batch = sample_batch(objective)
    before = {name: value.copy() for name, value in vars(batch).items() if value is not None}
    whole = rows_of(objective.apply(batch, context(family)))
    order = np.random.default_rng(2).permutation(len(whole))
    for rows in np.array_split(order, 5):
        for row, found in zip(rows, rows_of(objective.apply(chosen(batch, rows), context(family))), strict=True):
            assert found == whole[row]
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(batch, name), value)
    random = objective not in (PrefixLM(target_share=0.25), GapSentences())
    assert (rows_of(objective.apply(batch, context(family, seed=4))) != whole) == random
    moved = replace(batch, sample=batch.sample + 1)
    assert (rows_of(objective.apply(moved, context(family))) != whole) == random


@pytest.mark.parametrize(("objective", "family"), CASES)
def test_batches_are_what_models_read(objective, family):
    batch = sample_batch(objective)
    made = objective.apply(batch, context(family))
    sides = [made] if made.decoder is None else [made, made.decoder]
    for side in sides:
        assert side.inputs.shape[1] % 8 == 0
        padding = side.segments == PADDING
        assert (side.inputs[padding] == PAD).all()
        width = side.inputs.shape[1]
        for row, numbers in enumerate(side.segments):
            real = numbers[numbers != PADDING]
            assert (np.diff(real) >= 0).all()
            assert (numbers[: len(real)] == real).all()
            _, sizes = np.unique(real, return_counts=True)
            expected = [k for size in sizes for k in range(size)] + [0] * (width - len(real))
            assert side.positions[row].tolist() == expected
    assert made.targets.shape == made.target_segments.shape
    assert (made.targets[made.target_segments == PADDING] == IGNORED).all()
    kept = [(r, s) for r, s in np.unique(np.stack([np.nonzero(batch.segments != PADDING)[0],
            batch.segments[batch.segments != PADDING]], axis=1), axis=0)]  # fmt: skip
    assert {(r, s) for r, row in enumerate(rows_of(made)) for s in row} <= {(int(r), int(s)) for r, s in kept}
    for name in ("source", "sequence", "sample", "epoch"):
        assert getattr(made, name) is getattr(batch, name)


@pytest.mark.parametrize(("objective", "family"), CASES)
def test_text_never_becomes_a_special_and_no_special_is_hidden(objective, family):
    """Every token of the inputs and targets comes from the row or is a mark that objectives write. BERT-style
    span corruption also draws random tokens for its inputs, but no special ones.
    """
    batch = sample_batch(objective)
    made = objective.apply(batch, context(family))
    allowed = {BOS, EOS, MASK, *(SPECIAL_IDS[f"<extra_id_{i}>"] for i in range(100))}
    allowed |= {SPECIAL_IDS[f"<fim_{name}>"] for name in ("prefix", "middle", "suffix")}
    allowed |= {SPECIAL_IDS[f"<reserved_{number}>"] for number in range(3)}
    for row in range(len(batch.inputs)):
        own = set(batch.inputs[row].tolist()) | set(batch.targets[row].tolist()) | allowed | {PAD, IGNORED}
        random = isinstance(objective, SpanCorruption) and objective.style == "bert"
        seen = set(made.targets[row].tolist()) | (set() if random else set(made.inputs[row].tolist()))
        assert seen <= own
        if random:
            assert not {token for token in made.inputs[row].tolist() if token < FIRST} - {PAD, BOS, EOS, MASK}


@pytest.mark.parametrize(("objective", "family"), CASES)
def test_padding_alone_is_a_batch(objective, family):
    blank = replace(packed([[], []]), sample=np.array([-1, -1]))
    nothing = {"sentence_starts": np.zeros(blank.inputs.shape, bool), "spans": spans_of(blank, 0)}
    made = objective.apply(replace(blank, **nothing), context(family))
    assert made.inputs.shape == (2, 8)
    assert (made.targets == IGNORED).all()


@pytest.mark.parametrize(("objective", "family"), CASES)
@pytest.mark.parametrize("length", [64, 512])
def test_a_document_that_fills_a_row_fits_the_model(objective, family, length):
    size = objective.stream_length(length, family)
    for frame in {objective.frame.before is not None}:
        for seed in range(20):
            text = np.random.default_rng(seed).integers(FIRST, VOCABULARY, size - (frame and seed % 2))
            batch = packed([[text.tolist()]], length=size, frame=frame, cut=() if seed % 2 else (0,))
            starts = np.random.default_rng(seed).random(batch.inputs.shape) < 0.05
            read = replace(batch, sentence_starts=starts, spans=spans_of(batch, seed))
            made = objective.apply(read, context(family, seed))
            needed = (made.segments != PADDING).sum(1).max()
            assert needed <= length
            if made.decoder is not None:
                assert (made.decoder.segments != PADDING).sum(1).max() <= length


def test_a_loss_that_the_prefix_gives_away_is_refused():
    for kind in (SpanCorruption, Denoising, PrefixLM):
        with pytest.raises(ValueError, match="loss_on_prefix"):
            kind(bidirectional_prefix=True, loss_on_prefix=True).check()
        kind(bidirectional_prefix=False, loss_on_prefix=True).check()
        with pytest.raises(ConfigError, match="an encoder-decoder does not predict its input"):
            kind(bidirectional_prefix=False, loss_on_prefix=True).stream_length(512, "encoder_decoder")
