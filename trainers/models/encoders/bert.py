"""BERT (Devlin et al., 2019): learned positions, post-norm blocks, GELU, a head for masked tokens and,
optionally, a head for sentence pairs and SpanBERT's head (`boundary_head`).
"""

from dataclasses import replace
from functools import partial
from typing import Any

from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, bert_arguments, bert_sizes


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import BertConfig

    return BertConfig(**bert_arguments(model, specials))


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    from transformers import BertForMaskedLM, BertForPreTraining

    network = (BertForPreTraining if model.sentence_head else BertForMaskedLM)._from_config(configuration)
    if model.boundary_head:
        from trainers.models.encoders.boundary_head import BoundaryHead

        network.boundary_head = BoundaryHead(configuration)
    return network


def _hidden(network: Any, inputs: Inputs) -> Any:
    stack, types = network.bert, inputs.token_types
    states = stack.embeddings(input_ids=inputs.ids, position_ids=inputs.positions, token_type_ids=types)
    return stack.encoder(states, attention_mask=inputs.mask).last_hidden_state


def _boundary(network: Any, outside: Any, places: Any) -> Any:
    return network.cls.predictions.decoder(network.boundary_head(outside, places))


def _sentence(network: Any, states: Any) -> Any:
    return network.cls.seq_relationship(network.bert.pooler(states))


_POOLED = HeadForm("BertForSequenceClassification", "classifier", dense="bert.pooler.dense")
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _POOLED,
    "regress": _POOLED,
    "tag": HeadForm("BertForTokenClassification", "classifier"),
    "span": HeadForm("BertForQuestionAnswering", "qa_outputs", drops=False),
    "choose": replace(_POOLED, stock="BertForMultipleChoice"),
}

ARCHITECTURE = Architecture(
    _configuration,
    partial(bert_sizes, "bert"),
    _hidden,
    logits=lambda network, states: network.cls.predictions(states),
    blocks=lambda network: list(network.bert.encoder.layer),
    heads=_HEADS,
    create=_create,
    sentence=_sentence,
    boundary=_boundary,
    tables=lambda network: [(network.bert.embeddings.position_embeddings, 0)],
    attentions=lambda network: [layer.attention.self for layer in network.bert.encoder.layer],
    unmasked=True,
)
