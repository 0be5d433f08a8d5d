"""The network of skip-thoughts as a `transformers` model, so that it is loaded and saved like the other
architectures.
"""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForPreTraining, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from trainers.models.recurrent.packed_sequences import Sequences, in_order

_BOUND, _EMBEDDING = 0.1, 620
"""Weights that are not recurrent begin in U(-b, b), b = 0.1 sqrt(620 / width of the embeddings): 0.1 for the published 620 (Kiros
et al. 2015, section 3). With 0.1 at every width, the signal of narrow embeddings would be too weak.
"""

_KEPT = 7
"""The most values that torch's GRU keeps for each position and unit (torch 2.13, fp32)."""


class GruConfig(PreTrainedConfig):
    """The configuration of the skip-thoughts network. `num_hidden_layers` is the depth of the encoder; each
    decoder has one layer.
    """

    model_type = "gru"

    vocab_size: int = 20000
    hidden_size: int = 2400
    embedding_size: int = 620
    num_hidden_layers: int = 1
    max_position_embeddings: int = 512
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False

    @property
    def bound(self) -> float:
        """The bound b of the uniform distribution U(-b, b) from which all weights but the recurrent ones are
        drawn.
        """
        return float(_BOUND * (_EMBEDDING / self.embedding_size) ** 0.5)


class GruLayer(torch.nn.Module):
    """A GRU layer. Its weights have the same shapes as in `torch.nn.GRU`, with gates in the order reset,
    update, new.
    """

    def __init__(self, inputs: int, outputs: int, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.input_weight = torch.nn.Parameter(torch.empty(3 * outputs, inputs))
        self.recurrent_weight = torch.nn.Parameter(torch.empty(3 * outputs, outputs))
        self.input_bias = torch.nn.Parameter(torch.empty(3 * outputs))
        self.recurrent_bias = torch.nn.Parameter(torch.empty(3 * outputs))

    def forward(self, states: Any, sequences: Sequences) -> Any:
        """Run the GRU over each sequence, starting from a state of zeros, and return its states [rows,
        length, outputs]. `states` [rows, length, inputs] are the inputs of the layer.
        """
        packed = sequences.pack(states)
        weights = in_order([self.input_weight, self.recurrent_weight, self.input_bias, self.recurrent_bias])
        if packed.is_meta:
            made = self._estimate(packed)
        else:
            zeros = packed.new_zeros(1, sequences.count, self.recurrent_weight.shape[1])
            made = torch.gru(packed, sequences.batch_sizes, zeros, weights, True, 1, 0.0, self.training, False)[0]
        return sequences.unpack(made, len(states))

    def _estimate(self, packed: Any) -> Any:
        """Return placeholder states for a pass on `meta`, and allocate the memory that torch's GRU keeps for
        the backward pass.
        """
        outputs = self.recurrent_weight.shape[1]
        kept = packed.new_empty(len(packed), _KEPT * outputs)
        made = packed @ self.input_weight[:outputs].T
        return made + (kept * made.mean()).mean()

    def initialise(self) -> None:
        """Draw an orthogonal recurrent matrix for each gate, and the input weights from U(-bound, bound). Set
        the biases to 0.
        """
        for gate in self.recurrent_weight.chunk(3):
            torch.nn.init.orthogonal_(gate)
        torch.nn.init.uniform_(self.input_weight, -self.bound, self.bound)
        torch.nn.init.zeros_(self.input_bias)
        torch.nn.init.zeros_(self.recurrent_bias)


class GruStack(torch.nn.Module):
    """The encoder: the embeddings and the GRU layers."""

    def __init__(self, config: GruConfig) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(config.vocab_size, config.embedding_size)
        widths = [config.embedding_size, *[config.hidden_size] * config.num_hidden_layers]
        self.layers = torch.nn.ModuleList(
            GruLayer(widths[k], widths[k + 1], config.bound) for k in range(config.num_hidden_layers)
        )

    def forward(self, ids: Any, positions: Any) -> Any:
        """Return the states of the last layer [rows, length, width] for ids and positions, int64 [rows, length]."""
        sequences, states = Sequences.of(positions), self.embed(ids)
        for layer in self.layers:
            states = layer(states, sequences)
        return states


class SentenceGru(PreTrainedModel):
    """The skip-thoughts network: an encoder of sentences, one decoder each for the next and the previous
    sentence, which use the encoder's embeddings, and one output layer for both decoders.
    """

    config_class = GruConfig
    base_model_prefix = "encoder"

    def __init__(self, config: GruConfig) -> None:
        super().__init__(config)
        self.encoder = GruStack(config)
        inputs = config.embedding_size + config.hidden_size
        self.next_decoder = GruLayer(inputs, config.hidden_size, config.bound)
        self.previous_decoder = GruLayer(inputs, config.hidden_size, config.bound)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        """Return the table of token embeddings."""
        return self.encoder.embed

    def get_output_embeddings(self) -> Any:
        """Return the output layer, which both decoders share."""
        return self.lm_head

    def _init_weights(self, module: Any) -> None:
        if isinstance(module, torch.nn.Embedding | torch.nn.Linear):
            torch.nn.init.uniform_(module.weight, -self.config.bound, self.config.bound)
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.zeros_(module.bias)
        if isinstance(module, GruLayer):
            module.initialise()

    def decode(self, ids: Any, positions: Any, vectors: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the states of the two decoders, each [rows, length, width]: first those of the decoder that
        writes the next sentence, then those of the decoder that writes the previous sentence (Kiros et al.,
        2015, equations 5 to 7).

        `ids` and `positions`, int64 [rows, length], describe the sentences to write. `vectors` contains one
        array [rows, length, width] per decoder, in the same order, with the vector of a neighbouring sentence
        at each position. In the first array, this is the sentence before the one to write. In the second
        array, it is the sentence after the one to write.
        """
        sequences, embedded = Sequences.of(positions), self.encoder.embed(ids)
        decoders = (self.next_decoder, self.previous_decoder)
        after, before = (
            decoder(torch.cat([embedded, its], 2), sequences) for decoder, its in zip(decoders, vectors, strict=True)
        )
        return after, before

    def forward(self, input_ids: Any, position_ids: Any = None, **_: Any) -> BaseModelOutput:
        """Return the states of the encoder [rows, length, width]. Without positions, every row is one
        sentence.
        """
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        return BaseModelOutput(self.encoder(input_ids, position_ids))


AutoConfig.register(GruConfig.model_type, GruConfig)
AutoModelForPreTraining.register(GruConfig, SentenceGru)
