"""Optimizers: parameter groups, AdamW that can skip a step, and averaged SGD."""

from typing import Any

import torch

from trainers.config.finetuning import Finetuning
from trainers.config.job import Job, Optimizer
from trainers.engine.layer_rates import layer_depths, split_by_layer

# Names of the optimizer state of a parameter, by what steps it.
ADAM, MUON, AVERAGE = ("exp_avg", "exp_avg_sq"), ("momentum_buffer",), ("average",)


class SkippingAdamW(torch.optim.AdamW):
    """AdamW that changes neither weights nor moments nor step counts while `skip` is set."""

    skip = False

    def step(self, closure: Any = None) -> Any:
        """Take one step, unless `skip` is set."""
        return None if self.skip else super().step(closure)


class AveragedSGD(torch.optim.Optimizer):
    """SGD that averages its weights, starting with the first update after `begin_averaging`. Until then, the
    average equals the weights.

    The weights after the first averaged update count only until the second one, which replaces them in the
    average. The code of Merity et al. (2017), which switches from torch.optim.SGD to torch.optim.ASGD (t0=0,
    lambd=0), gives the same result.

    Before the first step, set the state of each tensor with `new_state`.
    """

    skip = False
    grad_scale: Any = None

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"weight_decay": 0.0})

    @property
    def averaged(self) -> int | None:
        """The number of updates since averaging began, or None if it has not begun."""
        averaged: int | None = next(iter(self.state.values()))["averaged"]
        return averaged

    def begin_averaging(self, averaged: int = 0) -> None:
        """Average the weights from the next update on. When a run is resumed, `averaged` is the number of
        updates already in the average.
        """
        for state in self.state.values():
            state["averaged"] = averaged

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step, unless `skip` is set."""
        if self.skip:
            return
        # DeepSpeed steps one group at a time, or a part of one, so updates are counted by tensor.
        for group in self.param_groups:
            if not group["params"]:
                continue
            stepped = [tensor for tensor in group["params"] if tensor.grad is not None]
            gradients = [tensor.grad for tensor in stepped]
            if stepped and self.grad_scale is not None:
                torch._foreach_div_(gradients, self.grad_scale)
            if stepped and group["weight_decay"]:
                torch._foreach_add_(gradients, stepped, alpha=group["weight_decay"])
            if stepped:
                torch._foreach_add_(stepped, gradients, alpha=-group["lr"])
            self._average(group["params"])

    def _average(self, tensors: list[Any]) -> None:
        states = [self.state[tensor] for tensor in tensors]
        for state in states:
            state["averaged"] = None if state["averaged"] is None else state["averaged"] + 1
        averages = [state["average"] for state in states]
        weight = 1 / max(1, (states[0]["averaged"] or 0) - 1)
        if weight == 1:
            torch._foreach_copy_(averages, tensors)
        else:
            torch._foreach_lerp_(averages, tensors, weight)


def new_state(tensor: Any, keys: tuple[str, ...], updates: int) -> dict[str, Any]:
    """Return a new optimizer state for a tensor, with the entries `keys`. AdamW's step count starts at
    `updates`.
    """
    if keys == AVERAGE:
        return {"average": tensor.detach().clone(), "averaged": None}
    state = {key: torch.zeros_like(tensor) for key in keys}
    if keys == ADAM:
        state["step"] = torch.tensor(float(updates), dtype=torch.float32, device=tensor.device)
    return state


def state_keys(parameter: Any, optimizer: Any) -> tuple[str, ...]:
    """Return the names of the state tensors that the torch optimizer `optimizer` keeps for a parameter.
    AdamW's step count is not among them.
    """
    if isinstance(optimizer, AveragedSGD):
        return AVERAGE
    return MUON if getattr(parameter, "use_muon", False) else ADAM


def clipping_divisor(norm: float, largest: float) -> Any:
    """Return the number by which gradients of norm `norm` must be divided to clip them to norm `largest`, or
    None if they need no clipping. A `largest` of 0 turns clipping off.
    """
    return torch.tensor((norm + 1e-6) / largest) if largest and norm > largest else None


def job_groups(model: Any, config: Job) -> list[dict[str, Any]]:
    """Return the parameter groups of a job, divided by layer if the job sets `layer_decay` or
    `unfreeze_every`.
    """
    groups = parameter_groups(model, config.optimizer)
    if isinstance(config, Finetuning) and (config.layer_decay < 1 or config.unfreeze_every):
        named = layer_depths(model, config.model.family)
        depths = {id(parameter): named[name] for name, parameter in model.named_parameters()}
        groups = split_by_layer(groups, depths, config.layer_decay, config.unfreeze_every)
    return groups


def parameter_groups(model: Any, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return groups of the trained parameters, divided by optimizer (Muon, or else AdamW or SGD) and by
    whether weights decay. `peak` is the highest learning rate of a group.

    Vectors (norm gains, biases) never decay, and embeddings do only with `decay_embeddings`. Muon trains the
    hidden matrices: all two-dimensional parameters except embeddings and the output layer (Jordan et al.,
    2024). Parameters marked `undecayed` count as vectors. `use_muon` is set on every parameter and group,
    because DeepSpeed reads it.
    """
    embeddings = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    head = model.get_output_embeddings()
    outer = embeddings | ({id(head.weight)} if head is not None else set())
    matrices: list[Any] = []
    decayed: list[Any] = []
    kept: list[Any] = []
    for parameter in (each for each in model.parameters() if each.requires_grad):
        undecayed = getattr(parameter, "undecayed", False)  # vectors that peft and prompts store as matrices
        hidden = parameter.ndim == 2 and id(parameter) not in outer and not undecayed
        parameter.use_muon = optimizer.kind == "muon" and hidden
        if parameter.use_muon:
            matrices.append(parameter)
        elif parameter.ndim < 2 or undecayed or (id(parameter) in embeddings and not optimizer.decay_embeddings):
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
