"""Masks against the papers' descriptions: shares, whole words, spans and static copies. The division into
batches does not change them.
"""

from dataclasses import replace

import numpy as np
import pytest

from trainers.objectives.masked import Masked
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.masking import longer_spans
from trainers.objectives.shared.masking_kernels import BEGINS, ENDS, choose_words
from trainers.rows.batch import IGNORED, PADDING, Batch, Frame

VOCABULARY, LENGTH = 1000, 256
SPECIALS = {"<pad>": 0, "<unk>": 3, "<mask>": 4, "<cls>": 5, "<sep>": 6, "<last>": 999}
# Tokens from 600 on begin a word, those from 900 on end one as well.
MARKS = np.where(np.arange(VOCABULARY) >= 600, BEGINS, 0) | np.where(np.arange(VOCABULARY) >= 900, ENDS, 0)
CONTEXT = Context(7, SPECIALS, VOCABULARY, "encoder", LENGTH, MARKS.astype(np.uint8))
UNITS = ("tokens", "words", "spans")


def rows_of(documents, first=0):
    """Return a batch with one row for each list of documents. Documents are arrays of tokens, which are
    framed by `<cls>` and `<sep>`.
    """
    shape = (len(documents), LENGTH)
    inputs, segments = np.zeros(shape, np.int64), np.full(shape, PADDING, np.int64)
    for row, texts in enumerate(documents):
        column = 0
        for number, text in enumerate(texts):
            marked = np.concatenate([[SPECIALS["<cls>"]], text, [SPECIALS["<sep>"]]])[: LENGTH - column]
            inputs[row, column : column + len(marked)] = marked
            segments[row, column : column + len(marked)] = number
            column += len(marked)
    numbers = np.arange(first, first + len(documents))
    source, epoch = numbers % 3, np.zeros(len(documents), np.int64)
    targets = np.full(shape, IGNORED, np.int64)
    return Batch(inputs, targets, np.zeros(shape, np.int64), segments, source, numbers * 5, numbers, epoch)


def batch_of(sizes, rows, seed=0):
    rng = np.random.default_rng(seed)

    def text(size):
        tokens = rng.integers(7, 999, size)
        return np.where(rng.random(size) < 0.02, SPECIALS["<unk>"], tokens)

    return rows_of([[text(size) for size in sizes] for _ in range(rows)])


def eligible(batch):
    return (batch.segments != PADDING) & ~np.isin(batch.inputs, list(SPECIALS.values()))


def words_of(batch, row):
    """Return the columns of each word of a row, according to the word marks of its tokens."""
    words, goes_on = [], False
    may = eligible(batch)[row]
    for column in range(LENGTH):
        if not may[column]:
            goes_on = False
            continue
        mark = MARKS[batch.inputs[row, column]]
        if goes_on and not mark & BEGINS:
            words[-1].append(column)
        else:
            words.append([column])
        goes_on = not mark & ENDS
    return words


@pytest.mark.parametrize("unit", UNITS)
def test_15_percent_are_chosen_and_replaced_80_10_10(unit):
    batch = batch_of([200, 40], 400)
    result = Masked(unit=unit).apply(batch, CONTEXT)
    may, chosen = eligible(batch), result.targets != IGNORED
    assert not chosen[~may].any()
    # A document's number is rounded at random, so that the mean is exact; of words, the last one is taken at random.
    deviation = np.sqrt(800) * (0.5 if unit == "tokens" else 2)
    assert chosen.sum() == pytest.approx(0.15 * may.sum(), abs=5 * deviation)
    masked = result.inputs == SPECIALS["<mask>"]
    kept = chosen & (result.inputs == batch.inputs)
    replaced = chosen & ~masked & ~kept
    groups = chosen.sum() / (1 if unit != "spans" else 6)  # tokens of a span are replaced as one
    for share, found in ((0.8, masked), (0.1, kept), (0.1, replaced)):
        assert found.sum() / chosen.sum() == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / groups))
    np.testing.assert_array_equal(result.inputs[~chosen], batch.inputs[~chosen])


@pytest.mark.parametrize("unit", UNITS)
def test_the_original_comes_back_when_the_targets_are_put_in(unit):
    batch = batch_of([100, 3, 1, 120], 50)
    result = Masked(unit=unit, rate=0.4).apply(batch, CONTEXT)
    np.testing.assert_array_equal(np.where(result.targets == IGNORED, result.inputs, result.targets), batch.inputs)
    assert result.segments is batch.segments


@pytest.mark.parametrize("unit", UNITS)
def test_special_tokens_are_neither_chosen_nor_drawn(unit):
    batch = batch_of([200], 300)
    result = Masked(unit=unit, rate=0.9, mask_share=0.0, random_share=1.0).apply(batch, CONTEXT)
    special = np.isin(batch.inputs, list(SPECIALS.values()))
    np.testing.assert_array_equal(result.inputs[special], batch.inputs[special])
    assert (result.targets[special] == IGNORED).all()
    drawn = result.inputs[result.targets != IGNORED]
    assert not np.isin(drawn, list(SPECIALS.values())).any()
    assert set(drawn) == set(range(VOCABULARY)) - set(SPECIALS.values())


@pytest.mark.parametrize("rate", [0.05, 0.15, 0.4, 1.0])
def test_every_document_has_its_share_of_targets(rate):
    sizes = [1, 2, 5, 7, 20, 50, 99]
    batch = batch_of(sizes, 300)
    chosen = Masked(rate=rate).apply(batch, CONTEXT).targets != IGNORED
    for number in range(len(sizes)):
        of_document = batch.segments == number
        there, found = (eligible(batch) & of_document).sum(1), (chosen & of_document).sum(1)
        assert (np.abs(found - rate * there) < 1).all()
        assert (found[there >= 1 / rate] >= 1).all()
        assert found.sum() == pytest.approx(rate * there.sum(), abs=5 * np.sqrt(300 / 4))


@pytest.mark.long
def test_every_position_of_a_document_is_chosen_equally_often():
    batch = rows_of([[np.full(30, 50)]] * 20_000)
    chosen = (Masked().apply(batch, CONTEXT).targets != IGNORED)[:, 1:31]
    assert np.abs(chosen.mean(0) - 0.15).max() < 5 * np.sqrt(0.15 * 0.85 / 20_000)
    # And independently but for the fixed number: of 4 or 5 in 30, two places come together with this probability.
    together = 0.5 * (4 * 3 + 5 * 4) / (30 * 29)
    pairs = [(chosen[:, i] & chosen[:, j]).mean() for i, j in ((0, 1), (0, 29), (3, 4), (10, 20))]
    assert np.abs(np.array(pairs) - together).max() < 5 * np.sqrt(together / 20_000)


@pytest.mark.parametrize("unit", ["words", "spans"])
def test_words_are_never_split(unit):
    batch = batch_of([100, 4, 100], 60)
    chosen = Masked(unit=unit, rate=0.3).apply(batch, CONTEXT).targets != IGNORED
    whole = 0
    for row in range(60):
        for word in words_of(batch, row):
            assert chosen[row, word].all() or not chosen[row, word].any()
            whole += len(word) > 1 and bool(chosen[row, word[0]])
    assert whole > 100


def test_short_documents_are_masked_no_more_than_long_ones():
    """In documents of one four-token word, the word is chosen at the given rate, although the budget is at
    most one token.
    """
    batch = rows_of([[np.array([700, 20, 21, 22])] * 30] * 200)
    chosen = Masked(unit="words").apply(batch, CONTEXT).targets != IGNORED
    assert chosen.sum() / eligible(batch).sum() == pytest.approx(0.15, abs=5 * np.sqrt(0.15 * 0.85 / 6000))


def test_span_lengths_are_those_of_spanbert():
    """Lengths are geometric with p = 0.2 and at most 10, with a mean of 3.8 (Joshi et al., 2020, section
    3.1).
    """
    shares = np.diff([0, *longer_spans(0.2, 10), 1])
    assert len(shares) == 10
    assert (shares * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.005)
    np.testing.assert_allclose(shares[1:] / shares[:-1], 0.8)


def test_spans_have_geometric_lengths():
    """Rows are long and few words are chosen, so that hardly any span meets another or the end of the budget."""
    shape, rng = (40, 20_000), np.random.default_rng(0)
    inputs, group = np.full(shape, 950), np.empty(shape, np.int64)  # words of one token
    special, longer = np.zeros(VOCABULARY, bool), longer_spans(0.2, 10)
    one, all_of_them = ((shape[0], 1), shape)
    numbers = [rng.random(size) for size in (one, one, all_of_them, all_of_them)]
    choose_words(inputs, np.zeros(shape, np.int64), special, CONTEXT.word_marks, 0.02, longer, *numbers, group)
    chosen = group[group >= 0] + np.repeat(np.arange(40) * 20_000, (group >= 0).sum(1))
    lengths = np.unique(chosen, return_counts=True)[1]
    shares = np.diff([0, *longer, 1])
    spans = len(lengths)
    assert spans == pytest.approx(40 * 400 / 3.8, rel=0.05)
    assert lengths.max() == 10
    for n, share in enumerate(shares, 1):
        assert (lengths == n).sum() == pytest.approx(share * spans, abs=5 * np.sqrt(share * spans) + 0.02 * spans)
    assert lengths.mean() == pytest.approx(3.8, abs=0.15)


def test_tokens_of_a_span_are_replaced_as_one():
    batch = rows_of([[np.full(60, 950)]] * 4000)
    knobs = {"rate": 0.04, "mask_share": 0.5, "random_share": 0.5}
    mixed = {}
    for unit in ("words", "spans"):
        result = Masked(unit=unit, **knobs).apply(batch, CONTEXT)
        chosen, masked = result.targets != IGNORED, result.inputs == SPECIALS["<mask>"]
        together = chosen[:, 1:] & chosen[:, :-1]
        mixed[unit] = (masked[:, 1:] != masked[:, :-1])[together].mean()
    assert mixed["words"] == pytest.approx(0.5, abs=0.2)
    assert mixed["spans"] < 0.06  # where two spans touch


@pytest.mark.parametrize("unit", UNITS)
def test_the_split_into_batches_does_not_enter(unit):
    batch = batch_of([60, 130], 24)
    objective = Masked(unit=unit)
    whole = objective.apply(batch, CONTEXT)
    for rows in ([0, 1, 2], [23], list(range(10, 20)), [7, 3]):
        names = ("inputs", "targets", "positions", "segments", "source", "sequence", "sample", "epoch")
        part = objective.apply(Batch(**{name: getattr(batch, name)[rows] for name in names}), CONTEXT)
        np.testing.assert_array_equal(part.inputs, whole.inputs[rows])
        np.testing.assert_array_equal(part.targets, whole.targets[rows])
    other = objective.apply(batch, replace(CONTEXT, seed=8))
    assert (other.targets != whole.targets).any(1).all()


@pytest.mark.parametrize("unit", UNITS)
def test_of_10_static_masks_each_is_seen_4_times_in_40_epochs(unit):
    """BERT was trained on 10 copies of the data for 40 epochs. The sample number does not change the mask."""
    batch, objective = batch_of([200], 8), Masked(unit=unit, copies=10)
    seen = [{} for _ in range(8)]
    for epoch in range(40):
        visit = replace(batch, epoch=np.full(8, epoch), sample=np.arange(8) + 8 * epoch)
        for row, mask in enumerate(objective.apply(visit, CONTEXT).inputs):
            seen[row].setdefault(mask.tobytes(), []).append(epoch)
    for row in range(8):
        assert sorted(seen[row].values()) == [[copy, copy + 10, copy + 20, copy + 30] for copy in range(10)]


def test_dynamic_masks_are_fresh_at_every_visit():
    batch = batch_of([200], 4)
    masks = {
        Masked().apply(replace(batch, sample=np.arange(4) + 4 * epoch), CONTEXT).inputs.tobytes() for epoch in range(40)
    }
    assert len(masks) == 40


def test_static_masks_differ_between_sources_and_sequences():
    one = batch_of([200], 1)
    same = Batch(
        **{n: np.repeat(getattr(one, n), 3, axis=0) for n in ("inputs", "targets", "positions", "segments")},
        source=np.array([0, 1, 0]),
        sequence=np.array([0, 0, 1]),
        sample=np.zeros(3, int),
        epoch=np.zeros(3, int),
    )
    masks = Masked(copies=2).apply(same, CONTEXT).inputs
    assert len({mask.tobytes() for mask in masks}) == 3


def test_rows_may_begin_with_their_own_mark_instead_of_documents():
    """This is RoBERTa's format of full sentences, `<cls> ... <sep> ... <sep>`. The mark belongs to the first
    document of the row.
    """
    objective = Masked(marks="rows")
    assert (objective.frame, objective.stream_length(128, "encoder")) == (Frame(None, "<sep>"), 127)
    assert (Masked().frame, Masked().stream_length(128, "encoder")) == (Frame("<cls>", "<sep>"), 128)
    inputs = np.array([[21, 22, 6, 31, 32, 6, 0], [41, 42, 43, 44, 45, 46, 47], [0] * 7])
    segments = np.array([[0, 0, 0, 1, 1, 1, -1], [0] * 7, [-1] * 7])
    positions = np.array([[0, 1, 2, 0, 1, 2, 0], range(7), [0] * 7])
    numbers = np.array([0, 1, -1])
    batch = Batch(inputs, np.full_like(inputs, IGNORED), positions, segments, numbers, numbers, numbers, numbers)
    result = objective.apply(batch, CONTEXT)
    original = np.where(result.targets == IGNORED, result.inputs, result.targets)
    assert original.tolist() == [[5, 21, 22, 6, 31, 32, 6, 0], [5, 41, 42, 43, 44, 45, 46, 47], [0] * 8]
    assert result.segments.tolist() == [[0, 0, 0, 0, 1, 1, 1, -1], [0] * 8, [-1] * 8]
    assert result.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2, 0], [*range(8)], [0] * 8]


def test_rows_of_padding_have_no_targets():
    batch = rows_of([[], [np.full(20, 50)]])
    for unit in UNITS:
        targets = Masked(unit=unit, rate=1.0).apply(replace(batch, sample=np.array([-1, 0])), CONTEXT).targets
        assert (targets[0] == IGNORED).all()
        assert (targets[1] != IGNORED).sum() == 20


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"rate": 0.0}, "rate: got 0.0"),
        ({"rate": 1.5}, "rate: got 1.5"),
        ({"mask_share": 0.8, "random_share": 0.3}, "mask_share, random_share"),
        ({"random_share": -0.1}, "mask_share, random_share"),
        ({"copies": 0}, "copies: got 0"),
        ({"span_p": 1.0}, "span_p"),
        ({"span_words": 1}, "span_words"),
    ],
)
def test_knobs_out_of_range_are_refused(knobs, message):
    with pytest.raises(ValueError, match=message):
        Masked(**knobs).check()
    Masked().check()
