"""ELMo (Peters et al. 2018, arXiv 1802.05365): a forward and a backward LSTM language model with shared
embeddings and a shared output layer. With `character_filters`, a convolution computes the embeddings from the
characters of tokens.

In both directions, every document of a row begins with a state of zeros, even if it continues from an earlier
row. `data.bptt` must be null.

The clipping of cells and projections is left out, because torch's LSTM does not offer it.
"""

from collections.abc import Sequence
from typing import Any

from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, special_ids


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from trainers.models.recurrent.elmo_network import ElmoConfig

    return ElmoConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.width,
        cell_size=model.feed_forward,
        num_hidden_layers=model.layers,
        max_position_embeddings=model.positions,
        dropout=model.dropout,
        character_filters=model.character_filters,
        highway_layers=model.highway_layers,
        **special_ids(specials),
    )


def _sizes(configuration: Any) -> Model:
    return Model(
        "elmo",
        layers=configuration.num_hidden_layers,
        width=configuration.hidden_size,
        heads=1,
        positions=configuration.max_position_embeddings,
        feed_forward=configuration.cell_size,
        vocab_size=configuration.vocab_size,
        dropout=configuration.dropout,
        character_filters=configuration.character_filters,
        highway_layers=configuration.highway_layers,
    )


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    from trainers.models.recurrent.elmo_network import Elmo

    return Elmo._from_config(configuration)


def _hidden(network: Any, inputs: Inputs) -> Any:
    """Return the states of both directions. A document begins where a token does not attend to the token
    before it.
    """
    return network.elmo(inputs.ids, ~inputs.mask[:, 0].diagonal(-1, 1, 2))


def _spell(network: Any, spelled: Sequence[bytes], specials: dict[str, int]) -> None:
    if network.config.character_filters is not None:
        network.elmo.embed.spell(spelled, specials)


def _repeats(network: Any) -> int:
    return network.elmo.embed.repeats if network.config.character_filters is not None else 0


def _register() -> None:
    import trainers.models.recurrent.elmo_network  # noqa: F401


_OUTPUT = HeadForm(None, "output")
_HEADS: dict[HeadKind, HeadForm] = dict.fromkeys(("classify", "regress", "tag", "span", "choose"), _OUTPUT)

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.predict(states),
    backward=lambda network, states: network.predict(states, backward=True),
    blocks=lambda network: list(network.elmo.layers),
    heads=_HEADS,
    create=_create,
    attention="eager",
    caches=False,
    branches=False,
    register=_register,
    auto="AutoModelForPreTraining",
    spell=_spell,
    repeats=_repeats,
)
