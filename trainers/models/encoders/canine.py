"""CANINE (Clark et al., 2022, Canine: Pre-training an Efficient Tokenization-Free Encoder), with the layers
of `transformers`. Code points are embedded by hashing and read by a layer with local attention. A convolution
of stride 4 turns the characters into molecules, which the deep stack reads. The final layer combines
molecules and characters into states of characters.

Shards contain tokens, so the network writes out their characters (`canine_characters`) and returns the state
of one character of each token: the first character or, if the token is to be predicted, the character that
the objective chooses. Every document of a row is read by itself, padded to a multiple of 128 characters,
because strides and convolutions would mix neighbouring documents.

With `character_buckets` a decoder predicts the characters of masked words, one after another.

Heads for whole texts read the first molecule, and heads for tags and spans read the characters, as the
authors' heads do.
"""

from collections.abc import Sequence
from typing import Any

from gristmill.errors import ConfigError
from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, bert_arguments

# Settings of both published models. The first character of the private use area begins a text, the second ends it.
_PUBLISHED: dict[str, Any] = {
    "type_vocab_size": 16,
    "downsampling_rate": 4,
    "upsampling_kernel_size": 4,
    "num_hash_functions": 8,
    "local_transformer_stride": 128,
    "pad_token_id": 0,
    "bos_token_id": 0xE000,
    "eos_token_id": 0xE001,
}
_STRIDE = _PUBLISHED["downsampling_rate"]


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import CanineConfig

    own = bert_arguments(model, specials)
    subwords = own.pop("vocab_size")  # transformers would require the marks to be in a vocabulary
    return CanineConfig(
        **{**own, "subword_vocab_size": subwords, "num_hash_buckets": model.positions, **_PUBLISHED, **_decoded(model)}
    )


def _decoded(model: Model) -> dict[str, int]:
    return {} if model.character_buckets is None else {"character_buckets": model.character_buckets}


def _sizes(configuration: Any) -> Model:
    for name, value in {**_PUBLISHED, "num_hash_buckets": configuration.max_position_embeddings}.items():
        if (found := getattr(configuration, name)) != value:
            raise ConfigError(f"{name}: got {found}, allowed {value}")
    return Model(
        "canine",
        layers=configuration.num_hidden_layers,
        width=configuration.hidden_size,
        heads=configuration.num_attention_heads,
        positions=configuration.max_position_embeddings,
        feed_forward=configuration.intermediate_size,
        vocab_size=getattr(configuration, "subword_vocab_size", None),  # a published model has none
        dropout=configuration.hidden_dropout_prob,
        initializer_range=configuration.initializer_range,
        character_buckets=getattr(configuration, "character_buckets", None),
    )


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    return _own_class()._from_config(configuration)


def _hidden(network: Any, inputs: Inputs) -> Any:
    starts = ~inputs.mask[:, 0].diagonal(-1, 1, 2)  # a document begins where a token does not see the one before it
    if inputs.decoder is not None:
        return network.decode(inputs, starts)
    return network.read(inputs.ids, starts, inputs.token_types, inputs.covered, inputs.read)


def _logits(network: Any, states: Any) -> Any:
    return network.decoder.predict(states) if network.cls is None else network.cls(states)


def _spell(network: Any, spelled: Sequence[bytes], specials: dict[str, int]) -> None:
    network.spell(spelled, specials)


def _repeats(network: Any) -> float:
    """Return the number of multiplications per token beyond one per parameter."""
    stack, each = network.canine, network.characters_per_token

    def size(*modules: Any) -> int:
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    shallow = size(stack.initial_char_encoder, stack.projection, stack.final_char_encoder)
    return (each - 1) * shallow + (each / _STRIDE - 1) * size(stack.chars_to_molecules, stack.encoder)


def _attended(network: Any, tokens: int) -> float:
    """Return the number of (query, key) pairs per token, summed over the attention layers."""
    each = network.characters_per_token
    local = min(_PUBLISHED["local_transformer_stride"], each * tokens)
    deep = len(network.canine.encoder.layer) * (each / _STRIDE) ** 2 * tokens
    return each * local + deep + each**2 * tokens


def _own_class() -> Any:
    from trainers.models.encoders.canine_network import CanineForSubwords

    return CanineForSubwords


_POOLED = HeadForm("CanineForSequenceClassification", "classifier", dense="canine.pooler.dense")
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _POOLED,
    "regress": _POOLED,
    "tag": HeadForm("CanineForTokenClassification", "classifier"),
    "span": HeadForm("CanineForQuestionAnswering", "qa_outputs", drops=False),
    "choose": HeadForm("CanineForMultipleChoice", "classifier", dense="canine.pooler.dense"),
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=_logits,
    blocks=lambda network: list(network.canine.encoder.layer),
    layer_states=lambda network, states: network.layout.of_molecules(states),
    heads=_HEADS,
    create=_create,
    attention="eager",
    branches=False,
    own_class=_own_class,
    spell=_spell,
    repeats=_repeats,
    attended=_attended,
)
