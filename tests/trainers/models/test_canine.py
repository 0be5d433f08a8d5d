"""CANINE: the characters of tokens against Python's decoder, states against `transformers` on the same text,
padding, masks and sizes.
"""

from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
import torch

from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import train_byte_bpe
from tokenizer.vocabulary.specials import MASK, SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.engine.forward import Forward, attention_mask
from trainers.engine.hardware.mfu import flops_of
from trainers.models import MODELS, build_model, give_characters
from trainers.models.encoders.canine_characters import Spelling
from trainers.models.interface import Inputs

CLS, SEP, MASKED = 0xE000, 0xE001, 0xE003
TEXTS = ["The quick brown fox", "東京 is 🙂 and é", "a", "the fox and the quick é of 東京 " * 5]
MODEL = fill(Model("canine", layers=2, width=32, heads=4, positions=512, feed_forward=64, initializer_range=0.1), 420)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    file.write_bytes(train_byte_bpe(["the quick brown fox and the quick brown wood"] * 30, 400))
    return file


@pytest.fixture(scope="module")
def network(tokenizer):
    model = build_model(MODEL, SPECIAL_IDS, 0).eval()
    give_characters(model, MODEL, tokenizer)
    return model


def encoded(tokenizer, text):
    """Return a document as training reads it. Rare characters become several single-byte tokens."""
    ids, _ = Encoder.load(str(tokenizer)).encode(pa.array([text], pa.large_string()))
    return [SPECIAL_IDS["<cls>"], *ids.tolist(), SPECIAL_IDS["<sep>"]]


def packed(documents):
    ids = [*chain.from_iterable(documents), *[SPECIAL_IDS["<pad>"]] * 5]
    segments = [*np.repeat(np.arange(len(documents)), list(map(len, documents))), *[-1] * 5]
    return torch.tensor([ids]), torch.tensor([segments])


def hidden(model, ids, segments, **others):
    mask = attention_mask(segments, segments, False)
    with torch.no_grad():
        return MODELS["canine"].hidden(model, Inputs(ids, torch.zeros_like(ids), mask, **others))


def stock(network, codes, width=None):
    """Return the states that `transformers` computes for the code points of a text. The text is padded to
    `width`, or by default to the smallest multiple of 128 that leaves at least 8 characters after the text.
    """
    width = width or -(-(len(codes) + 8) // 128) * 128
    ids = torch.tensor([[*codes, *[0] * (width - len(codes))]])
    with torch.no_grad():
        return network.canine(ids, attention_mask=(torch.arange(width) < len(codes)).long()[None]).last_hidden_state[0]


def first_characters(definition, ids):
    """Return the index of the character in which each token begins, found by decoding the tokens' bytes with
    Python's UTF-8 decoder.
    """
    spelled = [b"\0" if number < len(SPECIAL_IDS) else definition.token_bytes(number) for number in ids]
    whole, places, read = b"".join(spelled), [], 0
    for text in spelled:
        places.append(len(whole[:read].decode(errors="ignore")))
        read += len(text)
    return places


def test_a_packed_documents_states_are_those_of_transformers_on_its_text(network, tokenizer):
    documents = [encoded(tokenizer, text) for text in TEXTS]
    ids, segments = packed(documents)
    states = hidden(network, ids, segments)[0]
    definition = Encoder.load(str(tokenizer)).definition
    for number, (text, own) in enumerate(zip(TEXTS, documents, strict=True)):
        expected = stock(network, [CLS, *map(ord, text), SEP])[first_characters(definition, own)]
        torch.testing.assert_close(states[segments[0] == number], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [1, 3, 4, 118, 119, 120, 121, 126, 128, 256])
def test_more_padding_changes_nothing(network, size):
    """This includes texts that fill a downsampling block (molecule) or a local attention window exactly, so
    that `transformers` reads beyond the text.
    """
    codes = list(range(200, 200 + size))
    least = stock(network, codes)[:size]
    torch.testing.assert_close(stock(network, codes, 512)[:size], least, atol=1e-5, rtol=0)


def test_characters_are_those_of_python_and_what_is_cut_off_is_replaced():
    spelled = [
        b"a",
        "é".encode()[:1],
        "é".encode()[1:] + b"b",
        "🙂".encode()[:2],
        "🙂".encode()[2:],
        b"",
        "東".encode(),
    ]
    spelling = Spelling.of(spelled)
    ids = torch.tensor([[0, 1, 2, 3, 4, 6], [2, 3, 0, 5, 1, 6]])
    starts = torch.tensor([[False] * 5, [False, False, False, True, False]])
    layout = spelling.lay_out(ids, starts, torch.tensor([[0, 0, 0, 1, 1, 1], [0] * 6]), None, None)
    found = [codes[there].tolist() for codes, there in zip(layout.characters, layout.present, strict=True)]
    # The first byte of é is cut off by 東, and two bytes of 🙂 by a: each is one replacement character.
    assert found == [list(map(ord, "aéb🙂東")), list(map(ord, "b\ufffda")), list(map(ord, "\ufffd東"))]
    assert layout.types[0][layout.present[0]].tolist() == [0, 0, 0, 1, 1]
    assert layout.place.tolist() == [[0, 1, 2, 3, 3, 4], [0, 1, 2, 2, 0, 1]]
    assert layout.document.tolist() == [[0] * 6, [1, 1, 1, 1, 2, 2]]


def test_a_mask_has_as_many_characters_as_it_covers_and_is_read_where_the_objective_says(network, tokenizer):
    documents = [encoded(tokenizer, "The quick brown fox"), encoded(tokenizer, "the wood")]
    ids, segments = packed(documents)
    covered, read = torch.zeros_like(ids), torch.zeros_like(ids)
    definition = Encoder.load(str(tokenizer)).definition
    place = next(k for k, number in enumerate(documents[0]) if definition.tokens[number] == "Ġquick")
    ids[0, place], covered[0, place], read[0, place] = SPECIAL_IDS[MASK], 6, 4
    states = hidden(network, ids, segments, covered=covered, read=read)[0]
    codes = [CLS, *map(ord, "The"), *[MASKED] * 6, *map(ord, " brown fox"), SEP]
    expected = stock(network, codes)
    torch.testing.assert_close(states[place], expected[4 + 4], atol=1e-5, rtol=0)
    torch.testing.assert_close(states[place + 1], expected[4 + 6], atol=1e-5, rtol=0)
    one = hidden(network, ids, segments)[0]  # a prompt does not say how long the token is
    alone = stock(network, [CLS, *map(ord, "The"), MASKED, *map(ord, " brown fox"), SEP])
    torch.testing.assert_close(one[place], alone[4], atol=1e-5, rtol=0)


def test_layers_are_the_molecules_of_tokens(network, tokenizer):
    own = encoded(tokenizer, "The quick brown fox")
    ids, segments = packed([own])
    arrays = {"inputs": ids, "segments": segments, "positions": ids, "segment_range": (-1, 0)}
    with torch.no_grad():
        layers = Forward(network, "canine").layers(**arrays)["decoder"]
        text = torch.tensor([[CLS, *map(ord, "The quick brown fox"), SEP, *[0] * 107]])
        made = network.canine(text, attention_mask=(text > 0).long(), output_hidden_states=True).hidden_states
    places = first_characters(Encoder.load(str(tokenizer)).definition, own)
    molecules = [0, *(place // 4 + 1 for place in places[1:])]
    for found, expected in zip(layers[:-1], made[2:4], strict=True):  # after the layer of characters: molecules
        torch.testing.assert_close(found[0, : len(own)], expected[0, molecules], atol=1e-5, rtol=0)
    torch.testing.assert_close(layers[-1][0, : len(own)], made[-1][0, places], atol=1e-5, rtol=0)


def test_characters_beyond_the_table_share_its_last_position_and_rows_of_padding_have_states(network):
    short = build_model(replace(MODEL, positions=128), SPECIAL_IDS, 0).eval()
    ids = torch.full((1, 200), 300)
    states = hidden(short, ids, torch.zeros_like(ids))
    assert states.isfinite().all()
    pads = torch.full((2, 6), SPECIAL_IDS["<pad>"])
    assert hidden(network, pads, torch.full_like(pads, -1)).isfinite().all()


def test_the_published_size_has_the_parameters_of_transformers():
    """The authors give 121 M parameters, without the positions beyond 2,048, which were not trained
    (google-research/language, canine/README.md). The count includes no output layer. The pooler is part of a
    head in our implementation, so it is added.
    """
    from transformers import CanineConfig, CanineModel

    sizes = Model("canine", layers=12, width=768, heads=12, positions=16384, vocab_size=100)
    with torch.device("meta"):
        ours = build_model(fill(sizes, 100), SPECIAL_IDS, 0)
        theirs = CanineModel(CanineConfig())
    pooler = 768 * 768 + 768
    counts = [sum(parameter.numel() for parameter in each.parameters()) for each in (ours.canine, theirs)]
    assert counts[0] + pooler == counts[1] == 132_082_944
    assert round((counts[1] - (16384 - 2048) * 768) / 1e6) == 121


def test_operations_are_those_of_characters_and_molecules(network):
    stack, each = network.canine, network.characters_per_token

    def size(*modules):
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    characters = size(stack.initial_char_encoder, stack.projection, stack.final_char_encoder)
    molecules = size(stack.chars_to_molecules, stack.encoder)
    others = (
        size(stack.char_embeddings.LayerNorm, network.cls.dense, network.cls.norm) + network.cls.decoder.bias.numel()
    )
    attention = 12 * 32 * (each * min(128, 64 * each) + 2 * (each / 4) ** 2 * 64 + each**2 * 64)
    found = flops_of(network, MODEL, 64)
    assert found.predicted == 6 * network.cls.decoder.weight.numel()
    assert found.read == pytest.approx(6 * (each * characters + each / 4 * molecules + others) + attention, rel=1e-6)
