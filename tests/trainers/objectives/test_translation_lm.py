"""Translation language modelling: the paper's figure, a direct implementation of its text, the rows of a
corpus, and configurations that are refused.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from tests.trainers.conftest import build_corpus
from tests.trainers.objectives.packed import (
    FIRST,
    MASK,
    PAD,
    VOCABULARY,
    chosen,
    context,
    over_workers,
    packed,
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
from trainers.objectives.masked import Masked
from trainers.objectives.translation_lm import TranslationLM
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, PADDING
from trainers.runs.resolve import resolve

CLS, SEP = SPECIAL_IDS["<cls>"], SPECIAL_IDS["<sep>"]


def read_plainly(tokens, at):
    """Return (token, position, type) of each place of a document as in the paper's figure 1, with BERT's
    marks.
    """
    source, target = (tokens, []) if at is None else (tokens[:at], tokens[at:])
    sides = [(side, kind) for kind, side in enumerate((source, target)) if side]
    found = []
    for number, (side, kind) in enumerate(sides):
        marked = [*([CLS] if number == 0 else []), *side, SEP]
        found += [(token, position, kind) for position, token in enumerate(marked)]
    return found


def documents_in(batch, arrays):
    """Return {(row, segment): the tuples of array values at the segment's positions}."""
    found = {}
    for row in range(len(batch.inputs)):
        for column in np.flatnonzero(batch.segments[row] != PADDING):
            found.setdefault((row, int(batch.segments[row, column])), []).append(
                tuple(int(array[row, column]) for array in arrays)
            )
    return found


def whole(batch):
    return np.where(batch.targets == IGNORED, batch.inputs, batch.targets)


def test_the_figure_of_the_paper():
    made = TranslationLM().apply(paired([[(8, 4)]]), context("encoder"))
    text = list(range(FIRST, FIRST + 8))
    length = 11
    assert whole(made)[0, :length].tolist() == [CLS, *text[:4], SEP, *text[4:], SEP]
    assert made.positions[0, :length].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]
    assert made.token_types[0, :length].tolist() == [0] * 6 + [1] * 5
    assert made.segments[0, :length].tolist() == [0] * length
    assert (made.segments[0, length:] == PADDING).all()
    assert (made.inputs[0, length:] == PAD).all()


@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.15, 1.0]))
def test_documents_are_as_a_plain_reading_of_the_paper_says(seed, rate):
    rows = random_pairs(seed)
    batch = paired(rows)
    made = TranslationLM(rate=rate).apply(batch, context("encoder", seed))
    before = documents_in(batch, [batch.inputs])
    expected = {
        (row, number): read_plainly([token for (token,) in before[row, number]], at)
        for row, documents in enumerate(rows)
        for number, (_, at) in enumerate(documents)
        if (row, number) in before
    }
    assert documents_in(made, [whole(made), made.positions, made.token_types]) == expected
    assert made.in_target is None
    assert (made.targets[np.isin(whole(made), (CLS, SEP))] == IGNORED).all()


def test_both_sides_are_masked_at_the_rate_and_replaced_as_in_masked():
    masked = []
    for seed in range(40):
        made = TranslationLM().apply(paired([[(24, 9), (24, 15)]] * 19), context("encoder", seed))
        masked.append([((made.targets != IGNORED) & (made.token_types == side)).sum() for side in (0, 1)])
        masked[-1] += [((made.inputs == MASK) & (made.targets != IGNORED)).sum(), (made.targets == made.inputs).sum()]
    source, target, replaced, kept = np.sum(masked, axis=0)
    tokens = 40 * 19 * 24  # of each side
    for side in (source, target):
        assert side == pytest.approx(0.15 * tokens, abs=4 * np.sqrt(0.15 * 0.85 * tokens))
    chosen_ones = source + target
    assert replaced == pytest.approx(0.8 * chosen_ones, abs=4 * np.sqrt(0.16 * chosen_ones))
    assert kept == pytest.approx(0.1 * chosen_ones, abs=4 * np.sqrt(0.09 * chosen_ones))


def test_documents_without_a_target_are_those_of_masked():
    batch = paired([[(12, None), (7, None)], [(20, None)]])
    texts = [[(FIRST, FIRST + 12), (FIRST + 12, FIRST + 19)], [(FIRST, FIRST + 20)]]
    made = TranslationLM(rate=0.3).apply(batch, context("encoder"))
    assert (made.token_types == 0).all()
    framed = packed([[[CLS, *range(a, b), SEP] for a, b in row] for row in texts])
    alone = Masked(rate=0.3).apply(framed, context("encoder"))
    width = min(made.inputs.shape[1], alone.inputs.shape[1])
    for name in ("inputs", "targets", "positions", "segments"):
        assert (getattr(made, name)[:, :width] == getattr(alone, name)[:, :width]).all(), name


def test_a_row_is_the_same_in_any_batch():
    batch, objective = paired(random_pairs(4, 12)), TranslationLM(rate=0.5)
    together = objective.apply(batch, context("encoder"))
    every = documents_in(together, [together.inputs, together.targets, together.positions, together.token_types])
    for rows in ([7], [3, 0], list(range(11, -1, -1))):
        made = objective.apply(chosen(batch, rows), context("encoder"))
        for (row, number), found in documents_in(
            made, [made.inputs, made.targets, made.positions, made.token_types]
        ).items():
            assert found == every[rows[row], number]


def test_padding_alone_is_a_batch():
    blank = replace(paired([[], []]), sample=np.array([-1, -1]))
    made = TranslationLM().apply(blank, context("encoder"))
    assert made.inputs.shape == (2, 8)
    assert (made.targets == IGNORED).all()


@pytest.mark.parametrize("architecture", ["bert", "roberta", "albert"])
def test_logits_are_those_of_transformers_on_the_pair_alone(architecture):
    sizes = fill(Model(architecture, layers=2, width=32, heads=2, positions=128, initializer_range=0.2), VOCABULARY)
    network = build_model(sizes, dict(SPECIAL_IDS), 0).eval()
    made = TranslationLM(rate=0.4).apply(paired(random_pairs(2, 12)), context("encoder"))
    first = PAD + 1 if architecture == "roberta" else 0  # transformers counts RoBERTa's positions from padding
    compared = 0
    with torch.no_grad():
        nats = Forward(network, architecture).eval()(**tensors(made, "cpu"))["loss"].numpy()
        for (row, number), values in documents_in(
            made, [made.inputs, made.positions, made.token_types, made.targets]
        ).items():
            ids, positions, types, labels = torch.tensor(values).T
            if (labels == IGNORED).all():
                continue
            given_types = {} if architecture == "roberta" else {"token_type_ids": types[None]}
            logits = network(input_ids=ids[None], position_ids=positions[None] + first, **given_types).logits[0]
            at = labels != IGNORED
            expected = torch.nn.functional.cross_entropy(logits[at], labels[at], reduction="none")
            here = made.segments[row] == number
            found = nats[row][here & (made.targets[row] != IGNORED)]
            assert found == pytest.approx(expected.numpy(), abs=2e-5)
            compared += int((positions == 0).sum() == 2)
    assert compared > 5


def configuration(directory, packing="best_fit", length=64, **changes):
    recipe = RECIPES["tiny_translation_lm"]()
    data = replace(
        recipe.data, corpora=(str(directory),), packing=packing, weights={"plays": 1.0}, sequence_length=length
    )
    return replace(recipe, data=data, objective=TranslationLM(**changes), batch=BatchSize(sequences=8))


PACKINGS = ["concatenate", "best_fit", "documents", "full_sentences", "doc_sentences"]


@pytest.mark.parametrize("lengths", [None, (0, 1, 3, 4, 5), (0, 1, 2, 3, 8, 21, 55, 60, 61, 62, 89, 144, 300)])
@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_of_a_corpus_hold_every_token_once_on_its_side_and_are_not_too_long(tmp_path, packing, lengths):
    config = configuration(build_corpus(tmp_path, numbered=True, pairs=True, lengths=lengths), packing)
    data = training_data(corpus_of(config), config)
    (source,) = data.sources
    side, sizes, owner = {}, {}, {}
    for number in range(len(source.shards)):
        shard = source.shard(number)
        for i, at in enumerate(shard.targets.tolist()):
            tokens = shard.tokens[shard.offsets[i] : shard.offsets[i + 1]].tolist()
            side.update({token: int(0 <= at <= place) for place, token in enumerate(tokens)})
            owner.update(dict.fromkeys(tokens, (number, i)))
            sizes[number, i] = len(tokens)
    made = data.rows(data.order.take(0, source.count(data.packed_phases[0].length)))
    assert (made.segments != PADDING).sum(1).max() <= 64
    assert made.positions.max() < 64
    text = whole(made)
    is_text = (made.segments != PADDING) & ~np.isin(text, (CLS, SEP))
    assert sorted(text[is_text].tolist()) == sorted(side)
    assert [side[token] for token in text[is_text].tolist()] == made.token_types[is_text].tolist()
    pieces = {}
    for (row, number), values in documents_in(made, [text]).items():
        held = {owner[token] for (token,) in values if token in owner}
        assert len(held) <= 1
        for one in held:
            pieces.setdefault(one, []).append((row, number))
    cut = [one for one, its in pieces.items() if len(its) > 1]
    if packing in ("best_fit", "documents"):
        assert all(sizes[one] > 61 for one in cut)


def test_neither_micro_batches_nor_workers_change_a_row(salient_directory):
    config = configuration(salient_directory)
    data = training_data(corpus_of(config), config)

    def marked(batch):
        return documents_in(batch, [batch.inputs, batch.targets, batch.positions, batch.token_types])

    once = over_workers(data, marked, 24, 1)
    assert any(position == 0 and kind == 1 for values in once.values() for _, _, position, kind in values)
    for size, world in ((1, 1), (4, 2), (3, 3)):
        assert over_workers(data, marked, size, world) == once


def test_shards_without_the_column_and_corpora_without_pairs_are_refused(corpus_directory, tmp_path):
    config = configuration(corpus_directory)
    with pytest.raises(
        ConfigError,
        match=r"objective: translation_lm needs to know where targets begin, which .* does not say; .* `target: true`",
    ):
        training_data(corpus_of(config), config)
    config = configuration(build_corpus(tmp_path, lengths=(0, 1), pairs=True))
    with pytest.raises(ConfigError, match=r"translation_lm needs documents with a target, and in .* plays has none"):
        training_data(corpus_of(config), config)


def test_what_does_not_fit_is_refused(salient_directory):
    for changes, message in (
        (["objective.rate=0"], "rate: got 0.0, allowed above 0"),
        (["objective.unit=salient"], "unit: got salient, which only the objective masked has"),
        (["data.isolation=false"], "data.isolation: got false with objective translation_lm"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse(Pretraining, override(plain(RECIPES["tiny_translation_lm"]()), changes), "x.yaml")
    config = configuration(salient_directory, length=4)
    with pytest.raises(ConfigError, match=r"data.sequence_length: got 4, too short for the objective"):
        training_data(corpus_of(config), config)
    config = configuration(salient_directory)
    corpus = corpus_of(config)
    kept = {name: number for name, number in corpus.tokenizer.specials.items() if name != "<sep>"}
    with pytest.raises(ConfigError, match=r"objective: needs the special <sep>, the tokenizer has none"):
        resolve(config, replace(corpus, tokenizer=replace(corpus.tokenizer, specials=kept)))


def test_runs_train_on_pairs(salient_directory):
    config = configuration(salient_directory, unit="words", copies=3)
    data = training_data(corpus_of(config), config)
    made = data.rows(data.order.take(0, 40))
    assert 0.05 < (made.targets != IGNORED).sum() / (made.segments != PADDING).sum() < 0.2
