"""Next sentence, sentence order and SimCSE: row layout, true labels, random draws, and configurations that
are refused.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from trainers.config.job import BatchSize
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import corpus_of, training_data
from trainers.data.sequence_documents import ids_of
from trainers.objectives.sentences.next_sentence import NextSentence
from trainers.objectives.sentences.sentence_order import SentenceOrder
from trainers.objectives.sentences.simcse import SimCSE
from trainers.objectives.shared.context import Context
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, Batch, Frame
from trainers.rows.sentence_pairs import PairPacking, pair_sentences

LENGTH, CLS, SEP = 64, 5, 6
SPECIALS = {"<pad>": 0, "<unk>": 3, "<mask>": 4, "<cls>": CLS, "<sep>": SEP}
CONTEXT = Context(7, SPECIALS, 60_000, "encoder", LENGTH)
FRAME = Frame("<cls>", "<sep>")


def shards(count=2, documents=120):
    """Return shards in which token i is 10 + i, so that a row shows where its parts come from. Offsets do not
    start at 0.
    """
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
    held = shards()
    rows = [
        pair_sentences(s.offsets, s.sentences, s.sentence_offsets, LENGTH, FRAME.marks, False, exchanges, seed)
        for seed, s in enumerate(held)
    ]
    return PairPacking(tuple(rows), FRAME), held


def batch_of(packing, held, sequences, epoch=0):
    """Return a batch of the given sequences in an epoch, built as in the loader."""
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
    ends = np.flatnonzero(row == SEP)
    return row[1 : ends[0]], row[ends[0] + 1 : ends[1]] if len(ends) > 1 else row[:0]


@pytest.mark.long
def test_rows_are_cls_a_sep_b_sep_and_labels_say_whether_b_follows_a():
    """The labels are those of `transformers.BertForPreTraining`: 0 if B continues A, otherwise 1."""
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


def copies_of(made):
    """Return (row, document, tokens) of each segment in SimCSE rows, in order, after checking the layout of
    the rows.
    """
    found = []
    for row, (inputs, segments, positions, documents) in enumerate(
        zip(made.inputs, made.segments, made.positions, made.documents, strict=True)
    ):
        many = segments.max() + 1
        assert (segments[segments >= 0] == np.sort(segments[segments >= 0])).all()
        assert (segments[(segments >= 0).sum() :] == -1).all()
        assert ((documents >= 0) == (segments >= 0)).all()
        for number in range(many):
            here = segments == number
            assert positions[here].tolist() == list(range(here.sum()))
            (document,) = set(documents[here].tolist())
            found.append((row, document, tuple(inputs[here].tolist())))
    assert (made.targets == IGNORED).all()
    return found


def sentence_rows(seed=0, count=40):
    """Return a packed batch of framed documents, each row cut off at a random length, and its sentences as
    (row, document, tokens).
    """
    rng = np.random.default_rng(seed)
    rows, sentences, marked = [], [], []
    for row in range(count):
        stream, begins, left = [], [], int(rng.integers(0, LENGTH))
        for document in range(rng.integers(0, 5)):
            parts = [rng.integers(10, 900, size).tolist() for size in rng.integers(1, 12, rng.integers(1, 5))]
            stream_part, begins_part = [CLS], [True]
            for number, part in enumerate(parts):
                room = max(0, left - len(stream) - len(stream_part))
                if part[:room]:
                    sentences.append((row, document, tuple(part[:room])))
                begins_part += [number > 0] + [False] * (len(part) - 1)
                stream_part += part
            if len(stream) < left:
                stream += [(token, document) for token in [*stream_part, SEP]]
                begins += [*begins_part, False]
        rows.append(stream[:left])
        marked.append(begins[:left])
    shape = (count, LENGTH)
    inputs, segments, starts = np.zeros(shape, np.int64), np.full(shape, -1), np.zeros(shape, bool)
    for row, stream in enumerate(rows):
        for column, (token, document) in enumerate(stream):
            inputs[row, column], segments[row, column] = token, document
        starts[row, : len(stream)] = marked[row]
    none = np.zeros(count, np.int64)
    targets = np.full(shape, IGNORED)
    fields = (none, none, np.arange(count), none)
    return Batch(inputs, targets, np.zeros(shape, np.int64), segments, *fields, sentence_starts=starts), sentences


@pytest.mark.parametrize("least", [1, 4, 8])
def test_simcse_has_every_sentence_that_is_long_enough_twice_in_its_row_between_marks(least):
    batch, sentences = sentence_rows()
    expected = [
        (row, document, (CLS, *tokens, SEP))
        for row, document, tokens in sentences
        if len(tokens) >= least
        for _ in range(2)
    ]
    assert len(expected) > 60
    made = SimCSE(min_tokens=least).apply(batch, CONTEXT)
    assert copies_of(made) == expected
    assert made.inputs.shape[1] % 8 == 0
    assert made.inputs.shape[1] < max((made.segments >= 0).sum(1)) + 8


def test_simcse_of_documents_has_a_text_for_each():
    batch, sentences = sentence_rows(1)
    whole = {}
    for row, document, tokens in sentences:
        whole.setdefault((row, document), []).extend(tokens)
    made = SimCSE(unit="documents").apply(replace(batch, sentence_starts=None), CONTEXT)
    expected = [(*where, (CLS, *its, SEP)) for where, its in whole.items() if len(its) >= 4 for _ in range(2)]
    assert copies_of(made) == expected


def test_the_split_into_batches_does_not_enter_simcse():
    batch, _ = sentence_rows(2)
    whole = copies_of(SimCSE().apply(batch, CONTEXT))
    for rows in ([3], [0, 1, 2], list(range(20, 40))):
        part = Batch(**{name: value[rows] for name, value in vars(batch).items() if value is not None})
        made = [(rows[row], *rest) for row, *rest in copies_of(SimCSE().apply(part, CONTEXT))]
        assert made == [each for each in whole if each[0] in rows]


@pytest.mark.parametrize("packing", ["full_sentences", "doc_sentences", "best_fit"])
def test_simcse_reads_a_corpus_in_rows_that_are_not_too_long_and_leaves_excluded_documents_out(
    corpus_directory, packing
):
    data = simcse_data(corpus_directory, packing)
    (stream,) = data.packed_phases
    samples = data.order.take(0, 60)
    made = data.rows(samples)
    assert made.inputs.shape[1] <= stream.context.sequence_length
    ids = [
        ids_of(data.sources[s], int(n), stream.length) for s, n in zip(samples.source, samples.sequence, strict=True)
    ]
    row = next(row for row, its in enumerate(ids) if 0 in made.documents[row])
    left = replace(data, excluded=frozenset({ids[row][0]})).rows(samples)
    gone = np.array(
        [[d >= 0 and its[d] == ids[row][0] for d in row_] for row_, its in zip(made.documents, ids, strict=True)]
    )
    assert gone.any()
    np.testing.assert_array_equal(left.segments, np.where(gone, -1, made.segments))


def simcse_data(directory, packing="full_sentences", **changes):
    recipe = RECIPES["tiny_simcse"]()
    data = replace(recipe.data, corpora=(str(directory),), packing=packing, weights={"plays": 1.0})
    config = replace(recipe, data=data, objective=SimCSE(**changes), batch=BatchSize(sequences=8))
    return training_data(corpus_of(config), config)


def test_simcse_of_sentences_needs_shards_with_sentences_and_of_documents_does_not(plain_directory):
    with pytest.raises(ConfigError, match=r"needs sentence starts, which .* does not have; build the corpus with"):
        simcse_data(plain_directory)
    with pytest.raises(ConfigError, match="objective: simcse needs sentence starts"):
        simcse_data(plain_directory, "best_fit")
    data = simcse_data(plain_directory, "best_fit", unit="documents")
    assert copies_of(data.rows(data.order.take(0, 4)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.dropout=0"], "model.dropout: got 0.0 with objective simcse, whose two copies"),
        (["data.isolation=false"], "data.isolation: got false with objective simcse"),
        (["data.packing=sentence_pairs"], "data.packing: got sentence_pairs with objective simcse"),
        (["data.packing=documents", "objective.unit=documents"], "data.packing: got documents .* use best_fit"),
        (["model.architecture=deberta_v2", "model.mask_decoder=true"], "model.mask_decoder: got true"),
        (["model.architecture=xlnet"], "objective: got simcse with model.architecture xlnet"),
        (["objective.temperature=0"], "temperature: got 0.0, allowed above 0"),
        (["objective.min_tokens=0"], "min_tokens: got 0, allowed 1"),
    ],
)
def test_what_does_not_fit_simcse_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, override(plain(RECIPES["tiny_simcse"]()), changes), "x.yaml")


def test_a_row_of_simcse_has_room_for_the_shortest_sentences_and_for_two_of_them():
    for least, length in ((1, 12), (4, 24), (4, 128), (7, 100)):
        stream = SimCSE(min_tokens=least).stream_length(length, "encoder")
        assert 2 * least <= stream <= length // 2
        assert 2 * (stream + 2 * (stream // least)) <= length
    with pytest.raises(ConfigError, match=r"data\.sequence_length: got 23, too short .*; allowed 24 or more"):
        SimCSE().stream_length(23, "encoder")


def test_a_batch_without_a_sentence_becomes_padding():
    batch, _ = sentence_rows(3)
    for empty in (replace(batch, segments=np.full_like(batch.segments, -1)), batch):
        made = SimCSE(min_tokens=900).apply(empty, CONTEXT)
        assert (made.inputs.shape, made.inputs.dtype) == ((40, 8), np.int64)
        assert copies_of(made) == []
