"""Next sentence and sentence order: the layout of rows, true labels, and the effects of chance."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainers.objectives.next_sentence import NextSentence
from trainers.objectives.sentence_order import SentenceOrder
from trainers.objectives.shared.context import Context
from trainers.rows.batch import IGNORED, Batch, Frame
from trainers.rows.sentence_pairs import PairPacking, pair_sentences

LENGTH, CLS, SEP = 64, 5, 6
SPECIALS = {"<pad>": 0, "<unk>": 3, "<mask>": 4, "<cls>": CLS, "<sep>": SEP}
CONTEXT = Context(7, SPECIALS, 60_000, "encoder", LENGTH)
FRAME = Frame("<cls>", "<sep>")


def shards(count=2, documents=120):
    """Shards whose token i is 10 + i: so a row tells where its parts come from. Offsets do not begin at 0."""
    found = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        lengths = [rng.integers(1, 20, rng.integers(1, 25)) for _ in range(documents)]
        ends = [np.concatenate([[0], np.cumsum(one)]) for one in lengths]
        offsets = 7 + np.concatenate([[0], np.cumsum([one[-1] for one in ends])])
        values = np.concatenate([one[:-1] for one in ends]).astype(np.int32)
        value_offsets = np.concatenate([[0], np.cumsum([len(one) for one in lengths])])
        tokens = (10 + np.arange(offsets[-1]) - 7).astype(np.uint16)
        found.append(SimpleNamespace(tokens=tokens, offsets=offsets, sentences=values, sentence_offsets=value_offsets))
    return found


def packed(exchanges):
    """(packing, shards) of two shards."""
    held = shards()
    rows = [
        pair_sentences(s.offsets, s.sentences, s.sentence_offsets, LENGTH, FRAME.marks, False, exchanges, seed)
        for seed, s in enumerate(held)
    ]
    return PairPacking(tuple(rows), FRAME), held


def batch_of(packing, held, sequences, epoch=0):
    """The batch of some sequences in an epoch, as the loader makes it."""
    sequences = np.array(sequences)
    rows = len(sequences)
    inputs, positions, types = (np.zeros((rows, LENGTH), np.int64) for _ in range(3))
    targets, segments = np.full((rows, LENGTH), IGNORED), np.full((rows, LENGTH), -1)
    labels, filled = np.full(rows, IGNORED), np.zeros(rows, np.int64)
    numbers = np.arange(rows)
    fields = (np.zeros(rows, np.int64), sequences, numbers, np.full(rows, epoch))
    batch = Batch(inputs, targets, positions, segments, *fields, token_types=types, labels=labels)
    in_shard = np.searchsorted(packing.starts, sequences, side="right") - 1
    for number, shard in enumerate(held):
        here = np.flatnonzero(in_shard == number)
        packing.fill(number, shard, sequences[here], here, filled, batch, SPECIALS)
    assert (filled == (segments >= 0).sum(1)).all()
    return batch


def parts_of(row):
    """The two parts of a row of inputs, without marks."""
    ends = np.flatnonzero(row == SEP)
    return row[1 : ends[0]], row[ends[0] + 1 : ends[1]] if len(ends) > 1 else row[:0]


@pytest.mark.long
def test_rows_are_cls_a_sep_b_sep_and_labels_say_whether_b_follows_a():
    """Labels as `transformers.BertForPreTraining` has them: 0 where B is the continuation of A, 1 where it is not."""
    packing, held = packed(3)
    batch = batch_of(packing, held, range(len(packing.sizes)))
    labels = []
    for row, types, segments, positions, label in zip(
        batch.inputs, batch.token_types, batch.segments, batch.positions, batch.labels, strict=True
    ):
        a, b = parts_of(row)
        size = 1 + len(a) + 1 + (len(b) + 1 if len(b) else 0)
        expected = [CLS, *a, SEP, *([*b, SEP] if len(b) else []), *[0] * (LENGTH - size)]
        assert row.tolist() == expected
        first = len(a) + 2
        assert segments.tolist() == [0] * first + [1] * (size - first) + [-1] * (LENGTH - size)
        assert types.tolist() == [0] * first + [1] * (size - first) + [0] * (LENGTH - size)
        assert positions.tolist() == [*range(size), *[0] * (LENGTH - size)]
        assert np.array_equal(np.diff(a), np.ones(len(a) - 1))
        assert label in ((IGNORED, int(b[0] != a[-1] + 1)) if len(b) else (IGNORED,))
        labels.append(label)
    share = np.mean([label for label in labels if label >= 0])
    assert share == pytest.approx(0.5, abs=0.02)
    assert np.mean(np.array(labels)[batch.token_types.any(axis=1)] == IGNORED) < 0.02


@pytest.mark.parametrize(("exchanges", "epoch"), [(0, 5), (3, 0), (3, 2), (3, 4)])
def test_locate_gives_the_parts_of_a_row(exchanges, epoch):
    packing, held = packed(exchanges)
    sequences = range(0, len(packing.sizes), 7)
    batch = batch_of(packing, held, sequences, epoch)
    for sequence, row in zip(sequences, batch.inputs, strict=True):
        number, starts, counts = packing.locate(sequence, epoch)
        offsets = held[number].offsets
        for part, start, count in zip(parts_of(row), starts, counts, strict=False):
            document = next(
                d for d in range(len(offsets) - 1) if start < offsets[d + 1] - offsets[0] + 2 * (d + 1)
            )  # its stream ends there
            assert part[0] - 10 == start - 1 - 2 * document
            assert len(part) == count


def test_every_epoch_has_an_exchange_of_its_own():
    packing, held = packed(3)
    epochs = [batch_of(packing, held, range(len(packing.sizes)), epoch) for epoch in range(6)]
    for one in range(3):
        assert np.array_equal(epochs[one].inputs, epochs[one + 3].inputs)
        assert np.array_equal(epochs[one].labels, epochs[one + 3].labels)
        assert not np.array_equal(epochs[one].labels, epochs[(one + 1) % 3].labels)
    for batch in epochs:
        read = np.sort(batch.inputs[batch.inputs > SEP])
        text = np.concatenate([shard.tokens[shard.offsets[0] :] for shard in held])
        values, counts = np.unique(read, return_counts=True)
        assert set(values) <= set(text)
        assert (counts <= np.bincount(text)[values]).all()
        assert len(read) > 0.99 * len(text)  # the ends of B's that are longer than those of their match


def test_next_sentence_masks_both_parts_and_keeps_the_pair():
    packing, held = packed(2)
    batch = batch_of(packing, held, range(300))
    result = NextSentence().apply(batch, CONTEXT)
    chosen = result.targets != IGNORED
    np.testing.assert_array_equal(np.where(chosen, result.targets, result.inputs), batch.inputs)
    assert result.labels is batch.labels
    assert result.token_types is batch.token_types
    for segment in (0, 1):
        there = (batch.segments == segment) & (batch.inputs > SEP)
        assert (chosen & there).sum() / there.sum() == pytest.approx(0.15, abs=0.015)


def test_half_of_the_rows_have_their_parts_in_another_order():
    packing, held = packed(0)
    sequences = range(len(packing.sizes))
    batch = batch_of(packing, held, sequences)
    result = SentenceOrder().apply(batch, CONTEXT)
    rows = np.where(result.targets == IGNORED, result.inputs, result.targets)
    paired = batch.labels == 0
    assert ((result.labels == IGNORED) == ~paired).all()
    swapped = result.labels == 1
    assert swapped[paired].mean() == pytest.approx(0.5, abs=5 * np.sqrt(0.25 / paired.sum()))
    for number, row in enumerate(rows):
        a, b = parts_of(batch.inputs[number])
        if not swapped[number]:
            assert np.array_equal(row, batch.inputs[number])
            continue
        size = len(a) + len(b) + 3
        assert row.tolist() == [CLS, *b, SEP, *a, SEP, *[0] * (LENGTH - size)]
        first = len(b) + 2
        assert result.segments[number].tolist() == [1] * first + [0] * (size - first) + [-1] * (LENGTH - size)
        assert result.token_types[number].tolist() == [0] * first + [1] * (size - first) + [0] * (LENGTH - size)
        assert b[0] == a[-1] + 1


@pytest.mark.parametrize(("objective", "exchanges"), [(NextSentence(), 2), (SentenceOrder(), 0)])
def test_the_split_into_batches_does_not_enter(objective, exchanges):
    packing, held = packed(exchanges)
    batch = batch_of(packing, held, range(40))
    whole = objective.apply(batch, CONTEXT)
    names = ("inputs", "targets", "positions", "segments", "source", "sequence", "sample", "epoch")
    for rows in ([3], [0, 1, 2], list(range(20, 40))):
        fields = {name: getattr(batch, name)[rows] for name in (*names, "token_types", "labels")}
        part = objective.apply(Batch(**fields), CONTEXT)
        for name in ("inputs", "targets", "segments", "token_types", "labels"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[rows])


def test_knobs_out_of_range_are_refused():
    for objective in (NextSentence(rate=0.0), SentenceOrder(rate=0.0)):
        with pytest.raises(ValueError, match=r"rate: got 0\.0"):
            objective.check()
    with pytest.raises(ValueError, match="exchanges: got 0"):
        NextSentence(exchanges=0).check()
