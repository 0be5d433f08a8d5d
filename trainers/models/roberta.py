"""RoBERTa (Liu et al., 2019): BERT without segments and sentence pairs."""

from typing import Any

from trainers.architecture import Model
from trainers.models.interface import Architecture, Inputs, special_ids

_OFFSET = 2  # rows of the position table before and beside those in use, as in the published models (514 for 512)


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import RobertaConfig

    return RobertaConfig(
        vocab_size=model.vocab_size,
        max_position_embeddings=model.positions + _OFFSET,
        hidden_size=model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=model.feed_forward,
        hidden_dropout_prob=model.dropout,
        attention_probs_dropout_prob=model.dropout,
        initializer_range=model.initializer_range,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        **special_ids(specials),
    )


def _first(network: Any) -> int:
    """The row of position 0: `transformers` counts from the id of padding + 1."""
    return int(network.config.pad_token_id) + 1


def _hidden(network: Any, inputs: Inputs) -> Any:
    positions = inputs.positions + _first(network)
    reads = {"input_ids": inputs.ids, "position_ids": positions, "attention_mask": inputs.mask}
    return network.roberta(**reads).last_hidden_state


ROBERTA = Architecture(
    _configuration,
    _hidden,
    logits=lambda network, states: network.lm_head(states),
    tables=lambda network: [(network.roberta.embeddings.position_embeddings, _first(network))],
    attentions=lambda network: [layer.attention.self for layer in network.roberta.encoder.layer],
)
