"""Build the model that a job trains: the network, the weights of its base, its task head and its method."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainers.adapters.shared.training_method import Encode
from trainers.config.architecture import Model
from trainers.config.finetuning import Finetuning
from trainers.config.job import Job
from trainers.engine.forward import Forward, forward_of
from trainers.engine.losses import LOSSES, Loss
from trainers.engine.task_losses import task_losses
from trainers.models import MODELS, build_model, stack_parameters
from trainers.models.heads.task_head import Layers, Pooling, build_head
from trainers.models.interface import HeadKind
from trainers.tasks.schema.task import Task


def build_forward(
    config: Job, specials: dict[str, int], base: Mapping[str, Any], encode: Encode | None = None
) -> Forward:
    """Build the model that a resolved job trains, with its losses. Its weights are in fp32 and the same on
    every worker.

    `base` holds initial weights by parameter name. Parameters that it lacks, and the output layer of a task
    head, are initialised from the job's seed. `encode`, which maps a text to token ids, is needed only for a
    prompt that is initialised from a text.
    """
    forward = build_without_method(config, specials, base)
    if isinstance(config, Finetuning):
        model = config.model
        config.method.apply(forward.model, model.architecture, model.family, config.seed, encode)
    return forward


def build_without_method(config: Job, specials: dict[str, int], base: Mapping[str, Any]) -> Forward:
    """Return the model as `build_forward` does, but without applying the method of a fine-tuning job."""
    network = base_network(config, specials, base)
    if not isinstance(config, Finetuning):
        return forward_of(network, config)
    losses: tuple[Loss, ...] = (LOSSES["loss"],)
    if (kind := config.head_kind) is not None:
        (task,) = config.tasks
        head = (config.head.pooling, config.layers, config.head.dropout)
        attach_head(network, config.model, kind, outputs_of(task), config.seed, *head, weights=base)
        losses = task_losses(kind, config.label_smoothing, class_weights(config))
    return Forward(network, config.model.architecture, True, losses)


def base_network(config: Job, specials: dict[str, int], base: Mapping[str, Any]) -> Any:
    """Return the network of a job without a task head or a method. Parameters that `base` lacks are
    initialised from the job's seed.
    """
    import torch

    network = build_model(config.model, specials, config.seed)
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name in parameters.keys() & base.keys():
            parameters[name].copy_(base[name])
    return network


def attach_head(
    network: Any,
    model: Model,
    kind: HeadKind,
    outputs: int,
    seed: int,
    pooling: Pooling | None = None,
    layers: Layers = "last",
    dropout: float | None = None,
    weights: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Attach a head to a model as `task_head`, and freeze the model's pretraining heads. Parameters of the
    new head, except those of its output layer, are copied from `weights` where name and shape agree.
    """
    import torch

    used = stack_parameters(network, model)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in used)
    network.task_head = build_head(MODELS[model.architecture], model, kind, outputs, seed, pooling, layers, dropout)
    with torch.no_grad():
        for name, parameter in network.task_head.named_parameters():
            known = weights.get(f"task_head.{name}")
            if known is not None and known.shape == parameter.shape and not name.startswith("output."):
                parameter.copy_(known)


def outputs_of(task: Task) -> int:
    """Return the number of outputs of a task's head: one per class or tag, two for spans (start and end), one
    for other kinds.
    """
    return {"classify": len(task.labels), "tag": len(task.labels), "span": 2}.get(task.kind, 1)


def class_weights(config: Finetuning) -> list[float] | None:
    """Return the weight of each class, in the order of the task's labels, or None if the classes are not
    weighted. The job must be resolved.
    """
    assert not isinstance(config.class_weights, str), "the job is resolved"
    if config.class_weights is None:
        return None
    return [config.class_weights[name] for name in config.tasks[0].label_names]
