"""GRU: states and decoders against torch's GRU, the stock model, published sizes, initial weights, and FLOPs."""

from dataclasses import replace

import pytest
import torch

from gristmill.errors import ConfigError
from tests.trainers.evaluation.scored_models import encoder
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.engine.hardware.mfu import flops_of
from trainers.evaluation.probing.hidden_states import StateReader
from trainers.models import MODELS, build_model
from trainers.models.interface import Inputs
from trainers.objectives.bidirectional_lm import BidirectionalLM
from trainers.objectives.causal import Causal
from trainers.objectives.sentences.skip_thought import SkipThought
from trainers.recipes import RECIPES

MODEL = fill(Model("gru", layers=2, width=24, heads=1, positions=64, embedding_size=10, vocab_size=200), 200)
LENGTHS = (7, 1, 1, 20, 3)


def network(**others):
    return build_model(replace(MODEL, **others), SPECIAL_IDS, 0).eval()


def reference(layers, states):
    for ours in layers:
        theirs = torch.nn.GRU(states.shape[1], ours.recurrent_weight.shape[1])
        values = (ours.input_weight, ours.recurrent_weight, ours.input_bias, ours.recurrent_bias)
        for parameter, value in zip(theirs.parameters(), values, strict=True):
            parameter.data = value.data
        states = theirs(states)[0]
    return states


def test_a_sentence_in_a_row_has_the_states_that_torchs_grus_give_it_alone_also_in_the_decoders():
    model, noise = network(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=noise)  # no bias is zero
    ids = torch.randint(0, 200, (2, sum(LENGTHS)), generator=noise)
    orders = (LENGTHS, LENGTHS[::-1])
    positions = torch.stack([torch.cat([torch.arange(length) for length in order]) for order in orders])
    vectors = tuple(torch.randn(2, len(LENGTHS), 24, generator=noise) for _ in range(2))
    spread = tuple(
        torch.stack([its[row].repeat_interleave(torch.tensor(order), 0) for row, order in enumerate(orders)])
        for its in vectors
    )
    architecture, inputs = MODELS["gru"], Inputs(ids, positions, None)
    with torch.no_grad():
        states, decoded = architecture.hidden(model, inputs), architecture.neighbours(model, inputs, spread)
        for row, order in enumerate(orders):
            first = 0
            for number, length in enumerate(order):
                here = slice(first, first + length)
                embedded = model.encoder.embed(ids[row, here])
                expected = reference(model.encoder.layers, embedded)
                torch.testing.assert_close(states[row, here], expected, atol=1e-6, rtol=0)
                torch.testing.assert_close(
                    model(ids[row : row + 1, here]).last_hidden_state[0], expected, atol=1e-6, rtol=0
                )
                for decoder, its, found in zip(
                    (model.next_decoder, model.previous_decoder), vectors, decoded, strict=True
                ):
                    given = torch.cat([embedded, its[row, number].expand(length, -1)], 1)
                    torch.testing.assert_close(found[row, here], reference([decoder], given), atol=1e-6, rtol=0)
                first += length


def test_the_recipe_has_the_published_sizes_and_weights_begin_as_published():
    model = fill(RECIPES["skip_thought"]().model, 1000)
    assert (model.layers, model.width, model.embedding_size) == (1, 2400, 620)
    small = network(embedding_size=155, width=48)
    for weight in (small.encoder.embed.weight, small.encoder.layers[1].input_weight, small.lm_head.weight):
        assert weight.abs().max().item() == pytest.approx(0.2, rel=0.01)  # half as many as 620 in square root
    assert small.config.__class__(embedding_size=620).bound == pytest.approx(0.1)
    for gate in small.next_decoder.recurrent_weight.chunk(3):
        torch.testing.assert_close(gate @ gate.T, torch.eye(48), atol=1e-5, rtol=0)


def test_operations_are_those_of_the_matrices_and_twice_those_of_the_output_layer():
    model = network()
    parts = (model.encoder.layers, model.next_decoder, model.previous_decoder)
    recurrent = sum(parameter.numel() for part in parts for parameter in part.parameters())
    found = [flops_of(model, MODEL, length) for length in (1, 64)]
    assert found[0] == found[1]
    assert found[0].predicted == 12 * model.lm_head.weight.numel()
    assert found[0].read == pytest.approx(6 * (recurrent + 200))  # and the output layer's biases


@pytest.mark.parametrize(("name", "layers"), [("gru", ("1", "2")), ("awd_lstm", ("0", "2")), ("elmo", ("0", "1", "2"))])
def test_layers_that_are_not_as_wide_as_the_last_are_not_among_the_hidden_states(name, layers, tmp_path):
    wide = {"embedding_size": 8} if name == "gru" else {"feed_forward": 40}
    model = fill(Model(name, layers=2, width=24, heads=1, positions=64, vocab_size=448, **wide), 448)
    objective = {"gru": SkipThought(), "awd_lstm": Causal(), "elmo": BidirectionalLM()}[name]
    reader = StateReader(name, build_model(model, SPECIAL_IDS, 0).eval(), model, objective, encoder(tmp_path))
    assert reader.layers == layers
    (states,) = reader.read(reader.encode(["a cat on the mat"]), reader.choose_layers("all"))
    assert states.tokens.shape[::2] == (len(layers), 24)
    assert states.tokens[-1].any()
    with pytest.raises(ConfigError, match=rf"layers: got '3', allowed for {name}: all, {', '.join(layers)}"):
        reader.choose_layers("3")
