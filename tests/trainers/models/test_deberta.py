"""All versions of DeBERTa against a direct implementation of the paper: attention disentangled into content
and distance, the enhanced mask decoder, and published sizes.
"""

import math
from dataclasses import replace

import pytest
import torch
from transformers import DebertaConfig, DebertaForMaskedLM

from gristmill.errors import ConfigError
from tests.trainers.models.test_models import packed, tiny
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.engine.forward import Forward, attention_mask, tensors
from trainers.engine.hardware.mfu import Flops, flops_of
from trainers.models import MODELS, build_model
from trainers.models.interface import Inputs

WIDTH, HEADS, POSITIONS, BUCKETS = 32, 4, 100, 16
SIZES = {"initializer_range": 0.3, "layers": 3, "positions": POSITIONS, "position_buckets": BUCKETS}
MODEL, PLAIN = tiny("deberta_v2", **SIZES, mask_decoder=True), tiny("deberta_v2", **SIZES)
OF_FIRST = {name: value for name, value in SIZES.items() if name != "position_buckets"}
FIRST, FIRST_PLAIN = tiny("deberta", **OF_FIRST, mask_decoder=True), tiny("deberta", **OF_FIRST)


def build(model):
    network = build_model(model, SPECIAL_IDS, 0).eval()
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=noise))
    return network


def bucket(distance):
    """Return the bucket of a distance. Up to half of BUCKETS, every distance has its own bucket; beyond that,
    buckets are spaced logarithmically up to the longest distance.
    """
    half = BUCKETS // 2
    if abs(distance) <= half:
        return distance
    share = math.log(abs(distance) / half) / math.log((POSITIONS - 1) / half)
    return int(math.copysign(math.ceil(share * (half - 1)) + half, distance))


def row_of(i, j, first):
    """Return delta(i, j) of equation 3, the row in the table of 2k distances. Here k is the number of
    positions in version 1 (`first`), and BUCKETS from version 2 on.
    """
    distance, most = (i - j, POSITIONS) if first else (bucket(i - j), BUCKETS)
    return min(max(distance + most, 0), 2 * most - 1)


def split_projections(attention):
    """Return the query, key and value projections of version 1, whose matrix stores their rows head by head.
    Keys have no bias.
    """
    by_head = attention.in_proj.weight.view(HEADS, 3, WIDTH // HEADS, WIDTH)
    query, key, value = (by_head[:, part].reshape(WIDTH, WIDTH) for part in range(3))
    return (
        lambda states: states @ query.T + attention.q_bias,
        lambda states: states @ key.T,
        lambda states: states @ value.T + attention.v_bias,
    )


def attend(network, layer, queries, keys):
    """Compute equation 4 for one document, given states of shape [length, width]: content to content, content
    to position and position to content.

    As in the authors' code, both tables are read at delta(i, j). From version 2 on, distances use the content
    projections, and a norm is applied to their table.
    """
    own, table = layer.attention.self, network.deberta.encoder.rel_embeddings.weight
    first, size = hasattr(own, "in_proj"), WIDTH // HEADS
    if first:
        query, key, value = split_projections(own)
        q_r, k_r = own.pos_q_proj(table), own.pos_proj(table)
    else:
        query, key, value = own.query_proj, own.key_proj, own.value_proj
        table = network.deberta.encoder.LayerNorm(table)
        q_r, k_r = query(table), key(table)
    q, k, v = query(queries), key(keys), value(keys)
    rows = [[row_of(i, j, first) for j in range(len(keys))] for i in range(len(queries))]
    out = torch.zeros_like(queries)
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        for i in range(len(queries)):
            distances_k, distances_q = k_r[rows[i], part], q_r[rows[i], part]  # [keys, size]
            logits = k[:, part] @ q[i, part] + distances_k @ q[i, part] + (k[:, part] * distances_q).sum(1)
            out[i, part] = (logits / math.sqrt(3 * size)).softmax(0) @ v[:, part]
    return out


def run_layer(network, layer, queries, keys):
    attention = layer.attention.output
    states = attention.LayerNorm(queries + attention.dense(attend(network, layer, queries, keys)))
    inner = torch.nn.functional.gelu(layer.intermediate.dense(states))
    return layer.output.LayerNorm(states + layer.output.dense(inner))


def by_hand(network, ids, decodes):
    embeddings = network.deberta.embeddings
    states = embeddings.LayerNorm(embeddings.word_embeddings(ids))
    layers = network.deberta.encoder.layer
    for layer in layers[: -1 if decodes else None]:
        states = run_layer(network, layer, states, states)
    if not decodes:
        return states
    queries = states + embeddings.position_embeddings.weight[: len(ids)]  # I of the first layer, and H
    for _ in range(2):
        queries = run_layer(network, layers[-1], queries, states)
    return queries


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [PLAIN, MODEL, FIRST_PLAIN, FIRST],
    ids=["plain", "mask decoder", "version 1, plain", "version 1, mask decoder"],
)
def test_states_of_packed_documents_are_those_of_the_paper_on_each_alone(model):
    network, batch = build(model), packed("encoder")
    given = tensors(batch, "cpu")
    segments = given["segments"]
    with torch.no_grad():
        inputs = Inputs(given["inputs"], given["positions"], attention_mask(segments, segments, False))
        found = MODELS[model.architecture].hidden(network, inputs)[0]
        for segment in (1, 2, 3):  # the second is so long that distances share buckets
            here = segments[0] == segment
            expected = by_hand(network, given["inputs"][0, here], model.mask_decoder)
            torch.testing.assert_close(found[here], expected, atol=2e-5, rtol=1e-4)


def test_far_distances_share_a_bucket():
    assert [bucket(d) for d in (-8, 0, 8)] == [-8, 0, 8]
    assert bucket(9) == 9
    assert bucket(98) == bucket(90) == BUCKETS - 1


@pytest.mark.parametrize(("model", "plain"), [(MODEL, PLAIN), (FIRST, FIRST_PLAIN)], ids=["version 2", "version 1"])
def test_only_the_mask_decoder_knows_absolute_positions(model, plain):
    """The position table is trained, but the layers below the mask decoder do not read it."""
    network, batch, name = build(model), packed("encoder"), model.architecture
    moved = tensors(batch, "cpu")
    with torch.no_grad():
        nats = [
            Forward(each, name)(**{**moved, "positions": moved["positions"] + by})["loss"]
            for each in (network, build(plain))
            for by in (0, 5)
        ]
    assert (nats[0] - nats[1]).abs().max() > 1e-3
    assert torch.equal(nats[2], nats[3])
    Forward(network, name)(**moved)["loss"].sum().backward()
    assert network.deberta.embeddings.position_embeddings.weight.grad.any()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_the_mask_decoder_costs_a_layer_and_distances_cost_their_products():
    plain, decoded = flops_of(build(PLAIN), PLAIN, 50), flops_of(build(MODEL), MODEL, 50)
    layer = 4 * (WIDTH * WIDTH + WIDTH) + 2 * WIDTH * 64 + 64 + WIDTH + 4 * WIDTH
    assert decoded.read - plain.read == 6 * layer + 12 * WIDTH * 50 + 24 * WIDTH * BUCKETS
    assert decoded.predicted == plain.predicted
    head = WIDTH * WIDTH + 3 * WIDTH + 200
    norms = 4 * WIDTH  # of the embeddings, and of the distances
    expected = 3 * (6 * layer + 12 * WIDTH * 50 + 24 * WIDTH * BUCKETS) + 6 * (head + norms)
    assert plain == Flops(expected, 0.0, 6.0 * 200 * WIDTH)


def test_distances_of_version_1_cost_as_much_as_a_row_of_keys_in_each_direction():
    """Their projections are applied to the table once per pass, not to each token."""
    plain, decoded = (flops_of(build(model), model, 50) for model in (FIRST_PLAIN, FIRST))
    layer = 4 * WIDTH * WIDTH + 3 * WIDTH + 2 * WIDTH * 64 + 64 + WIDTH + 4 * WIDTH
    assert decoded.read - plain.read == 6 * layer + 12 * WIDTH * 50 + 24 * WIDTH * 50
    head = WIDTH * WIDTH + 3 * WIDTH + 200
    expected = 3 * (6 * layer + 12 * WIDTH * 50 + 24 * WIDTH * 50) + 6 * (head + 2 * WIDTH)
    assert plain == Flops(expected, 0.0, 6.0 * 200 * WIDTH)


# The models of microsoft/deberta-* without a head, and of these the embeddings of tokens.
PUBLISHED = {
    "deberta-base": ("deberta", {"layers": 12, "width": 768, "heads": 12, "vocab_size": 50265}, 138_601_728),
    "deberta-large": ("deberta", {"layers": 24, "width": 1024, "heads": 16, "vocab_size": 50265}, 405_163_008),
    "deberta-v2-xlarge": ("deberta_v2", {"layers": 24, "width": 1536, "heads": 24, "convolution": True}, 884_593_152),
    "deberta-v2-xxlarge": (
        "deberta_v2",
        {"layers": 48, "width": 1536, "heads": 24, "convolution": True},
        1_564_549_632,
    ),
    "deberta-v3-xsmall": ("deberta_v2", {"layers": 12, "width": 384, "heads": 6}, 70_682_112),
    "deberta-v3-small": ("deberta_v2", {"layers": 6, "width": 768, "heads": 12}, 141_304_320),
    "deberta-v3-base": ("deberta_v2", {"layers": 12, "width": 768, "heads": 12}, 183_831_552),
    "deberta-v3-large": ("deberta_v2", {"layers": 24, "width": 1024, "heads": 16}, 434_012_160),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_models_have_their_parameters(name):
    architecture, sizes, count = PUBLISHED[name]
    model = fill(Model(architecture, positions=512, **{"vocab_size": 128100, **sizes}), 1)
    with torch.device("meta"):
        network = build_model(model, SPECIAL_IDS, 0)
    assert sum(parameter.numel() for parameter in network.deberta.parameters()) == count


@pytest.mark.parametrize("kind", ["base", "large"])
def test_the_first_version_has_the_parameters_of_its_class_in_transformers(kind):
    """The configurations are those of microsoft/deberta-base and microsoft/deberta-large, with the output
    layer.
    """
    architecture, sizes, _ = PUBLISHED[f"deberta-{kind}"]
    model = fill(Model(architecture, positions=512, **sizes), 1)
    wide = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    with torch.device("meta"):
        theirs = DebertaForMaskedLM(
            DebertaConfig(
                relative_attention=True,
                pos_att_type="c2p|p2c",
                position_biased_input=False,
                **(wide if kind == "large" else {}),
            )
        )
        ours = build_model(model, SPECIAL_IDS, 0)
    shapes = [{name: tuple(parameter.shape) for name, parameter in each.named_parameters()} for each in (ours, theirs)]
    assert shapes[0] == shapes[1]


def test_a_task_trains_the_model_without_the_mask_decoder():
    from trainers.adapters.virtual.prefix_tuning import PrefixTuning
    from trainers.adapters.weights.full import Full
    from trainers.recipes.finetuning_recipe import finetune

    plain = replace(MODEL, mask_decoder=False)
    job = finetune("x", (), MODEL, None, Full())
    assert job.model == plain
    with pytest.raises(
        ConfigError, match="got a method with prefixes, and every key of deberta_v2 is read with its dist"
    ):
        PrefixTuning(tokens=3).apply(build(plain), "deberta_v2", "encoder", 0)
