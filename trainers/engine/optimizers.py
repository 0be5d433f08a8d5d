"""Optimizers: parameter groups, and AdamW that can skip a step."""

from typing import Any

import torch

from trainers.config.finetuning import Finetuning
from trainers.config.job import Job, Optimizer
from trainers.engine.layer_rates import layer_depths, split_by_layer


class SkippingAdamW(torch.optim.AdamW):
    """AdamW that changes neither weights nor moments nor step counts while `skip` is set."""

    skip = False

    def step(self, closure: Any = None) -> Any:
        """Take one step, unless `skip` is set."""
        return None if self.skip else super().step(closure)


def clipping_divisor(norm: float, largest: float) -> Any:
    """Return the number by which AdamW divides gradients of norm `norm` when it reads them, so that their
    norm is at most `largest`; None for no clipping. A separate pass over the gradients would take 1 % of a
    step.
    """
    return torch.tensor((norm + 1e-6) / largest) if largest and norm > largest else None


def job_groups(model: Any, config: Job) -> list[dict[str, Any]]:
    """Return the parameter groups of a job; in fine-tuning, they are divided by layer if the job has rates by
    layer.
    """
    groups = parameter_groups(model, config.optimizer)
    if isinstance(config, Finetuning) and (config.layer_decay < 1 or config.unfreeze_every):
        named = layer_depths(model, config.model.family)
        depths = {id(parameter): named[name] for name, parameter in model.named_parameters()}
        groups = split_by_layer(groups, depths, config.layer_decay, config.unfreeze_every)
    return groups


def parameter_groups(model: Any, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the trained parameters in groups for AdamW, or for Muon and AdamW. `peak` is the highest
    learning rate of a group.

    Vectors (norm gains, biases) and parameters marked `undecayed` never decay, embeddings only with
    `decay_embeddings`. Muon takes the hidden matrices: all parameters of two dimensions except embeddings and
    the output layer (Jordan et al., 2024). Its parameters and groups are marked `use_muon`, which DeepSpeed
    reads.
    """
    embeddings = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    head = model.get_output_embeddings()
    outer = embeddings | ({id(head.weight)} if head is not None else set())
    matrices: list[Any] = []
    decayed: list[Any] = []
    kept: list[Any] = []
    for parameter in (each for each in model.parameters() if each.requires_grad):
        parameter.use_muon = optimizer.kind == "muon" and parameter.ndim == 2 and id(parameter) not in outer
        if parameter.use_muon:
            matrices.append(parameter)
        elif (
            parameter.ndim < 2
            or getattr(parameter, "undecayed", False)
            or (id(parameter) in embeddings and not optimizer.decay_embeddings)
        ):
            kept.append(parameter)
        else:
            decayed.append(parameter)
    rate, muon_rate = optimizer.learning_rate, optimizer.muon_learning_rate
    adam = {"lr": rate, "peak": rate, "betas": optimizer.betas, "eps": optimizer.epsilon, "use_muon": False}
    muon = {"lr": muon_rate, "peak": muon_rate, "momentum": optimizer.muon_momentum, "use_muon": True}
    groups = [
        {"params": matrices, "weight_decay": optimizer.weight_decay, **muon},
        {"params": decayed, "weight_decay": optimizer.weight_decay, **adam},
        {"params": kept, "weight_decay": 0.0, **adam},
    ]
    return [group for group in groups if group["params"]]
