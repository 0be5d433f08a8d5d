"""DeBERTa, versions 2 and 3 (He et al., 2021; He et al., 2023), with the blocks of `transformers`. Its
attention is disentangled: it scores content and relative distance separately. The input has no absolute
positions. A convolution and the enhanced mask decoder are optional.

Version 3 may be trained as a discriminator together with its generator.
"""

from functools import partial
from typing import Any

from gristmill.errors import ConfigError
from trainers.config.architecture import Model, generator_of
from trainers.models.encoders.disentangled.disentangled_layers import (
    PUBLISHED,
    add_mask_decoder,
    blocks,
    check_settings,
    hidden,
)
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, bert_arguments, bert_sizes

# Settings of all published models of versions 2 and 3.
_PUBLISHED: dict[str, Any] = {**PUBLISHED, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
_KERNEL = 3  # of the convolution (microsoft/deberta-v2-xlarge)


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import DebertaV2Config

    convolution = {"conv_kernel_size": _KERNEL, "conv_act": "gelu"} if model.convolution else {}
    buckets = {"position_buckets": model.position_buckets, "cls_dropout": model.dropout}
    return DebertaV2Config(**bert_arguments(model, specials), **_PUBLISHED, **buckets, **convolution)


def _sizes(configuration: Any) -> Model:
    check_settings(configuration, _PUBLISHED)
    kernel = getattr(configuration, "conv_kernel_size", 0)
    if kernel not in (0, _KERNEL):
        raise ConfigError(f"conv_kernel_size: got {kernel}, allowed 0 and {_KERNEL}")
    sizes = vars(bert_sizes("deberta_v2", configuration))
    widths = {"attention_head_size": configuration.hidden_size // configuration.num_attention_heads}
    for name, width in {**widths, "embedding_size": configuration.hidden_size}.items():
        if (found := getattr(configuration, name, width)) != width:
            raise ConfigError(f"{name}: got {found}, allowed {width}")
    buckets = getattr(configuration, "position_buckets", -1)
    return Model(**{**sizes, "convolution": kernel > 0, "position_buckets": buckets})


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    from transformers import DebertaV2ForMaskedLM

    if model.generator_size is not None:
        return _with_generator(configuration, model, specials)
    network = DebertaV2ForMaskedLM._from_config(configuration)
    if model.mask_decoder:
        add_mask_decoder(network, model)
    return network


def _with_generator(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    from trainers.models.encoders.disentangled.deberta_discriminator import DebertaDiscriminator

    its = generator_of(model)
    smaller = _configuration(its, specials)
    smaller._attn_implementation, smaller.dtype = configuration._attn_implementation, configuration.dtype
    network = DebertaDiscriminator._from_config(configuration)
    network.add_generator(_create(smaller, its, specials), model.embedding_sharing != "shared")
    return network


def _replaced(network: Any, inputs: Inputs) -> Any:
    return network.mask_predictions(_hidden(network, inputs), inputs.positions)


def _hidden(network: Any, inputs: Inputs) -> Any:
    convolution = network.deberta.encoder.conv
    return hidden(network, inputs, None if convolution is None else partial(_convolved, convolution))


def _convolved(convolution: Any, embedded: Any, states: Any, mask: Any) -> Any:
    """Return LayerNorm(states + GELU(dropout(convolution(embedded)))), [rows, length, width]. The convolution
    reads zeros between documents, as it does at the ends of a row.
    """
    import torch

    rows, length, width = embedded.shape
    apart = ~mask[:, 0].diagonal(1, 1, 2)  # from the next token, [rows, length - 1]
    moved = torch.arange(length, device=mask.device) + torch.nn.functional.pad(apart.cumsum(1), (1, 0))
    moved = moved[..., None].expand(-1, -1, width)
    columns = length if moved.is_meta else int(moved.max()) + 1  # on `meta`, tensors have no values
    spaced = embedded.new_zeros(rows, columns, width).scatter(1, moved, embedded)
    around = convolution.conv(spaced.transpose(1, 2)).transpose(1, 2).gather(1, moved)
    return convolution.LayerNorm(states + torch.nn.functional.gelu(convolution.dropout(around)))


_POOLED = HeadForm("DebertaV2ForSequenceClassification", "classifier", dense="pooler.dense", activation="gelu")
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _POOLED,
    "regress": _POOLED,
    "tag": HeadForm("DebertaV2ForTokenClassification", "classifier"),
    "span": HeadForm("DebertaV2ForQuestionAnswering", "qa_outputs", drops=False),
    "choose": HeadForm("DebertaV2ForMultipleChoice", "classifier", dense="pooler.dense", activation="gelu"),
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.cls.predictions(states),
    blocks=blocks,
    heads=_HEADS,
    create=_create,
    attention="eager",
    replaced=_replaced,
    parts=lambda network: {"": network.alone(), "generator": network.generator},
)
