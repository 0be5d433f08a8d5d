"""A small BERT learns the labels of sentence pairs as far as the text determines them, and no further."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.engine.forward import Forward, tensors
from trainers.engine.losses import losses_of
from trainers.models import build_model
from trainers.objectives.sentences.next_sentence import NextSentence
from trainers.objectives.sentences.sentence_order import SentenceOrder
from trainers.objectives.shared.context import Context
from trainers.rows.batch import IGNORED, Batch, Frame
from trainers.rows.sentence_pairs import PairPacking, pair_sentences

pytestmark = pytest.mark.slow
LENGTH, VOCABULARY, TOPICS, DOCUMENTS = 32, 192, 4, 400
CONTEXT = Context(0, SPECIAL_IDS, VOCABULARY, "encoder", LENGTH)


def shard(write):
    """Return a shard of documents of short sentences; `write(rng, n)` makes the `n` tokens of a document."""
    rng = np.random.default_rng(0)
    lengths = [rng.integers(3, 8, rng.integers(4, 12)) for _ in range(DOCUMENTS)]
    tokens = np.concatenate([write(rng, int(one.sum())) for one in lengths]).astype(np.uint16)
    starts = [np.concatenate([[0], np.cumsum(one)[:-1]]) for one in lengths]
    offsets = np.concatenate([[0], np.cumsum([one.sum() for one in lengths])])
    value_offsets = np.concatenate([[0], np.cumsum([len(one) for one in lengths])])
    values = np.concatenate(starts).astype(np.int32)
    return SimpleNamespace(tokens=tokens, offsets=offsets, sentences=values, sentence_offsets=value_offsets)


def learned(objective, write, steps):
    """Train for `steps` steps of 32 rows, and return the nats per label. Next sentence is scored on an
    exchange of sentences that was held out.
    """
    held = shard(write)
    arrays = (held.offsets, held.sentences, held.sentence_offsets)
    exchanges = objective.exchanges and objective.exchanges + 1  # the last one is not trained on
    pairs = pair_sentences(*arrays, LENGTH, 2, False, exchanges, 0)
    packing = PairPacking((pairs,), Frame("<cls>", "<sep>"))

    def rows(sequences, epoch, first):
        count = len(sequences)
        inputs, positions, types = (np.zeros((count, LENGTH), np.int64) for _ in range(3))
        targets, segments = np.full((count, LENGTH), IGNORED), np.full((count, LENGTH), -1)
        fields = (np.zeros(count, np.int64), sequences, np.arange(first, first + count), np.full(count, epoch))
        labels = np.full(count, IGNORED)
        batch = Batch(inputs, targets, positions, segments, *fields, token_types=types, labels=labels)
        packing.fill(0, held, sequences, np.arange(count), np.zeros(count, np.int64), batch, SPECIAL_IDS)
        return objective.apply(batch, CONTEXT)

    sizes = Model("bert", layers=2, width=64, heads=4, positions=LENGTH, sentence_head=True, initializer_range=0.06)
    model = build_model(fill(sizes, VOCABULARY), SPECIAL_IDS, 0)
    forward = Forward(model, "bert", isolation=False, losses=losses_of(objective.losses))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rng = np.random.default_rng(1)
    for step in range(steps):
        batch = rows(rng.integers(0, len(packing.sizes), 32), step % max(1, exchanges - 1), step * 32)
        nats, pair_nats = forward(**tensors(batch, "cpu")).values()
        loss = nats.sum() / (batch.targets != IGNORED).sum() + pair_nats.sum() / (batch.labels != IGNORED).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        batch = rows(np.arange(len(packing.sizes)), exchanges - 1, 10**6)
        return float(forward(**tensors(batch, "cpu"))["sentence_loss"].sum()) / (batch.labels != IGNORED).sum()


def topics(rng, count):
    return 128 + 16 * rng.integers(TOPICS) + rng.integers(0, 16, count)


def rising(rng, count):
    return 128 + np.arange(count) * 64 // count


def test_next_sentence_is_learned_as_far_as_topics_tell():
    """Each document has one topic, and a part taken from elsewhere may have the same topic by chance. Among
    pairs with one topic, the ratio of continuations to other pairs is therefore 0.5 to 0.5 / TOPICS. No model
    can get below the resulting entropy, unless something other than the topic reveals the labels.
    """
    same = 0.5 + 0.5 / TOPICS
    share = 0.5 / same
    floor = same * -(share * np.log(share) + (1 - share) * np.log(1 - share))
    assert learned(NextSentence(exchanges=9), topics, 250) == pytest.approx(floor, abs=0.07)


def test_sentence_order_is_learned_where_the_text_tells():
    """Token ids rise through a document, so they reveal the order of two parts."""
    assert learned(SentenceOrder(), rising, 150) < 0.15
