"""BitFit (Ben Zaken et al., 2022): the biases are trained, 0.1 % of BERT."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.shared.blocks import stack_modules
from trainers.adapters.shared.training_method import Encode, TrainingMethod, freeze


@dataclass(frozen=True)
class BitFit(TrainingMethod):
    """Train every bias of the stacks, those of norms included, and nothing else of the base."""

    kind: Literal["bitfit"] = "bitfit"

    mergeable: ClassVar[bool] = True

    def refusal(self, architecture: str) -> str | None:
        """Llama, ModernBERT and T5 have no biases."""
        if architecture in ("llama", "modernbert", "t5"):
            return f"got bitfit, which trains biases, and {architecture} has none; use lora or ia3"
        return None

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        """Freeze all but the biases."""
        freeze(network)
        for stack in stack_modules(network, architecture):
            for name, parameter in stack.named_parameters():
                if name.endswith("bias"):
                    parameter.requires_grad_(True)

    def merge(self, network: Any) -> None:
        """Leave the model as it is: biases are weights of the base."""
