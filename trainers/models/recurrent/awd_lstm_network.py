"""The network of AWD-LSTM as a `transformers` model, so that it is loaded and saved like the other
architectures.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from trainers.models.interface import Carried, LayerState
from trainers.models.recurrent.packed_sequences import Sequences, in_order

_INITIAL = 2.0
"""Embeddings are drawn from U(-b, b) with b = 2 / sqrt(width): 0.1 for a width of 400, as in the authors' code
(salesforce/awd-lstm-lm, model.py). With 0.1 for a width of 64, their signal is so weak that a model predicts the same
distribution everywhere for hundreds of steps.
"""

_WORKSPACE = 16
"""Maximum number of values that oneDNN keeps for each position and unit of a layer (torch 2.13, fp32). The number of units
is that of the layer's inputs or, if that is larger, of its outputs.
"""


class AwdLstmConfig(PreTrainedConfig):
    """The configuration of an AWD-LSTM: sizes and dropout rates. `hidden_size` is the width of the embeddings
    and of the last layer, `cell_size` the width of the other layers.

    `embedding_dropout` drops whole words, `input_dropout` units after the embeddings, `hidden_dropout` units
    between layers, `dropout` units after the last layer, and `weight_dropout` recurrent weights.
    """

    model_type = "awd_lstm"

    vocab_size: int = 33278
    hidden_size: int = 400
    cell_size: int = 1150
    num_hidden_layers: int = 3
    max_position_embeddings: int = 70
    dropout: float = 0.0
    input_dropout: float = 0.0
    hidden_dropout: float = 0.0
    embedding_dropout: float = 0.0
    weight_dropout: float = 0.0
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True


def drop_variational(states: Any, sequences: Sequences, rate: float) -> Any:
    """Return `states` after variational dropout: the same units are dropped at all positions of a sequence
    (Gal and Ghahramani 2016; arXiv 1708.02182, section 4.2). `states` [tokens, width] are in the order of
    `sequences`. Call this only in training.
    """
    mask = torch.nn.functional.dropout(states.new_ones(sequences.count, states.shape[1]), rate)
    return states * mask[sequences.owner]


class AwdLstmLayer(torch.nn.Module):
    """An LSTM layer with dropout on its recurrent weights, one mask per pass (arXiv 1708.02182, section 2),
    and variational dropout on its outputs. The weights are those of `torch.nn.LSTM`, with gates in the order
    input, forget, cell, output.
    """

    def __init__(self, inputs: int, outputs: int, weight_rate: float, output_rate: float) -> None:
        super().__init__()
        self.weight_rate, self.output_rate = weight_rate, output_rate
        self.input_weight = torch.nn.Parameter(torch.empty(4 * outputs, inputs))
        self.recurrent_weight = torch.nn.Parameter(torch.empty(4 * outputs, outputs))
        self.input_bias = torch.nn.Parameter(torch.empty(4 * outputs))
        self.recurrent_bias = torch.nn.Parameter(torch.empty(4 * outputs))

    def forward(self, states: Any, sequences: Sequences, state: LayerState | None = None) -> Any:
        """Return the outputs of the layer [rows, length, outputs] for the inputs `states` [rows, length,
        inputs].

        With `state`, a sequence that continues from the previous window (`Sequences.continued`) begins with
        the state stored for its row, and the final state of every row is stored in `state`.
        """
        packed = sequences.pack(states)
        weights = in_order([self.input_weight, self.recurrent_weight, self.input_bias, self.recurrent_bias])
        weights[1] = recurrent = torch.nn.functional.dropout(weights[1], self.weight_rate, self.training)
        if packed.is_meta:
            made = self._estimate(packed)
        else:
            begin = [packed.new_zeros(1, sequences.count, recurrent.shape[1])] * 2
            if state is not None and state.hidden is not None:
                begin = [sequences.initial(state.hidden), sequences.initial(state.cell)]
            made, *end = torch.lstm(packed, sequences.batch_sizes, begin, weights, True, 1, 0.0, self.training, False)
            if state is not None:
                sequences.keep(state, len(states), *end)
        if self.training and self.output_rate:
            made = drop_variational(made, sequences, self.output_rate)
        return sequences.unpack(made, len(states))

    def _estimate(self, packed: Any) -> Any:
        """Return placeholder states for a pass on `meta`, and allocate the memory that oneDNN keeps for the
        backward pass.
        """
        outputs = self.recurrent_weight.shape[1]
        workspace = packed.new_empty(len(packed), _WORKSPACE * max(packed.shape[1], outputs))
        made = packed @ self.input_weight[:outputs].T
        return made + (workspace * made.mean()).mean()


class AwdLstmStack(torch.nn.Module):
    """An AWD-LSTM without its output layer: the embeddings and the LSTM layers."""

    def __init__(self, config: AwdLstmConfig) -> None:
        super().__init__()
        self.embedding_rate, self.input_rate = config.embedding_dropout, config.input_dropout
        self.embed = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        last = config.num_hidden_layers - 1
        widths = [config.hidden_size, *[config.cell_size] * last, config.hidden_size]
        rates = [*[config.hidden_dropout] * last, config.dropout]
        self.layers = torch.nn.ModuleList(
            AwdLstmLayer(widths[k], widths[k + 1], config.weight_dropout, rates[k]) for k in range(last + 1)
        )

    def forward(self, ids: Any, positions: Any, carried: Carried | None = None) -> Any:
        """Return the states of the last layer [rows, length, width] for ids and positions, int64 [rows,
        length]. Updates `carried`, if given.
        """
        sequences, states = Sequences.of(positions, None if carried is None else carried.positions), self.embed(ids)
        if self.training and self.embedding_rate:  # all occurrences of a word, as if its row of the table were zeros
            words = torch.nn.functional.dropout(states.new_ones(self.embed.num_embeddings), self.embedding_rate)
            states = states * words[ids][..., None]
        if self.training and self.input_rate:
            dropped = drop_variational(sequences.pack(states), sequences, self.input_rate)
            states = sequences.unpack(dropped, len(states))
        if carried is not None and not carried.layers:
            carried.layers = [LayerState() for _ in self.layers]
        for number, layer in enumerate(self.layers):
            states = layer(states, sequences, None if carried is None else carried.layers[number])
        if carried is not None:
            carried.columns, carried.positions = carried.columns + ids.shape[1], positions[:, -1]
        return states


class AwdLstm(PreTrainedModel):
    """The AWD-LSTM language model: an `AwdLstmStack` and an output layer whose matrix is tied to the
    embeddings.
    """

    config_class = AwdLstmConfig
    base_model_prefix = "lstm"
    _tied_weights_keys: ClassVar[Mapping[str, str]] = {"lm_head.weight": "lstm.embed.weight"}

    def __init__(self, config: AwdLstmConfig) -> None:
        super().__init__(config)
        self.lstm = AwdLstmStack(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        """Return the table of token embeddings."""
        return self.lstm.embed

    def get_output_embeddings(self) -> Any:
        """Return the output layer."""
        return self.lm_head

    def _init_weights(self, module: Any) -> None:
        if isinstance(module, torch.nn.Embedding):
            bound = _INITIAL * module.embedding_dim**-0.5
            torch.nn.init.uniform_(module.weight, -bound, bound)
        elif isinstance(module, torch.nn.Linear):
            torch.nn.init.zeros_(module.bias)
        elif isinstance(module, AwdLstmLayer):
            bound = module.recurrent_weight.shape[1] ** -0.5  # torch.nn.LSTM's
            for parameter in module.parameters():
                torch.nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input_ids: Any, position_ids: Any = None, **_: Any) -> CausalLMOutput:
        """Return the logits [rows, length, vocabulary]. Without positions, every row is one document."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        return CausalLMOutput(logits=self.lm_head(self.lstm(input_ids, position_ids)))


AutoConfig.register(AwdLstmConfig.model_type, AwdLstmConfig)
AutoModelForCausalLM.register(AwdLstmConfig, AwdLstm)
