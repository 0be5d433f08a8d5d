"""The allocation of AdaLoRA's ranks during training (Zhang et al., 2023, section 3).

A triplet is a singular value with its two singular vectors. The sensitivity of a parameter is |weight x
gradient|. Its importance is the product of two running averages: of the sensitivity, and of the sensitivity's
absolute deviation from the first average. The importance of a triplet is the importance of its singular value
plus, for each of its two vectors, the mean importance of the vector's entries (equations 7 to 11). At each
allocation step, the singular values of the least important triplets are set to 0, so that only as many
triplets remain as the budget allows (equation 12).
"""

from collections.abc import Mapping
from typing import Any

import torch

from trainers.adapters.weights.adalora import AdaLoRA

_VALUES, _RIGHT, _LEFT = ".lora_E.", ".lora_A.", ".lora_B."
SCORES = ("importance", "uncertainty")
"""The names of the smoothed sensitivity and of its smoothed deviation, which are kept for every parameter of AdaLoRA.
Each is a tensor of the parameter's shape.
"""


class RankAllocation:
    """Allocates AdaLoRA's ranks among the matrices of one network, by importance, over a run of `steps`
    steps.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], method: AdaLoRA, steps: int) -> None:
        """`shapes` maps the names of all AdaLoRA parameters to their shapes."""
        self._method, self._steps = method, steps
        self.warmup, self.final = int(method.warmup * steps), int(method.final * steps)
        self.scores = {name: {key: torch.zeros(shape) for key in SCORES} for name, shape in shapes.items()}
        self._values = [name for name in shapes if _VALUES in name]

    def budget(self, step: int) -> int:
        """Return how many triplets to keep after `step` steps, over all matrices. The number stays constant
        during warm-up, then falls on a cubic schedule, and is constant again in the last `final` steps.
        """
        first, last = (len(self._values) * rank for rank in (self._method.initial_rank, self._method.rank))
        if step <= self.warmup:
            return first
        if step > self._steps - self.final:
            return last
        left = 1 - (step - self.warmup) / (self._steps - self.final - self.warmup)
        return int((first - last) * left**3 + last)

    def update(self, step: int, weights: Mapping[str, Any], gradients: Mapping[str, Any]) -> dict[str, Any]:
        """Update the `scores` if more than `final` steps remain. Return the new singular values, by parameter
        name, with those of removed triplets set to 0; empty if no triplets are removed at this step.

        `weights` are the AdaLoRA parameters after `step` steps, and `gradients` are their gradients in the
        latest step.
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
        """Return the importance of each triplet of one matrix, float32 [rank]. `values` is the name of the
        parameter that holds the matrix's singular values.
        """
        score = {
            part: self.scores[name]["importance"] * self.scores[name]["uncertainty"]
            for part in (_VALUES, _RIGHT, _LEFT)
            for name in (values.replace(_VALUES, part),)
        }
        return score[_VALUES][:, 0] + score[_RIGHT].mean(1) + score[_LEFT].mean(0)
