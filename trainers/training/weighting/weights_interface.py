"""The interface of all methods of online weighting, and the file in which a run leaves its weights for other
runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

import numpy as np

from gristmill.config import dump_yaml
from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from trainers.config.loss_weighting import WEIGHTS_FILE
from trainers.engine.engine import Scale, Totals
from trainers.rows.batch import Batch


@dataclass(frozen=True)
class WeightsState:
    """The state of a weighting method: the `weights` [domains] after the last step, and `summed`, their sum
    over `steps` steps.
    """

    weights: np.ndarray
    summed: np.ndarray
    steps: int = field(default=0, kw_only=True)


State = TypeVar("State", bound=WeightsState)


class OnlineWeights(ABC, Generic[State]):
    """Weights of a run's domains that are updated after every step. Every worker has its own object, with the
    same weights.
    """

    def __init__(self, names: Sequence[str], state: State) -> None:
        self._names, self.now = tuple(names), state

    @abstractmethod
    def begin(self, batches: Sequence[Batch]) -> Scale:
        """Return the `Scale` for a step that trains on `batches`: a function that takes the number of targets
        of each loss and domain, and returns the factors by which their nats are multiplied.
        """

    @abstractmethod
    def end(self, totals: Totals, norm: float) -> None:
        """Adopt the new weights after a step, unless its loss or the `norm` of its gradient is not finite."""

    def fields(self) -> dict[str, Any]:
        """Return the weights by domain and their means over the run so far, as fields of a step event."""
        mean = self.now.summed / max(1, self.now.steps)
        return {
            "domain_weights": dict(zip(self._names, self.now.weights.tolist(), strict=True)),
            "mean_domain_weights": dict(zip(self._names, mean.tolist(), strict=True)),
        }

    def state(self) -> dict[str, Any]:
        """Return the state as JSON-compatible data, with all numbers unrounded."""
        values = {each.name: getattr(self.now, each.name) for each in fields(self.now)}
        lists = {name: its.tolist() if isinstance(its, np.ndarray) else its for name, its in values.items()}
        return {"domains": list(self._names), **lists}

    def resume(self, state: Mapping[str, Any] | None) -> None:
        """Continue from the state that a checkpoint records. Raises UserError if it is None, or belongs to
        other domains or to another method.
        """
        names = {each.name for each in fields(self.now)}
        if state is None or tuple(state["domains"]) != self._names:
            there = f"weights of the domains {', '.join(state['domains'])}" if state else "no weights of domains"
            raise UserError(
                f"online_weights: the checkpoint has {there}, the run reads {', '.join(self._names)}; begin another run"
            )
        if set(state) != names | {"domains"}:
            raise UserError("online_weights: the checkpoint was written by another method; begin another run")
        values: dict[str, Any] = {
            # The shape of an array without entries is not in its list.
            name: its if name == "steps" else np.array(its, float).reshape(-1, *getattr(self.now, name).shape[1:])
            for name, its in state.items()
            if name in names
        }
        self.now = replace(self.now, **values)


def write_online_weights(run: LocalPath, weights: OnlineWeights[Any]) -> None:
    """Write the mean and last weights to `domain_weights.yaml` in the run's directory. Other runs can take
    the means as `data.weights`.
    """
    its = weights.fields()
    record = {"weights": its["mean_domain_weights"], "last": its["domain_weights"]}
    (run / WEIGHTS_FILE).write_atomic(dump_yaml(record).encode())
