"""BitFit (Ben Zaken et al., 2022): train the biases only, 0.1 % of BERT's parameters."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.shared.blocks import BLOCKS, stack_modules
from trainers.adapters.shared.training_method import Encode, TrainingMethod, freeze


@dataclass(frozen=True)
class BitFit(TrainingMethod):
    """Train every bias of the base outside its pretraining heads, including the biases of norms, and no other
    parameter of the base.
    """

    kind: Literal["bitfit"] = "bitfit"

    mergeable: ClassVar[bool] = True
    needs_transformer: ClassVar[bool] = False

    def refusal(self, architecture: str) -> str | None:
        if not BLOCKS[architecture].biases:
            return f"got bitfit, which trains biases, and {architecture} has none; use lora or ia3"
        return None

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        freeze(network)
        for stack in stack_modules(network, architecture):
            for name, parameter in stack.named_parameters():
                if name.endswith("bias"):
                    parameter.requires_grad_(True)

    def merge(self, network: Any) -> None:
        """Leave the model unchanged: the trained biases are already part of the base."""
