"""ELMo's character-based token vectors: a direct implementation of the papers, the character table, and
sizes.
"""

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from tokenizer.vocabulary.specials import CLS, MASK, SEP, SPECIAL_IDS, UNK
from trainers.config.architecture import Model, fill
from trainers.engine.hardware.mfu import flops_of
from trainers.models import build_model, give_characters
from trainers.models.recurrent.character_cnn import CharacterCnn
from trainers.models.recurrent.packed_sequences import Sequences

SIZES = Model("elmo", layers=2, width=24, heads=1, positions=64, feed_forward=20, vocab_size=200)
MODEL = fill(replace(SIZES, character_filters=64, highway_layers=2), 200)
PUBLISHED = [(1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)]


def network(**others):
    return build_model(replace(MODEL, **others), SPECIAL_IDS, 0).eval()


def characters_of(text):
    """Return the 50 characters of a token by bilm-tf's rule: <w> (258), the first 48 bytes, </w> (259), then
    padding (260).
    """
    own = [258, *text[:48], 259]
    return own + [260] * (50 - len(own))


def reference(cnn, characters):
    """Return the vector of one token, computed in loops over filters and positions."""
    embedded, found = cnn.embed.weight[characters], []
    for each in cnn.filters:
        size = each.weight.shape[2]
        places = [embedded[first : first + size].T for first in range(50 - size + 1)]
        for weight, bias in zip(each.weight, each.bias, strict=True):
            sums = [(weight * place).sum() + bias for place in places]
            found.append(max(*sums, torch.tensor(0.0)))
    state = torch.stack(found)
    for highway in cnn.highways:
        gate = 1 / (1 + torch.exp(-(highway.gate.weight @ state + highway.gate.bias)))
        carried = torch.clamp(highway.transform.weight @ state + highway.transform.bias, min=0)
        state = gate * carried + (1 - gate) * state
    return cnn.projection.weight @ state + cnn.projection.bias


def test_a_tokens_vector_is_that_of_a_plain_reading_of_the_papers():
    model = network()
    cnn, texts = model.elmo.embed, [b"", b" red", b"x" * 60, "é".encode(), b"ed"]
    cnn.spell(texts, {})
    ids = torch.tensor([[1, 3, 1], [2, 0, 4]])
    with torch.no_grad():
        expected = torch.stack([reference(cnn, characters_of(text)) for text in texts])
        torch.testing.assert_close(cnn(ids), expected[ids], atol=1e-5, rtol=0)


def test_both_directions_read_the_vectors_and_training_reaches_every_parameter_of_theirs():
    model = network()
    ids = torch.arange(100, 120)[None]
    starts = torch.zeros(1, 19, dtype=torch.bool)
    sequences = Sequences.beginning(starts)
    with torch.no_grad():
        embedded = model.elmo.embed(ids)
        states = torch.cat([embedded, embedded], 2)
        first = model.elmo.layers[0](states, sequences)
        second = model.elmo.layers[1](first, sequences)
        torch.testing.assert_close(model.elmo(ids, starts), second, atol=1e-6, rtol=0)
    model(ids).logits.sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.elmo.embed.parameters())


def test_characters_come_from_the_tokenizer_of_the_shards(tmp_path):
    pieces = [*SPECIAL_IDS, "the", "##ing", "é"]
    tokenizer = Tokenizer(WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token=UNK))
    tokenizer.add_special_tokens(list(SPECIAL_IDS))
    tokenizer.save(str(file := tmp_path / "tokenizer.json"))
    model = network()
    give_characters(model, MODEL, file)
    table, ids = model.elmo.embed.table, len(SPECIAL_IDS)
    rows = [characters_of(text) for text in (b" the", b"ing", " é".encode(), b"<mask>")]
    assert table[[ids, ids + 1, ids + 2, SPECIAL_IDS[MASK]]].tolist() == rows
    for name, character in ((CLS, 256), (SEP, 257)):
        assert table[SPECIAL_IDS[name]].tolist() == [258, character, 259, *[260] * 47]
    # A network of embeddings has no characters, and stays as it is.
    plain = build_model(fill(SIZES, 200), SPECIAL_IDS, 0)
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    give_characters(plain, fill(SIZES, 200), file)
    assert all(torch.equal(tensor, before[name]) for name, tensor in plain.state_dict().items())


def test_the_published_convolution_has_the_sizes_of_the_authors_and_their_initial_weights():
    """The expected filters and highway layers are those of the "original" model with the 261 characters used
    in training (allenai/bilm-tf, README).
    """
    model = network(character_filters=2048, vocab_size=256, width=1024)
    cnn = model.elmo.embed
    assert [(each.weight.shape[2], len(each.weight)) for each in cnn.filters] == PUBLISHED
    filters = sum(16 * size * count + count for size, count in PUBLISHED)
    highways = 2 * 2 * (2048 * 2048 + 2048)
    expected = 261 * 16 + filters + highways + 2048 * 512 + 512
    assert sum(parameter.numel() for parameter in cnn.parameters()) == expected
    assert cnn.embed.weight.abs().max().item() == pytest.approx(1.0, abs=1e-3)
    assert cnn.filters[-1].weight.abs().max().item() == pytest.approx(0.05, rel=1e-3)
    gate, transform = cnn.highways[1].gate, cnn.highways[1].transform
    assert (gate.bias.unique().tolist(), transform.bias.unique().tolist()) == ([-2.0], [0.0])
    assert gate.weight.std().item() == pytest.approx(2048**-0.5, rel=0.01)
    assert cnn.projection.weight.std().item() == pytest.approx(2048**-0.5, rel=0.01)
    assert model.lm_head.weight.shape == (256, 512)
    assert model.lm_head.weight.std().item() == pytest.approx(512**-0.5, rel=0.01)


def test_operations_count_filters_at_every_place():
    model = network()
    cnn: CharacterCnn = model.elmo.embed
    layers = sum(parameter.numel() for parameter in model.elmo.layers.parameters())
    dense = sum(p.numel() for name, p in cnn.named_parameters() if not name.startswith("embed."))
    places = sum(each.weight.numel() * (50 - each.weight.shape[2]) for each in cnn.filters)
    found = flops_of(model, MODEL, 64)
    assert found.predicted == 12 * model.lm_head.weight.numel()
    assert found.read == pytest.approx(6 * (layers + dense + places + 200))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"character_filters": 100}, "character_filters: got 100, allowed multiples of 64"),
        ({"highway_layers": 2}, "highway_layers: got 2, allowed 1 or more with character_filters"),
        ({"character_filters": 64, "highway_layers": 0}, "highway_layers: got 0, allowed 1 or more"),
    ],
)
def test_sizes_that_the_filters_cannot_have_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(SIZES, **changes).check()
