"""GPT (Radford et al., 2018): learned positions, post-norm blocks, GELU, tied embeddings.

The GPT model of `transformers` takes only one mask for all positions of a row. Its blocks are therefore
called here one by one, with a separate mask for each position.
"""

from dataclasses import replace
from typing import Any

from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, special_ids


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import OpenAIGPTConfig

    return OpenAIGPTConfig(
        vocab_size=model.vocab_size,
        n_positions=model.positions,
        n_embd=model.width,
        n_layer=model.layers,
        n_head=model.heads,
        resid_pdrop=model.dropout,
        embd_pdrop=model.dropout,
        attn_pdrop=model.dropout,
        initializer_range=model.initializer_range,
        **special_ids(specials),
    )


def _sizes(configuration: Any) -> Model:
    return Model(
        "gpt",
        layers=configuration.n_layer,
        width=configuration.n_embd,
        heads=configuration.n_head,
        positions=configuration.n_positions,
        vocab_size=configuration.vocab_size,
        dropout=configuration.resid_pdrop,
        initializer_range=configuration.initializer_range,
    )


def _hidden(network: Any, inputs: Inputs) -> Any:
    import torch

    stack = network.transformer
    states = stack.drop(stack.tokens_embed(inputs.ids) + stack.positions_embed(inputs.positions))
    unseen = torch.zeros_like(inputs.mask, dtype=states.dtype).masked_fill(~inputs.mask, torch.finfo(states.dtype).min)
    length = inputs.ids.shape[1]
    for block in stack.h:
        causal = block.attn.bias  # fp32 even if weights are bf16; its size is the maximum length of a document
        if length > causal.shape[-1]:
            causal = causal.new_ones(1, 1, length, length).tril()
        block.attn.bias = causal.to(states.dtype)
        states = block(states, unseen)[0]
    return states


_SCORE = HeadForm("OpenAIGPTForSequenceClassification", "score", bias=False)  # with dropout (section 4.1)
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _SCORE,
    "regress": _SCORE,
    "tag": HeadForm(None, "classifier"),
    "span": HeadForm(None, "qa_outputs", drops=False),
    "choose": replace(_SCORE, stock=None),
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.lm_head(states),
    blocks=lambda network: list(network.transformer.h),
    heads=_HEADS,
    caches=False,
    tables=lambda network: [(network.transformer.positions_embed, 0)],
    attention="eager",
)
