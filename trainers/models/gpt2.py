"""GPT-2 (Radford et al., 2019): learned positions, pre-norm blocks, GELU, tied embeddings."""

from typing import Any

from trainers.config.architecture import Model
from trainers.models.interface import Architecture, Inputs, special_ids


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=model.vocab_size,
        n_positions=model.positions,
        n_embd=model.width,
        n_layer=model.layers,
        n_head=model.heads,
        n_inner=model.feed_forward,
        resid_pdrop=model.dropout,
        embd_pdrop=model.dropout,
        attn_pdrop=model.dropout,
        initializer_range=model.initializer_range,
        tie_word_embeddings=model.tied,
        **special_ids(specials),
    )


def _hidden(network: Any, inputs: Inputs) -> Any:
    reads = {"input_ids": inputs.ids, "position_ids": inputs.positions, "attention_mask": inputs.mask}
    return network.transformer(**reads, use_cache=False).last_hidden_state


ARCHITECTURE = Architecture(
    _configuration,
    _hidden,
    logits=lambda network, states: network.lm_head(states),
    tables=lambda network: [(network.transformer.wpe, 0)],
    attentions=lambda network: [block.attn for block in network.transformer.h],
)
