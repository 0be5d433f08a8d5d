"""DeBERTa, version 1 (He et al., 2021), with the blocks of `transformers`. Its attention is disentangled:
content and relative distance are scored separately, and the input has no absolute positions. The enhanced
mask decoder is optional.

In each layer, the keys and queries of distances have their own projections, separate from those of content.
"""

from dataclasses import replace
from typing import Any

from trainers.config.architecture import Model
from trainers.models.encoders.disentangled.disentangled_layers import (
    PUBLISHED,
    add_mask_decoder,
    blocks,
    check_settings,
    hidden,
)
from trainers.models.interface import Architecture, HeadForm, HeadKind, bert_arguments, bert_sizes


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import DebertaConfig

    return DebertaConfig(**bert_arguments(model, specials), **PUBLISHED, cls_dropout=model.dropout)


def _sizes(configuration: Any) -> Model:
    sizes = bert_sizes("deberta", configuration)
    optional = {"talking_head": False, "embedding_size": sizes.width, "pooler_hidden_size": sizes.width}
    known = {name: value for name, value in optional.items() if hasattr(configuration, name)}
    if configuration.max_relative_positions == sizes.positions:  # which -1 means too
        known["max_relative_positions"] = sizes.positions
    check_settings(configuration, {**PUBLISHED, "legacy": True, **known})
    return sizes


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    from transformers import DebertaForMaskedLM

    network = DebertaForMaskedLM._from_config(configuration)
    if model.mask_decoder:
        from trainers.models.encoders.disentangled.queried_attention import QueriedAttention

        add_mask_decoder(network, model)
        network.deberta.encoder.layer[-1].attention.self.__class__ = QueriedAttention
    return network


def _distance_projections(network: Any) -> float:
    """Return minus the number of parameters that project distances: they multiply no token
    (`Architecture.repeats`).
    """
    attentions = [block.attention.self for block in blocks(network)]
    parts = [part for attention in attentions for part in (attention.pos_proj, attention.pos_q_proj)]
    return -float(sum(parameter.numel() for part in parts for parameter in part.parameters()))


def _attended(network: Any, tokens: int) -> float:
    """Return the number of keys per query, summed over layers: the tokens of the row, and the distances in
    both directions (`Architecture.attended`).
    """
    return len(blocks(network)) * (tokens + 2 * min(tokens, network.config.max_position_embeddings))


_POOLED = HeadForm("DebertaForSequenceClassification", "classifier", dense="pooler.dense", activation="gelu")
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _POOLED,
    "regress": _POOLED,
    "tag": HeadForm("DebertaForTokenClassification", "classifier"),
    "span": HeadForm("DebertaForQuestionAnswering", "qa_outputs", drops=False),
    "choose": replace(_POOLED, stock=None),  # transformers has no class for it
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    hidden,
    logits=lambda network, states: network.cls.predictions(states),
    blocks=blocks,
    heads=_HEADS,
    create=_create,
    attention="eager",
    repeats=_distance_projections,
    attended=_attended,
)
