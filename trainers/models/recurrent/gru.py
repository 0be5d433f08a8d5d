"""Skip-thoughts (Kiros et al. 2015, arXiv 1506.06726): a GRU that reads a sentence, and two GRUs that predict
the next and the previous sentence from its last state.

As in torch and cuDNN, the reset gate multiplies U h + b, where U is the recurrent matrix, b its bias and h
the old state. In the paper, it multiplies h before U does (equation 3).
"""

from typing import Any

from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, special_ids


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from trainers.models.recurrent.gru_network import GruConfig

    return GruConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.width,
        embedding_size=model.embedding_size,
        num_hidden_layers=model.layers,
        max_position_embeddings=model.positions,
        **special_ids(specials),
    )


def _sizes(configuration: Any) -> Model:
    return Model(
        "gru",
        layers=configuration.num_hidden_layers,
        width=configuration.hidden_size,
        heads=1,
        positions=configuration.max_position_embeddings,
        embedding_size=configuration.embedding_size,
        vocab_size=configuration.vocab_size,
    )


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    from trainers.models.recurrent.gru_network import SentenceGru

    return SentenceGru._from_config(configuration)


def _hidden(network: Any, inputs: Inputs) -> Any:
    return network.encoder(inputs.ids, inputs.positions)


def _register() -> None:
    import trainers.models.recurrent.gru_network  # noqa: F401


_OUTPUT = HeadForm(None, "output")
_HEADS: dict[HeadKind, HeadForm] = dict.fromkeys(("classify", "regress", "tag", "span", "choose"), _OUTPUT)

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.lm_head(states),
    neighbours=lambda network, inputs, vectors: network.decode(inputs.ids, inputs.positions, vectors),
    blocks=lambda network: list(network.encoder.layers),
    heads=_HEADS,
    create=_create,
    attention="eager",
    caches=False,
    branches=False,
    register=_register,
    auto="AutoModelForPreTraining",
)
