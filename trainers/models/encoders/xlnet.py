"""XLNet (Yang et al., 2019), with the blocks of `transformers`: Transformer-XL's relative positions, relative
segments, and a second stream of states, which predicts a token without having seen it.

Texts begin with `<cls>`, as in the other encoders here; the published models have `<sep> <cls>` at the end.

With `data.bptt`, rows are trained in windows. In each layer, both streams then also attend to a memory: the
states that entered the layer in the previous window, without gradients (arXiv 1906.08237, section 2.4). The
memory is as long as a window; in the authors' pretraining, it had 384 tokens for segments of 512.
"""

from functools import cache
from typing import Any

from gristmill.errors import ConfigError
from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, special_ids

_LENGTH = 512  # of the published models; no table limits it
_FIXED = {"attn_type": "bi", "bi_data": False, "clamp_len": -1, "same_length": False}
_KEYS = ("k", "v", "r", "seg_embed")  # of an attention layer, for the keys and values of both streams


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import XLNetConfig

    return XLNetConfig(
        vocab_size=model.vocab_size,
        d_model=model.width,
        n_layer=model.layers,
        n_head=model.heads,
        d_inner=model.feed_forward,
        dropout=model.dropout,
        initializer_range=model.initializer_range,
        mem_len=None,
        use_mems_eval=False,
        summary_type="first",
        summary_last_dropout=model.dropout,
        **_FIXED,
        **special_ids(specials),
    )


def _sizes(configuration: Any) -> Model:
    for name, value in _FIXED.items():
        if getattr(configuration, name) != value:
            raise ConfigError(f"{name}: got {getattr(configuration, name)}, allowed {value}")
    return Model(
        "xlnet",
        layers=configuration.n_layer,
        width=configuration.d_model,
        heads=configuration.n_head,
        positions=_LENGTH,
        feed_forward=configuration.d_inner,
        vocab_size=configuration.vocab_size,
        dropout=configuration.dropout,
        initializer_range=configuration.initializer_range,
    )


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    from transformers import XLNetLMHeadModel

    network = XLNetLMHeadModel._from_config(configuration)
    network.supports_gradient_checkpointing = True
    for layer in network.transformer.layer:
        layer.__class__ = _layer_class()
    return network


@cache
def _layer_class() -> Any:
    from transformers.modeling_layers import GradientCheckpointingLayer
    from transformers.models.xlnet.modeling_xlnet import XLNetLayer

    return type("RecomputedXLNetLayer", (GradientCheckpointingLayer, XLNetLayer), {})


def _hidden(network: Any, inputs: Inputs) -> Any:
    """Return the states of the content stream, replaced with those of the query stream at the columns in
    `inputs.order`. With `inputs.carried`, the states that each layer reads in this window become the new
    memory.
    """
    import torch

    stack, mask, order, carried = network.transformer, inputs.mask[:, 0], inputs.order, inputs.carried
    rows, length = inputs.ids.shape
    keys = mask.shape[2]
    memory = keys - length
    states = stack.dropout(stack.word_embedding(inputs.ids)).transpose(0, 1)  # the layers take [length, rows, width]
    types = torch.zeros_like(inputs.ids) if inputs.token_types is None else inputs.token_types
    its_types = torch.nn.functional.pad(types, (memory, 0))  # windows have no token types, so all are 0
    apart = (types[:, :, None] != its_types[:, None, :]).long().permute(1, 2, 0)
    distances = stack.dropout(stack.relative_positional_encoding(length, keys, bsz=1, device=inputs.ids.device))
    shared = {
        "r": distances.to(states.dtype),
        "seg_mat": torch.nn.functional.one_hot(apart, 2).to(states.dtype),
    }

    def blocked(seen: Any) -> Any:
        return (~seen).permute(1, 2, 0)[..., None].to(states.dtype)

    def through(states: Any, queries: Any, **named: Any) -> tuple[Any, Any]:
        memories = [None] * len(stack.layer) if carried is None or not carried.memories else carried.memories
        entered = []
        for layer, before in zip(stack.layer, memories, strict=True):
            if carried is not None:
                entered.append(states.detach())
            states, queries = layer(states, queries, mems=before, **named, **shared)
        if carried is not None:
            carried.memories, carried.columns = entered, carried.columns + length
        return states, queries

    if order is None:
        states, _ = through(states, None, attn_mask_h=blocked(mask), attn_mask_g=None)
        return stack.dropout(states).transpose(0, 1)
    own = torch.nn.functional.pad(torch.eye(length, dtype=torch.bool, device=mask.device), (memory, 0))
    earlier = mask & torch.nn.functional.pad(_earlier(order, length), (memory, 0), value=True)
    columns = torch.where(order < 0, length, order)
    mapping = torch.nn.functional.one_hot(columns, length + 1)[..., :length].permute(1, 2, 0).to(states.dtype)
    queries = stack.dropout(stack.mask_emb.expand(order.shape[1], rows, -1))
    masks = {"attn_mask_h": blocked(earlier | (own & mask)), "attn_mask_g": blocked(earlier)}
    states, queries = through(states, queries, target_mapping=mapping, **masks)
    places = columns[..., None].expand(-1, -1, states.shape[2])
    states = torch.nn.functional.pad(states.transpose(0, 1), (0, 0, 0, 1))
    return stack.dropout(states.scatter(1, places, queries.transpose(0, 1))[:, :length])


def _earlier(order: Any, length: int) -> Any:
    """Return, for every query, which keys come before it in the factorization order, bool [rows, queries,
    keys]. `order`, int64 [rows, targets], lists the columns of the targets in this order, padded with -1. All
    other columns come before every query, including the query at the same column.
    """
    import torch

    ranks = order.new_full((len(order), length + 1), -1)
    numbers = torch.arange(order.shape[1], device=order.device).expand_as(order)
    ranks = ranks.scatter(1, torch.where(order < 0, length, order), numbers)[:, :length]
    return (ranks[:, None, :] < ranks[:, :, None]) | (ranks[:, None, :] < 0)


def _queried(network: Any) -> int:
    keys = tuple(f"rel_attn.{name}" for name in _KEYS)
    named = [pair for layer in network.transformer.layer for pair in layer.named_parameters()]
    return sum(parameter.numel() for name, parameter in named if name not in keys)


_POOLED = HeadForm("XLNetForSequenceClassification", "logits_proj", dense="sequence_summary.summary")
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _POOLED,
    "regress": _POOLED,
    "tag": HeadForm("XLNetForTokenClassification", "classifier", drops=False),
    "span": HeadForm("XLNetForQuestionAnsweringSimple", "qa_outputs", drops=False),
    "choose": HeadForm("XLNetForMultipleChoice", "logits_proj", dense="sequence_summary.summary"),
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.lm_loss(states),
    blocks=lambda network: list(network.transformer.layer),
    heads=_HEADS,
    create=_create,
    attention="eager",
    auto="AutoModelForCausalLM",
    layer_states=lambda network, states: states.transpose(0, 1),
    queried=_queried,
)
