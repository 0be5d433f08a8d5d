"""T5 (Raffel et al., 2020): an encoder-decoder with pre-norm blocks and, instead of position embeddings, a
learned bias on the attention scores for each head and distance bucket.

Version 1.0 uses ReLU. Its output layer is tied to the embeddings, and the layer's input is scaled by 1 /
sqrt(width). Version 1.1 uses gated GELU and an untied output layer.
"""

from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, decoder_start_id, encode_once

_LENGTH = 512  # training length of the published models, which some configurations omit; no table depends on it


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import T5Config

    # `tie_word_embeddings` only decides whether states are scaled before the output layer; a new model's
    # layer is always tied.
    return T5Config(
        vocab_size=model.vocab_size,
        d_model=model.width,
        d_kv=model.head_width,
        d_ff=model.feed_forward,
        num_layers=model.layers,
        num_decoder_layers=model.decoder_layers,
        num_heads=model.heads,
        dropout_rate=model.dropout,
        feed_forward_proj="gated-gelu" if model.gated else "relu",
        tie_word_embeddings=model.tied,
        eos_token_id=specials["<eos>"],
        pad_token_id=specials["<pad>"],
        decoder_start_token_id=decoder_start_id(model, specials),
    )


def _sizes(configuration: Any) -> Model:
    return Model(
        "t5",
        layers=configuration.num_layers,
        width=configuration.d_model,
        heads=configuration.num_heads,
        positions=getattr(configuration, "n_positions", _LENGTH),
        decoder_layers=configuration.num_decoder_layers,
        head_width=configuration.d_kv,
        feed_forward=configuration.d_ff,
        vocab_size=configuration.vocab_size,
        gated=configuration.is_gated_act,
        tied=configuration.scale_decoder_outputs,
        dropout=configuration.dropout_rate,
    )


@cache
def untied_class() -> Any:
    """Return a T5 class with an untied output layer, initialised with variance 1 / width as in the authors'
    T5X.

    The T5 class of `transformers` 5.23 ties the output layer of a new model even if the configuration says
    otherwise.
    """
    import torch
    from transformers import T5ForConditionalGeneration, initialization

    class UntiedT5(T5ForConditionalGeneration):
        _tied_weights_keys: ClassVar[dict[str, str]] = {
            name: source
            for name, source in T5ForConditionalGeneration._tied_weights_keys.items()
            if name != "lm_head.weight"
        }

        @torch.no_grad()
        def _init_weights(self, module: Any) -> None:
            super()._init_weights(module)
            if module is self.lm_head:
                initialization.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)

    # exports record this name; `transformers` does not tie saved weights
    UntiedT5.__name__ = T5ForConditionalGeneration.__name__
    return UntiedT5


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    from transformers import T5ForConditionalGeneration

    return (T5ForConditionalGeneration if model.tied else untied_class())._from_config(configuration)


def _hidden(network: Any, inputs: Inputs) -> Any:
    assert inputs.decoder is not None
    # Distances between columns equal those between positions, since a document's tokens are contiguous.
    encoded = encode_once(inputs, lambda: network.encoder(inputs.ids, attention_mask=inputs.mask).last_hidden_state)
    return network.decoder(
        inputs.decoder.ids,
        attention_mask=inputs.decoder.mask,
        encoder_hidden_states=encoded,
        encoder_attention_mask=inputs.cross,
        past_key_values=inputs.cache,
        use_cache=inputs.cache is not None,
    ).last_hidden_state


def _logits(network: Any, states: Any) -> Any:
    if network.config.scale_decoder_outputs:
        states = states * network.config.d_model**-0.5
    return network.lm_head(states)


def _decoder_name(name: str) -> str:
    """Return the name of an encoder parameter's counterpart in the decoder, where cross-attention is the
    second layer of a block.
    """
    return name.replace(".layer.1.", ".layer.2.")


_POOLED = HeadForm(
    "T5ForSequenceClassification",
    "classification_head.out_proj",
    dense="classification_head.dense",
    drops_first=True,
)
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _POOLED,
    "regress": _POOLED,
    "tag": HeadForm(None, "classifier"),  # the stock class has no decoder
    "span": HeadForm("T5ForQuestionAnswering", "qa_outputs", drops=False),
    "choose": replace(_POOLED, stock=None),
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    _logits,
    blocks=lambda network: list(network.decoder.block),
    heads=_HEADS,
    create=_create,
    decoder_name=_decoder_name,
    encoder_blocks=lambda network: list(network.encoder.block),
)
