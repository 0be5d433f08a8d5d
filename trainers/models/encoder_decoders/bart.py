"""BART (Lewis et al., 2020): an encoder-decoder with learned positions, post-norm blocks and GELU.

`transformers` counts positions along the row. The layers of both stacks are therefore called here one by one,
on embeddings whose positions restart at every document.
"""

from dataclasses import replace
from typing import Any

from trainers.config.architecture import Model
from trainers.models.interface import (
    Architecture,
    HeadForm,
    HeadKind,
    Inputs,
    decoder_start_id,
    encode_once,
    special_ids,
)


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import BartConfig

    return BartConfig(
        vocab_size=model.vocab_size,
        max_position_embeddings=model.positions,
        d_model=model.width,
        encoder_layers=model.layers,
        decoder_layers=model.decoder_layers,
        encoder_attention_heads=model.heads,
        decoder_attention_heads=model.heads,
        encoder_ffn_dim=model.feed_forward,
        decoder_ffn_dim=model.feed_forward,
        dropout=model.dropout,
        attention_dropout=model.dropout,
        init_std=model.initializer_range,
        decoder_start_token_id=decoder_start_id(model, specials),
        forced_eos_token_id=None,
        **special_ids(specials),
    )


def _sizes(configuration: Any) -> Model:
    return Model(
        "bart",
        layers=configuration.encoder_layers,
        width=configuration.d_model,
        heads=configuration.encoder_attention_heads,
        positions=configuration.max_position_embeddings,
        decoder_layers=configuration.decoder_layers,
        feed_forward=configuration.encoder_ffn_dim,
        vocab_size=configuration.vocab_size,
        dropout=configuration.dropout,
        initializer_range=configuration.init_std,
    )


def _embed(stack: Any, inputs: Inputs) -> Any:
    from torch.nn.functional import dropout

    states = stack.embed_tokens(inputs.ids) + stack.embed_positions(inputs.ids, position_ids=inputs.positions)[0]
    return dropout(stack.layernorm_embedding(states), stack.dropout, stack.training)


def _hidden(network: Any, inputs: Inputs) -> Any:
    assert inputs.decoder is not None
    decoder = network.model.decoder
    encoded = encode_once(inputs, lambda: _encoded(network.model.encoder, inputs))
    states = _embed(decoder, inputs.decoder)
    kept = {"past_key_values": inputs.cache, "use_cache": inputs.cache is not None}
    for layer in decoder.layers:
        states = layer(states, inputs.decoder.mask, encoded, encoder_attention_mask=inputs.cross, **kept)
    return states


def _encoded(encoder: Any, inputs: Inputs) -> Any:
    states = _embed(encoder, inputs)
    for layer in encoder.layers:
        states = layer(states, inputs.mask)
    return states


def _stacks(network: Any) -> list[Any]:
    return [network.model.encoder, network.model.decoder]


_POOLED = HeadForm(
    "BartForSequenceClassification",
    "classification_head.out_proj",
    dense="classification_head.dense",
    drops_first=True,
)
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _POOLED,
    "regress": _POOLED,
    "tag": HeadForm(None, "classifier"),
    "span": HeadForm("BartForQuestionAnswering", "qa_outputs", drops=False),
    "choose": replace(_POOLED, stock=None),
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.lm_head(states),  # the stock model adds an untrained bias of zeros
    blocks=lambda network: list(network.model.decoder.layers),
    heads=_HEADS,
    tables=lambda network: [(stack.embed_positions, stack.embed_positions.offset) for stack in _stacks(network)],
    attentions=lambda network: [layer.self_attn for stack in _stacks(network) for layer in stack.layers],
    decoder_name=lambda name: name,
    encoder_blocks=lambda network: list(network.model.encoder.layers),
)
