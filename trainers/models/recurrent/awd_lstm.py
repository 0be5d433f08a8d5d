"""AWD-LSTM (Merity, Keskar and Socher 2017, arXiv 1708.02182), the language model of ULMFiT (Howard and Ruder
2018): LSTM layers with DropConnect on the recurrent weights and variational dropout, and an output layer tied
to the embeddings.

Every document of a row begins with a state of zeros, even if it continues from an earlier row: state is not
carried from row to row. So a row's losses depend only on the row, as in the other architectures, and a run
resumes exactly. Gradients flow back to the beginning of the document in the row, over at most
`data.sequence_length` tokens.

With `data.bptt`, rows are trained in windows (truncated back-propagation through time). Gradients flow back
to the beginning of the window; the state is carried to the next window of the document, without gradients.
The weights are updated after every window, and all dropout masks are drawn anew for every window, as in the
authors' code.
"""

from typing import Any

from trainers.config.architecture import RECURRENT_RATES, Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, special_ids

_RATES = ("dropout", *RECURRENT_RATES)


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from trainers.models.recurrent.awd_lstm_network import AwdLstmConfig

    return AwdLstmConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.width,
        cell_size=model.feed_forward,
        num_hidden_layers=model.layers,
        max_position_embeddings=model.positions,
        **{name: getattr(model, name) for name in _RATES},
        **special_ids(specials),
    )


def _sizes(configuration: Any) -> Model:
    return Model(
        "awd_lstm",
        layers=configuration.num_hidden_layers,
        width=configuration.hidden_size,
        heads=1,
        positions=configuration.max_position_embeddings,
        feed_forward=configuration.cell_size,
        vocab_size=configuration.vocab_size,
        **{name: getattr(configuration, name) for name in _RATES},
    )


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    from trainers.models.recurrent.awd_lstm_network import AwdLstm

    return AwdLstm._from_config(configuration)


def _hidden(network: Any, inputs: Inputs) -> Any:
    return network.lstm(inputs.ids, inputs.positions, inputs.carried)


def _register() -> None:
    import trainers.models.recurrent.awd_lstm_network  # noqa: F401


_OUTPUT = HeadForm(None, "output")
_HEADS: dict[HeadKind, HeadForm] = dict.fromkeys(("classify", "regress", "tag", "span", "choose"), _OUTPUT)

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.lm_head(states),
    blocks=lambda network: list(network.lstm.layers),
    heads=_HEADS,
    create=_create,
    attention="eager",
    caches=False,
    branches=False,
    register=_register,
)
