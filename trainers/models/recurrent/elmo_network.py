"""The network of ELMo as a `transformers` model, so that it is loaded and saved like the other architectures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import AutoConfig, AutoModelForPreTraining, PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from trainers.models.recurrent.character_cnn import CharacterCnn
from trainers.models.recurrent.packed_sequences import Sequences
from trainers.models.recurrent.projected_lstm import ProjectedLstm


class ElmoConfig(PreTrainedConfig):
    """The configuration of an ELMo model. `hidden_size` is the width of both directions' states together,
    twice the width of an embedding; `cell_size` is the number of LSTM cells per direction. If
    `character_filters` is set, a convolution with this number of filters computes the embeddings from the
    characters of tokens, and the output layer is not tied to them.
    """

    model_type = "elmo"

    vocab_size: int = 32000
    hidden_size: int = 1024
    cell_size: int = 4096
    num_hidden_layers: int = 2
    max_position_embeddings: int = 512
    dropout: float = 0.0
    character_filters: int | None = None
    highway_layers: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True


@dataclass
class BidirectionalOutput(ModelOutput):
    """The logits [rows, length, vocabulary] at every position: `logits` for the next token, `backward_logits`
    for the previous one.
    """

    logits: Any = None
    backward_logits: Any = None


class ElmoLayer(torch.nn.Module):
    """Two LSTM layers, one of the forward language model and one of the backward. With `adds`, each adds its
    input to its output.
    """

    def __init__(self, width: int, cells: int, rate: float, adds: bool) -> None:
        super().__init__()
        self.rate, self.adds = rate, adds
        self.forward_lstm, self.backward_lstm = ProjectedLstm(width, cells), ProjectedLstm(width, cells)

    def forward(self, states: Any, sequences: Sequences) -> Any:
        """Return the outputs of the layer for the inputs `states`, both [rows, length, 2 x width]. The
        forward model's half comes first.
        """
        made = []
        directions = ((self.forward_lstm, sequences), (self.backward_lstm, sequences.backwards))
        for half, (lstm, its) in zip(states.chunk(2, dim=2), directions, strict=True):
            read = torch.nn.functional.dropout(half, self.rate, self.training)
            after = its.unpack(lstm(its.pack(read), its), len(states))
            made.append(after + read if self.adds else after)
        return torch.cat(made, dim=2)


class ElmoStack(torch.nn.Module):
    """ELMo without its output layer: the embeddings, which both directions share, and the layers."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        width = config.hidden_size // 2
        self.rate = config.dropout
        self.embed: Any
        if config.character_filters is None:
            self.embed = torch.nn.Embedding(config.vocab_size, width)
        else:
            self.embed = CharacterCnn(config.vocab_size, width, config.character_filters, config.highway_layers or 0)
        layers = (ElmoLayer(width, config.cell_size, self.rate, adds=k > 0) for k in range(config.num_hidden_layers))
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, ids: Any, starts: Any) -> Any:
        """Return the states of the last layer [rows, length, 2 x width] for ids, int64 [rows, length].
        `starts`, bool [rows, length - 1], says which tokens after the first of a row begin a document.
        """
        sequences, embedded = Sequences.beginning(starts), self.embed(ids)
        states = torch.cat([embedded, embedded], dim=2)
        for layer in self.layers:
            states = layer(states, sequences)
        return torch.nn.functional.dropout(states, self.rate, self.training)


class Elmo(PreTrainedModel):
    """A forward and a backward language model that share their embeddings and their output layer."""

    config_class = ElmoConfig
    base_model_prefix = "elmo"
    _tied_weights_keys: ClassVar[Mapping[str, str]] = {"lm_head.weight": "elmo.embed.weight"}

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        if config.character_filters is not None:
            self._tied_weights_keys = {}  # type: ignore[misc]
        self.elmo = ElmoStack(config)
        self.lm_head = torch.nn.Linear(config.hidden_size // 2, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        """Return the table of embeddings, or the module that computes them from characters."""
        return self.elmo.embed

    def get_output_embeddings(self) -> Any:
        """Return the output layer."""
        return self.lm_head

    def _init_weights(self, module: Any) -> None:
        if isinstance(module, torch.nn.Embedding):  # as the authors' output layer
            torch.nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, torch.nn.Linear):
            if module is self.lm_head and not self._tied_weights_keys:
                torch.nn.init.normal_(module.weight, std=module.in_features**-0.5)
            torch.nn.init.zeros_(module.bias)
        elif isinstance(module, ProjectedLstm | CharacterCnn):  # after the layers in it
            module.initialise()

    def predict(self, states: Any, backward: bool = False) -> Any:
        """Return the logits [..., vocabulary] of the next token or, with `backward`, of the previous token,
        given states [..., 2 x width].
        """
        return self.lm_head(states.chunk(2, dim=-1)[backward])

    def forward(self, input_ids: Any, attention_mask: Any = None, **_: Any) -> BidirectionalOutput:
        """Return the logits of both directions. Every row is one document; `attention_mask` [rows, length]
        may mask positions at the end of a row.
        """
        seen = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        states = self.elmo(input_ids, seen[:, 1:] != seen[:, :-1])
        return BidirectionalOutput(self.predict(states), self.predict(states, backward=True))


AutoConfig.register(ElmoConfig.model_type, ElmoConfig)
AutoModelForPreTraining.register(ElmoConfig, Elmo)
