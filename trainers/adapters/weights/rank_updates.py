"""Apply AdaLoRA's rank allocation to the model of an engine, at any ZeRO stage. All workers make the same
decisions.
"""

from collections.abc import Mapping
from typing import Any

from trainers.adapters.weights.rank_allocation import SCORES, RankAllocation


class RankUpdates:
    """Applies AdaLoRA's allocation of ranks to the model of one engine. Does nothing for other methods."""

    def __init__(self, model: Any, partitions: Any, steps: int | None) -> None:
        """Prepare the allocation of the ranks of `model` for a run of `steps` steps. `steps` may be None if
        the method is not AdaLoRA. `partitions` is the engine's SingleWorker or ZeroWorkers, which reads and
        writes full tensors.
        """
        method = getattr(model, "rank_budget", None)
        self._partitions, self._allocation = partitions, None
        if method is None:
            return
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._parameters = {name: each for name, each in named.items() if ".lora_" in name}
        shapes = {name: tuple(getattr(each, "ds_shape", each.shape)) for name, each in self._parameters.items()}
        assert steps is not None, "the job is resolved"
        self._allocation = RankAllocation(shapes, method, steps)
        self._penalised = [module for module in model.modules() if hasattr(module, "passes")]

    def begin(self, passes: int) -> None:
        """Begin a step of `passes` forward and backward passes per worker. Each pass adds an equal share of
        the orthogonality penalty.
        """
        if self._allocation is None:
            return
        for module in self._penalised:
            module.passes = passes

    def gradients(self) -> dict[str, Any]:
        """Return the gradients of AdaLoRA's parameters by name. Call this before the step changes the
        weights. This is a collective operation.
        """
        if self._allocation is None:
            return {}
        return {name: self._partitions.gradient(each).clone() for name, each in self._parameters.items()}

    def update(self, step: int, gradients: Mapping[str, Any]) -> None:
        """Update the statistics, and remove ranks if the schedule requires it after `step` steps. `gradients`
        are those of the latest step. This is a collective operation.
        """
        if self._allocation is None:
            return
        wanted = [(parameter, "weight") for parameter in self._parameters.values()]
        weights = dict(zip(self._parameters, self._partitions.read(wanted), strict=True))
        for name, values in self._allocation.update(step, weights, gradients).items():
            self._partitions.write(self._parameters[name], "weight", values)

    def scores(self, name: str) -> dict[str, Any]:
        """Return the statistics of a parameter for storage in a checkpoint; empty if it has none."""
        return {} if self._allocation is None else self._allocation.scores.get(name, {})

    def restore(self, name: str, tensors: Mapping[str, Any]) -> None:
        """Restore the statistics of a parameter from the tensors of a checkpoint, if they are among them."""
        if self._allocation is not None and name in self._allocation.scores and SCORES[0] in tensors:
            self._allocation.scores[name] = {key: tensors[key] for key in SCORES}
