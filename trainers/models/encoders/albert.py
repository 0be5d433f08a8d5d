"""ALBERT (Lan et al., 2020): BERT with embeddings whose width may differ from the model's, layers that share
parameters, a head for masked tokens and, optionally, one for the order of sentences.

`transformers` can share only whole layers. If only the parameters of attention or only those of feed-forward
layers are shared, they are tied here.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, bert_arguments, bert_sizes


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import AlbertConfig

    return AlbertConfig(
        embedding_size=model.embedding_size,
        num_hidden_groups=model.layer_groups if model.shared_parts == "all" else model.layers,
        classifier_dropout_prob=model.dropout,
        **bert_arguments(model, specials),
    )


def _sizes(configuration: Any) -> Model:
    groups, width = configuration.num_hidden_groups, configuration.embedding_size
    return replace(bert_sizes("albert", configuration), layer_groups=groups, embedding_size=width)


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    from transformers import AlbertForMaskedLM, AlbertForPreTraining

    network = (AlbertForPreTraining if model.sentence_head else AlbertForMaskedLM)._from_config(configuration)
    if model.shared_parts != "all":
        blocks, together = _blocks(network), model.layers // (model.layer_groups or 1)
        for number, block in enumerate(blocks):
            its = dict(block.named_parameters())
            for name, shared in blocks[number - number % together].named_parameters():
                if name.startswith("attention.") == (model.shared_parts == "attention") and shared is not its[name]:
                    _set_parameter(block, name, shared)
    network.supports_gradient_checkpointing = True
    for block in dict.fromkeys(_blocks(network)):
        block.__class__ = _layer_class()
    return network


@cache
def _layer_class() -> Any:
    from transformers.modeling_layers import GradientCheckpointingLayer
    from transformers.models.albert.modeling_albert import AlbertLayer

    return type("RecomputedAlbertLayer", (GradientCheckpointingLayer, AlbertLayer), {})


def _publish(network: Any, specials: dict[str, int]) -> None:
    """Give layers that are separate modules in `transformers` separate copies of the parameters that they
    share.
    """
    import torch

    known = set()
    for block in dict.fromkeys(_blocks(network)):
        for name, parameter in list(block.named_parameters()):
            if id(parameter) in known:
                _set_parameter(block, name, torch.nn.Parameter(parameter.detach().clone()))
            known.add(id(parameter))


def _set_parameter(block: Any, name: str, parameter: Any) -> None:
    path, _, last = name.rpartition(".")
    setattr(block.get_submodule(path), last, parameter)


def _blocks(network: Any) -> list[Any]:
    groups, layers = network.albert.encoder.albert_layer_groups, network.config.num_hidden_layers
    return [groups[layer * len(groups) // layers].albert_layers[0] for layer in range(layers)]


def _hidden(network: Any, inputs: Inputs) -> Any:
    stack, types = network.albert, inputs.token_types
    states = stack.embeddings(input_ids=inputs.ids, position_ids=inputs.positions, token_type_ids=types)
    return stack.encoder(states, attention_mask=inputs.mask).last_hidden_state


def _sentence(network: Any, states: Any) -> Any:
    stack = network.albert
    return network.sop_classifier(stack.pooler_activation(stack.pooler(states[:, 0])))


_POOLED = HeadForm("AlbertForSequenceClassification", "classifier", dense="albert.pooler")
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _POOLED,
    "regress": _POOLED,
    "tag": HeadForm("AlbertForTokenClassification", "classifier"),
    "span": HeadForm("AlbertForQuestionAnswering", "qa_outputs", drops=False),
    "choose": replace(_POOLED, stock="AlbertForMultipleChoice"),
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.predictions(states),
    blocks=_blocks,
    heads=_HEADS,
    create=_create,
    sentence=_sentence,
    publish=_publish,
    unmasked=True,
)
