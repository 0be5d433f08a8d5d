"""Salient spans: the example in the paper's text, a direct implementation of how spans are chosen, and
configurations that are refused.
"""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, product
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from pipelines.contracts.shard_set import SPAN_TYPES
from tests.trainers.conftest import build_corpus
from tests.trainers.objectives.packed import (
    EOS,
    FIRST,
    MASK,
    PAD,
    VOCABULARY,
    both_sides,
    chosen,
    context,
    over_workers,
    packed,
)
from tokenizer.vocabulary.specials import SENTINELS, SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.config.job import BatchSize
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import corpus_of, training_data
from trainers.engine.forward import Forward, tensors
from trainers.engine.losses import losses_of
from trainers.models import build_model
from trainers.objectives.masked import Masked
from trainers.objectives.mixture import MixturePart, ObjectiveMixture
from trainers.objectives.spans.salient_spans import SalientSpans
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, PADDING
from trainers.runs.resolve import resolve

SENTINEL = [SPECIAL_IDS[name] for name in SENTINELS]
DATE, NAME = 0, 1


def marked(rows):
    """Return a batch of rows of documents. Each document is given as (number of tokens, spans as (first, end,
    type), tokens at which later sentences begin). All tokens of the batch differ.
    """
    number = iter(range(FIRST, VOCABULARY))
    batch = packed([[[next(number) for _ in range(size)] for size, _, _ in row] for row in rows])
    spans, starts = np.full((*batch.inputs.shape, 2), -1), np.zeros(batch.inputs.shape, bool)
    for row, documents in enumerate(rows):
        column = 0
        for size, its, sentences in documents:
            for i, (first, end, kind) in enumerate(its):
                spans[row, column + first : column + end] = i, kind
            starts[row, [column + at for at in sentences]] = True
            column += size
    return replace(batch, spans=spans, sentence_starts=starts)


def random_documents(seed, count=5):
    rng = np.random.default_rng(seed)

    def document():
        size = int(rng.integers(0, 24))
        cuts = sorted(rng.choice(size + 1, min(size + 1, int(rng.integers(0, 9))), replace=False).tolist())
        spans = [(a, b, int(rng.integers(0, 2))) for a, b in pairwise(cuts) if rng.random() < 0.7]
        return size, spans, sorted(rng.choice(size, min(size, int(rng.integers(0, 4))), replace=False).tolist())

    return [[document() for _ in range(rng.integers(0, 4))] for _ in range(count)]


def texts_of(batch):
    numbers = {(r, int(s)) for r, row in enumerate(batch.segments) for s in row if s != PADDING}
    return {(r, s): batch.inputs[r][batch.segments[r] == s].tolist() for r, s in numbers}


def units(document, unit, types):
    """Return the numbers of a document's spans of the given types, in one group or grouped by sentence."""
    _, spans, starts = document
    found = {}
    for number, (first, _, kind) in enumerate(spans):
        if SPAN_TYPES[kind] in types:
            found.setdefault(sum(at <= first for at in starts if at > 0) if unit == "sentences" else 0, []).append(
                number
            )
    return list(found.values())


def pair_of(text, spans, gone):
    """Return T5's input and target for a document from which the spans numbered `gone` are removed."""
    removed = {i for number in gone for i in range(*spans[number][:2])}
    source, target, used = [], [], iter(SENTINEL)
    for i, token in enumerate(text):
        if i not in removed:
            source.append(token)
            continue
        if i - 1 not in removed:
            mark = next(used)
            source.append(mark)
            target.append(mark)
        target.append(token)
    return [*source, EOS], [*target, EOS] if target else []


def test_the_papers_example():
    batch = marked([[(9, [(6, 8, DATE)], [])]])
    text = texts_of(batch)[0, 0]
    made = both_sides(SalientSpans().apply(batch, context()))
    target = [SENTINEL[0], *text[6:8], EOS]
    assert made == {(0, 0): ([*text[:6], SENTINEL[0], text[8], EOS], [PAD, *target[:-1]], target)}


@given(
    st.integers(0, 10_000),
    st.sampled_from(["documents", "sentences"]),
    st.sampled_from([None, 0.01, 0.5, 1.0]),
    st.sampled_from([("dates",), ("names",), ("names", "dates")]),
)
def test_documents_are_cut_as_a_plain_reading_of_the_papers_says(seed, unit, rate, types):
    rows = random_documents(seed)
    batch = marked(rows)
    texts, objective = texts_of(batch), SalientSpans(types=types, unit=unit, rate=rate)
    made = both_sides(objective.apply(batch, context(seed=seed)))
    assert made.keys() >= texts.keys()
    for key, (source, decoder, target) in made.items():
        document = rows[key[0]][key[1]]
        choices = []
        for spans in units(document, unit, types):
            many = 1 if rate is None else max(round(Fraction(str(rate)) * len(spans)), 1)
            choices.append(list(combinations(spans, many)))
        allowed = [sum(each, ()) for each in product(*choices)]
        assert any((source, target) == pair_of(texts.get(key, []), document[1], gone) for gone in allowed)
        assert decoder == ([PAD, *target[:-1]] if target else [])


@pytest.mark.parametrize(("rate", "many"), [(None, 1), (0.34, 2)])
def test_every_choice_is_as_likely(rate, many):
    document = (18, [(3 * i, 3 * i + 2, i % 2) for i in range(6)], [])
    batch = marked([[document] * 2] * 20)
    found = Counter()
    for seed in range(38):
        made = both_sides(SalientSpans(rate=rate).apply(batch, context(seed=seed)))
        found.update(tuple(token in SENTINEL for token in source) for source, _, _ in made.values())
    choices, expected = comb(6, many), 1520 / comb(6, many)
    assert len(found) == choices
    bound = {6: 25.7, 15: 42.6}[choices]  # chi-square, 5 and 14 degrees: p = 1e-4
    assert sum((count - expected) ** 2 / expected for count in found.values()) < bound


def test_an_epoch_has_another_choice_than_the_one_before_and_a_row_the_same_in_any_batch():
    batch, objective = marked([[(20, [(2 * i, 2 * i + 1, NAME) for i in range(10)], [])]] * 12), SalientSpans()
    whole = [sides[0] for sides in both_sides(objective.apply(batch, context())).values()]
    for rows in ([7], [3, 0], list(range(11, -1, -1))):
        part = both_sides(objective.apply(chosen(batch, rows), context()))
        assert [sides[0] for sides in part.values()] == [whole[row] for row in rows]
    later = replace(batch, sample=batch.sample + 1000, epoch=batch.epoch + 1)
    assert [sides[0] for sides in both_sides(objective.apply(later, context())).values()] != whole


def test_documents_without_spans_have_no_target_and_more_spans_than_sentinels_stay():
    many = [(2 * i, 2 * i + 1, NAME) for i in range(120)]
    batch = marked([[(5, [], []), (3, [(0, 3, NAME)], [])], [(240, many, [])]])
    texts = texts_of(batch)
    dates = SalientSpans(types=("dates",)).apply(batch, context())
    assert (dates.targets == IGNORED).all()
    made = both_sides(SalientSpans(rate=1.0).apply(batch, context()))
    assert made[0, 0] == ([*texts[0, 0], EOS], [], [])
    assert made[0, 1][::2] == ([SENTINEL[0], EOS], [SENTINEL[0], *texts[0, 1], EOS])
    assert made[1, 0][0] == [*pair_of(texts[1, 0][:200], many, range(100))[0][:-1], *texts[1, 0][200:], EOS]


@pytest.mark.parametrize(("architecture", "start"), [("t5", "<pad>"), ("bart", "<eos>")])
def test_the_loss_of_a_document_is_that_of_transformers_on_it_alone(architecture, start):
    sizes = fill(Model(architecture, layers=2, width=32, heads=2, positions=128), VOCABULARY)
    model, objective = build_model(sizes, dict(SPECIAL_IDS), 0).eval(), SalientSpans(unit="sentences")
    made = objective.apply(marked(random_documents(2)), replace(context(), decoder_start=start))
    (loss,) = losses_of(objective.losses)
    compared = 0
    with torch.no_grad():
        nats = Forward(model, architecture).eval()(**tensors(made, "cpu"))[loss.name].numpy()
        for (row, number), (source, _, target) in both_sides(made).items():
            here = nats[row][made.decoder.segments[row] == number]
            if target:
                alone = model(input_ids=torch.tensor([source]), labels=torch.tensor([target])).loss
                assert here.mean() == pytest.approx(float(alone), abs=1e-5)
                compared += 1
    assert compared > 3


def configuration(directory, packing="concatenate", **changes):
    recipe = RECIPES["tiny_salient_spans"]()
    data = replace(recipe.data, corpora=(str(directory),), packing=packing, weights={"plays": 1.0}, sequence_length=64)
    return replace(recipe, data=data, objective=SalientSpans(**changes), batch=BatchSize(sequences=8))


@pytest.mark.parametrize("packing", ["concatenate", "best_fit", "documents", "full_sentences", "doc_sentences"])
def test_rows_of_a_corpus_are_not_too_long_and_only_whole_spans_of_its_shards_are_gone(tmp_path, packing):
    config = configuration(build_corpus(tmp_path, numbered=True, spans=True), packing, rate=1.0)
    data = training_data(corpus_of(config), config)
    (source,) = data.sources
    spans = {}
    for number in range(len(source.shards)):
        shard = source.shard(number)
        for i, (a, b) in enumerate(pairwise(shard.span_offsets)):
            for first, end, _ in shard.spans[a:b]:
                tokens = shard.tokens[shard.offsets[i] + first : shard.offsets[i] + end].tolist()
                spans.update(dict.fromkeys(tokens, tuple(tokens)))
    samples = data.order.take(0, source.count(data.packed_phases[0].length))
    made = data.rows(samples)
    assert (made.segments != PADDING).sum(1).max() <= 64
    assert (made.decoder.segments != PADDING).sum(1).max() <= 64
    (stream,) = data.packed_phases
    text = stream._packed(samples, 0)
    removed = 0
    for row in range(len(made.inputs)):
        there = set(text.inputs[row][text.segments[row] != PADDING].tolist())
        gone = {int(token) for token in made.targets[row] if token >= FIRST}
        assert gone == {token for token in there if token in spans and there >= set(spans[token])}
        removed += len(gone)
    assert removed > 100


def test_neither_micro_batches_nor_workers_change_a_row(salient_directory):
    config = configuration(salient_directory, unit="sentences")
    data = training_data(corpus_of(config), config)

    whole = over_workers(data, both_sides, 24, 1)
    assert any(side[2] for side in whole.values())
    for size, world in ((1, 1), (4, 2), (3, 3)):
        assert over_workers(data, both_sides, size, world) == whole


def test_shards_without_spans_and_documents_without_any_are_refused(plain_directory, tmp_path):
    config = configuration(plain_directory)
    with pytest.raises(
        ConfigError,
        match=r"objective: salient_spans needs spans of dates and names, which .* does not have; .* `spans: \[dates, names\]`",
    ):
        training_data(corpus_of(config), config)
    config = configuration(build_corpus(tmp_path, lengths=(0, 1), spans=True))
    with pytest.raises(
        ConfigError, match=r"salient_spans needs documents with dates or names, and in .* plays has none"
    ):
        training_data(corpus_of(config), config)


def test_a_vocabulary_without_sentinels_is_refused_before_training(salient_directory):
    config = configuration(salient_directory)
    corpus = corpus_of(config)
    kept = {name: number for name, number in corpus.tokenizer.specials.items() if name not in SENTINELS}
    resolve(config, corpus)
    with pytest.raises(ConfigError, match=r"objective: needs the special <extra_id_0>, the tokenizer has none"):
        resolve(config, replace(corpus, tokenizer=replace(corpus.tokenizer, specials=kept)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["objective.rate=0"], "rate: got 0.0, allowed above 0 and at most 1, or null"),
        (["objective.types=[]"], "types: got none, allowed one or more of dates, names"),
        (["objective.types=[places]"], "got 'places'"),
        (["objective.unit=words"], "unit: got 'words'"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, override(plain(RECIPES["tiny_salient_spans"]()), changes), "x.yaml")


def test_a_mixture_gives_spans_to_the_part_that_chooses_from_them():
    parts = (MixturePart(SalientSpans(types=("names",), rate=0.5), token="<reserved_0>"), MixturePart(SpanCorruption()))
    mixed = ObjectiveMixture(parts=parts)
    assert (mixed.span_types, ObjectiveMixture().span_types) == (("names",), ())
    batch = marked([[(16, [(2 * i, 2 * i + 1, i % 2) for i in range(8)], [])]] * 40)
    made = both_sides(mixed.apply(batch, context()))
    alone = [both_sides(part.objective.apply(batch, context())) for part in parts]
    mode, salient = SPECIAL_IDS["<reserved_0>"], 0
    for key, (source, _, target) in made.items():
        salient += source[0] == mode
        expected = alone[0][key] if source[0] == mode else alone[1][key]
        assert ([token for token in source if token != mode], target) == expected[::2]
    assert 10 < salient < 30


@given(st.integers(0, 10_000), st.sampled_from([0.001, 0.4, 1.0]), st.sampled_from(["documents", "rows"]))
def test_masks_cover_whole_spans_and_as_many_of_a_document_as_the_rate_says(seed, rate, marks):
    rows = random_documents(seed)
    batch = marked(rows)
    texts = texts_of(batch)
    made = Masked(rate=rate, unit="salient", mask_share=1.0, random_share=0.0, marks=marks).apply(
        batch, context("encoder")
    )
    lead = int(marks == "rows")
    for (row, number), text in texts.items():
        spans = rows[row][number][1]
        here = np.flatnonzero(batch.segments[row] == number) + lead
        targets = made.targets[row][here]
        at = set(np.flatnonzero(targets != IGNORED).tolist())
        assert [made.inputs[row][here][i] for i in range(len(text))] == [
            MASK if i in at else text[i] for i in range(len(text))
        ]
        assert all(targets[i] == text[i] for i in at)
        covered = [span for span in spans if span[0] in at]
        assert at == {i for first, end, _ in covered for i in range(first, end)}
        assert len(covered) == (max(round(Fraction(str(rate)) * len(spans)), 1) if spans else 0)
    assert (made.targets[:, :lead] == IGNORED).all()


def test_the_tokens_of_a_masked_span_are_replaced_in_the_same_way():
    batch = marked([[(12, [(0, 4, NAME), (4, 8, DATE), (8, 12, NAME)], [])]] * 60)
    made = Masked(rate=1.0, unit="salient", mask_share=0.5, random_share=0.0).apply(batch, context("encoder"))
    kinds = (made.inputs[:, :12] == MASK).reshape(-1, 3, 4)
    assert (kinds.all(2) | ~kinds.any(2)).all()
    assert 60 < kinds.all(2).sum() < 120
    assert (made.targets[:, :12] == batch.inputs[:, :12]).all()


def test_encoders_read_spans_of_a_corpus_and_need_them(salient_directory, plain_directory):
    recipe = RECIPES["tiny_roberta"]()
    for directory in (salient_directory, plain_directory):
        data = replace(recipe.data, corpora=(str(directory),), weights={"plays": 1.0})
        config = replace(
            recipe, data=data, objective=replace(recipe.objective, unit="salient"), batch=BatchSize(sequences=8)
        )
        if directory == plain_directory:
            with pytest.raises(ConfigError, match="objective: masked needs spans of dates and names"):
                training_data(corpus_of(config), config)
            continue
        rows = training_data(corpus_of(config), config)
        made = rows.rows(rows.order.take(0, 40))
        assert 0.005 < (made.targets != IGNORED).mean() < 0.1
    with pytest.raises(ConfigError, match="unit: got salient, which only the objective masked has"):
        parse(Pretraining, override(plain(RECIPES["tiny_electra"]()), ["objective.unit=salient"]), "x.yaml")
