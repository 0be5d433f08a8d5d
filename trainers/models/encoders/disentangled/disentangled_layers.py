"""Run DeBERTa's layers and its enhanced mask decoder (He et al., 2021), and check the settings of a
configuration. The layers are called one by one, because the full `transformers` model does not accept an
attention mask that differs from position to position.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gristmill.errors import ConfigError
from trainers.config.architecture import Model
from trainers.models.interface import Inputs

_DECODER_LAYERS = 2
"""How many times the enhanced mask decoder applies the last layer (He et al., 2021)."""

# Settings of all published models.
PUBLISHED: dict[str, Any] = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "max_relative_positions": -1,
    "type_vocab_size": 0,
}


def check_settings(configuration: Any, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError if a `transformers` configuration differs from `settings`. The order of lists does
    not matter.
    """
    for name, value in settings.items():
        found = getattr(configuration, name, None)
        if (sorted(found or []) != sorted(value)) if isinstance(value, list) else (found != value):
            raise ConfigError(f"{name}: got {found}, allowed {value}")


def add_mask_decoder(network: Any, model: Model) -> None:
    """Add to `network` the table of absolute position embeddings that the enhanced mask decoder reads."""
    import torch

    table = torch.nn.Embedding(model.positions, model.width)
    torch.nn.init.normal_(table.weight, std=model.initializer_range)
    network.deberta.embeddings.position_embeddings = table  # as the authors name it; stock models ignore it


def _decodes(network: Any) -> bool:
    return network.deberta.embeddings.position_embeddings is not None


def hidden(network: Any, inputs: Inputs, after_first: Callable[[Any, Any, Any], Any] | None = None) -> Any:
    """Return the final states [rows, length, width], those of the enhanced mask decoder if there is one.
    `after_first` computes the input of the second layer from the embeddings, the output of the first layer
    and the mask.
    """
    stack, encoder = network.deberta, network.deberta.encoder
    states = stack.embeddings(input_ids=inputs.ids, position_ids=inputs.positions)
    distances = {"relative_pos": encoder.get_rel_pos(states), "rel_embeddings": encoder.get_rel_embedding()}
    first, below = states, list(encoder.layer)[: -1 if _decodes(network) else None]
    for number, layer in enumerate(below):
        states = layer(states, inputs.mask, **distances)[0]
        if number == 0 and after_first is not None:
            states = after_first(first, states, inputs.mask)
    if not _decodes(network):
        return states
    queries = states + stack.embeddings.position_embeddings(inputs.positions)
    for _ in range(_DECODER_LAYERS):
        queries = encoder.layer[-1](states, inputs.mask, query_states=queries, **distances)[0]
    return queries


def blocks(network: Any) -> list[Any]:
    """Return the layers in the order in which they run. A layer that runs twice appears twice."""
    layers = list(network.deberta.encoder.layer)
    return layers + layers[-1:] * (_DECODER_LAYERS - 1) if _decodes(network) else layers
