"""Train only the task's head, on top of a frozen base. If the head is a single matrix, this is a linear probe
(Alain and Bengio, 2017).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gristmill.errors import ConfigError
from trainers.adapters.shared.training_method import Encode, TrainingMethod, freeze


@dataclass(frozen=True)
class HeadOnly(TrainingMethod):
    """Freeze the base and train the task's head. Dropout in the base stays on, unlike in `FeatureExtraction`."""

    kind: Literal["head"] = "head"

    mergeable: ClassVar[bool] = True
    needs_transformer: ClassVar[bool] = False

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        require_head(network, self.kind)
        freeze(network)

    def merge(self, network: Any) -> None:
        """Leave the model unchanged: the base was not trained."""


def require_head(network: Any, kind: str) -> None:
    """Raise ConfigError unless the network has a task head with parameters to train."""
    head = getattr(network, "task_head", None)
    if head is None or not any(True for _ in head.parameters()):
        raise ConfigError(
            f"method.kind: got {kind}, which trains only the head of the task, but this task has none: its "
            f"predictions are text; use full, lora, adapter, prefix or prompt"
        )
