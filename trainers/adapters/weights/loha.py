"""LoHa, with peft's layers: add to a matrix the low-rank Hadamard product of FedPara (Hyeon-Woo et al.,
2022).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.shared.blocks import Part
from trainers.adapters.shared.peft_layers import PeftMethod, check_rank
from trainers.adapters.weights.lora import check_low_rank


@dataclass(frozen=True)
class LoHa(PeftMethod):
    """Add the elementwise product of two products of rank `rank` to the matrices of `targets`, scaled by
    alpha / rank.

    The sum has a rank of up to rank^2, for twice the parameters of LoRA.
    """

    kind: Literal["loha"] = "loha"
    rank: int = 8
    alpha: float = 8.0
    targets: tuple[Part, ...] = ("query", "value")

    config_name: ClassVar[str] = "LoHaConfig"
    takes_conv1d: ClassVar[bool] = False

    def check(self) -> None:
        """Validate ranges."""
        check_low_rank(self.rank, self.alpha, self.targets)

    @property
    def parts(self) -> Sequence[str]:
        """The parts that are adapted."""
        return self.targets

    def settings(self, architecture: str) -> Mapping[str, Any]:
        """Return rank and scale."""
        return {"r": self.rank, "alpha": self.alpha}

    def check_modules(self, modules: Sequence[tuple[str, Any]]) -> None:
        """Raise ConfigError if the rank exceeds that of a matrix."""
        check_rank(self.rank, modules)
