"""The base class of LoRA and its variants."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.errors import ConfigError
from trainers.adapters.shared.blocks import Part
from trainers.adapters.shared.peft_layers import PeftMethod


@dataclass(frozen=True)
class LowRankMethod(PeftMethod):
    """Base class of the methods that add matrices, computed from factors of rank `rank`, to the matrices of
    `targets` in every block. `alpha` sets the scale of the added matrices.
    """

    rank: int = 8
    alpha: float = 8.0
    targets: tuple[Part, ...] = ("query", "value")

    def check(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank: got {self.rank}, allowed 1 or more")
        if self.alpha <= 0:
            raise ValueError(f"alpha: got {self.alpha}, allowed above 0")
        if not self.targets:
            raise ValueError("targets: got none, allowed one or more of query, key, value, output, up, down")

    @property
    def parts(self) -> Sequence[Part]:
        return self.targets

    def check_modules(self, modules: Sequence[tuple[str, Any]]) -> None:
        check_rank(self.rank, modules)


def check_rank(rank: int, modules: Sequence[tuple[str, Any]]) -> None:
    """Raise ConfigError if `rank` exceeds the smaller dimension of any of the modules' weight matrices."""
    for name, module in modules:
        largest = min(module.weight.shape)
        if rank > largest:
            raise ConfigError(
                f"method.rank: got {rank}, allowed 1 to {largest}, the smaller side of {name} ({list(module.weight.shape)})"
            )
