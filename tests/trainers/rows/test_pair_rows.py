"""Sentence pairs from the shards of a corpus: no token is read twice in an epoch, workers and micro-batches
do not change the rows, and settings that do not fit together are refused.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gristmill.config import parse, plain
from gristmill.errors import ConfigError
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model
from trainers.config.job import BatchSize as Size
from trainers.config.job import TrainingBudget
from trainers.config.pretraining import Data, LengthPhase, Pretraining
from trainers.data.packed_corpus import corpus_of, training_data, validation_data
from trainers.data.sequence_documents import documents_of, ids_of
from trainers.objectives.masked import Masked
from trainers.objectives.sentences.next_sentence import NextSentence
from trainers.objectives.sentences.sentence_order import SentenceOrder
from trainers.rows.batch import IGNORED
from trainers.runs.resolve import resolve

CLS, SEP, MASK = (SPECIAL_IDS[mark] for mark in ("<cls>", "<sep>", "<mask>"))
LENGTH = 48


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRISTMILL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def configured(directory, objective=NextSentence(exchanges=3), packing="segment_pairs", **fields):  # noqa: B008
    read = Data(
        corpora=(str(directory),), sequence_length=LENGTH, packing=packing, isolation=False, weights="proportional"
    )
    model = Model("bert", layers=1, width=16, heads=2, positions=LENGTH, sentence_head=True)
    config = Pretraining(
        name="pairs",
        model=model,
        batch=Size(sequences=8),
        budget=TrainingBudget(steps=40),
        objective=objective,
        data=read,
    )
    return replace(config, **fields)


@pytest.fixture(scope="module", params=["segment_pairs", "sentence_pairs"])
def config(corpus_directory, request):
    config = configured(corpus_directory, packing=request.param)
    return resolve(config, corpus_of(config))


def original(batch):
    return np.where(batch.targets == IGNORED, batch.inputs, batch.targets)


def text_of(source):
    held = (source.shard(number) for number in range(len(source.shards)))
    return sum((Counter(shard.tokens[shard.offsets[0] : shard.offsets[-1]].tolist()) for shard in held), Counter())


def test_an_epoch_reads_a_token_at_most_once_and_the_ledger_counts_the_stream(config):
    data = training_data(corpus_of(config), replace(config, data=replace(config.data, weights={"plays": 1.0})))
    (source,) = data.sources
    rows = source.count(LENGTH)
    for epoch in range(4):
        batch = data.rows(data.order.take(epoch * rows, rows))
        assert (batch.epoch == epoch).all()
        tokens = original(batch)
        read, text = Counter(tokens[tokens > MASK + 2].tolist()), text_of(source)
        assert read <= text
        assert read.total() > 0.97 * text.total()  # a match cuts the longer of two B's
        assert data.consumed((epoch + 1) * rows)["plays"]["tokens"] == source.tokens * (epoch + 1)
        assert data.consumed((epoch + 1) * rows)["plays"]["cropped"] == 0


def test_each_part_belongs_to_its_recorded_document(config):
    data = training_data(corpus_of(config), config)
    samples = data.order.take(0, 200)
    batch = data.rows(samples)
    tokens, foreign = original(batch), 0
    for row in range(200):
        source = data.sources[batch.source[row]]
        documents = documents_of(source, int(batch.sequence[row]), LENGTH, int(batch.epoch[row]))
        assert len(documents) == batch.segments[row].max() + 1
        for segment, (number, place) in enumerate(documents):
            shard = source.shard(number)
            document = shard.tokens[shard.offsets[place] : shard.offsets[place + 1]].tobytes()
            part = tokens[row][batch.segments[row] == segment]
            part = part[(part != CLS) & (part != SEP)].astype(np.uint16)
            assert len(part)
            assert part.tobytes() in document
        foreign += batch.labels[row] == 1 and documents[0] != documents[1]
        if batch.labels[row] == 0:
            assert documents[0] == documents[1]
            text = tokens[row][(batch.segments[row] >= 0) & (tokens[row] != CLS) & (tokens[row] != SEP)]
            assert text.astype(np.uint16).tobytes() in document
    assert foreign > 20


@pytest.mark.long
@pytest.mark.parametrize("objective", [NextSentence(exchanges=3), NextSentence(copies=3, exchanges=3), SentenceOrder()])
def test_workers_micro_batches_and_resuming_change_nothing(corpus_directory, objective):
    config = configured(corpus_directory, objective)
    config = resolve(config, corpus_of(config))
    whole = training_data(corpus_of(config), config)
    names = ("inputs", "targets", "segments", "token_types", "labels", "sequence", "epoch")
    expected = {}
    for first in (0, 8, 160):
        batch = whole.rows(whole.order.take(first, 8))
        for row, number in enumerate(batch.sample):
            expected[int(number)] = {name: getattr(batch, name)[row] for name in names}
    for world, size in ((1, 3), (2, 2), (3, 1)):
        for first in (0, 8, 160):
            found = 0
            for rank in range(world):
                resumed = training_data(corpus_of(config), config)
                for batch in resumed.micro_batches(first, 8, size, rank, world):
                    for row in np.flatnonzero(batch.sample >= 0):
                        found += 1
                        held = (batch.segments[row] >= 0).sum()
                        for name, value in expected[int(batch.sample[row])].items():
                            mine = getattr(batch, name)[row]
                            assert np.array_equal(mine[:held], value[:held]) if mine.ndim else mine == value, name
            assert found == 8


def test_two_lengths_one_after_the_other(corpus_directory):
    """As in BERT's schedule, pairs of one length are followed by pairs of another. The ledger counts both."""
    config = configured(corpus_directory)
    config = replace(config, data=replace(config.data, phases=(LengthPhase(5, 24),)))
    config = resolve(config, corpus_of(config))
    data = training_data(corpus_of(config), config)
    read, labels = 0, {True: 0, False: 0}
    for step in range(12):
        samples = data.order.take(step * 8, 8)
        batch = data.rows(samples)
        held = (batch.segments >= 0).sum(1)
        assert held.max() <= (24 if step < 5 else LENGTH)
        assert step < 5 or held.max() > 24
        labels[step < 5] += int((batch.labels >= 0).sum())
        read += int(samples.tokens.sum())
    assert min(labels.values()) > 5
    assert sum(source["tokens"] for source in data.consumed(12 * 8).values()) == read


def test_as_many_copies_as_exchanges_are_copies_of_the_data(corpus_directory):
    """BERT was trained on 10 copies of the data for 40 epochs, and each copy had its own pairs and masks.
    This test has 3 copies and 6 epochs.
    """
    config = configured(corpus_directory, NextSentence(copies=3, exchanges=3))
    corpus = corpus_of(config)
    data = training_data(corpus, replace(config, data=replace(config.data, weights={"code": 1.0})))
    rows = data.sources[0].count(LENGTH)
    seen = []
    for epoch in range(6):
        batch = data.rows(data.order.take(epoch * rows, rows))
        held = [
            (int(s), row[row > 0].tobytes(), int(label))
            for s, row, label in zip(batch.sequence, batch.inputs, batch.labels, strict=True)
        ]
        seen.append(sorted(held))
    for epoch in range(3):
        assert seen[epoch] == seen[epoch + 3]
        assert seen[epoch] != seen[(epoch + 1) % 3]


def test_an_excluded_document_takes_the_label_off_its_pairs(config):
    corpus = corpus_of(config)
    data = training_data(corpus, config)
    samples = data.order.take(0, 100)
    one = data.rows(samples)
    ids = [
        ids_of(data.sources[s], int(n), LENGTH, int(e))
        for s, n, e in zip(one.source, one.sequence, one.epoch, strict=True)
    ]
    excluded = frozenset({ids[3][0], ids[40][-1]})
    other = training_data(corpus, config, excluded).rows(samples)
    for row in range(100):
        out = [segment for segment, identifier in enumerate(ids[row]) if identifier in excluded]
        gone = np.isin(one.segments[row], out)
        assert (other.targets[row][gone] == IGNORED).all()
        assert np.array_equal(other.targets[row][~gone], one.targets[row][~gone])
        assert other.labels[row] == (IGNORED if out else one.labels[row])
        assert np.array_equal(other.inputs[row], one.inputs[row])
    assert (one.labels != other.labels).any()


def test_validation_has_pairs_as_well(config):
    held = validation_data(corpus_of(config), config, 2000)
    batches = list(held.batches(4, 0, 1))
    labels = np.concatenate([batch.labels for batch in batches])
    assert (labels == 0).any()
    assert (labels == 1).any()
    again = np.concatenate(
        [batch.labels for batch in validation_data(corpus_of(config), config, 2000).batches(4, 0, 1)]
    )
    assert np.array_equal(labels, again)


@pytest.mark.parametrize("packing", ["segment_pairs", "sentence_pairs", "full_sentences", "doc_sentences"])
def test_robertas_input_formats(corpus_directory, packing):
    """Follows Liu et al. (2019, section 4.2): every row begins with its own mark and holds either two parts
    with a label, or text from one or several documents without a label.
    """
    paired = packing.endswith("pairs")
    config = configured(corpus_directory, NextSentence() if paired else Masked(marks="rows"), packing)
    config = replace(config, model=replace(config.model, sentence_head=paired))
    config = parse(Pretraining, plain(resolve(config, corpus_of(config))), "resolved")
    data = training_data(corpus_of(config), config)
    batch = data.rows(data.order.take(0, 300))
    tokens, held = original(batch), (batch.segments >= 0).sum(1)
    documents = batch.segments.max(1) + 1
    assert (tokens[:, 0] == CLS).all()
    assert ((tokens == CLS).sum(1) == 1).all()
    assert (held <= LENGTH).all()
    ends = (tokens == SEP).sum(1)
    if paired:
        assert (ends == documents).all()
        assert (batch.labels == 0).any()
        assert (batch.labels == 1).any()
    else:
        assert batch.labels is None
        assert ((ends == documents) | (ends == documents - 1)).all()  # the last document may continue in another row
        assert (documents == 1).all() == (packing == "doc_sentences")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": Masked()}, "data.packing: got segment_pairs with objective masked"),
        ({"packing": "best_fit"}, "data.packing: got best_fit with objective next_sentence"),
        ({"head": False}, "model.sentence_head: got false with objective next_sentence"),
        ({"isolation": True}, "data.isolation: got true"),
        ({"length": 7}, "data.sequence_length: got 7, allowed 8 or more"),
    ],
)
def test_what_does_not_go_together_is_refused(corpus_directory, changes, message):
    config = configured(corpus_directory)
    data = replace(
        config.data,
        packing=changes.get("packing", "segment_pairs"),
        isolation=changes.get("isolation", False),
        sequence_length=changes.get("length", LENGTH),
    )
    model = replace(config.model, sentence_head=changes.get("head", True))
    wrong = replace(config, data=data, model=model, objective=changes.get("objective", config.objective))
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, plain(wrong), "here")
    assert parse(Pretraining, plain(config), "here") == config


def test_shards_without_sentences_are_refused(plain_directory):
    config = configured(plain_directory)
    with pytest.raises(ConfigError, match="segment_pairs needs sentence starts"):
        resolve(config, corpus_of(config))
