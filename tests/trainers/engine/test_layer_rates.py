"""Layer-wise learning rates."""

from dataclasses import replace

import pytest

from tests.trainers.models.test_models import TINY
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import fill
from trainers.config.job import Optimizer
from trainers.engine.layer_rates import layer_depths, split_by_layer
from trainers.engine.optimizers import parameter_groups
from trainers.models import build_model

NAMES = {
    "albert": {
        "albert.embeddings.word_embeddings.weight": 2,
        "albert.encoder.embedding_hidden_mapping_in.weight": 2,
        "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight": 1,
        "predictions.bias": 0,
    },
    "albert, groups": {
        "albert.embeddings.LayerNorm.weight": 3,
        "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.key.bias": 2,
        "albert.encoder.albert_layer_groups.1.albert_layers.0.full_layer_layer_norm.bias": 1,
    },
    "deberta": {
        "deberta.encoder.rel_embeddings.weight": 3,
        "deberta.encoder.layer.0.attention.self.pos_q_proj.bias": 2,
        "deberta.encoder.layer.1.attention.self.q_bias": 1,
        "cls.predictions.bias": 0,
    },
    "deberta_v2, convolution": {
        "deberta.embeddings.word_embeddings.weight": 3,
        "deberta.encoder.rel_embeddings.weight": 3,
        "deberta.encoder.LayerNorm.weight": 3,
        "deberta.encoder.conv.conv.weight": 3,
        "deberta.encoder.layer.1.attention.self.key_proj.bias": 1,
        "cls.predictions.bias": 0,
    },
    "awd_lstm": {
        "lstm.embed.weight": 3,
        "lstm.layers.0.recurrent_weight": 2,
        "lstm.layers.1.input_bias": 1,
        "lm_head.bias": 0,
    },
    "elmo": {
        "elmo.embed.weight": 3,
        "elmo.layers.0.backward_lstm.projection": 2,
        "elmo.layers.1.forward_lstm.bias": 1,
        "lm_head.bias": 0,
    },
    "gru": {
        "encoder.embed.weight": 3,
        "encoder.layers.0.recurrent_weight": 2,
        "encoder.layers.1.input_bias": 1,
        "next_decoder.input_weight": 0,
        "previous_decoder.input_bias": 0,
        "lm_head.bias": 0,
    },
    "canine": {
        "canine.char_embeddings.HashBucketCodepointEmbedder_0.weight": 5,
        "canine.char_embeddings.LayerNorm.bias": 5,
        "canine.initial_char_encoder.layer.0.output.dense.weight": 4,
        "canine.chars_to_molecules.conv.weight": 4,
        "canine.encoder.layer.0.attention.self.key.weight": 3,
        "canine.encoder.layer.1.output.LayerNorm.bias": 2,
        "canine.projection.LayerNorm.weight": 1,
        "canine.final_char_encoder.layer.0.intermediate.dense.bias": 1,
        "cls.norm.weight": 0,
        "cls.decoder.weight": 0,
    },
    "roberta": {
        "roberta.embeddings.word_embeddings.weight": 3,
        "roberta.embeddings.LayerNorm.bias": 3,
        "roberta.encoder.layer.0.output.dense.weight": 2,
        "roberta.encoder.layer.1.attention.self.key.bias": 1,
        "lm_head.bias": 0,
    },
    "gpt2": {
        "transformer.wpe.weight": 3,
        "transformer.h.0.ln_1.weight": 2,
        "transformer.h.1.mlp.c_fc.bias": 1,
        "transformer.ln_f.weight": 0,
    },
    "bart": {
        "model.shared.weight": 5,
        "model.encoder.embed_positions.weight": 5,
        "model.encoder.layernorm_embedding.weight": 5,
        "model.encoder.layers.0.fc1.weight": 4,
        "model.encoder.layers.1.fc1.weight": 3,
        "model.decoder.layers.0.encoder_attn.k_proj.weight": 2,
        "model.decoder.layers.1.fc2.bias": 1,
    },
    "t5": {
        "shared.weight": 5,
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": 4,
        "encoder.final_layer_norm.weight": 2,
        "decoder.block.1.layer.1.EncDecAttention.q.weight": 1,
        "decoder.final_layer_norm.weight": 0,
    },
}


@pytest.mark.parametrize("architecture", NAMES)
def test_depth_counts_blocks_from_the_top(architecture):
    model = replace(TINY[architecture], layers=2)
    model = fill(replace(model, decoder_layers=2 if model.family == "encoder_decoder" else None), 128)
    depths = layer_depths(build_model(model, SPECIAL_IDS, 0), model.family)
    assert {name: depths[name] for name in NAMES[architecture]} == NAMES[architecture]


def test_rates_fall_by_layer_and_every_parameter_stays_in_one_group():
    model = fill(replace(TINY["roberta"], layers=2), 128)
    network = build_model(model, SPECIAL_IDS, 0)
    named = layer_depths(network, model.family)
    depths = {id(parameter): named[name] for name, parameter in network.named_parameters()}
    whole = parameter_groups(network, Optimizer(learning_rate=0.1, weight_decay=0.3))
    divided = split_by_layer(whole, depths, 0.5, 10)
    for group in divided:
        (depth,) = {depths[id(parameter)] for parameter in group["params"]}
        assert group["peak"] == group["lr"] == pytest.approx(0.1 * 0.5**depth)
        assert group["from_step"] == 10 * depth
    for decay in (0.0, 0.3):
        before = {id(p) for group in whole if group["weight_decay"] == decay for p in group["params"]}
        after = [id(p) for group in divided if group["weight_decay"] == decay for p in group["params"]]
        assert len(after) == len(set(after))
        assert set(after) == before
