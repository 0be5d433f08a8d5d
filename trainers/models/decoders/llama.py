"""Llama (Touvron et al., 2023): rotary positions, RMSNorm, gated feed-forward layers and, optionally,
grouped-query attention.
"""

from dataclasses import replace
from typing import Any

from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, special_ids


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=model.vocab_size,
        max_position_embeddings=model.positions,
        hidden_size=model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.key_value_heads,
        intermediate_size=model.feed_forward,
        initializer_range=model.initializer_range,
        rms_norm_eps=model.norm_epsilon,
        tie_word_embeddings=model.tied,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_base},
        **special_ids(specials),
    )


def _sizes(configuration: Any) -> Model:
    return Model(
        "llama",
        layers=configuration.num_hidden_layers,
        width=configuration.hidden_size,
        heads=configuration.num_attention_heads,
        positions=configuration.max_position_embeddings,
        key_value_heads=configuration.num_key_value_heads,
        feed_forward=configuration.intermediate_size,
        vocab_size=configuration.vocab_size,
        tied=configuration.tie_word_embeddings,
        initializer_range=configuration.initializer_range,
        rope_base=configuration.rope_parameters["rope_theta"],
        norm_epsilon=configuration.rms_norm_eps,
    )


def _hidden(network: Any, inputs: Inputs) -> Any:
    # Without a mask, positions are those of the columns; `transformers` would compare them to look for documents.
    positions = inputs.positions if inputs.mask is not None else None
    reads = {"input_ids": inputs.ids, "position_ids": positions, "attention_mask": inputs.mask}
    kept = {"past_key_values": inputs.cache, "use_cache": inputs.cache is not None}
    return network.model(**reads, **kept).last_hidden_state


_SCORE = HeadForm("LlamaForSequenceClassification", "score", bias=False, drops=False)
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _SCORE,
    "regress": _SCORE,
    "tag": HeadForm("LlamaForTokenClassification", "score"),
    "span": HeadForm("LlamaForQuestionAnswering", "qa_outputs", drops=False),
    "choose": replace(_SCORE, stock=None),
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.lm_head(states),
    blocks=lambda network: list(network.model.layers),
    heads=_HEADS,
    unmasked=True,
)
