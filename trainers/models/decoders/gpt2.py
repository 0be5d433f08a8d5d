"""GPT-2 (Radford et al., 2019): learned positions, pre-norm blocks, GELU, and by default tied embeddings."""

from dataclasses import replace
from typing import Any

from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, special_ids


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=model.vocab_size,
        n_positions=model.positions,
        n_embd=model.width,
        n_layer=model.layers,
        n_head=model.heads,
        n_inner=model.feed_forward,
        resid_pdrop=model.dropout,
        embd_pdrop=model.dropout,
        attn_pdrop=model.dropout,
        initializer_range=model.initializer_range,
        tie_word_embeddings=model.tied,
        **special_ids(specials),
    )


def _sizes(configuration: Any) -> Model:
    return Model(
        "gpt2",
        layers=configuration.n_layer,
        width=configuration.n_embd,
        heads=configuration.n_head,
        positions=configuration.n_positions,
        feed_forward=configuration.n_inner,
        vocab_size=configuration.vocab_size,
        tied=configuration.tie_word_embeddings,
        dropout=configuration.resid_pdrop,
        initializer_range=configuration.initializer_range,
    )


def _hidden(network: Any, inputs: Inputs) -> Any:
    # Without a mask, positions are those of the columns; `transformers` would compare them to look for documents.
    positions = inputs.positions if inputs.mask is not None else None
    reads = {"input_ids": inputs.ids, "position_ids": positions, "attention_mask": inputs.mask}
    kept = {"past_key_values": inputs.cache, "use_cache": inputs.cache is not None}
    return network.transformer(**reads, **kept).last_hidden_state


_SCORE = HeadForm("GPT2ForSequenceClassification", "score", bias=False, drops=False)
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _SCORE,
    "regress": _SCORE,
    "tag": HeadForm("GPT2ForTokenClassification", "classifier"),
    "span": HeadForm("GPT2ForQuestionAnswering", "qa_outputs", drops=False),
    "choose": replace(_SCORE, stock=None),
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.lm_head(states),
    blocks=lambda network: list(network.transformer.h),
    heads=_HEADS,
    tables=lambda network: [(network.transformer.wpe, 0)],
    attentions=lambda network: [block.attn for block in network.transformer.h],
    unmasked=True,
)
