"""Convert a model with a task head to the stock `transformers` model that makes the same predictions."""

import copy
from collections.abc import Iterator, Mapping, Sequence
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
    for field, value in (("method.layers", layers), ("head.pooling", pooling)):
        if value not in (None, "first", "last"):
            return f"transformers has no {field}: {value}"
    return None


def stock_task_model(
    network: Any, architecture: Architecture, specials: dict[str, int], labels: Sequence[str] = ()
) -> Any:
    """Return the stock `transformers` model with the weights of `network` and its `task_head`, in evaluation
    mode. If the encoder and the decoder of `network` share parameters, call `models.untie_stacks` first.

    `labels` are the names of the classes or tags, needed for `classify` and `tag`. The head must have a stock
    class (`why_not_stock_head`).
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
    sources = {name: _source(name, stock, network, state) for name in stock.state_dict()}
    # A pooler that the head does not read, and ours lacks, stays as it was drawn (CANINE's in tags and spans).
    unread = [name for name in sources if ".pooler." in name and sources[name] is None]
    stock.load_state_dict(
        {name: state[str(sources[name])] for name in sources if name not in unread}, strict=not unread
    )
    if architecture.publish is not None:
        architecture.publish(stock, specials)
    return stock.eval()


def stock_names(network: Any, architecture: Architecture) -> tuple[dict[str, str], tuple[str, str]]:
    """Return (names, prefixes). `names` maps the name of each parameter of `task_head` to its name in the
    stock class. `prefixes` holds the prefix that the parameters of the network's encoder or decoder have in
    our class, and the prefix that they have in the stock class.

    The head must have a stock class (`why_not_stock_head`).
    """
    import torch
    import transformers

    head: TaskHead = network.task_head
    form = architecture.heads[head.kind]
    assert form.stock is not None
    with torch.device("meta"):
        stock = getattr(transformers, form.stock)._from_config(_configuration(network.config, head, ("LABEL_0",)))
    state = dict(network.named_parameters())
    renamed = {f"task_head.{layer}.{name}": f"{there}.{name}" for layer, there, name in _head_parameters(head, form)}
    within = {id(parameter) for parameter in stock.base_model.parameters()}
    for name, parameter in stock.named_parameters():
        ours = _source(name, stock, network, state)
        if ours is not None and id(parameter) in within and name not in renamed.values():
            return renamed, _beginnings(ours, name)
    raise AssertionError(f"{form.stock} has no parameter of the stacks")


def _beginnings(ours: str, theirs: str) -> tuple[str, str]:
    """Return both dotted names without the components that they share at the end. They must share at least
    the last one.
    """
    shared = 1
    parts = ours.split("."), theirs.split(".")
    while shared < min(map(len, parts)) and parts[0][-shared - 1 :] == parts[1][-shared - 1 :]:
        shared += 1
    first, second = ("".join(f"{part}." for part in each[:-shared]) for each in parts)
    return first, second


def _configuration(own: Any, head: TaskHead, labels: Sequence[str]) -> Any:
    configuration = copy.deepcopy(own)
    names = list(labels) if head.kind in ("classify", "tag") else ["LABEL_0"] * (1 + (head.kind == "span"))
    configuration.id2label = dict(enumerate(names))
    configuration.label2id = {name: number for number, name in enumerate(names)}
    if head.kind in ("classify", "regress"):
        configuration.problem_type = "regression" if head.kind == "regress" else "single_label_classification"
    for name in ("classifier_dropout", "classifier_dropout_prob", "cls_dropout"):
        if hasattr(configuration, name):
            setattr(configuration, name, head.dropout.p)
    if hasattr(configuration, "classifier_pooling"):
        configuration.classifier_pooling = "cls"
    return configuration


def _source(name: str, stock: Any, network: Any, state: Mapping[str, Any]) -> str | None:
    """Return our name for the tensor `name` of the stock model, or None if our model has no such tensor."""
    within = name.removeprefix(f"{stock.base_model_prefix}.")
    candidates = (name, f"{network.base_model_prefix}.{within}", within)
    return next((each for each in candidates if each in state), None)


def _renamed(head: TaskHead, form: HeadForm) -> dict[str, Any]:
    tensors = head.state_dict()
    return {f"{stock}.{name}": tensors[f"{layer}.{name}"] for layer, stock, name in _head_parameters(head, form)}


def _head_parameters(head: TaskHead, form: HeadForm) -> Iterator[tuple[str, str, str]]:
    """Yield (layer of the head, name of this layer in the stock model, parameter name)."""
    for layer in ("dense", "norm", "output"):
        stock = getattr(form, layer)
        if stock is not None:
            yield from ((layer, stock, name) for name in getattr(head, layer).state_dict())
