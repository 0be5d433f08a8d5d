"""Full fine-tuning (Devlin et al., 2019, section 3.2)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.shared.training_method import Encode, TrainingMethod


@dataclass(frozen=True)
class Full(TrainingMethod):
    """Train every parameter that the losses depend on."""

    kind: Literal["full"] = "full"

    freezes: ClassVar[bool] = False
    mergeable: ClassVar[bool] = True
    needs_transformer: ClassVar[bool] = False

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        """Leave the model unchanged: nothing is frozen and nothing is added."""

    def merge(self, network: Any) -> None:
        """Leave the model unchanged: nothing was added to it."""
