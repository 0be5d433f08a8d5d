"""Convert a model with a task head to the `transformers` model that computes the same."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.config.architecture import Model
from trainers.models.heads.task_head import TaskHead
from trainers.models.interface import Architecture, HeadForm, HeadKind


def why_not_stock_head(
    architecture: Architecture, model: Model, kind: HeadKind, pooling: str | None = None, layers: str = "last"
) -> str | None:
    """Return why plain `transformers` has no class for this head, or None if it has one."""
    if architecture.heads[kind].stock is None:
        return f"transformers has no such head of kind {kind} for {model.architecture}"
    for field, value in (("head.layers", layers), ("head.pooling", pooling)):
        if value not in (None, "first", "last"):
            return f"transformers has no {field}: {value}"
    return None


def stock_task_model(
    network: Any, architecture: Architecture, specials: dict[str, int], labels: Sequence[str] = ()
) -> Any:
    """Return the stock model with the weights of `network` and its `task_head`. The stacks of `network` must
    be untied.

    `labels` are the names of classes or tags. The head must have a stock class (`why_not_stock_head`).
    """
    import torch
    import transformers

    head: TaskHead = network.task_head
    form = architecture.heads[head.kind]
    assert form.stock is not None
    configuration = _configuration(network.config, head, labels)
    with torch.random.fork_rng(devices=[]):
        stock = getattr(transformers, form.stock)._from_config(configuration)
    state = {**network.state_dict(), **_renamed(head, form)}
    stock.load_state_dict({name: state[_source(name, stock, network, state)] for name in stock.state_dict()})
    if architecture.publish is not None:
        architecture.publish(stock, specials)
    return stock.eval()


def _configuration(own: Any, head: TaskHead, labels: Sequence[str]) -> Any:
    configuration = copy.deepcopy(own)
    names = list(labels) if head.kind in ("classify", "tag") else ["LABEL_0"] * (1 + (head.kind == "span"))
    configuration.id2label = dict(enumerate(names))
    configuration.label2id = {name: number for number, name in enumerate(names)}
    if head.kind in ("classify", "regress"):
        configuration.problem_type = "regression" if head.kind == "regress" else "single_label_classification"
    if hasattr(configuration, "classifier_dropout"):
        configuration.classifier_dropout = head.dropout.p
    if hasattr(configuration, "classifier_pooling"):
        configuration.classifier_pooling = "cls"
    return configuration


def _source(name: str, stock: Any, network: Any, state: Mapping[str, Any]) -> str:
    """Our name of a tensor of the stock model: some classes keep the stacks under another name (Llama's of spans), or
    ours has them at the top (T5).
    """
    within = name.removeprefix(f"{stock.base_model_prefix}.")
    return next(each for each in (name, f"{network.base_model_prefix}.{within}", within) if each in state)


def _renamed(head: TaskHead, form: HeadForm) -> dict[str, Any]:
    """The tensors of a head by their names in the stock model."""
    return {
        f"{getattr(form, layer)}.{name}": tensor
        for layer in ("dense", "norm", "output")
        if getattr(form, layer) is not None
        for name, tensor in getattr(head, layer).state_dict().items()
    }
