"""RoBERTa (Liu et al., 2019), with the blocks of `transformers`: BERT without token types and without a head
for sentence pairs.

`transformers` numbers positions from the padding token's id + 1. In the published models this id is 1. If the
tokenizer's is larger, the export inserts unused rows at the beginning of the table of positions.
"""

from dataclasses import replace
from typing import Any

from gristmill.errors import ConfigError
from trainers.config.architecture import Model
from trainers.models.interface import Architecture, HeadForm, HeadKind, Inputs, bert_arguments, bert_sizes

_PADDING = 1  # the id of padding in the published models, which have 514 rows for 512 positions


def _configuration(model: Model, specials: dict[str, int]) -> Any:
    from transformers import RobertaConfig

    if "<pad>" not in specials:
        raise ConfigError(
            "model.architecture: got roberta, which counts positions from the id of padding, but the tokenizer has no <pad>; "
            "build the shards with `add_reserved: [masked]`, or use bert or modernbert"
        )
    own = {
        "max_position_embeddings": model.positions + _PADDING + 1,
        "pad_token_id": min(specials["<pad>"], _PADDING),
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }
    return RobertaConfig(**{**bert_arguments(model, specials), **own})


def _sizes(configuration: Any) -> Model:
    sizes = bert_sizes("roberta", configuration)
    return replace(sizes, positions=sizes.positions - max(configuration.pad_token_id, _PADDING) - 1)


def _create(configuration: Any, model: Model, specials: dict[str, int]) -> Any:
    import torch
    from transformers import RobertaForMaskedLM

    network = RobertaForMaskedLM._from_config(configuration)
    words, padding = network.roberta.embeddings.word_embeddings, specials["<pad>"]
    if padding != words.padding_idx:  # that row belongs to a token
        with torch.no_grad():
            torch.nn.init.normal_(words.weight[words.padding_idx], std=model.initializer_range)
            words.weight[padding].zero_()
        words.padding_idx = padding
    return network


def _publish(network: Any, specials: dict[str, int]) -> None:
    import torch

    added = specials["<pad>"] - int(network.config.pad_token_id)
    if not added:
        return
    table = network.roberta.embeddings.position_embeddings
    with torch.no_grad():
        rows = torch.cat([table.weight.new_zeros(added, table.embedding_dim), table.weight])
    fresh = torch.nn.Embedding.from_pretrained(rows, freeze=False)
    network.roberta.embeddings.position_embeddings = fresh
    network.config.pad_token_id = specials["<pad>"]
    network.config.max_position_embeddings = len(rows)


def _first(network: Any) -> int:
    return int(network.config.pad_token_id) + 1


def _hidden(network: Any, inputs: Inputs) -> Any:
    positions = inputs.positions + _first(network)
    reads = {"input_ids": inputs.ids, "position_ids": positions, "attention_mask": inputs.mask}
    return network.roberta(**reads).last_hidden_state


_POOLED = HeadForm(
    "RobertaForSequenceClassification", "classifier.out_proj", dense="classifier.dense", drops_first=True
)
_HEADS: dict[HeadKind, HeadForm] = {
    "classify": _POOLED,
    "regress": _POOLED,
    "tag": HeadForm("RobertaForTokenClassification", "classifier"),
    "span": HeadForm("RobertaForQuestionAnswering", "qa_outputs", drops=False),
    "choose": HeadForm("RobertaForMultipleChoice", "classifier", dense="roberta.pooler.dense"),
}

ARCHITECTURE = Architecture(
    _configuration,
    _sizes,
    _hidden,
    logits=lambda network, states: network.lm_head(states),
    blocks=lambda network: list(network.roberta.encoder.layer),
    heads=_HEADS,
    create=_create,
    tables=lambda network: [(network.roberta.embeddings.position_embeddings, _first(network))],
    attentions=lambda network: [layer.attention.self for layer in network.roberta.encoder.layer],
    publish=_publish,
    unmasked=True,
)
