"""ELMo: its states against torch's LSTM, what each direction reads, where the state is reset, its layers and
its published sizes.
"""

from dataclasses import replace

import pytest
import torch

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.engine.forward import attention_mask
from trainers.engine.hardware.mfu import flops_of
from trainers.models import MODELS, build_model
from trainers.models.heads.task_head import recorded_layers
from trainers.models.interface import Inputs
from trainers.models.recurrent.packed_sequences import Sequences
from trainers.recipes import RECIPES

MODEL = fill(Model("elmo", layers=3, width=24, heads=1, positions=64, feed_forward=20, vocab_size=200), 200)
WIDTH = 12  # of a direction
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # torch's own


def network(**others):
    return build_model(replace(MODEL, **others), SPECIAL_IDS, 0)


def segments_of(*lengths):
    return torch.cat([torch.full((length,), number) for number, length in enumerate(lengths)])[None]


def hidden(model, ids, segments):
    return MODELS["elmo"].hidden(model, Inputs(ids, torch.zeros_like(ids), attention_mask(segments, segments, False)))


def direction(layers, embedded):
    """Return the embeddings and the states of all layers, each [length, WIDTH], for one direction of one
    document, computed with torch.nn.LSTM.
    """
    found = [embedded]
    for number, ours in enumerate(layers):
        lstm = torch.nn.LSTM(WIDTH, ours.projection.shape[1], proj_size=WIDTH)
        values = (ours.input_weight, ours.recurrent_weight, ours.bias, torch.zeros_like(ours.bias), ours.projection)
        for theirs, value in zip(lstm.parameters(), values, strict=True):
            theirs.data = value.data
        found.append(lstm(found[-1])[0] + (found[-1] if number else 0))
    return found


def reference(model, ids):
    """Return the embeddings and the states of all layers, each [length, 2 x WIDTH], for one document read in
    both directions.
    """
    embedded, layers = model.elmo.embed(ids), model.elmo.layers
    ahead = direction([layer.forward_lstm for layer in layers], embedded)
    back = direction([layer.backward_lstm for layer in layers], embedded.flip(0))
    return [torch.cat([one, other.flip(0)], 1) for one, other in zip(ahead, back, strict=True)]


def test_a_document_in_a_row_has_the_states_that_torchs_lstms_give_it_alone_in_every_layer():
    model, lengths = network().eval(), (7, 1, 1, 20, 3)
    ids = torch.randint(0, 200, (2, sum(lengths)), generator=torch.Generator().manual_seed(1))
    segments = torch.cat([segments_of(*lengths), segments_of(*lengths[::-1])])
    with torch.no_grad(), recorded_layers(list(model.elmo.layers)) as layers:
        states = hidden(model, ids, segments)
    assert torch.equal(layers[-1], states)
    assert torch.equal(layers[0], model.elmo.embed(ids).repeat(1, 1, 2))
    with torch.no_grad():
        for row, order in enumerate((lengths, lengths[::-1])):
            first = 0
            for length in order:
                here = slice(first, first + length)
                for found, expected in zip(layers, reference(model, ids[row, here]), strict=True):
                    torch.testing.assert_close(found[row, here], expected, atol=1e-6, rtol=0)
                first += length


def test_each_direction_reads_one_side_of_a_token_and_the_other_has_no_influence():
    model, length, changed = network().eval(), 15, 8
    ids = torch.randint(0, 200, (1, length), generator=torch.Generator().manual_seed(2))
    other = ids.clone()
    other[0, changed] = (ids[0, changed] + 1) % 200
    with torch.no_grad():
        before, after = (model.elmo(each, torch.zeros(1, length - 1, dtype=torch.bool))[0] for each in (ids, other))
    ahead, back = ((before - after)[:, half].abs().amax(1) for half in (slice(WIDTH), slice(WIDTH, None)))
    assert (ahead > 0).tolist() == [place >= changed for place in range(length)]
    assert (back > 0).tolist() == [place <= changed for place in range(length)]


def test_padding_after_a_document_is_not_read_without_isolation_either():
    """The backward model would otherwise read the padding first."""
    model = network().eval()
    ids = torch.randint(0, 200, (1, 12), generator=torch.Generator().manual_seed(3))
    segments = torch.tensor([[0] * 9 + [-1] * 3])
    with torch.no_grad():
        states = hidden(model, ids, segments)[0, :9]
        torch.testing.assert_close(states, reference(model, ids[0, :9])[-1], atol=1e-6, rtol=0)
        stock = model(ids, attention_mask=(segments >= 0).long())
        torch.testing.assert_close(stock.logits[0, :9], model.predict(states), atol=1e-6, rtol=0)
        torch.testing.assert_close(
            stock.backward_logits[0, :9], model.predict(states, backward=True), atol=1e-6, rtol=0
        )


def test_sequences_read_backwards_have_their_places_turned_around():
    positions = torch.cat([torch.arange(n) for n in (3, 5, 1, 5, 2)]).view(2, 8)
    ahead = Sequences.of(positions)
    back = ahead.backwards
    places = [[s.order[s.owner == owner].tolist() for owner in range(s.count)] for s in (ahead, back)]
    assert sorted(places[0]) == [[0, 1, 2], [3, 4, 5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15]]
    assert places[1] == [own[::-1] for own in places[0]]
    states = torch.arange(16.0).view(2, 8, 1)
    assert torch.equal(back.unpack(back.pack(states), 2), states)


@pytest.mark.long
@pytest.mark.parametrize("places", ["input", "between", "after"])
def test_dropout_changes_every_place_that_the_authors_have_it_in_and_only_training(places):
    """Dropout applies before every layer, separately for each direction, and before the output layer."""
    model = network(dropout=0.5)
    ids = torch.randint(0, 200, (1, 400), generator=torch.Generator().manual_seed(4))
    starts = torch.zeros(1, 399, dtype=torch.bool)
    with torch.no_grad():
        assert torch.equal(model.eval().elmo(ids, starts), network().eval().elmo(ids, starts))
        model.train()
        seen = []
        for layer in model.elmo.layers:
            for lstm in (layer.forward_lstm, layer.backward_lstm):
                lstm.register_forward_pre_hook(lambda lstm, given: seen.append(given[0]))
        states = model.elmo(ids, starts)[0]
    dropped = {"input": seen[0], "between": seen[-1], "after": states}[places] == 0
    assert dropped.float().mean().item() == pytest.approx(0.5, abs=0.03)
    if places == "input":
        assert not torch.equal(dropped, (seen[1] == 0).flip(0))


@pytest.mark.parametrize(
    ("cells", "width", "highways", "published"),
    [(4096, 512, 2, 93.6), (2048, 256, 1, 28.0), (1024, 128, 1, 13.6)],
)
def test_the_language_models_have_the_published_parameters(cells, width, highways, published):
    """The published counts, in millions, are those of the "original", "medium" and "small" models on
    allennlp.org/elmo, without the output layer.
    """
    sizes = {"width": 2 * width, "feed_forward": cells, "character_filters": 2048, "highway_layers": highways}
    with torch.device("meta"):
        model = build_model(replace(MODEL, layers=2, **sizes), SPECIAL_IDS, 0)
    recurrent = sum(parameter.numel() for parameter in model.elmo.layers.parameters())
    assert recurrent == 4 * (2 * width * 4 * cells + 4 * cells + cells * width)
    assert round(sum(parameter.numel() for parameter in model.elmo.parameters()) / 1e6, 1) == published


def test_the_recipe_has_the_published_sizes():
    model = fill(RECIPES["elmo"]().model, 1000)
    assert (model.layers, model.width // 2, model.feed_forward, model.dropout) == (2, 512, 4096, 0.1)


def test_weights_begin_as_in_the_authors_code():
    model = network(width=512, feed_forward=1024, vocab_size=5000)
    for layer in model.elmo.layers:
        for lstm in (layer.forward_lstm, layer.backward_lstm):
            bound = (6 / (512 + 4096)) ** 0.5
            assert lstm.input_weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
            assert lstm.recurrent_weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)
            assert lstm.projection.abs().max().item() == pytest.approx((6 / 1280) ** 0.5, rel=1e-3)
            assert lstm.bias.view(4, -1).unique(dim=1)[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert model.lm_head.weight.std().item() == pytest.approx(256**-0.5, rel=0.01)


def test_operations_are_those_of_the_matrices_and_twice_those_of_the_output_layer():
    model = network()
    stack = sum(parameter.numel() for parameter in model.elmo.layers.parameters())
    found = [flops_of(model, MODEL, length) for length in (1, 64)]
    assert found[0] == found[1]
    assert found[0].predicted == 12 * model.lm_head.weight.numel()
    assert found[0].read == pytest.approx(6 * (stack + 200))  # and the output layer's biases
