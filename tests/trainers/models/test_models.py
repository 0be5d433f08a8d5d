"""Architectures: initialisation from a seed, isolation of packed documents, and the two-part forward pass
against the stock model.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import ARCHITECTURES, Model, fill
from trainers.config.pretraining import Pretraining
from trainers.engine.forward import Forward, attention_mask, tensors
from trainers.engine.losses import losses_of
from trainers.models import MODELS, build_model, why_not_stock
from trainers.models.interface import Inputs
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, Batch, Decoder
from trainers.runs.resolve import resolve


def tiny(architecture, **others):
    sizes = {"layers": 4, "width": 32, "heads": 4, "positions": 160, "feed_forward": 64, "vocab_size": 200}
    if architecture == "gpt":
        sizes["feed_forward"] = 128
    if architecture == "gru":
        sizes["feed_forward"] = 32
    if ARCHITECTURES[architecture].recurrent:
        sizes["heads"] = 1
    model = Model(architecture, **{**sizes, **others})
    model.check()
    return fill(model, 200)


# The initial weights of most architectures are small, and so would be what leaks; larger ones show it.
def wide(architecture, **others):
    if "initializer_range" in ARCHITECTURES[architecture].has:
        others.setdefault("initializer_range", 0.2)
    return tiny(architecture, **others)


TINY = {name: wide(name) for name in ARCHITECTURES} | {
    "albert": wide("albert", embedding_size=16),
    "albert, groups": wide("albert", embedding_size=16, layer_groups=2),
    "albert, sentence pairs": wide("albert", embedding_size=16, sentence_head=True),
    "albert, shared attention": wide("albert", layer_groups=2, shared_parts="attention"),
    "albert, shared feed-forward": wide("albert", shared_parts="feed_forward"),
    "bart, clipped relative positions": wide("bart", position="relative", relative_distance=3),
    "bart, sinusoids": tiny("bart", position="sinusoidal", decoder_layers=2),
    "bart, tied stacks": wide("bart", tied_stacks=True),
    "bert, clipped relative positions": wide("bert", position="relative", relative_distance=3),
    "bert, sentence pairs": wide("bert", sentence_head=True),
    "bert, sinusoids": wide("bert", position="sinusoidal"),
    "deberta_v2, convolution": wide("deberta_v2", position_buckets=8, convolution=True),
    "electra": wide("electra", embedding_size=16),
    "electra, embeddings of the width": wide("electra"),
    "gpt2, clipped relative positions": wide("gpt2", position="relative"),
    "gpt2, sinusoids": wide("gpt2", position="sinusoidal"),
    "llama": wide("llama", key_value_heads=2),
    "roberta, sinusoids": wide("roberta", position="sinusoidal"),
    "t5 1.1": tiny("t5", gated=True, tied=False, head_width=16, decoder_layers=2),
    "t5, tied stacks": tiny("t5", tied_stacks=True),
}
"""Every architecture by its name, and variants of some."""


def having(field):
    """Return a pattern for the list of architectures that have a field, as error messages print it."""
    return "one of " + ", ".join(name for name, traits in ARCHITECTURES.items() if field in traits.has) + "$"


def build(name, seed=0):
    return build_model(TINY[name], SPECIAL_IDS, seed).eval()


def test_an_unknown_architecture_is_refused_with_its_near_match():
    names = ", ".join(map(repr, MODELS))
    message = f"model.architecture: got 'modern_bert', expected one of {names}; did you mean 'modernbert'"
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, override(plain(RECIPES["tiny_bert"]()), ["model.architecture=modern_bert"]), "x.yaml")


@pytest.mark.long
@pytest.mark.parametrize("name", TINY)
def test_the_seed_decides_the_weights_and_the_callers_random_state_is_kept(name):
    state = torch.random.get_rng_state()
    one, same, other = (build(name, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def rows(generator, lengths):
    """Return (ids, positions, segments), each [1, width], of documents of the given lengths packed into one
    row and followed by padding.
    """
    width = sum(lengths) + 5
    ids = np.zeros((1, width), dtype=np.int64)
    positions, segments = np.zeros_like(ids), np.full_like(ids, -1)
    start = 0
    for number, length in enumerate(lengths):
        place = slice(start, start + length)
        ids[0, place] = generator.integers(128, 200, length)
        positions[0, place], segments[0, place] = np.arange(length), number
        start += length
    return ids, positions, segments


def packed(family):
    """Return a batch of one row with four documents. One document is longer than ModernBERT's local attention
    window.
    """
    generator = np.random.default_rng(0)
    inputs, positions, segments = rows(generator, [9, 1, 90, 17])
    decoder = Decoder(*rows(generator, [6, 2, 11, 1])) if family == "encoder_decoder" else None
    shape = inputs.shape if decoder is None else decoder.inputs.shape
    targets = generator.integers(128, 200, shape)
    targets[:, 2::5] = IGNORED
    if family == "encoder":
        targets[generator.random(shape) < 0.8] = IGNORED
    targets[(segments if decoder is None else decoder.segments) < 0] = IGNORED
    one = np.zeros(1, dtype=np.int64)
    return Batch(inputs, targets, positions, segments, one, one, one, one, decoder=decoder)


def alone(batch, segment):
    arguments = {"input_ids": batch.inputs[:, batch.segments[0] == segment]}
    if batch.decoder is not None:
        arguments["decoder_input_ids"] = batch.decoder.inputs[:, batch.decoder.segments[0] == segment]
    return {name: torch.from_numpy(array) for name, array in arguments.items()}


def stock(network, batch, segment):
    output = network(**alone(batch, segment))
    return (output.logits if "logits" in output else output.prediction_logits)[0]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in TINY if name != "gru"])
def test_a_packed_documents_logits_are_those_of_the_stock_model_on_the_document_alone(name):
    architecture, batch = MODELS[TINY[name].architecture], packed(TINY[name].family)
    model = replace(TINY[name], positions=96)  # enough for the longest document, not for the row
    assert batch.inputs.shape[1] > model.positions
    network = build_model(model, SPECIAL_IDS, 0).eval()
    given, arguments = tensors(batch, "cpu"), {}
    segments = given["segments"]
    if batch.decoder is not None:
        own = given["decoder_segments"]
        decoder = Inputs(given["decoder_inputs"], given["decoder_positions"], attention_mask(own, own, True))
        arguments = {"decoder": decoder, "cross": attention_mask(own, segments, False)}
    causal = TINY[name].family == "decoder"
    mask = attention_mask(segments, segments, causal)
    with torch.no_grad():
        states = architecture.hidden(network, Inputs(given["inputs"], given["positions"], mask, **arguments))
        together = architecture.logits(network, states)[0]
        for segment in range(4):
            place = batch.target_segments[0] == segment
            torch.testing.assert_close(together[place], stock(network, batch, segment), atol=1e-5, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in TINY if name != "gru"])
def test_the_nats_of_targets_are_those_of_the_stock_model_and_there_are_none_elsewhere(name):
    network, batch = build(name), packed(TINY[name].family)
    with torch.no_grad():
        found = Forward(network, TINY[name].architecture)(**tensors(batch, "cpu"))
        expected = torch.zeros(batch.targets.shape)
        for segment in range(4):
            place = batch.target_segments == segment
            targets = torch.from_numpy(batch.targets[place])
            expected[place] = torch.nn.functional.cross_entropy(
                stock(network, batch, segment), targets, ignore_index=IGNORED, reduction="none"
            )
    assert list(found) == ["loss"]
    nats = found["loss"]
    torch.testing.assert_close(nats, expected, atol=2e-5, rtol=0)
    assert (nats[torch.from_numpy(batch.targets == IGNORED)] == 0).all()


@pytest.mark.long
@pytest.mark.parametrize("name", TINY)
def test_weights_in_bf16_give_nearly_the_same_nats(name):
    """As under DeepSpeed, only the parameters become bf16."""
    network, batch = build(name), packed(TINY[name].family)
    forward = Forward(network, TINY[name].architecture)
    with torch.no_grad():
        exact = forward(**tensors(batch, "cpu"))["loss"]
        for parameter in network.parameters():
            parameter.data = parameter.data.bfloat16()
        rounded = forward(**tensors(batch, "cpu"))["loss"]
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    assert float(rounded.sum()) == pytest.approx(float(exact.sum()), rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("name", TINY)
def test_without_isolation_documents_of_a_row_see_one_another(name):
    network, batch = build(name), packed(TINY[name].family)
    with torch.no_grad():
        apart, shared = (
            Forward(network, TINY[name].architecture, isolation)(**tensors(batch, "cpu"))["loss"]
            for isolation in (True, False)
        )
    last = torch.from_numpy((batch.target_segments == 2) & (batch.targets != IGNORED))
    assert (apart[last] - shared[last]).abs().max() > 1e-3


def test_a_prefix_attends_to_itself_in_both_directions_and_to_nothing_after_it():
    batch = packed("decoder")
    prefix = (batch.segments == 2) & (batch.positions < 30)
    for name in ("gpt2", "llama", "gpt2, clipped relative positions"):
        forward = Forward(build(name), TINY[name].architecture)

        def nats(change, forward=forward):
            inputs = batch.inputs.copy()
            inputs[(batch.segments == 2) & (batch.positions == change)] = 130
            return forward(**tensors(replace(batch, inputs=inputs, prefix=prefix), "cpu"))["loss"].detach().numpy()

        target = (batch.segments == 2) & (batch.positions == 14)
        assert batch.targets[target] != IGNORED
        assert nats(29)[target] != nats(1000)[target]
        assert nats(31)[target] == nats(1000)[target]


@pytest.mark.parametrize(
    ("architecture", "label"), [("albert", "sentence_order_label"), ("bert", "next_sentence_label")]
)
def test_a_sentence_pairs_nats_are_those_of_the_stock_model(architecture, label):
    network = build(f"{architecture}, sentence pairs")
    generator = np.random.default_rng(1)
    inputs = generator.integers(128, 200, (3, 20))
    types = np.repeat([[0] * 12 + [1] * 8], 3, axis=0)
    positions, zeros = np.tile(np.arange(20), (3, 1)), np.zeros((3, 20), dtype=np.int64)
    targets, labels = np.where(generator.random((3, 20)) < 0.2, inputs, IGNORED), np.array([0, 1, IGNORED])
    row = np.zeros(3, dtype=np.int64)
    batch = Batch(inputs, targets, positions, zeros, row, row, row, row, token_types=types, labels=labels)
    with torch.no_grad():
        losses = losses_of({"loss": 1.0, "sentence_loss": 1.0})
        nats, pairs = Forward(network, architecture, losses=losses)(**tensors(batch, "cpu")).values()
        both = network(
            input_ids=torch.from_numpy(inputs),
            token_type_ids=torch.from_numpy(types),
            labels=torch.from_numpy(targets),
            **{label: torch.from_numpy(labels)},
        ).loss
    assert pairs[2] == 0
    mean = nats.sum() / (targets != IGNORED).sum() + pairs.sum() / 2
    torch.testing.assert_close(mean, both, atol=1e-5, rtol=0)


def test_an_electra_without_a_generator_is_a_bert():
    """A BERT with a separate embedding width can therefore be configured as an ELECTRA without a generator."""
    bert, electra = build("bert"), build("electra, embeddings of the width")
    renames = {
        "electra.": "bert.",
        "generator_predictions.": "cls.predictions.transform.",
        "generator_lm_head.": "cls.predictions.",
    }
    theirs, batch = dict(bert.named_parameters()), packed("encoder")
    with torch.no_grad():
        for name, parameter in electra.named_parameters():
            (prefix,) = [each for each in renames if name.startswith(each)]
            parameter.copy_(theirs.pop(renames[prefix] + name.removeprefix(prefix)))
        assert not theirs
        nats = [
            Forward(each, name)(**tensors(batch, "cpu"))["loss"]
            for each, name in ((bert, "bert"), (electra, "electra"))
        ]
    torch.testing.assert_close(*nats, atol=1e-6, rtol=0)


def test_t5s_initial_weights_have_the_deviations_of_its_authors_code():
    width, head, inner = 64, 32, 512
    model = tiny("t5", width=width, head_width=head, feed_forward=inner, vocab_size=4000, gated=True, tied=False)
    weights = build_model(model, SPECIAL_IDS, 0).state_dict()
    block = "encoder.block.1.layer"
    expected = {
        "shared.weight": 1.0,
        "lm_head.weight": width**-0.5,
        f"{block}.0.SelfAttention.q.weight": (width * head) ** -0.5,
        f"{block}.0.SelfAttention.k.weight": width**-0.5,
        f"{block}.0.SelfAttention.o.weight": (4 * head) ** -0.5,
        f"{block}.1.DenseReluDense.wi_0.weight": width**-0.5,
        f"{block}.1.DenseReluDense.wo.weight": inner**-0.5,
    }
    assert {name: float(weights[name].std()) for name in expected} == pytest.approx(expected, rel=0.05)


def test_an_untied_output_layer_of_t5_is_its_own_and_learns():
    network, batch = build("t5 1.1"), packed("encoder_decoder")
    assert network.lm_head.weight is not network.shared.weight
    assert {"lm_head.weight", "shared.weight"} <= {name for name, _ in network.named_parameters()}
    Forward(network, "t5")(**tensors(batch, "cpu"))["loss"].sum().backward()
    assert network.lm_head.weight.grad.abs().max() > 0


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_tied_stacks_are_one_set_of_parameters_with_the_gradients_of_both(name):
    apart, together = build(name), build(f"{name}, tied stacks")
    encoder = dict(together.get_encoder().named_parameters())
    decoder = dict(together.get_decoder().named_parameters())
    only = {key for key in decoder if not any(decoder[key] is parameter for parameter in encoder.values())}
    assert only == {key for key in decoder if "encoder_attn" in key or "EncDec" in key or ".layer.1.layer_norm" in key}
    assert all(any(parameter is own for own in decoder.values()) for parameter in encoder.values())
    saved = sum(p.numel() for p in apart.parameters()) - sum(p.numel() for p in together.parameters())
    embeddings = apart.get_input_embeddings().weight.numel()
    assert saved == sum(p.numel() for p in apart.get_encoder().parameters()) - embeddings
    batch = packed("encoder_decoder")
    Forward(together, name)(**tensors(batch, "cpu"))["loss"].sum().backward()
    gradient = {key: parameter.grad.clone() for key, parameter in together.named_parameters()}
    # The same weights in two stacks: the gradient of a tied weight is the sum of theirs.
    state = together.state_dict()
    apart.load_state_dict({key: state[key] for key in apart.state_dict()})
    Forward(apart, name)(**tensors(batch, "cpu"))["loss"].sum().backward()
    for key, parameter in apart.get_encoder().named_parameters():
        twin = apart.get_decoder().get_parameter(MODELS[name].decoder_name(key))
        expected = parameter.grad if parameter is twin else parameter.grad + twin.grad
        torch.testing.assert_close(together.get_encoder().get_parameter(key).grad, expected, atol=1e-4, rtol=1e-4)
    assert set(gradient) < {name for name, _ in apart.named_parameters()}


@pytest.mark.parametrize("part", ["all", "attention", "feed_forward"])
def test_layers_of_a_group_share_what_is_said_and_its_gradient_is_the_sum_of_theirs(part):
    sizes = {"initializer_range": 0.2, "embedding_size": 16}
    network, apart = (
        build_model(tiny("albert", **sizes, **sharing), SPECIAL_IDS, 0)
        for sharing in ({"layer_groups": 2, "shared_parts": part}, {"layer_groups": 4})
    )
    ours, alone = (MODELS["albert"].blocks(each) for each in (network, apart))
    for layer, (block, first) in enumerate(zip(ours, (ours[0], ours[0], ours[2], ours[2]), strict=True)):
        for name, parameter in block.named_parameters():
            shared = part == "all" or name.startswith("attention.") == (part == "attention")
            assert (parameter is first.get_parameter(name)) == (shared or layer % 2 == 0), name
            assert layer < 2 or parameter is not ours[0].get_parameter(name)
    # The same weights in four layers: the gradient of a shared weight is the sum of theirs.
    batch = packed("encoder")
    apart.load_state_dict(network.state_dict(), strict=False)
    for block, own in zip(ours, alone, strict=True):
        own.load_state_dict(block.state_dict())
    for each in (network, apart):
        Forward(each, "albert")(**tensors(batch, "cpu"))["loss"].sum().backward()
    for number, name in ((0, "attention.query.weight"), (2, "ffn.bias"), (2, "attention.LayerNorm.weight")):
        gradients = [alone[number + layer].get_parameter(name).grad for layer in (0, 1)]
        shared = part == "all" or name.startswith("attention.") == (part == "attention")
        expected = sum(gradients) if shared else gradients[0]
        torch.testing.assert_close(ours[number].get_parameter(name).grad, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in TINY if name.startswith("albert")])
def test_the_states_of_shared_layers_are_those_of_the_stock_model(name):
    network, batch = build(name), packed("encoder")
    one = alone(batch, 3)
    document = replace(batch, **{
        field: getattr(batch, field)[:, batch.segments[0] == 3] for field in ("inputs", "targets", "positions", "segments")
    })  # fmt: skip
    with torch.no_grad():
        found = Forward(network, "albert").layers(**tensors(document, "cpu"))["decoder"]
        expected = network.albert(**one, output_hidden_states=True).hidden_states
    assert len(found) == len(expected) == TINY[name].layers + 1
    for here, there in zip(found, expected, strict=True):
        torch.testing.assert_close(here, there, atol=1e-5, rtol=0)


def test_what_plain_transformers_cannot_compute_is_known():
    found = {name for name, model in TINY.items() if why_not_stock(model)}
    assert found == {"awd_lstm", "elmo", "gru", *(name for name in TINY if "clipped" in name)}


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("bert", {"position": "rope"}, "position: got rope, bert allows learned, sinusoidal, relative"),
        ("gpt", {"position": "relative"}, "position: got relative, gpt allows learned, sinusoidal"),
        ("bert", {"gated": True}, "gated: got True, bert has none; leave it at False, or use " + having("gated")),
        (
            "gpt2",
            {"decoder_layers": 2},
            "decoder_layers: got 2, gpt2 has none; leave it at None, .* " + having("decoder_layers"),
        ),
        (
            "roberta",
            {"sentence_head": True},
            "sentence_head: got True, roberta has none; .* " + having("sentence_head"),
        ),
        ("bart", {"tied": False}, "tied: got False, bart has none; .* " + having("tied")),
        ("llama", {"dropout": 0.1}, "dropout: got 0.1, llama has none"),
        ("t5", {"initializer_range": 0.1}, "initializer_range: got 0.1, t5 has none"),
        (
            "t5",
            {"tied_stacks": True, "decoder_layers": 2},
            "decoder_layers: got 2, tied_stacks needs as many as layers",
        ),
        ("gpt", {"feed_forward": 64}, "feed_forward: got 64, gpt always has 4 x width"),
        ("albert", {"layer_groups": 3}, "layer_groups: got 3, which does not divide layers 4"),
        ("bert", {"layer_groups": 2}, "layer_groups: got 2, bert has none; .* " + having("layer_groups")),
        ("awd_lstm", {"heads": 4}, "heads: got 4, awd_lstm has no attention; leave it at 1"),
        ("awd_lstm", {"tied": False}, "tied: got False, awd_lstm has none"),
        ("awd_lstm", {"weight_dropout": 1.0}, "weight_dropout: got 1.0, allowed 0 or more and below 1"),
        ("gpt2", {"weight_dropout": 0.5}, "weight_dropout: got 0.5, gpt2 has none; .* " + having("weight_dropout")),
        ("bert", {"heads": 5}, "heads: got 5, which does not divide width 32"),
        (
            "canine",
            {"width": 36, "heads": 4},
            "width: got 36, canine has 8 tables of embeddings; allowed multiples of 8",
        ),
        ("bert", {"key_value_heads": 2}, "key_value_heads: got 2, bert has as many as heads"),
        ("bert", {"layers": 0}, "layers: got 0, allowed 1 or more"),
        ("llama", {"key_value_heads": 0}, "key_value_heads: got 0, allowed 1 or more"),
        ("bert", {"initializer_range": 0.0}, "initializer_range: got 0.0, allowed above 0"),
        ("llama", {"norm_epsilon": 0.0}, "norm_epsilon: got 0.0, allowed above 0"),
        ("llama", {"rope_base": -5.0}, "rope_base: got -5.0, allowed above 0"),
        ("deberta_v2", {"position_buckets": 3}, "position_buckets: got 3, allowed 4 or more"),
        ("electra", {"mask_decoder": True}, "mask_decoder: got True, electra has none; .* " + having("mask_decoder")),
    ],
)
def test_what_an_architecture_does_not_have_is_refused(architecture, changes, message):
    with pytest.raises(ValueError, match=message):
        tiny(architecture, **changes)


def test_a_prefix_for_gpt_is_refused_before_training(corpus_directory):
    from trainers.data.packed_corpus import open_corpus

    recipe = RECIPES["tiny_prefix_lm"]()
    gpt = replace(recipe, model=replace(recipe.model, architecture="gpt"))
    with pytest.raises(ConfigError, match="bidirectional_prefix: got true with gpt"):
        resolve(gpt, open_corpus((str(corpus_directory),), None))
