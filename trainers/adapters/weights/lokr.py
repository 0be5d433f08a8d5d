"""LoKr, with peft's layers: add a low-rank Kronecker product to a matrix (KronA: Edalati et al., 2022; as in
LyCORIS: Yeh et al., 2024).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.shared.blocks import Part
from trainers.adapters.shared.peft_layers import PeftMethod, check_rank
from trainers.adapters.weights.lora import check_low_rank


@dataclass(frozen=True)
class LoKr(PeftMethod):
    """Add the Kronecker product of a small matrix and a larger one to the matrices of `targets`, scaled by
    alpha / rank.

    The larger one is a product of rank `rank`, unless that has more parameters than the larger one itself.
    Each side of a matrix is split into two factors as close to each other as its divisors allow.
    """

    kind: Literal["lokr"] = "lokr"
    rank: int = 8
    alpha: float = 8.0
    targets: tuple[Part, ...] = ("query", "value")

    config_name: ClassVar[str] = "LoKrConfig"
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
