"""ModernBERT (Warner et al., 2024), with the blocks of `transformers`: rotary positions, pre-norm blocks,
gated GELU, and global attention in every third layer. The other layers attend to 64 tokens on each side.
"""

from dataclasses import replace
from typing import Any

from gristmill.errors import ConfigError
from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, special_ids

_LOCAL_BASE = 10000.0  # RoPE's base in local layers; the paper raises the base only in global layers, for long contexts


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import ModernBertConfig

    return ModernBertConfig(
        vocab_size=model.vocab_size,
        max_position_embeddings=model.positions,
        hidden_size=model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=model.feed_forward,
        embedding_dropout=model.dropout,
        attention_dropout=model.dropout,
        mlp_dropout=model.dropout,
        initializer_range=model.initializer_range,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": model.rope_base},
            "sliding_attention": {"rope_type": "default", "rope_theta": _LOCAL_BASE},
        },
        cls_token_id=specials.get("<cls>"),
        sep_token_id=specials.get("<sep>"),
        **special_ids(specials),
    )


def _sizes(configuration: Any) -> Model:
    local = configuration.rope_parameters["sliding_attention"]["rope_theta"]
    if local != _LOCAL_BASE:
        raise ConfigError(f"local_rope_theta: got {local}, allowed {_LOCAL_BASE}")
    return Model(
        "modernbert",
        layers=configuration.num_hidden_layers,
        width=configuration.hidden_size,
        heads=configuration.num_attention_heads,
        positions=configuration.max_position_embeddings,
        feed_forward=configuration.intermediate_size,
        vocab_size=configuration.vocab_size,
        dropout=configuration.mlp_dropout,
        initializer_range=configuration.initializer_range,
        rope_base=configuration.rope_parameters["full_attention"]["rope_theta"],
    )


def _hidden(network: Any, inputs: Inputs) -> Any:
    # Local layers apply a given mask unchanged, so the mask must include their window.
    length, window = inputs.ids.shape[1], network.config.sliding_window
    import torch

    near = torch.ones(length, length, dtype=torch.bool, device=inputs.ids.device).tril(window).triu(-window)
    masks = {"full_attention": inputs.mask, "sliding_attention": inputs.mask & near}
    return network.model(inputs.ids, attention_mask=masks, position_ids=inputs.positions).last_hidden_state


_HEAD = HeadForm(
    "ModernBertForSequenceClassification", "classifier", dense="head.dense", norm="head.norm", activation="gelu"
)
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _HEAD,
    "regress": _HEAD,
    "tag": replace(_HEAD, stock="ModernBertForTokenClassification"),
    "span": replace(_HEAD, stock="ModernBertForQuestionAnswering", drops=False),
    "choose": replace(_HEAD, stock="ModernBertForMultipleChoice"),
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.decoder(network.head(states)),
    blocks=lambda network: list(network.model.layers),
    heads=_HEADS,
)
