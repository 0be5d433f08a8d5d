"""Rows are never wider than the sequence length after an objective has changed them, for documents of any
length, and no text is lost, read twice or miscounted.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.trainers.conftest import build_corpus
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import ARCHITECTURES, Model
from trainers.config.job import BatchSize, TrainingBudget
from trainers.config.pretraining import Data, Pretraining
from trainers.data.packed_corpus import corpus_of, training_data
from trainers.data.sequence_documents import ids_of
from trainers.objectives.causal import Causal
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.mixture import MixturePart, ObjectiveMixture
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.spans.denoising import Denoising
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.rows.batch import IGNORED, PADDING

BOS = SPECIAL_IDS["<bos>"]
LENGTHS = {
    "one": (1,),
    "one but for a few": (1, 1, 1, 2),
    "to two": (0, 1, 2),
    "five": (3, 4, 5, 6, 7, 8, 9, 10, 11),
    "any": (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 300),
}
OBJECTIVES = [
    SpanCorruption(),
    SpanCorruption(rate=0.5, mean_span=1.0),
    SpanCorruption(rate=0.9, mean_span=64.0),
    SpanCorruption(closing_sentinel=True),
    *(SpanCorruption(noise="tokens", style=style) for style in ("replace", "drop", "mass", "bert", "deshuffle")),
    SpanCorruption(noise="tokens", rate=0.8, closing_sentinel=True),
    Denoising(),
    Denoising(infilling=0.5, mean_span=1.0, rotate=True, permute_sentences=False),
    PrefixLM(),
    PrefixLM(target_share=0.25),
    FillInTheMiddle(),
    FillInTheMiddle(rate=1.0),
    ObjectiveMixture(),
    ObjectiveMixture(
        parts=(
            MixturePart(Causal()),
            MixturePart(FillInTheMiddle(rate=1.0), token="<reserved_0>"),
            MixturePart(SpanCorruption()),
        )
    ),
]
CASES = [
    (objective, architecture)
    for objective in OBJECTIVES
    for architecture in ("t5", "llama")
    if ARCHITECTURES[architecture].family in objective.families
]


def lengths_for(objective):
    """Return the names of the corpora that an objective reads. Objectives without a target in single-token
    documents refuse a corpus of nothing else.
    """
    return [name for name in LENGTHS if name != ("one" if objective.least_tokens > 1 else "one but for a few")]


PACKINGS = ("concatenate", "best_fit", "documents", "full_sentences", "doc_sentences")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRISTMILL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    return {
        (name, numbered): build_corpus(tmp_path_factory.mktemp("short"), numbered=numbered, lengths=lengths)
        for name, lengths in LENGTHS.items()
        for numbered in (False, True)
    }


def read(directory, objective, architecture="t5", length=64, packing="concatenate", source="plays"):
    data = Data(corpora=(str(directory),), sequence_length=length, packing=packing, weights={source: 1.0})
    model = Model(architecture, layers=1, width=16, heads=2, positions=length)
    config = Pretraining(
        name="rows",
        model=model,
        batch=BatchSize(sequences=8),
        budget=TrainingBudget(steps=40),
        objective=objective,
        data=data,
    )
    return training_data(corpus_of(config), config)


def epoch_of(data):
    return data.order.take(0, data.sources[0].count(data.packed_phases[0].length))


def text_of(source):
    held = [source.shard(number) for number in range(len(source.shards))]
    return np.concatenate([shard.tokens[shard.offsets[0] : shard.offsets[-1]] for shard in held]).astype(np.int64)


@pytest.mark.long
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(("objective", "architecture"), CASES)
def test_no_row_is_wider_than_the_sequence_length(corpora, objective, architecture, packing):
    """Every packing reads every corpus. The two sequence lengths alternate over corpora and packings."""
    for number, name in enumerate(lengths_for(objective)):
        length = (64, 90)[(number + PACKINGS.index(packing)) % 2]
        data = read(corpora[name, False], objective, architecture, length, packing)
        batch = data.rows(epoch_of(data))
        for side in (batch, batch.decoder):
            if side is not None:
                assert (side.segments != PADDING).sum(axis=1).max() <= length, (name, length)
                assert side.inputs.shape[1] <= -(-length // 8) * 8


@pytest.mark.long
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(("objective", "architecture"), CASES)
def test_an_epoch_holds_every_token_once_and_counts_it(corpora, objective, architecture, packing):
    for name in lengths_for(objective):
        data = read(corpora[name, True], objective, architecture, packing=packing)
        (source,), samples = data.sources, epoch_of(data)
        batch = data.packed_phases[0]._packed(samples, 0)
        real = batch.segments != PADDING
        np.testing.assert_array_equal(real.sum(axis=1), samples.tokens)
        found = batch.inputs[real & (batch.inputs != BOS)]
        np.testing.assert_array_equal(np.sort(found), np.sort(text_of(source)))
        marks = sum(record.documents for record in source.shards) if objective.frame.before else 0
        seen = data.consumed(len(samples))["plays"]
        assert (seen["tokens"], seen["cropped"]) == (len(found) + marks, 0)
        assert seen["epochs"] == 1.0


@pytest.mark.long
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("architecture", ["t5", "llama"])
def test_inputs_and_targets_of_an_epoch_hold_every_token_once(corpora, architecture, packing):
    """Span corruption moves the noise from the inputs to the targets, so both are counted together."""
    for name in lengths_for(SpanCorruption()):
        data = read(corpora[name, True], SpanCorruption(), architecture, packing=packing)
        batch = data.rows(epoch_of(data))
        found = batch.inputs[batch.segments != PADDING]
        if batch.decoder is not None:
            found = np.concatenate([found, batch.targets[batch.targets != IGNORED]])
        text = text_of(data.sources[0])
        found = Counter(found[found >= text.min()].tolist())
        assert found == Counter(text.tolist())


@pytest.mark.parametrize("packing", PACKINGS)
def test_segments_are_their_recorded_documents(corpora, packing):
    data = read(corpora["any", True], PrefixLM(), packing=packing)
    (source,), samples = data.sources, epoch_of(data)
    batch = data.packed_phases[0]._packed(samples, 0)
    place = {}
    for number in range(len(source.shards)):
        shard = source.shard(number)
        for row, identifier in enumerate(shard.doc_ids.to_pylist()):
            place |= dict.fromkeys(shard.tokens[shard.offsets[row] : shard.offsets[row + 1]].tolist(), identifier)
    for row, sequence in enumerate(samples.sequence.tolist()):
        ids = ids_of(source, sequence, data.packed_phases[0].length)
        assert len(ids) == batch.segments[row].max() + 1
        for token, segment in zip(batch.inputs[row].tolist(), batch.segments[row].tolist(), strict=True):
            assert segment == PADDING or token == BOS or ids[segment] == place[token]


@pytest.mark.parametrize("objective", [SpanCorruption(), FillInTheMiddle(), ObjectiveMixture()])
def test_workers_micro_batches_and_resuming_change_nothing(corpora, objective):
    architecture = "llama" if isinstance(objective, FillInTheMiddle) else "t5"
    data = read(corpora["any", False], objective, architecture)

    def rows(batches):
        found = {}
        for batch in batches:
            for row in np.flatnonzero(batch.sample >= 0):
                sides = [batch.inputs[row][batch.segments[row] >= 0], batch.targets[row][batch.targets[row] >= 0]]
                found[int(batch.sample[row])] = tuple(side.tobytes() for side in sides)
        return found

    expected = rows([data.rows(data.order.take(37, 37))])
    assert len(expected) == 37
    state = data.order.state(37)
    for world, size in ((1, 37), (1, 4), (3, 5), (8, 2)):
        other = read(corpora["any", False], objective, architecture)
        assert other.order.resume(state)
        assert expected == rows(
            batch for rank in range(world) for batch in other.micro_batches(37, 37, size, rank, world)
        )


def test_rows_are_full_where_the_next_token_has_no_room(corpora):
    """Only the last row of each of the three shards may have fewer than 62 tokens."""
    data = read(corpora["any", True], SpanCorruption())
    samples = epoch_of(data)
    held = (data.rows(samples).segments != PADDING).sum(axis=1)
    assert np.sort(held)[3] >= 62  # but for the last row of each of the three shards
    lengths = samples.tokens[samples.tokens == samples.tokens.max()]
    assert set(lengths.tolist()) == {SpanCorruption().stream_length(64, "encoder_decoder")}


def test_objectives_whose_rows_are_those_of_the_stream_need_no_index(corpora):
    for objective in (Causal(), ObjectiveMixture(parts=(MixturePart(Causal()),))):
        data = read(corpora["any", False], objective, "llama")
        assert data.sources[0].packing is None
    assert replace(data.sources[0]).count(64) == -(-data.sources[0].tokens // 64)
