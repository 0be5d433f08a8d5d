"""How AdaLoRA distributes its ranks while it trains (Zhang et al., 2023, section 3).

A triplet is a singular value with its two singular vectors. Its importance is that of the value plus the mean over each
vector of |weight x gradient|, smoothed over steps and times its smoothed deviation (equations 7 to 11). The singular values
of the least important triplets are set to 0, as many as the budget of the step says (equation 12).
"""

from collections.abc import Mapping
from typing import Any

import torch

from trainers.adapters.weights.adalora import AdaLoRA

_VALUES, _RIGHT, _LEFT = ".lora_E.", ".lora_A.", ".lora_B."
SCORES = ("importance", "uncertainty")
"""What is kept for every parameter of AdaLoRA, of its shape."""


class RankAllocation:
    """The importance of the triplets of one network, over a run of `steps` steps."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], method: AdaLoRA, steps: int) -> None:
        """`shapes` are those of all parameters of AdaLoRA by name."""
        self._method, self._steps = method, steps
        self.warmup, self.final = int(method.warmup * steps), int(method.final * steps)
        self.scores = {name: {key: torch.zeros(shape) for key in SCORES} for name, shape in shapes.items()}
        self._values = [name for name in shapes if _VALUES in name]

    def budget(self, step: int) -> int:
        """Triplets that are kept after `step` steps: all, then fewer by a cubic schedule, then the final number."""
        first, last = (len(self._values) * rank for rank in (self._method.initial_rank, self._method.rank))
        if step <= self.warmup:
            return first
        if step > self._steps - self.final:
            return last
        left = 1 - (step - self.warmup) / (self._steps - self.final - self.warmup)
        return int((first - last) * left**3 + last)

    def update(self, step: int, weights: Mapping[str, Any], gradients: Mapping[str, Any]) -> dict[str, Any]:
        """The singular values that change, by name, after `step` steps; from all weights after the step, and the gradients
        that it took.
        """
        if step < self._steps - self.final:
            for name, scores in self.scores.items():
                self._smooth(scores, (weights[name] * gradients[name]).abs().to("cpu", torch.float32))
        final = step > self._steps - self.final
        removed = len(self._values) * self._method.initial_rank - self.budget(step)
        if removed == 0 or not (final or (step > self.warmup and step % self._method.interval == 0)):
            return {}
        triplets = {name: self._importance(name) for name in self._values}
        threshold = torch.cat(list(triplets.values())).kthvalue(removed)[0]
        return {
            name: weights[name].masked_fill((its <= threshold)[:, None].to(weights[name].device), 0.0)
            for name, its in triplets.items()
        }

    def _smooth(self, scores: dict[str, Any], sensitivity: Any) -> None:
        one, two = self._method.betas
        scores["importance"] = one * scores["importance"] + (1 - one) * sensitivity
        deviation = (sensitivity - scores["importance"]).abs()
        scores["uncertainty"] = two * scores["uncertainty"] + (1 - two) * deviation

    def _importance(self, values: str) -> Any:
        """[rank], from the name of the singular values."""
        score = {
            part: self.scores[name]["importance"] * self.scores[name]["uncertainty"]
            for part in (_VALUES, _RIGHT, _LEFT)
            for name in (values.replace(_VALUES, part),)
        }
        return score[_VALUES][:, 0] + score[_RIGHT].mean(1) + score[_LEFT].mean(0)


class _Penalised(torch.autograd.Function):
    """A tensor as it is, whose backward pass gives `penalty` the gradient 1, regardless of the loss."""

    @staticmethod
    def forward(ctx: Any, states: Any, penalty: Any) -> Any:
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], gradients[0].new_ones(())


def penalise(layer: Any, weight: float, matrices: int) -> None:
    """Train singular vectors of a layer towards orthogonality: add to its gradients those of weight x |P P^T - I| /
    `matrices`, the mean over all matrices (as peft; the paper squares the norm), once in `layer.passes` passes.
    """
    layer.passes = 1

    def add(module: Any, given: Any, states: Any) -> Any:
        if not torch.is_grad_enabled():
            return states
        right, left = module.lora_A["default"], module.lora_B["default"]
        identity = torch.eye(right.shape[0], device=right.device, dtype=right.dtype)
        penalty = (right @ right.T - identity).norm() + (left.T @ left - identity).norm()
        return _Penalised.apply(states, penalty * (weight / matrices / module.passes))

    layer.register_forward_hook(add)
