"""AWD-LSTM: its states against torch's LSTM, its kinds of dropout, where its state is reset, and several
continuations of one context.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.engine.forward import Forward
from trainers.engine.hardware.mfu import flops_of
from trainers.evaluation.scoring.pieces import Piece, sum_pieces
from trainers.models import build_model
from trainers.models.recurrent.awd_lstm_network import drop_variational
from trainers.models.recurrent.packed_sequences import Sequences
from trainers.rows.batch import IGNORED

MODEL = fill(Model("awd_lstm", layers=3, width=12, heads=1, positions=64, feed_forward=20, vocab_size=200), 200)
RATES = ("dropout", "input_dropout", "hidden_dropout", "embedding_dropout", "weight_dropout")


def network(**rates):
    return build_model(replace(MODEL, **rates), SPECIAL_IDS, 0)


def positions_of(*lengths):
    return torch.cat([torch.arange(length) for length in lengths])[None]


def reference(model, ids):
    """Return the states of one document, computed with torch.nn.LSTM layer by layer."""
    states = model.lstm.embed(ids)[None]
    for layer in model.lstm.layers:
        lstm = torch.nn.LSTM(layer.input_weight.shape[1], layer.recurrent_weight.shape[1], batch_first=True)
        ours = (layer.input_weight, layer.recurrent_weight, layer.input_bias, layer.recurrent_bias)
        for theirs, parameter in zip(lstm.parameters(), ours, strict=True):
            theirs.data = parameter.data
        states = lstm(states)[0]
    return states[0]


def test_a_document_in_a_row_has_the_states_that_torchs_lstm_gives_it_alone():
    model, lengths = network().eval(), (7, 1, 1, 20, 3)
    ids = torch.randint(0, 200, (2, sum(lengths)), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([positions_of(*lengths), positions_of(*lengths[::-1])])
    with torch.no_grad():
        states = model.lstm(ids, positions)
        for row, order in enumerate((lengths, lengths[::-1])):
            first = 0
            for length in order:
                here = slice(first, first + length)
                torch.testing.assert_close(states[row, here], reference(model, ids[row, here]), atol=1e-6, rtol=0)
                first += length


def test_a_row_that_continues_a_document_begins_with_zeros():
    """Every row starts from a zero state, even if its positions continue those of the row before."""
    model = network().eval()
    ids = torch.randint(0, 200, (2, 10), generator=torch.Generator().manual_seed(2))
    positions = torch.stack([torch.arange(10), torch.arange(10) + 10])
    with torch.no_grad():
        states = model.lstm(ids, positions)
        torch.testing.assert_close(states[1], reference(model, ids[1]), atol=1e-6, rtol=0)


def test_sequences_are_those_of_a_loop():
    generator = np.random.default_rng(0)
    rows = []
    for _ in range(5):
        lengths = generator.integers(1, 9, 20)
        starts = generator.integers(0, 3, 20) * 10  # some begin in the middle of a document
        rows.append(np.concatenate([np.arange(n) + s for n, s in zip(lengths, starts, strict=True)])[:60])
    positions = np.stack(rows)
    expected = []
    for row, its in enumerate(positions):
        for column, position in enumerate(its):
            if column == 0 or position != its[column - 1] + 1:
                expected.append([])
            expected[-1].append(row * 60 + column)
    found = Sequences.of(torch.from_numpy(positions))
    lists = [[] for _ in range(found.count)]
    for place, owner in zip(found.order.tolist(), found.owner.tolist(), strict=True):
        lists[owner].append(place)
    assert sorted(lists) == sorted(expected)
    assert [len(each) for each in lists] == sorted(map(len, expected), reverse=True)
    longest = max(map(len, expected))
    assert found.batch_sizes.tolist() == [sum(len(each) > k for each in expected) for k in range(longest)]


def test_units_are_dropped_for_a_whole_sequence():
    sequences = Sequences.of(positions_of(30, 5, 30))
    dropped = drop_variational(torch.ones(65, 1000), sequences, 0.4)
    rows = []
    for owner in range(3):
        own = dropped[sequences.owner == owner]
        assert (own == own[0]).all()
        assert own.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
        assert (own[0] == 0).float().mean().item() == pytest.approx(0.4, abs=0.06)
        rows.append(own[0])
    assert not torch.equal(rows[0], rows[1])


def test_recurrent_weights_are_dropped_once_for_a_pass():
    """Dropped weights have no gradient, so the share of weights without a gradient equals the dropout rate,
    however many time steps there are.
    """
    model = network(weight_dropout=0.5).train()
    ids = torch.randint(0, 200, (4, 30), generator=torch.Generator().manual_seed(3))
    masks = []
    for _ in range(2):
        model.zero_grad()
        model(ids).logits.square().sum().backward()
        gradient = model.lstm.layers[1].recurrent_weight.grad
        masks.append(gradient == 0)
        assert masks[-1].float().mean().item() == pytest.approx(0.5, abs=0.05)
        assert (model.lstm.layers[1].input_weight.grad != 0).all()
    assert not torch.equal(*masks)


def test_a_dropped_word_is_dropped_everywhere():
    model = network(embedding_dropout=0.5).train()
    seen = []
    model.lstm.layers[0].register_forward_pre_hook(lambda layer, given: seen.append(given[0].detach()))
    ids = torch.arange(100).repeat(3, 1)
    model(ids)
    kept = (seen[0] != 0).any(2)
    assert (kept == kept[0]).all()
    assert kept[0].float().mean().item() == pytest.approx(0.5, abs=0.15)
    torch.testing.assert_close(seen[0][0][kept[0]], 2 * model.lstm.embed(ids[0])[kept[0]])


@pytest.mark.long
@pytest.mark.parametrize("rate", RATES)
def test_every_rate_changes_training_and_nothing_else(rate):
    ids = torch.randint(0, 200, (2, 30), generator=torch.Generator().manual_seed(4))
    plain, dropped = network().eval(), network(**{rate: 0.5})
    with torch.no_grad():
        expected = plain(ids).logits
        torch.testing.assert_close(dropped.eval()(ids).logits, expected)
        first, second = (dropped.train()(ids).logits for _ in range(2))
    assert (first - expected).abs().max() > 1e-5
    assert (first - second).abs().max() > 1e-5


def test_the_sizes_of_the_paper_have_the_published_parameters():
    """Merity et al. (2017, tables 1 and 2) give 24 M for the Penn Treebank and 33 M for WikiText-2, counting
    tied embeddings once.
    """
    for words, count in ((10_000, 24_221_600), (33_278, 33_556_078)):
        with torch.device("meta"):
            model = build_model(replace(MODEL, width=400, feed_forward=1150, vocab_size=words), SPECIAL_IDS, 0)
        assert sum(parameter.numel() for parameter in model.parameters()) == count
        assert model.lm_head.weight is model.lstm.embed.weight


@pytest.mark.parametrize("width", [400, 64])
def test_embeddings_begin_with_the_norm_that_they_have_in_the_authors_code(width):
    """The authors initialise from U(-0.1, 0.1) at a width of 400."""
    table = build_model(replace(MODEL, width=width, vocab_size=2000), SPECIAL_IDS, 0).lstm.embed.weight
    assert table.abs().max().item() == pytest.approx(2 / width**0.5, rel=1e-3)
    assert table.norm(dim=1).mean().item() == pytest.approx(0.2 / 12**0.5 * 20, rel=0.01)


def test_operations_are_those_of_the_matrices_at_every_length():
    model = network()
    stack = sum(p.numel() for layer in model.lstm.layers for p in layer.parameters())
    found = [flops_of(model, MODEL, length) for length in (1, 64)]
    assert found[0] == found[1]
    assert found[0].predicted == 6 * model.lm_head.weight.numel()
    assert found[0].read == pytest.approx(6 * (stack + 200))  # and the output layer's biases


def test_continuations_of_one_context_have_the_likelihoods_that_they_have_alone():
    """In a transformer, the continuations share the context's row by means of a mask, but a mask cannot share
    a recurrent state.
    """
    generator = np.random.default_rng(5)
    context = generator.integers(10, 200, 9)
    forward = Forward(network().eval(), "awd_lstm")
    pieces = []
    for owner, length in enumerate((4, 2, 6)):
        inputs = np.concatenate([context, generator.integers(10, 200, length)])
        targets = np.full(len(inputs), IGNORED, np.int64)
        targets[8:-1] = inputs[9:]
        pieces.append(Piece(owner, inputs, targets, shared=len(context)))
    together = sum_pieces(forward, "awd_lstm", pieces, 3, 4096).log_likelihood
    for owner, piece in enumerate(pieces):
        with torch.no_grad():
            logits = forward.model(torch.from_numpy(piece.inputs)[None]).logits[0].log_softmax(1)
        expected = sum(float(logits[k, piece.inputs[k + 1]]) for k in range(8, len(piece.inputs) - 1))
        assert together[owner] == pytest.approx(expected, abs=1e-4)
