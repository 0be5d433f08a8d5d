"""AdaLoRA (Zhang et al., 2023): LoRA in the form of a singular value decomposition, whose ranks are allocated by
importance while it trains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.shared.blocks import Part
from trainers.adapters.shared.peft_layers import PeftMethod, check_rank
from trainers.adapters.weights.lora import check_low_rank


@dataclass(frozen=True)
class AdaLoRA(PeftMethod):
    """Add P diag(E) Q to the matrices of `targets`, of rank `initial_rank` at first, scaled by alpha / initial_rank."""

    kind: Literal["adalora"] = "adalora"
    rank: int = 8
    initial_rank: int = 12
    alpha: float = 16.0
    targets: tuple[Part, ...] = ("query", "value")

    config_name: ClassVar[str] = "AdaLoraConfig"

    def check(self) -> None:
        """Validate ranges."""
        check_low_rank(self.rank, self.alpha, self.targets)
        if self.initial_rank < self.rank:
            raise ValueError(f"initial_rank: got {self.initial_rank}, allowed rank ({self.rank}) or more")

    @property
    def parts(self) -> Sequence[str]:
        """`targets`."""
        return self.targets

    def settings(self, architecture: str) -> Mapping[str, Any]:
        """Ranks and scale; peft requires a number of steps, which only its own allocation reads."""
        return {
            "init_r": self.initial_rank,
            "target_r": self.rank,
            "lora_alpha": self.alpha,
            "total_step": 10,
            "fan_in_fan_out": architecture in ("gpt", "gpt2"),
        }

    def check_modules(self, modules: Sequence[tuple[str, Any]]) -> None:
        """The initial rank fits."""
        check_rank(self.initial_rank, modules)
