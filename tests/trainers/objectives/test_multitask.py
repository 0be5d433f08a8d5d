"""Pairs mixed with text: pairs against a direct implementation, text as in span corruption, the rows of a
corpus, and configurations that are refused.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from tests.trainers.conftest import build_corpus
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
    over_workers,
    paired,
    random_pairs,
)
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.config.job import BatchSize
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import corpus_of, training_data
from trainers.engine.forward import Forward, tensors
from trainers.models import build_model
from trainers.objectives.mixture import MixturePart, ObjectiveMixture
from trainers.objectives.multitask import Multitask
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, PADDING
from trainers.runs.resolve import resolve

STYLES = ["replace", "drop", "mass", "bert", "deshuffle"]


def texts_of(rows, batch):
    """Return {(row, segment): (tokens, index of the token at which the target begins or None)} of the
    nonempty documents.
    """
    found = {}
    for row, documents in enumerate(rows):
        column = 0
        for number, (size, at) in enumerate(documents):
            if size:
                found[row, number] = batch.inputs[row, column : column + size].tolist(), at
            column += size
    return found


def is_pair(tokens, at):
    return at is not None and 0 < at < len(tokens)


@given(st.integers(0, 10_000), st.sampled_from(STYLES))
def test_a_pair_is_read_plainly_and_every_other_document_as_in_span_corruption(seed, style):
    rows = random_pairs(seed)
    batch = paired(rows)
    made = both_sides(Multitask(style=style, rate=0.3).apply(batch, context(seed=seed)))
    apart = both_sides(SpanCorruption(style=style, rate=0.3).apply(batch, context(seed=seed)))
    texts = texts_of(rows, batch)
    assert set(made) == set(texts)
    for place, (tokens, at) in texts.items():
        if is_pair(tokens, at):
            source, target = [*tokens[:at], EOS], [*tokens[at:], EOS]
            assert made[place] == (source, [PAD, *target[:-1]], target)
        else:
            assert made[place] == apart[place]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_decoder_reads_the_source_and_predicts_the_target(bidirectional):
    rows = random_pairs(5, 12)
    batch = paired(rows)
    objective = Multitask(bidirectional_prefix=bidirectional)
    made = one_side(objective.apply(batch, context("decoder")))
    checked = 0
    for place, (tokens, at) in texts_of(rows, batch).items():
        if is_pair(tokens, at):
            source, target = [BOS, *tokens[:at], EOS], [*tokens[at:], EOS]
            ignored = [IGNORED] * (len(source) - 1)
            seen = [bidirectional] * len(source) + [False] * (len(target) - 1)
            assert made[place] == ([*source, *target[:-1]], [*ignored, *target], seen)
            checked += 1
    assert checked > 5


def test_a_row_is_the_same_in_any_batch():
    batch, objective = paired(random_pairs(4, 12)), Multitask(rate=0.5)
    every = both_sides(objective.apply(batch, context()))
    for rows in ([7], [3, 0], list(range(11, -1, -1))):
        made = both_sides(objective.apply(chosen(batch, rows), context()))
        assert made == {(at, number): every[row, number] for at, row in enumerate(rows)
                        for number in [n for r, n in every if r == row]}  # fmt: skip


def test_in_a_mixture_its_rows_are_its_own_and_the_others_are_not_read_as_pairs():
    parts = (MixturePart(Multitask()), MixturePart(SpanCorruption()))
    mixture, rows = ObjectiveMixture(parts=parts), random_pairs(8, 40)
    assert mixture.needs_pairs
    batch = paired(rows)
    made = both_sides(mixture.apply(batch, context()))
    of_part = [both_sides(part.objective.apply(batch, context())) for part in parts]
    which = {place: {n for n, found in enumerate(of_part) if found[place] == sides} for place, sides in made.items()}
    assert all(which.values())
    alone = [which[place] for place in which if len(which[place]) == 1]
    assert {0} in alone
    assert {1} in alone


def test_losses_are_those_of_transformers_on_the_pair_alone():
    sizes = fill(Model("t5", layers=2, width=32, heads=2, positions=64, initializer_range=0.2), VOCABULARY)
    network = build_model(sizes, dict(SPECIAL_IDS), 0).eval()
    rows = random_pairs(2, 12)
    batch = paired(rows)
    made = Multitask().apply(batch, context())
    texts, compared = texts_of(rows, batch), 0
    with torch.no_grad():
        nats = Forward(network, "t5").eval()(**tensors(made, "cpu"))["loss"].numpy()
        for (row, number), (tokens, at) in texts.items():
            if not is_pair(tokens, at):
                continue
            labels = torch.tensor([*tokens[at:], EOS])
            logits = network(input_ids=torch.tensor([[*tokens[:at], EOS]]), labels=labels[None]).logits[0]
            expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            assert nats[row][made.decoder.segments[row] == number] == pytest.approx(expected.numpy(), abs=2e-5)
            compared += 1
    assert compared > 5


def configuration(directory, packing="best_fit", length=64, **changes):
    recipe = RECIPES["tiny_multitask"]()
    data = replace(
        recipe.data, corpora=(str(directory),), packing=packing, weights={"plays": 1.0}, sequence_length=length
    )
    return replace(recipe, data=data, objective=Multitask(**changes), batch=BatchSize(sequences=8))


@pytest.mark.parametrize("lengths", [None, (0, 1, 3, 4, 5), (0, 1, 2, 3, 8, 21, 55, 62, 63, 64, 65, 89, 144, 300)])
@pytest.mark.parametrize("packing", ["concatenate", "best_fit", "documents"])
def test_rows_of_a_corpus_hold_every_token_once_on_its_side_and_are_not_too_long(tmp_path, packing, lengths):
    config = configuration(build_corpus(tmp_path, numbered=True, pairs=True, lengths=lengths), packing)
    data = training_data(corpus_of(config), config)
    (source,) = data.sources
    made = data.rows(data.order.take(0, source.count(data.packed_phases[0].length)))
    assert (made.segments != PADDING).sum(1).max() <= 64
    assert (made.decoder.segments != PADDING).sum(1).max() <= 64
    marks = {EOS, PAD, *(number for name, number in SPECIAL_IDS.items() if name.startswith("<extra"))}
    seen, sources, whole = [], {}, 0
    for given_, _, asked in both_sides(made).values():
        sides = [[token for token in side if token not in marks] for side in (given_, asked)]
        seen += sides[0] + sides[1]
        if not set(given_ + asked) & (marks - {EOS, PAD}) and all(sides):
            sources[tuple(sides[0])] = sides[1]
    assert sorted(seen) == list(range(128, 128 + len(seen)))
    for number in range(len(source.shards)):
        shard = source.shard(number)
        for i, at in enumerate(shard.targets.tolist()):
            tokens = shard.tokens[shard.offsets[i] : shard.offsets[i + 1]].tolist()
            if at > 0 and tuple(tokens[:at]) in sources and sources[tuple(tokens[:at])] == tokens[at:]:
                whole += 1
            elif packing != "concatenate":
                assert at <= 0 or len(tokens) > 64
    assert whole > 5


def test_neither_micro_batches_nor_workers_change_a_row(salient_directory):
    config = configuration(salient_directory)
    data = training_data(corpus_of(config), config)

    once = over_workers(data, both_sides, 24, 1)
    for size, world in ((1, 1), (4, 2), (3, 3)):
        assert over_workers(data, both_sides, size, world) == once


def test_shards_without_the_column_are_refused(corpus_directory):
    config = configuration(corpus_directory)
    with pytest.raises(ConfigError, match=r"objective: multitask needs to know where targets begin, .* `target: true`"):
        training_data(corpus_of(config), config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["objective.rate=0"], "rate: got 0.0, allowed above 0"),
        (["objective.style=drop", "objective.closing_sentinel=true"], "closing_sentinel: got true, style drop"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, override(plain(RECIPES["tiny_multitask"]()), changes), "x.yaml")


def test_an_encoder_is_refused(salient_directory):
    config = configuration(salient_directory)
    encoder = replace(config, model=replace(config.model, architecture="bert"))
    with pytest.raises(ConfigError, match=r"objective: got multitask, bert is of the family encoder"):
        resolve(encoder, corpus_of(encoder))


def test_a_prompt_is_answered_as_it_is_and_its_gaps_are_filled():
    form = Multitask().prompt_format
    assert form.gap is None
    assert form.plain_text
    first = SPECIAL_IDS["<extra_id_0>"]
    assert form.answer([FIRST], [FIRST + 7, FIRST + 8], SPECIAL_IDS) == [FIRST + 7, FIRST + 8]
    assert form.answer([FIRST, first], [first, FIRST + 7], SPECIAL_IDS) == [FIRST, FIRST + 7]
    assert MASK in {SPECIAL_IDS[name] for name in Multitask(style="mass").prompt_format.names}
