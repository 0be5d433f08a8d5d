"""Position schemes, each tested by the property that defines it."""

import math

import numpy as np
import pytest
import torch

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.models import MODELS, build_model
from trainers.models.positions import sinusoids

WIDTH, HEADS, DISTANCE = 24, 3, 4


def build(architecture, **others):
    sizes = {"layers": 2, "width": WIDTH, "heads": HEADS, "positions": 64, "vocab_size": 150}
    return build_model(fill(Model(architecture, **{**sizes, **others}), 150), SPECIAL_IDS, 0).eval()


def test_sinusoids_are_sines_and_cosines_of_the_position_at_falling_frequencies():
    table = sinusoids(50, 10).double()
    for position in (0, 1, 17, 49):
        for column in range(10):
            angle = position / 10000 ** ((column - column % 2) / 10)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert float(table[position, column]) == pytest.approx(expected, abs=1e-6)
    # A shift of positions is one rotation of each pair of columns, whatever the position.
    pairs = torch.complex(table[:, 1::2], table[:, 0::2])
    turned = pairs[7:] / pairs[:-7]
    torch.testing.assert_close(turned, turned[:1].expand_as(turned), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("architecture", "first"), [("bart", 2), ("bert", 0), ("gpt", 0), ("gpt2", 0), ("roberta", 1)])
def test_a_sinusoidal_table_replaces_the_learned_one_and_is_not_trained(architecture, first):
    network, learned = build(architecture, position="sinusoidal"), build(architecture)
    for table, row in MODELS[architecture].tables(network):
        assert row == first
        torch.testing.assert_close(table.weight[first : first + 64], sinusoids(64, WIDTH), atol=0, rtol=0)
        assert not any(table.weight is parameter for parameter in network.parameters())
    missing = {name for name, _ in learned.named_parameters()} - {name for name, _ in network.named_parameters()}
    assert len(missing) == len(MODELS[architecture].tables(network))
    assert set(network.state_dict()) == set(learned.state_dict())


def projections(layer, states):
    """Return (queries, (key weight, key bias), values) of an attention layer of any architecture."""
    if hasattr(layer, "c_attn"):
        query, key, value = layer.c_attn(states).split(WIDTH, dim=-1)
        weight, bias = layer.c_attn.weight[:, WIDTH : 2 * WIDTH].T, layer.c_attn.bias[WIDTH : 2 * WIDTH]
        return query, (weight, bias), value
    names = ("query", "key", "value") if hasattr(layer, "query") else ("q_proj", "k_proj", "v_proj")
    query, key, value = (getattr(layer, name) for name in names)
    return query(states), (key.weight, key.bias), value(states)


@pytest.mark.parametrize("architecture", ["bart", "bert", "gpt2", "roberta"])
def test_clipped_relative_positions_are_added_to_the_keys(architecture):
    """The expected logits, W_Q x_i . W_K (x_j + RE(clip(j - i, -k, k))) / sqrt(d), are computed in loops over
    i and j.
    """
    network = build(architecture, position="relative", relative_distance=DISTANCE, initializer_range=0.5)
    for table, _ in MODELS[architecture].tables(network):
        assert not table.weight.any()
    layer = MODELS[architecture].attentions(network)[0]
    rows = layer.relative.rows.weight
    assert rows.shape == (2 * DISTANCE + 1, WIDTH)
    states = torch.randn(15, WIDTH, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in layer.parameters():  # biases too
            parameter.normal_(std=0.4, generator=torch.Generator().manual_seed(parameter.numel()))
        query, (weight, bias), value = projections(layer, states)
        head = WIDTH // HEADS
        expected = torch.zeros(15, WIDTH)
        for number in range(HEADS):
            place = slice(number * head, (number + 1) * head)
            for i in range(15):
                seen = range(i + 1) if architecture == "gpt2" else range(15)
                keys = [
                    (states[j] + rows[min(max(j - i, -DISTANCE), DISTANCE) + DISTANCE]) @ weight.T + bias for j in seen
                ]
                logits = torch.stack([query[i, place] @ key[place] for key in keys]) / math.sqrt(head)
                expected[i, place] = logits.softmax(0) @ value[: len(keys), place]
        out = {"c_proj": "c_proj", "out_proj": "out_proj"}
        name = next((name for name in out if hasattr(layer, name)), None)
        expected = getattr(layer, name)(expected) if name else expected
        found = layer(states[None], attention_mask=None)[0][0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_relative_positions_continue_after_a_cache():
    network = build("gpt2", position="relative", relative_distance=DISTANCE, initializer_range=0.3)
    ids = torch.from_numpy(np.random.default_rng(0).integers(128, 150, (1, 12)))
    with torch.no_grad():
        whole = network(input_ids=ids).logits
        first = network(input_ids=ids[:, :7], use_cache=True)
        rest = network(input_ids=ids[:, 7:8], past_key_values=first.past_key_values, use_cache=True).logits
    torch.testing.assert_close(rest[:, 0], whole[:, 7], atol=1e-5, rtol=0)


def rotated(network, vectors, positions):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    cosines, sines = network.model.rotary_emb(vectors[None], torch.tensor(positions)[None])
    return apply_rotary_pos_emb(vectors[None, None], vectors[None, None], cosines, sines)[0][0, 0]


def test_rotary_products_depend_only_on_the_distance_and_position_0_is_the_identity():
    network = build("llama")
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))

    def product(m, n):
        return float(rotated(network, query[None], [m])[0] @ rotated(network, key[None], [n])[0])

    torch.testing.assert_close(rotated(network, query[None], [0])[0], query, atol=0, rtol=0)
    for distance in (-9, -1, 0, 3, 30):
        assert product(10, 10 + distance) == pytest.approx(product(31, 31 + distance), abs=1e-5)
    assert abs(product(10, 13) - product(10, 14)) > 1e-3


def test_interleaved_and_split_rotary_embeddings_are_one_after_a_permutation():
    """RoFormer rotates the dimensions (2i, 2i + 1) together, and Llama rotates (i, i + d / 2)."""
    network = build("llama")
    vectors = torch.randn(20, 8, generator=torch.Generator().manual_seed(2))
    positions = list(range(3, 23))
    frequencies = 10000 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    angles = torch.tensor(positions, dtype=torch.float64)[:, None] * frequencies
    pairs = torch.view_as_complex(vectors.double().view(20, 4, 2)) * torch.polar(torch.ones_like(angles), angles)
    interleaved = torch.view_as_real(pairs).flatten(1).float()
    halves = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    torch.testing.assert_close(
        rotated(network, vectors[:, halves], positions), interleaved[:, halves], atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("architecture", ["llama", "modernbert"])
def test_a_model_with_rotary_positions_does_not_see_where_its_text_begins(architecture):
    network = build(architecture, initializer_range=0.3)
    ids = torch.from_numpy(np.random.default_rng(0).integers(128, 150, (1, 12)))
    with torch.no_grad():
        here, there = (
            network(input_ids=ids, position_ids=torch.arange(start, start + 12)[None]).logits for start in (0, 40)
        )
    torch.testing.assert_close(here, there, atol=1e-4, rtol=0)


def bucket(distance, buckets):
    """Return the bucket of a distance (Raffel et al., 2020, section 2.1). The first half of the buckets hold
    one distance each; the rest are spaced logarithmically up to 128, and larger distances share the last one.
    """
    exact = buckets // 2
    if distance < exact:
        return distance
    return min(buckets - 1, exact + int(math.log(distance / exact) / math.log(128 / exact) * (buckets - exact)))


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_t5_adds_a_learned_scalar_per_head_and_bucket(stack):
    network = build("t5")
    first, second = (getattr(network, stack).block[number].layer[0].SelfAttention for number in (0, 1))
    table = first.relative_attention_bias.weight
    assert table.shape == (32, HEADS)
    assert not second.has_relative_attention_bias  # one table for all layers of a stack
    with torch.no_grad():
        bias = first.compute_bias(200, 200)[0]
    for i, j in [(0, 0), (9, 1), (1, 9), (199, 0), (0, 199), (150, 20), (20, 150), (60, 44), (44, 60), (100, 101)]:
        if stack == "encoder":
            row = bucket(abs(j - i), 16) + (16 if j > i else 0)
        else:
            row = bucket(max(0, i - j), 32)
        torch.testing.assert_close(bias[:, i, j], table[row], atol=0, rtol=0)
    for block in network.decoder.block:
        assert not block.layer[1].EncDecAttention.has_relative_attention_bias
