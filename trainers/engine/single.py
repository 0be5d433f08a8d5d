"""A model and its optimizer on one worker: torch alone, without the hooks, buffers and copies that ZeRO needs."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch

from trainers.config.job import Job
from trainers.engine.optimizers import AveragedSGD, clipping_divisor, job_groups, new_state, state_keys


class SingleWorker:
    """A worker that trains alone, with the whole model and the whole optimizer state of AdamW or SGD. Has the
    interface of `engine.zero.ZeroWorkers`.

    With `precision: bf16` the optimizer keeps an fp32 copy of the trained weights, and gradients are summed
    over micro-batches in fp32.
    """

    zero_stage: ClassVar[int] = 0

    def __init__(self, forward: Any, config: Job) -> None:
        self.forward, self._largest = forward, config.optimizer.gradient_clipping
        if torch.cuda.is_available():
            forward.to("cuda")
        groups = job_groups(forward.model, config)
        trained = [parameter for parameter in forward.model.parameters() if parameter.requires_grad]
        self._masters = {parameter: parameter for parameter in trained}
        self._hooks: list[Any] = []
        if config.precision == "bf16":
            self._masters = {each: torch.nn.Parameter(each.detach().clone()) for each in trained}
            forward.bfloat16()
            self._hooks = [each.register_post_accumulate_grad_hook(self._add) for each in trained]
        groups = [{**group, "params": [self._masters[each] for each in group["params"]]} for group in groups]
        averages = config.optimizer.kind == "asgd"
        self._optimizer: Any = AveragedSGD(groups) if averages else torch.optim.AdamW(groups, fused=True)
        self.allocate(0)

    def _add(self, parameter: Any) -> None:
        master, gradient = self._masters[parameter], parameter.grad
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if master.grad is None:
            master.grad = gradient.float()
        else:
            master.grad += gradient
        parameter.grad = None

    @property
    def inner(self) -> Any:
        """The torch optimizer that updates the weights."""
        return self._optimizer

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the optimizer."""
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        return groups

    def backward(self, loss: Any, is_last: bool) -> None:
        """Compute the gradients of one micro-batch's part of the loss and add them to those of the step."""
        loss.backward()

    def update(self) -> float:
        """Take a step, unless the gradient is not finite, and clear the gradient. Returns the norm of the
        gradient of all parameters before clipping.
        """
        gradients = [master.grad for master in self._masters.values() if master.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if math.isfinite(norm):
            self._optimizer.grad_scale = clipping_divisor(norm, self._largest)
            self._optimizer.step()
            self._round()
        self._optimizer.zero_grad()
        return norm

    def _round(self) -> None:
        rounded = [(parameter, master) for parameter, master in self._masters.items() if parameter is not master]
        if rounded:
            with torch.no_grad():
                torch._foreach_copy_(*(list(each) for each in zip(*rounded, strict=True)))

    def discard(self) -> None:
        """Discard the gradients of an unfinished step and release cached GPU memory."""
        self._optimizer.zero_grad()
        for parameter in self._masters:
            parameter.grad = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def keys(self, parameter: Any) -> tuple[str, ...]:
        """Return the names of the state tensors that the optimizer keeps for a parameter."""
        return state_keys(parameter, self._optimizer)

    def allocate(self, updates: int) -> None:
        """Create the initial optimizer state of all trained parameters. AdamW's step count starts at
        `updates`.
        """
        for parameter, master in self._masters.items():
            self._optimizer.state[master] = new_state(master, self.keys(parameter), updates)

    def read(self, wanted: Iterable[tuple[Any, str]]) -> Iterator[torch.Tensor]:
        """Yield the fp32 tensor for each (trained parameter, key) in `wanted`: the parameter's weight if the
        key is `weight`, otherwise the parameter's optimizer state of that name. The tensors are those in use,
        not copies.
        """
        return (self._tensor(parameter, key) for parameter, key in wanted)

    def _tensor(self, parameter: Any, key: str) -> torch.Tensor:
        master = self._masters[parameter]
        tensor: torch.Tensor = master.data if key == "weight" else self._optimizer.state[master][key]
        return tensor

    def write(self, parameter: Any, key: str, value: torch.Tensor) -> None:
        """Set a trained parameter's weight (if `key` is `weight`) or its optimizer state named `key` to
        `value`.
        """
        self._tensor(parameter, key).copy_(value)
        if key == "weight":
            parameter.data.copy_(value)

    def gradient(self, parameter: Any) -> torch.Tensor:
        """Return the gradient of a trained parameter. Call this before `update`, which clips and then
        discards it.
        """
        gradient: torch.Tensor = self._masters[parameter].grad
        return gradient.detach()

    def close(self) -> None:
        """Remove the hooks, so that another worker can train the same model."""
        for hook in self._hooks:
            hook.remove()
