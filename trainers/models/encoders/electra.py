"""ELECTRA (Clark et al., 2020), with the blocks of `transformers`: BERT, except that the width of the
embeddings may differ from the model's. The network is a masked language model or, if `generator_size` is set,
a discriminator with its generator.
"""

from dataclasses import replace
from typing import Any

from trainers.config.architecture import Model, generator_of
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, bert_arguments, bert_sizes


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import ElectraConfig

    return ElectraConfig(
        embedding_size=model.embedding_size, summary_last_dropout=model.dropout, **bert_arguments(model, specials)
    )


def _sizes(configuration: Any) -> Model:
    return replace(bert_sizes("electra", configuration), embedding_size=configuration.embedding_size)


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    from transformers import ElectraForMaskedLM

    if model.generator_size is None:
        return ElectraForMaskedLM._from_config(configuration)
    from trainers.models.encoders.replaced_tokens_model import ReplacedTokensModel

    smaller = _configuration(generator_of(model), specials)
    smaller._attn_implementation, smaller.dtype = configuration._attn_implementation, configuration.dtype
    network = ReplacedTokensModel._from_config(configuration)
    network.add_generator(ElectraForMaskedLM._from_config(smaller))
    return network


def _hidden(network: Any, inputs: Inputs) -> Any:
    reads = {"input_ids": inputs.ids, "position_ids": inputs.positions, "token_type_ids": inputs.token_types}
    return network.electra(**reads, attention_mask=inputs.mask).last_hidden_state


def _replaced(network: Any, inputs: Inputs) -> Any:
    return network.discriminator_predictions(_hidden(network, inputs))


def _parts(network: Any) -> dict[str, Any]:
    return {"": network.discriminator(), "generator": network.generator}


_POOLED = HeadForm(
    "ElectraForSequenceClassification",
    "classifier.out_proj",
    dense="classifier.dense",
    activation="gelu",
    drops_first=True,
)
_CHOICE = HeadForm("ElectraForMultipleChoice", "classifier", dense="sequence_summary.summary", activation="gelu")
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _POOLED,
    "regress": _POOLED,
    "tag": HeadForm("ElectraForTokenClassification", "classifier"),
    "span": HeadForm("ElectraForQuestionAnswering", "qa_outputs", drops=False),
    "choose": _CHOICE,
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.generator_lm_head(network.generator_predictions(states)),
    blocks=lambda network: list(network.electra.encoder.layer),
    heads=_HEADS,
    create=_create,
    unmasked=True,
    replaced=_replaced,
    parts=_parts,
)
